"""Watches: the events at which a value changes. To write what is there already is no change."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.debug.names import Names, read_index
from harness.debug.recording import Recording, Watched
from harness.debug.targets import Target
from harness.debug.tiles import written_elements
from harness.debug.writers import Memory, Writers
from harness.errors import CannotRun, UsageProblem
from harness.launch.launching import run
from harness.launch.spec import DataType, find_type

FORMS = "C[3,517], or shared PLACE TYPE [cta N] where PLACE is a region's name or 0x400"


def watch(recording: Recording, writers: Writers, names: Names, text: str, cta: tuple[int, int, int]) -> Target:
    """Where a value of memory changes. cta: launch, cluster and CTA, if the text names none. The run is made again to
    read it after each write. Raises UsageProblem for a text that names nothing.
    """
    words = text.split()
    if words[:1] == ["shared"]:
        memory, first, dtype = _in_shared(words[1:], text, names, cta)
    else:
        memory, first, dtype = _in_buffer(text, recording)
    nbytes = max(1, dtype.bits * dtype.group // 8)
    writes = writers.all_to(memory, first, first + nbytes)
    positions = tuple(sorted({write.event for write in writes}))
    found: list[int] = []
    said: list[str] = []
    before = None
    for position, after in zip(positions, _values(recording, positions, memory, first, nbytes, dtype), strict=True):
        if after != before:
            found.append(position)
            said.append(f"{text}: {'' if before is None else f'{before} -> '}{after}")
        before = after
    return Target(f"watch {text}", tuple(found), tuple(said))


def _in_buffer(text: str, recording: Recording) -> tuple[Memory, int, DataType]:
    name, bracket, index = text.strip().partition("[")
    placed = recording.placed.get(name)
    if placed is None or not bracket or not index.endswith("]"):
        raise UsageProblem(f"watch {text}: write {FORMS}; buffers: {', '.join(recording.placed)}")
    return ("global",), placed.byte_of(read_index(index[:-1], placed)), placed.dtype


def _in_shared(
    words: Sequence[str], text: str, names: Names, cta: tuple[int, int, int]
) -> tuple[Memory, int, DataType]:
    launch, cluster, rank = cta
    if words[-2:-1] == ["cta"] and words[-1].isdecimal():
        words, rank = words[:-2], int(words[-1])
    dtype = find_type(words[-1]) if len(words) > 1 else None
    place = " ".join(words[:-1])
    offset = names.offset_of(place)
    with suppress(ValueError):
        offset = int(place, 16) if offset is None else offset
    if dtype is None or offset is None:
        raise UsageProblem(f"watch {text}: write {FORMS}")
    return ("shared", launch, cluster, rank), offset, dtype


def _values(
    recording: Recording, positions: Sequence[int], memory: Memory, first: int, nbytes: int, dtype: DataType
) -> list[str]:
    """What a place holds after each of these events, as text; a dot: poison."""
    device, count, wanted = Watched(recording.options), 0, set(positions)
    found: list[str] = []

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
            value = dtype.from_memory(data.copy(), (dtype.group,))
            written = written_elements(valid, (dtype.group,))
            found.append(" ".join(f"{float(v):g}" if w else "." for v, w in zip(value, written, strict=True)))

    with suppress(CannotRun):
        run(recording.what, replace(recording.options, sinks=(look,)), device=device, keep=())
    return found
