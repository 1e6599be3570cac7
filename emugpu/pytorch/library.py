"""The shared library that gives PyTorch the device; it is compiled once for each version of PyTorch, into the cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from emugpu import cache
from emugpu.errors import CannotRun
from emugpu.processes import program

SOURCES = Path(__file__).parent / "shim"
NAME = "libemulated_torch.so"
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden")
COMPILE_SECONDS = 300


def load(torch: Any) -> ctypes.CDLL:
    """Compiles the library if the cache has none for this PyTorch, and loads it. Raises CannotRun."""
    files = sorted(SOURCES.iterdir())
    parts = [torch.__version__, sysconfig.get_platform(), *FLAGS, *(file.read_text(encoding="utf-8") for file in files)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    place = cache.place("torch", key)
    if not cache.is_whole(place / NAME):
        with cache.temporary_folder() as folder:
            made = Path(folder) / "made"
            cache.ensure(made)
            _compile([file for file in files if file.suffix == ".cpp"], Path(torch.__file__).parent, made / NAME)
            cache.publish(made, place, partial(cache.is_whole, place / NAME))
    return ctypes.CDLL(str(place / NAME), ctypes.RTLD_GLOBAL)


def _compile(sources: list[Path], torch: Path, target: Path) -> None:
    compiler = next(filter(None, (shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++"))), None)
    if compiler is None:
        raise CannotRun(
            "PyTorch's device is compiled once, and there is no C++ compiler: install g++ or clang, or set CXX"
        )
    includes = [f"-I{torch / 'include'}", f"-I{torch / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"]
    objects = [target.with_name(f"{source.stem}.o") for source in sources]
    work = [
        [compiler, *FLAGS, *includes, "-c", str(source), "-o", str(made)]
        for source, made in zip(sources, objects, strict=True)
    ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(_call, work))
    libraries = [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-ltorch_cpu", "-lc10", "-ldl"]
    _call([compiler, "-shared", *map(str, objects), *libraries, "-o", str(target)])
    for each in objects:
        each.unlink()


def _call(command: list[str]) -> None:
    try:
        done = program.run(command, COMPILE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"the C++ compiler {command[0]} could not be run: {error}") from error
    if done.returncode:
        raise CannotRun(f"{command[0]} cannot compile PyTorch's device:\n{done.stderr.strip()}")
