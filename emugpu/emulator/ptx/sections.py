"""Finds where the kernels of a PTX text begin and end, without parsing them.

So one kernel can be listed or launched even if another one in the file cannot be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from emugpu.emulator.ptx.scanner import closing_brace

_SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"', re.S)
_ENTRY = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.entry\s+([\w$%]+)")


@dataclass(frozen=True)
class Section:
    """One ``.entry``: ``text[start:end]`` is all of it, ``text[body:end]`` is the part in braces. ``is_closed``: the
    text does not end in it.
    """

    name: str
    start: int
    body: int
    end: int
    is_closed: bool


@lru_cache(maxsize=4)
def kernel_sections(text: str) -> tuple[Section, ...]:
    """Returns the kernels of a text in their order. A kernel without a closing brace extends to the end."""
    # Comments and strings may contain braces. They are replaced by spaces of the same length.
    bare = _SKIPPED.sub(lambda m: _blank(m.group()), text)
    sections: list[Section] = []
    at = 0
    while (entry := _ENTRY.search(bare, at)) is not None:
        body = bare.find("{", entry.end())
        body = len(bare) if body < 0 else body
        end = closing_brace(bare, body)
        at = len(bare) if end < 0 else end
        sections.append(Section(entry[1], entry.start(), body, at, is_closed=end >= 0))
    return tuple(sections)


def blank_kernels(text: str, drop: Callable[[str], bool]) -> str:
    """Returns the text without the kernels for whose names ``drop`` is true. Lines keep their numbers."""
    for section in kernel_sections(text):
        if drop(section.name):
            text = text[: section.start] + _blank(text[section.start : section.end]) + text[section.end :]
    return text


def without_body(text: str, section: Section) -> str:
    """Returns the text with a kernel's body blanked out, so that its parameters can be read."""
    inner = text[section.body + 1 : section.end - 1]
    return text[: section.body + 1] + _blank(inner) + text[section.end - 1 :]


def _blank(text: str) -> str:
    return "\n".join(" " * len(line) for line in text.split("\n"))
