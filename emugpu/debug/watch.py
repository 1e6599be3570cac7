"""Watches: the events at which a value changes. A write of the same value is not a change."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.debug.names import LaunchNames, value_text
from emugpu.debug.reading import element_of, qualified
from emugpu.debug.recording import Recording, Watched
from emugpu.debug.targets import Target
from emugpu.debug.tiles import written_elements
from emugpu.debug.writers import Memory, Writers
from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.launching import run
from emugpu.launch.spec import DataType, find_type

Held = tuple[bytes, bytes]
"""The bytes in memory, with zeros for those never written, and which bytes were written."""
FORMS = "C[3,517], or shared PLACE TYPE [cta N] where PLACE is a region's name or 0x400"


def watch(recording: Recording, writers: Writers, names: LaunchNames, text: str, cta: tuple[int, int, int]) -> Target:
    """Returns the events at which a value in memory changes.

    ``cta`` (launch, cluster and CTA) applies if the text names none. The program runs again to read the value after
    each write. Raises UsageProblem if the text names nothing that exists.
    """
    words = text.split()
    if words[:1] == ["shared"]:
        memory, first, dtype = _in_shared(words[1:], text, names, cta)
    else:
        placed, at = element_of(text, recording.placed)
        memory, first, dtype = ("global",), placed.byte_of(at), placed.dtype
    nbytes = max(1, dtype.bits * dtype.group // 8)
    writes = writers.all_to(memory, first, first + nbytes)
    positions = tuple(sorted({write.event for write in writes}))
    found: list[int] = []
    lines: list[str] = []
    before = None
    for position, after in zip(positions, _held(recording, positions, memory, first, nbytes), strict=True):
        if after != before:
            was = "" if before is None else f"{_text(before, dtype)} -> "
            found.append(position)
            lines.append(f"{text}: {was}{_text(after, dtype)}")
        before = after
    return Target(f"watch {text}", tuple(found), tuple(lines))


def _in_shared(
    words: Sequence[str], text: str, names: LaunchNames, cta: tuple[int, int, int]
) -> tuple[Memory, int, DataType]:
    launch, cluster, rank = cta
    words, asked = qualified(words, f"watch {text}", "cta")
    names.check_cta(asked.get("cta"), f"watch {text}")
    dtype = find_type(words[-1]) if len(words) > 1 else None
    offset = names.offset_of(" ".join(words[:-1]), f"watch {text}")
    if dtype is None or offset is None:
        raise UsageProblem(f"watch {text}: write {FORMS}")
    return ("shared", launch, cluster, asked.get("cta", rank)), offset, dtype


def _text(held: Held, dtype: DataType) -> str:
    data, valid = (np.frombuffer(part, np.uint8) for part in held)
    values = dtype.from_memory(data, (dtype.group,))
    written = written_elements(valid.astype(np.bool_), (dtype.group,))
    return " ".join(value_text(v) if w else "." for v, w in zip(values, written, strict=True))


def _held(recording: Recording, positions: Sequence[int], memory: Memory, first: int, nbytes: int) -> list[Held]:
    """Returns the contents of a place after each of these events."""
    device, count, wanted = Watched(recording.options), 0, set(positions)
    found: list[Held] = []

    def read() -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        if memory[0] == "global":
            return device.bytes_at(first, nbytes)
        _, _, cluster, rank = memory
        held = next(c for c in device.machines[-1].clusters.running if c.number == cluster).ctas[rank].shared
        return held.data[first : first + nbytes], held.valid[first : first + nbytes].astype(np.bool_)

    def look(_: Any) -> None:
        nonlocal count
        count += 1
        if count in wanted:
            data, valid = read()
            found.append((np.where(valid, data, 0).tobytes(), valid.tobytes()))

    with suppress(CannotRun):
        run(recording.what, replace(recording.options, sinks=(look,)), device=device, keep=())
    return found
