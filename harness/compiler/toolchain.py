"""The programs and packages the harness works with, and their versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
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
    text = _first_words(mojo, "--version")
    return text.strip().removeprefix("Mojo").strip() if text else None


def ptxas_version() -> str | None:
    """For example ``13.0.88``; None if ptxas is not on PATH."""
    ptxas = shutil.which("ptxas")
    text = _first_words(Path(ptxas), "--version") if ptxas else None
    if not text:
        return None
    release = [word for word in text.split() if word.startswith("V")]
    return release[-1][1:] if release else text.splitlines()[-1].strip()


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
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=QUERY_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
