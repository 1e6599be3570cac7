"""Reads a user's own kernel, a Mojo file in any folder, and puts it among the sources.

It takes the place of ``kernels/own.mojo``, and a fused epilogue of the user's own (`harness.epilogues`) that of
``kernels/own_epilogue.mojo``: the sources are then a folder of links, to everything in ``kernels/`` and to these files.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emugpu import cache
from emugpu.errors import CannotRun, UsageProblem
from harness import paths
from harness.compile.catalog import ARCHITECTURES, KERNELS, Kernel
from harness.compile.compiler import digest
from harness.epilogues import Epilogue, text_of

_DECLARED = re.compile(r"^comptime KERNEL\s*=\s*Kernel\((?P<fields>.*?)\)[ \t]*(#[^\n]*)?$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r'\s*"(\w+)"')
_FORM = (
    'it needs a line such as `comptime KERNEL = Kernel("mine", pipelined=True, double_buffers_epilogue=True, '
    "is_persistent=False, is_block_scaled=False)`, as docs/own-kernel.md says"
)


@dataclass(frozen=True)
class Sources:
    """The Mojo sources that a configuration is compiled from: those of this checkout, with the user's own kernel and
    fused epilogue in their places, if there are any.
    """

    kernel: Kernel | None = None
    epilogue: Epilogue | None = None

    @classmethod
    def of(cls, kernel: Kernel, epilogue: Epilogue) -> Sources:
        """Returns the sources with these, of which each may be the user's own."""
        return cls(kernel if kernel.file else None, epilogue if epilogue.file else None)

    @property
    def root(self) -> Path:
        """Returns the folder that holds ``kernels``, as the compiler needs it."""
        places = (("own.mojo", self.kernel), ("own_epilogue.mojo", self.epilogue))
        own = tuple((place, found.file) for place, found in places if found and found.file)
        return _linked(own, paths.kernels_dir(), cache.place("own", "")) if own else paths.kernels_dir().parent


CHECKOUT = Sources()
"""The sources of this checkout alone."""


@functools.cache
def _linked(own: Sequence[tuple[str, str]], sources: Path, folder: Path) -> Path:
    """Makes a folder of links to these sources, with the user's own files in their places."""
    links = {str(path.relative_to(sources)): str(path) for path in sorted(sources.rglob("*.mojo"))} | dict(own)
    for _, file in own:
        if not Path(file).is_file():
            raise CannotRun(f"{platform.node()} has no file {file}; put it there, or name another")
    root = folder / digest(*(word for link in links.items() for word in link))
    for name, file in links.items():
        link = root / "kernels" / name
        cache.ensure(link.parent)
        with suppress(FileExistsError):
            link.symlink_to(file)
    return root


def read(word: str) -> Kernel:
    """Reads the declaration of the kernel in a Mojo file."""
    declared = _DECLARED.search(text_of(word))
    name = _NAME.match(declared["fields"]) if declared else None
    if declared is None or name is None:
        raise UsageProblem(
            f"{word} declares no kernel: {_FORM}; if it is a program, name what runs it: -- mojo run {word}"
        )
    if name[1] in KERNELS:
        raise UsageProblem(f"{word} names its kernel {name[1]}, which the series has; take another name")
    is_persistent = re.search(r"\bis_persistent\s*=\s*True\b", declared["fields"]) is not None
    space = KERNELS["kernel8" if is_persistent else "kernel7"].space
    file = str(Path(word).absolute())
    archs = tuple(ARCHITECTURES)
    return Kernel(name[1], f"your own, {file}", archs, is_persistent=is_persistent, space=space, file=file)
