"""The PTX of machine code that a compiler made inside the program, found by the names of its kernels.

CuTe DSL assembles PTX itself and calls no program for it that could be stood in for. It writes the PTX to a folder,
though, if an environment variable asks for that.
"""

from __future__ import annotations

import re
from pathlib import Path

_CODE_SECTION = re.compile(rb"\.text\.([\w$]+)\0")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")


def ptx_of_cubin(image: bytes, folder: Path | None) -> str | None:
    """The newest PTX in the folder that has all kernels of a cubin, alone or in a fat binary; None if there is none."""
    wanted = {name.decode() for name in _CODE_SECTION.findall(image)}
    if folder is None or not wanted:
        return None
    for path in sorted(folder.glob("*.ptx"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        text = path.read_text(encoding="utf-8", errors="replace").rstrip("\0")
        if wanted <= set(_ENTRY.findall(text)):
            return text
    return None
