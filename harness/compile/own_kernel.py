"""Registers a user's own kernel or fused epilogue: a Mojo file in any folder, which takes the place of
``kernels/own.mojo`` or of ``kernels/own_epilogue.mojo``.

The sources are then a folder of links, to everything in ``kernels/`` and to that file. An environment variable names
the folder, so all processes that this one starts compile the same sources.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from emugpu import cache
from emugpu.errors import UsageProblem
from harness import epilogues, paths
from harness.compile.catalog import ARCHITECTURES, KERNELS, Kernel
from harness.compile.compiler import digest

SUFFIX = ".mojo"
OWN = "own.mojo"
_DECLARED = re.compile(r"^comptime KERNEL\s*=\s*Kernel\((?P<fields>.*?)\)", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r'\s*"(\w+)"')
_FORM = (
    'it needs a line such as `comptime KERNEL = Kernel("mine", pipelined=True, double_buffers_epilogue=True, '
    "is_persistent=False, is_block_scaled=False)`, as docs/own-kernel.md says"
)


def register_kernel(word: str) -> str:
    """Registers the kernel in a Mojo file, and returns its name; returns any other word unchanged.

    Adds the kernel to `KERNELS`, and sets the environment variable that names the sources, for this process and those
    that it starts. Raises UsageProblem for a file without a kernel.
    """
    if not word.endswith(SUFFIX):
        return word
    file = Path(word).absolute()
    kernel = read(file, word)
    _put_in_place(file, OWN, word)
    KERNELS[kernel.name] = kernel
    return kernel.name


def register_epilogue(word: str) -> str:
    """Registers the fused epilogue in a Mojo file, and returns its name.

    Adds the epilogue to `EPILOGUES`, and sets the environment variable that names the sources, for this process and
    those that it starts. Raises UsageProblem for a file without an epilogue.
    """
    file = Path(word).absolute()
    epilogue = epilogues.read(file, word)
    _put_in_place(file, epilogues.OWN_FILE, word)
    epilogues.EPILOGUES[epilogue.name] = epilogue
    return epilogue.name


def _put_in_place(file: Path, place: str, word: str) -> None:
    """Makes a folder of links to the sources of this checkout, with a file in this place of ``kernels/``, and sets the
    environment variable that names it.
    """
    sources = paths.kernels_dir(own=False)
    files = sorted(path.relative_to(sources) for path in sources.rglob("*.mojo"))
    root = cache.place("own", digest(str(sources), str(file), place, *map(str, files)))
    for name in files:
        _link(root / "kernels" / name, file if str(name) == place else sources / name)
    taken = os.environ.setdefault(paths.OWN_KERNEL, str(root))
    if taken != str(root):
        named = next(filter(None, map(paths.file_of_own, (OWN, epilogues.OWN_FILE))))
        raise UsageProblem(f"{word}: one Mojo file can be named, and {named} is already; leave one out")


def read(file: Path, word: str) -> Kernel:
    """Reads the declaration of a kernel from a file. ``word`` is the file as the user named it."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageProblem(f"{word} cannot be read: {why}; name a Mojo file") from None
    declared = _DECLARED.search(text)
    name = _NAME.match(declared["fields"]) if declared else None
    if declared is None or name is None:
        raise UsageProblem(
            f"{word} declares no kernel: {_FORM}; if it is a program, name what runs it: -- mojo run {word}"
        )
    if name[1] in KERNELS and KERNELS[name[1]].file != str(file):
        raise UsageProblem(f"{word} names its kernel {name[1]}, which the series has; take another name")
    is_persistent = re.search(r"\bis_persistent\s*=\s*True\b", declared["fields"]) is not None
    space = KERNELS["kernel8" if is_persistent else "kernel7"].space
    return Kernel(
        name[1], f"your own, {word}", tuple(ARCHITECTURES), is_persistent=is_persistent, space=space, file=str(file)
    )


def _link(place: Path, to: Path) -> None:
    cache.ensure(place.parent)
    with suppress(FileExistsError):
        place.symlink_to(to)
