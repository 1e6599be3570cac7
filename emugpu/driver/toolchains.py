"""Environment variables that make a program's own compilers give the emulated GPU PTX.

CuTe DSL assembles in its own process. A variable makes it keep its PTX (`fatbin`), and another one makes it load a
runtime library that calls the emulated driver.

MAX and Triton assemble PTX to machine code before they load it, with an assembler that an environment variable names.
Here the assembler is a stand-in whose "machine code" is the PTX. Both compilers cache their output, and so does
TorchInductor, which calls Triton. They get separate caches, so that no machine code reaches the emulated GPU and no PTX
a real one. TorchInductor must launch by Triton, because its own launcher is part of builds for GPUs alone; and it
compiles in the program's process, because each process that it would start takes long to import PyTorch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from emugpu import cache
from emugpu.driver.library import CUTE_RUNTIME
from emugpu.paths import PACKAGE

ASSEMBLER_VARIABLES = ("MODULAR_NVPTX_COMPILER_PATH", "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
CACHE_VARIABLES = {
    "MODULAR_CACHE_DIR": "modular",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
INDUCTOR_VARIABLES = {"TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

STARTUP = PACKAGE / "pytorch" / "startup"
"""The folder with the sitecustomize that gives PyTorch the emulated GPU."""

_SCRIPT = """#!/bin/sh
# Stands in for ptxas: INPUT.ptx -o OUTPUT copies the PTX, other options change nothing.
input= output=
while [ $# -gt 0 ]; do
    case $1 in
        --version) echo "ptxas: NVIDIA (R) Ptx optimizing assembler"
                   echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0 ;;
        -o | --output-file) output=$2; shift ;;
        --output-file=*) output=${1#*=} ;;
        -*) ;;
        *) input=$1 ;;
    esac
    shift
done
if [ -z "$input" ] || [ -z "$output" ]; then
    echo "the stand-in for ptxas needs INPUT.ptx -o OUTPUT" >&2
    exit 1
fi
exec cp -- "$input" "$output"
"""


def startup(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable by which Python gives PyTorch the emulated GPU (`emugpu.pytorch`) when it is imported."""
    return {"PYTHONPATH": os.pathsep.join([str(STARTUP), *filter(None, [given.get("PYTHONPATH", "")])])}


def assembler() -> Path:
    """Returns the stand-in for ptxas: a program in the build cache."""
    folder = cache.ensure(cache.place("drivers", f"assembler-{hashlib.sha256(_SCRIPT.encode()).hexdigest()[:16]}"))
    program = folder / "ptxas"
    if not program.exists() or not os.access(program, os.X_OK):
        partial = folder / f"ptxas-{os.getpid()}"
        partial.write_text(_SCRIPT, encoding="utf-8")
        partial.chmod(0o755)
        partial.replace(program)
    return program


@contextlib.contextmanager
def folder_for_ptx() -> Iterator[Path]:
    """Yields a folder that is removed when the program has ended; also removes the folders of killed processes."""
    everything = cache.ensure(cache.place("programs", "kept-ptx"))
    folder = cache.ensure(everything / f"{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield folder
    finally:
        for each in everything.iterdir():
            if each == folder or not Path("/proc", each.name.partition("-")[0]).exists():
                shutil.rmtree(each, ignore_errors=True)


def cute_variables(given: Mapping[str, str], libraries: Path, kept: Path) -> dict[str, str]:
    """Returns the variables for CuTe DSL; ``kept`` is the folder for its PTX."""
    found = {
        "CUTE_DSL_LIBS": str(libraries / CUTE_RUNTIME),
        "CUTE_DSL_KEEP": "ptx",
        "CUTE_DSL_DUMP_DIR": str(kept),
    }
    return {name: value for name, value in found.items() if name not in given}


def toolchain_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for compilers that call an assembler. Variables that the user has set stay."""
    found = {name: str(assembler()) for name in ASSEMBLER_VARIABLES}
    found |= {name: str(cache.place("programs", folder)) for name, folder in CACHE_VARIABLES.items()}
    found |= INDUCTOR_VARIABLES
    return {name: value for name, value in found.items() if name not in given}
