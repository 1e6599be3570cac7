"""Reads what a user types: numbers, elements of buffers, places in memory, and qualifiers after a place.

Raises UsageProblem for a name that does not exist; the message lists those that do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emugpu.debug.recording import RecordedBuffer
from emugpu.emulator.memory.tmem import COLUMNS, LANES
from emugpu.errors import UsageProblem

MOST_DIGITS = 1000
"""The largest number of digits. Python converts at most 4,300."""


def whole(word: str, text: str) -> int:
    """Returns a whole number from 0 on, also written as 0x400. ``text`` is the whole input, for the message."""
    try:
        value = int(word, 0) if len(word) <= MOST_DIGITS else -1
    except ValueError:
        value = -1
    if value < 0:
        raise UsageProblem(f"{text[:80]}: '{word[:40]}' is not a whole number from 0 on")
    return value


def qualified(words: Sequence[str], text: str, *known: str) -> tuple[list[str], dict[str, int]]:
    """Splits ``full[0] phase 3 cta 1`` into the place and its qualifiers."""
    place, found = list(words), dict[str, int]()
    while len(place) > 1 and place[-2] in known:
        value, name = place.pop(), place.pop()
        if name in found:
            raise UsageProblem(f"{text}: {name} is given twice")
        found[name] = whole(value, text)
    return place, found


def element_of(text: str, buffers: Mapping[str, RecordedBuffer]) -> tuple[RecordedBuffer, tuple[int, ...]]:
    """Reads an element of a buffer, such as ``C[3,517]``."""
    name, bracket, index = text.strip().partition("[")
    placed = buffers.get(name)
    if placed is None or not bracket or not index.endswith("]"):
        write = f" ({', '.join(buffers)}); write {next(iter(buffers))}[0,0]" if buffers else ""
        none = "; none has a name: give memory one by buffer C PLACE TYPE SHAPE"
        raise UsageProblem(f"'{text}' is not an element of a buffer{write or none}")
    at = tuple(whole(word.strip(), text) for word in index[:-1].split(","))
    if len(at) != len(placed.shape) or not all(i < n for i, n in zip(at, placed.shape, strict=True)):
        shape = ", ".join(map(str, placed.shape))
        raise UsageProblem(f"{text}: no such element; the shape of {placed.name} is [{shape}]")
    return placed, at


def tensor_place(place: str, text: str) -> tuple[int, int]:
    """Reads a lane and a column of tensor memory, such as ``3,5``."""
    lane, comma, column = place.partition(",")
    if not comma:
        raise UsageProblem(f"{text}: write the lane and the column, as in tensor 3,5")
    at = whole(lane, text), whole(column, text)
    if at[0] >= LANES or at[1] >= COLUMNS:
        raise UsageProblem(f"{text}: tensor memory has lanes 0-{LANES - 1} and columns 0-{COLUMNS - 1}")
    return at
