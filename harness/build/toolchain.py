"""The programs and packages the harness works with, and their versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.errors import CannotRun

QUERY_SECONDS = 60


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it."""

    name: str
    compute_capability: str
    memory: str
    driver: str


def find_mojo() -> Path | None:
    """The Mojo compiler: HARNESS_MOJO, else the one installed beside this Python, else the one on PATH."""
    override = os.environ.get("HARNESS_MOJO")
    if override:
        return Path(override)
    beside = Path(sys.executable).with_name("mojo")
    if beside.exists():
        return beside
    found = shutil.which("mojo")
    return Path(found) if found else None


def require_mojo() -> Path:
    """The Mojo compiler, or an error that says how to get it."""
    mojo = find_mojo()
    if mojo is None or not mojo.exists():
        raise CannotRun(
            f"the Mojo compiler was not found{f' at {mojo}' if mojo else ''}; "
            "install it with `pip install 'max>=26.7,<26.8'`"
        )
    return mojo


def mojo_version() -> str | None:
    """For example ``1.2.0 (2016d0cd)``; None if there is no compiler that answers."""
    mojo = find_mojo()
    return _mojo_version(mojo) if mojo else None


@cache
def _mojo_version(mojo: Path) -> str | None:
    return ask_version(mojo)[0]


def ptxas_version() -> str | None:
    """For example ``13.0.88``; None if ptxas is not on PATH, or does not answer."""
    ptxas = shutil.which("ptxas")
    return _version_of(Path(ptxas), Path(ptxas).stat().st_mtime_ns)[0] if ptxas else None


def why_no_ptxas() -> str:
    """Said where `ptxas_version` is None."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        return "ptxas is not on PATH"
    return f"{ptxas}: {_version_of(Path(ptxas), Path(ptxas).stat().st_mtime_ns)[1]}"


@cache
def _version_of(program: Path, changed: int) -> tuple[str | None, str | None]:
    """Asked once in a process, unless it is replaced."""
    return ask_version(program)


def ask_version(program: Path) -> tuple[str | None, str | None]:
    """(what ``--version`` says, in short; None), or (None, why it says nothing)."""
    try:
        text = _answer(program, "--version").strip()
    except (OSError, subprocess.SubprocessError) as error:
        return None, _reason(error)
    if not text:
        return None, "it says nothing about its version"
    # NVIDIA's tools print several lines, the version as V13.0.88; Mojo prints "Mojo 1.2.0 (2016d0cd)".
    release = re.findall(r"\bV(\d[\w.]*)", text)
    return (release[-1] if release else text.splitlines()[-1].removeprefix("Mojo").strip()), None


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        last = (error.stderr or error.stdout or "").strip().splitlines()
        return f"it ends with code {error.returncode}{f': {last[-1]}' if last else ''}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it does not answer in {QUERY_SECONDS} s"
    return f"it cannot be run ({error.strerror if isinstance(error, OSError) else error})"


def package_version(name: str) -> str | None:
    """The installed version of a Python package, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_gpus() -> list[Gpu]:
    """The NVIDIA GPUs that a program here sees, in its order: those that ``nvidia-smi`` (part of the driver) lists,
    as far as CUDA_VISIBLE_DEVICES lets them through; empty without one.
    """
    smi = shutil.which("nvidia-smi")
    fields = "uuid,name,compute_cap,memory.total,driver_version"
    text = _first_words(Path(smi), f"--query-gpu={fields}", "--format=csv,noheader") if smi else None
    rows = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines()]
    listed = {row[0]: Gpu(*row[1:]) for row in rows if len(row) == 5}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(listed.values()) if visible is None else _visible(visible, listed)


def _visible(wanted: str, listed: dict[str, Gpu]) -> list[Gpu]:
    """By number or by the start of a UUID; the first that does not exist hides all after it (CUDA C++ Programming
    Guide, environment variables)."""
    found = []
    for word in (word.strip() for word in wanted.split(",")):
        names = list(listed)
        if word.isdecimal() and int(word) < len(names):
            found.append(listed[names[int(word)]])
            continue
        matches = [uuid for uuid in names if word.startswith("GPU-") and uuid.startswith(word)]
        if len(matches) != 1:
            break
        found.append(listed[matches[0]])
    return found


def versions() -> dict[str, str | None]:
    """What a result depends on, for records. None: not installed."""
    return {
        "mojo": mojo_version(),
        "max": package_version("max"),
        "ptxas": ptxas_version(),
        "python": platform.python_version(),
        "numpy": package_version("numpy"),
    }


def _first_words(program: Path, *arguments: str) -> str | None:
    """What a program prints, None if it cannot be run or fails."""
    try:
        return _answer(program, *arguments)
    except (OSError, subprocess.SubprocessError):
        return None


def _answer(program: Path, *arguments: str) -> str:
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=QUERY_SECONDS,
        stdin=subprocess.DEVNULL,
        check=True,
    ).stdout
