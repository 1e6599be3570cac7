"""NVIDIA's assembler and disassembler: what they say about a kernel, and its machine code."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import CannotRun
from harness.processes.program import run as run_program

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
ASSEMBLE_SECONDS = 300


def assemble(ptx: Path, arch: str) -> dict:
    """Assembles a PTX file of one kernel and returns its statistics, or ``{"error": why}``.

    A figure that ptxas does not print is 0: it leaves out what a kernel does not use.
    """
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        return {"error": "ptxas is not on PATH"}
    command = [
        ptxas,
        "--verbose",
        f"--gpu-name={arch}",
        f"--output-file={ptx.with_suffix('.cubin')}",
        str(ptx),
    ]
    try:
        done = run_program(command, ASSEMBLE_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"ptxas did not finish in {ASSEMBLE_SECONDS} s"}
    text = done.stdout + done.stderr
    if done.returncode:
        return {
            "error": next(
                (line for line in text.splitlines() if "error" in line or "fatal" in line), text.strip()[:200]
            )
        }
    return parse_statistics(text)


_TOO_OLD = re.compile(r"not defined for option|Unsupported \.version")
"""What a ptxas says that does not know the architecture, or the version of PTX: it is no judge."""
_REFUSAL = re.compile(r"ptxas (?:\S+, (?P<line>line \d+); )?(?:error|fatal)\s*: (?P<why>.*)")
_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.M)


def refusal_of(ptx: str) -> str:
    """Why NVIDIA's assembler refuses a PTX text, in its words; nothing if it takes it, or if there is none that could
    say.
    """
    target = _TARGET.search(ptx)
    if target is None or shutil.which("ptxas") is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        return refusal_in(assemble(source, target[1]))


def refusal_in(statistics: Mapping[str, Any]) -> str:
    """The same from what `assemble` has found."""
    said = str(statistics.get("error", ""))
    refusal = _REFUSAL.match(said)
    if refusal is None or _TOO_OLD.search(said):
        return ""
    return f"{refusal['line']}: {refusal['why']}" if refusal["line"] else refusal["why"]


def disassemble(ptx: str, arch: str) -> str:
    """The machine code (SASS) of a PTX text. Raises CannotRun without the tools of the CUDA toolkit."""
    nvdisasm = find_nvdisasm()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        found = assemble(source, arch)
        if "error" in found:
            raise CannotRun(f"machine code needs ptxas: {found['error']}")
        if nvdisasm is None:
            raise CannotRun(
                "machine code needs nvdisasm (CUDA toolkit, or PyTorch's triton) on PATH, and it is not; "
                "use --emit ptx, or asm-stats for the registers"
            )
        command = [nvdisasm, "--print-code", str(source.with_suffix(".cubin"))]
        done = run_program(command, ASSEMBLE_SECONDS)
    if done.returncode:
        raise CannotRun(f"nvdisasm: {(done.stderr or done.stdout).strip()[:200]}")
    return done.stdout


def find_nvdisasm() -> str | None:
    """On PATH, or in the triton package, which PyTorch brings."""
    found = shutil.which("nvdisasm")
    triton = importlib.util.find_spec("triton")
    if found or triton is None or triton.origin is None:
        return found
    beside = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return str(beside) if beside.exists() else None


def parse_statistics(text: str) -> dict:
    """Reads the figures out of what ptxas printed."""
    found = {name: re.search(pattern, text) for name, pattern in _FIGURES.items()}
    return {name: int(match.group(1)) if match else 0 for name, match in found.items()}
