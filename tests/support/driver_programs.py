"""Programs on the emulated GPU, for tests: how they are built, and what came of a run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from emugpu import cache
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import Log
from emugpu.driver.server import run_program
from emugpu.driver.state import SharedGpu
from emugpu.launch.launching import EmulationOptions
from harness.compile.compiler import find_mojo

TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "data/programs"
NVCC_FLAGS = ("-std=c++17", "-cudart", "shared", "-gencode", "arch=compute_90a,code=compute_90a")
BUILD_SECONDS = 300

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
needs_mojo = pytest.mark.skipif(find_mojo() is None, reason="needs the Mojo compiler")


@dataclass(frozen=True)
class Run:
    """What a program returned and printed, and what the driver saw."""

    code: int
    out: str
    err: str
    log: Log


def run(capfd: pytest.CaptureFixture[str], gpu: str, *command: object, check: bool = False, **options: object) -> Run:
    """Runs a program on an emulated GPU."""
    log = Log()
    capfd.readouterr()
    chosen = SharedGpu(gpu_model(gpu), EmulationOptions(**options), log, check=check)  # type: ignore[arg-type]
    code = run_program([str(part) for part in command], chosen, os.environ)
    out, err = capfd.readouterr()
    return Run(code, out, err, log)


def cuda_program(name: str) -> Path:
    """A program of tests/data/programs/cuda, built with PTX for compute capability 9.0."""
    sources = [PROGRAMS / "cuda" / f"{name}.cu", PROGRAMS / "cuda/check.h"]
    return _built(name, sources, ["nvcc", *NVCC_FLAGS, sources[0].name], PROGRAMS / "cuda")


def mojo_program(name: str, target: str = "sm_100a", folder: Path = PROGRAMS / "mojo") -> Path:
    """A Mojo program, of tests/data/programs/mojo or another folder, as an executable."""
    source = folder / f"{name}.mojo"
    command = [str(find_mojo()), "build", "--target-accelerator", target, source.name]
    return _built(f"{name}-{target}", [source], command, folder)


def _built(name: str, sources: list[Path], command: list[str], folder: Path) -> Path:
    """The program from the build cache, or built now."""
    key = hashlib.sha256("\0".join([*command, *(s.read_text() for s in sources)]).encode()).hexdigest()[:24]
    program = cache.ensure(cache.place("test-programs", key)) / name
    if not program.exists():
        made = program.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", str(made)], check=True, timeout=BUILD_SECONDS, cwd=folder)
        made.replace(program)
    return program


# ---- scripts that call the driver, by driver_client ----

PTX = TESTS / "data" / "cuda" / "driver_kernels.ptx"
HEAD = (
    f"from driver_client import *\nimport os, signal, subprocess, sys, time\nPTX = open({str(PTX)!r}).read()\nstart()\n"
)


def command(script: str) -> list[str]:
    return [sys.executable, "-c", HEAD + textwrap.dedent(script)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS / "support")}


def run_script(script: str, gpu: str = "b200", check: bool = False, **options) -> tuple[int, Log]:
    """Runs a script, which begins with all of `driver_client`, a context and PTX; its exit code, and the log."""
    log = Log()
    emulated = SharedGpu(gpu_model(gpu), EmulationOptions(**options), log, check=check)
    return run_program(command(script), emulated, environment()), log
