"""What a program's own compilers are told, so that the emulated GPU gets PTX from them.

CuTe DSL assembles in its own process, so it is told to keep its PTX (`fatbin`), and gets a runtime library that goes
to the emulated driver.

MAX and Triton assemble PTX to machine code before they hand it to the driver, with an assembler that an environment
variable names. Here that is a stand-in: the "machine code" it writes is the PTX. Both keep what they compiled; they
are given caches of their own, so that neither machine code reaches the emulated GPU, nor PTX a real one.
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

ASSEMBLER_VARIABLES = ("MODULAR_NVPTX_COMPILER_PATH", "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
CACHE_VARIABLES = {"MODULAR_CACHE_DIR": "modular", "TRITON_CACHE_DIR": "triton"}

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
    """A folder that goes when the program has ended; what a killed process left is removed with it."""
    everything = cache.ensure(cache.place("programs", "kept-ptx"))
    folder = cache.ensure(everything / f"{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield folder
    finally:
        for each in everything.iterdir():
            if each == folder or not Path("/proc", each.name.partition("-")[0]).exists():
                shutil.rmtree(each, ignore_errors=True)


def cute_variables(given: Mapping[str, str], libraries: Path, kept: Path) -> dict[str, str]:
    """Returns the variables for CuTe DSL; ``kept``: the folder for its PTX."""
    found = {
        "CUTE_DSL_LIBS": str(libraries / CUTE_RUNTIME),
        "CUTE_DSL_KEEP": "ptx",
        "CUTE_DSL_DUMP_DIR": str(kept),
    }
    return {name: value for name, value in found.items() if name not in given}


def toolchain_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for compilers that call an assembler; those that the user has set are left."""
    found = {name: str(assembler()) for name in ASSEMBLER_VARIABLES}
    found |= {name: str(cache.place("programs", folder)) for name, folder in CACHE_VARIABLES.items()}
    return {name: value for name, value in found.items() if name not in given}
