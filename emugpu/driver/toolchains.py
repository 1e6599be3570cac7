"""Environment variables that make a program's own compilers give the emulated GPU PTX.

CuTe DSL assembles in its own process. A variable makes it keep its PTX (`fatbin`), and another one makes it load a
runtime library that calls the emulated driver.

MAX and Triton assemble PTX to machine code before they load it, with an assembler that an environment variable names.
Here the assembler is a stand-in whose "machine code" is the PTX. TileLang compiles CUDA C++ with the nvcc of
``CUDA_HOME``. That becomes a copy of the toolkit, made of links, in which nvcc is a stand-in: it calls the real one for
PTX. These compilers cache their output, and so does TorchInductor, which calls Triton. They get separate caches, so
that no machine code reaches the emulated GPU and no PTX a real one. TorchInductor must launch by Triton, because its
own launcher is part of builds for GPUs alone; and it compiles in the program's process, because each process that it
would start takes long to import PyTorch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from emugpu import cache
from emugpu.driver.library import CUTE_RUNTIME
from emugpu.errors import UsageProblem
from emugpu.paths import PACKAGE

ASSEMBLER_VARIABLES = ("MODULAR_NVPTX_COMPILER_PATH", "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
CACHE_VARIABLES = {
    "MODULAR_CACHE_DIR": "modular",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TILELANG_CACHE_DIR": "tilelang",
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
_NVCC = """#!/bin/sh
# Stands in for nvcc: calls it for PTX, where it would make machine code alone, and with the shared CUDA runtime.
runtime="-cudart shared"
for word; do
    case $word in -cudart | --cudart | -cudart=* | --cudart=*) runtime= ;; esac
done
set -- "$@" $runtime
for word; do
    shift
    case $word in
        -cubin | --cubin | -fatbin | --fatbin) word=--ptx ;;
        *arch=*,code=*) arch=${{word#*arch=}}; word=${{word%%,code=*}},code=${{arch%%,*}} ;;
    esac
    set -- "$@" "$word"
done
exec {nvcc} "$@"
"""
TOOLKITS = ("/usr/local/cuda", "/opt/cuda")
"""Where a CUDA toolkit may be that no environment variable names and no nvcc on PATH belongs to."""


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


def toolkit_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Returns ``CUDA_HOME`` with the stand-in for nvcc, or nothing where there is no CUDA toolkit.

    It replaces a value that the user has set: the toolkit is the same one. A folder that the user has named and that
    has no nvcc stays as it is: numba needs only nvvm there. Raises UsageProblem if a named folder cannot be read.
    """
    toolkit = _toolkit(given)
    if toolkit is None:
        return {}
    script = _NVCC.format(nvcc=shlex.quote(str(toolkit / "bin" / "nvcc")))
    place = cache.place("drivers", f"toolkit-{hashlib.sha256(script.encode()).hexdigest()[:16]}")
    if not place.exists():
        cache.ensure(place.parent)
        with cache.temporary_folder() as folder:
            made = Path(folder) / "made"
            _link_all(toolkit, made, "bin")
            _link_all(toolkit / "bin", made / "bin", "nvcc")
            (made / "bin" / "nvcc").write_text(script, encoding="utf-8")
            (made / "bin" / "nvcc").chmod(0o755)
            with contextlib.suppress(OSError):  # another process was faster
                made.rename(place)
    return {"CUDA_HOME": str(place)}


def _toolkit(given: Mapping[str, str]) -> Path | None:
    """Returns the folder of the toolkit that the user has named, or else that of the nvcc on PATH, or a usual one."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if given.get(name):
            folder = Path(given[name]).absolute()
            try:
                return folder if _is_toolkit(folder) else None
            except OSError as error:
                reason = f"{name}={given[name]}: {error.strerror}"
                raise UsageProblem(f"{reason}; name the folder of a CUDA toolkit, or unset {name}") from None
    found = shutil.which("nvcc", path=given.get("PATH"))
    for place in [*([Path(found).resolve().parents[1]] if found else []), *map(Path, TOOLKITS)]:
        with contextlib.suppress(OSError):
            if _is_toolkit(place):
                return place
    return None


def _is_toolkit(folder: Path) -> bool:
    """Returns whether a folder has an nvcc and what it needs. Raises OSError if it cannot be listed."""
    return {"bin", "nvvm"} <= set(os.listdir(folder)) and "nvcc" in os.listdir(folder / "bin")


def _link_all(source: Path, target: Path, but: str) -> None:
    """Makes a folder with links to everything that another one has, but for one name."""
    cache.ensure(target)
    for each in source.iterdir():
        if each.name != but:
            (target / each.name).symlink_to(each)


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
