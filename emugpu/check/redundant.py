"""Finds redundant fences, barriers and waits: removes one at a time, and checks the kernel again.

If nothing new is found without one, that holds for these runs only; another shape may need it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from emugpu.check.findings import Finding, Place
from emugpu.emulator.machine.sinks import Sink

_DROPPED = (
    r"fence\.[\w.:]+[^;]*;",
    r"membar\.\w+;",
    r"tcgen05\.fence::\w+;",
    r"tcgen05\.wait::(?:ld|st)\.sync\.aligned;",
    r"bar(?:rier)?(?:\.cta)?\.sync(?:\.aligned)?\s[^;]*;",
    r"bar\.warp\.sync\s[^;]*;",
    r"cp\.async\.bulk\.wait_group[^;]*;",
    r"wgmma\.fence\.sync\.aligned;",
)
_STATEMENT = re.compile(rf"(?<![\w.])(?:{'|'.join(_DROPPED)})")
_ARRIVE = re.compile(r"barrier\.cluster\.arrive[\w.]*;")
_WAIT = re.compile(r"barrier\.cluster\.wait[\w.]*;")
_POLL = re.compile(r"mbarrier\.(?:try_wait|test_wait)\.parity[\w.:]*\s+(?P<done>%?\w+),[^;]*;")


class Variant(NamedTuple):
    """A program without one statement. ``line`` is where it was; the other statements keep their lines."""

    line: int
    text: str
    ptx: str


def variants(ptx: str) -> Iterator[Variant]:
    """Yields the program without one fence, barrier or pair of cluster barrier halves, or with a wait that ends at
    once.
    """
    for found in _STATEMENT.finditer(ptx):
        yield _variant(ptx, found, {found: ";"})
    for arrive, wait in zip(_ARRIVE.finditer(ptx), _WAIT.finditer(ptx), strict=False):
        yield _variant(ptx, arrive, {arrive: ";", wait: ";"})
    for found in _POLL.finditer(ptx):
        yield _variant(ptx, found, {found: f"setp.eq.u32 {found['done']}, 0, 0;"})


def _variant(ptx: str, place: re.Match[str], changes: dict[re.Match[str], str]) -> Variant:
    for found, text in sorted(changes.items(), key=lambda change: -change[0].start()):
        lines = found.group().count("\n")
        ptx = ptx[: found.start()] + text + "\n" * lines + ptx[found.end() :]
    text = " ".join(place.group().split())
    return Variant(place.string.count("\n", 0, place.start()) + 1, text, ptx)


class Reached:
    """A sink that collects the lines that have been executed."""

    def __init__(self) -> None:
        self.lines: set[int] = set()

    def __call__(self, event: Any) -> None:
        site = getattr(event, "site", None)
        if site is not None:
            self.lines.add(site.line)


Run = Callable[[str, tuple[Sink, ...]], object]
"""Runs a program with additional sinks. Its results are compared between the original program and a variant."""


def unneeded(ptx: str, run: Run) -> list[Finding]:
    """Returns a note for each statement without which a run has the same results."""
    reached = Reached()
    as_it_is = run(ptx, (reached,))
    return [
        _note(variant)
        for variant in variants(ptx)
        if variant.line in reached.lines and run(variant.ptx, ()) == as_it_is
    ]


def _note(variant: Variant) -> Finding:
    place = Place(variant.line, variant.text, "", 0, 0, 0, 0)
    what = f"without `{variant.text}` these runs are just as sound, and their results just as right"
    fix = "remove it, if no other shape needs it"
    return Finding("waste", "note", what, place, fix=fix)
