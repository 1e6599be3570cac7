"""The shared library that gives PyTorch the device; it is compiled once for each version of PyTorch, into the cache."""

from __future__ import annotations

import ctypes
import hashlib
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from emugpu import cache
from emugpu.processes import compiler

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
    cpp = compiler.of_cpp("PyTorch's device", COMPILE_SECONDS)
    includes = [f"-I{torch / 'include'}", f"-I{torch / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"]
    objects = [target.with_name(f"{source.stem}.o") for source in sources]
    with ThreadPoolExecutor() as pool:
        for done in [
            pool.submit(cpp.call, *FLAGS, *includes, "-c", str(source), "-o", str(made))
            for source, made in zip(sources, objects, strict=True)
        ]:
            done.result()
    libraries = [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-ltorch_cpu", "-lc10", "-ldl"]
    cpp.call("-shared", *map(str, objects), *libraries, "-o", str(target))
    for each in objects:
        each.unlink()
