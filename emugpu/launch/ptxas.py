"""What NVIDIA's assembler says about PTX, where there is a ptxas: its version, figures, and why it refuses a text."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emugpu.errors import CannotRun
from emugpu.launch.launching import launched_ptx
from emugpu.launch.spec import Launchable
from emugpu.processes.program import ask_version, run

ASSEMBLE_SECONDS = 300
# Lines of `ptxas --verbose`, for example
#   ptxas info    : Used 64 registers, used 1 barriers, 40 bytes smem
#   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
_FIGURES = {
    "registers": r"Used (\d+) registers",
    "barriers": r"used (\d+) barriers",
    "static_shared_bytes": r"(\d+) bytes smem",
    "stack_bytes": r"(\d+) bytes stack frame",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
}
_TOO_OLD = re.compile(r"not defined for option|Unsupported \.version")
"""What a ptxas says that does not know the architecture, or the version of PTX: it is no judge."""
_REFUSAL = re.compile(r"ptxas (?:\S+, (?P<line>line \d+); )?(?:error|fatal)\s*: (?P<why>.*)")
_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.M)


def ptxas_version() -> str | None:
    """Returns, for example, ``13.0.88``; None if ptxas is not on PATH, or does not answer."""
    ptxas = shutil.which("ptxas")
    return _version_of(Path(ptxas), Path(ptxas).stat().st_mtime_ns)[0] if ptxas else None


def why_no_ptxas() -> str:
    """Returns the reason where `ptxas_version` is None."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        return "ptxas is not on PATH"
    return f"{ptxas}: {_version_of(Path(ptxas), Path(ptxas).stat().st_mtime_ns)[1]}"


@functools.cache
def _version_of(program: Path, changed: int) -> tuple[str | None, str | None]:
    """Asked once in a process, unless it is replaced."""
    return ask_version(program)


def assemble(ptx: Path, arch: str) -> dict[str, Any]:
    """Assembles a PTX file of one kernel and returns its statistics, or ``{"error": why}``.

    A figure that ptxas does not print is 0: it leaves out what a kernel does not use.
    """
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        return {"error": "ptxas is not on PATH"}
    command = [ptxas, "--verbose", f"--gpu-name={arch}", f"--output-file={ptx.with_suffix('.cubin')}", str(ptx)]
    try:
        done = run(command, ASSEMBLE_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"ptxas did not finish in {ASSEMBLE_SECONDS} s"}
    text = done.stdout + done.stderr
    if done.returncode:
        problems = (line for line in text.splitlines() if "error" in line or "fatal" in line)
        return {"error": next(problems, text.strip()[:200])}
    return parse_statistics(text)


def parse_statistics(text: str) -> dict[str, Any]:
    """Reads the figures out of what ptxas printed."""
    found = {name: re.search(pattern, text) for name, pattern in _FIGURES.items()}
    return {name: int(match.group(1)) if match else 0 for name, match in found.items()}


def refusal_of(ptx: str) -> str:
    """Returns why NVIDIA's assembler refuses a PTX text, in its words; nothing if it takes it, or if there is none that
    could say.
    """
    target = _TARGET.search(ptx)
    if target is None or shutil.which("ptxas") is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        return refusal_in(assemble(source, target[1]))


def refusal_in(statistics: Mapping[str, Any]) -> str:
    """Returns the same from what `assemble` has found."""
    message = str(statistics.get("error", ""))
    refusal = _REFUSAL.match(message)
    if refusal is None or _TOO_OLD.search(message):
        return ""
    return f"{refusal['line']}: {refusal['why']}" if refusal["line"] else refusal["why"]


def require_accepted(what: Launchable) -> None:
    """Raises CannotRun for PTX that NVIDIA's assembler is at hand for, and refuses."""
    refusal = refusal_of(launched_ptx(what))
    if refusal:
        raise CannotRun(f"{what.ptx}: ptxas refuses it: {refusal}; fix it, or add --emulate ptxas=false")
