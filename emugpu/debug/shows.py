"""Shows data at a position as text: registers, elements of buffers, tiles, barriers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.debug.debugger import Debugger
from emugpu.debug.names import value_text
from emugpu.debug.reading import element_of, qualified, tensor_place, whole
from emugpu.debug.tiles import ACCUMULATOR, written_elements
from emugpu.emulator.machine.poison import Poison
from emugpu.emulator.machine.state import Fragment
from emugpu.errors import UsageProblem
from emugpu.launch.spec import DataType, find_type

LARGEST_TILE = 64 * 64
SHOWN_TILE = (8, 16)


@dataclass(frozen=True)
class _ShowArguments:
    """The arguments of show: ``PLACE [TYPE] [ROWSxCOLUMNS] [cta N]``."""

    place: str
    dtype: DataType | None
    size: tuple[int, int] | None
    cta: int | None


def show(debugger: Debugger, text: str) -> Iterator[str]:
    """Yields lines about the place that a text names. Raises UsageProblem if there is no such place."""
    if text.startswith("%"):
        yield from registers(debugger, text.split())
        return
    asked = _read(text)
    if "[" in asked.place and asked.place.partition("[")[0] in debugger.recording.placed:
        yield from _elements(debugger, asked.place, asked.size or (1, 1))
        return
    debugger.names.check_cta(asked.cta, f"show {text}")
    cluster, selected, _ = debugger.warp or (0, 0, 0)
    cta = selected if asked.cta is None else asked.cta
    if asked.place.startswith("tensor "):
        yield from _tensor(debugger, asked, cluster, cta)
    else:
        yield from _shared(debugger, asked, cluster, cta, text)


def registers(debugger: Debugger, wanted: Sequence[str]) -> Iterator[str]:
    """Yields registers of the selected warp; without names, those that it may still read."""
    if debugger.warp is None:
        raise UsageProblem("no warp is selected; write warp CTA:WARP")
    fragments = debugger.stopped.fragments(*debugger.warp)
    if not fragments:
        yield f"{debugger.names.warp(*debugger.warp)} has left the kernel"
    for fragment in fragments:
        yield debugger.names.agent(fragment.agent)
        for name, kind, value in debugger.stopped.registers(fragment, wanted):
            yield f"  {name:<8} .{kind:<5} {register_text(value, kind, fragment)}"


def _read(text: str) -> _ShowArguments:
    size, dtype = None, None
    words, asked = qualified(text.split(), f"show {text}", "cta")
    if len(words) > 1 and re.fullmatch(r"[1-9]\d*x[1-9]\d*", words[-1], re.ASCII):
        rows, _, columns = words.pop().partition("x")
        size = whole(rows, f"show {text}"), whole(columns, f"show {text}")
        if size[0] * size[1] > LARGEST_TILE:
            raise UsageProblem(
                f"show {text}: the size must be ROWSxCOLUMNS, such as 8x16, of at most {LARGEST_TILE:,} elements"
            )
    if len(words) > 1 and find_type(words[-1]) is not None:
        dtype = find_type(words.pop())
    return _ShowArguments(" ".join(words), dtype, size, asked.get("cta"))


def _elements(debugger: Debugger, text: str, size: tuple[int, int]) -> Iterator[str]:
    placed, at = element_of(text, debugger.recording.placed)
    data, valid = debugger.stopped.device.bytes_at(placed.address, placed.nbytes)
    values, written = placed.dtype.from_memory(data, placed.shape), written_elements(valid, placed.shape)
    if len(at) == 1:
        values, written, at = values[None], written[None], (0, *at)
    part: Any = (*at[:-2], slice(at[-2], at[-2] + size[0]), slice(at[-1], at[-1] + size[1]))
    yield from matrix(values[part], written[part])


def _tensor(debugger: Debugger, asked: _ShowArguments, cluster: int, cta: int) -> Iterator[str]:
    dtype, (rows, columns) = asked.dtype or ACCUMULATOR, asked.size or SHOWN_TILE
    lane, column = tensor_place(asked.place.removeprefix("tensor "), f"show {asked.place}")
    if dtype.bits != 32:
        raise UsageProblem(f"show {asked.place}: columns of tensor memory have 32 bits; name f32, s32 or u32")
    data, valid = debugger.stopped.tensor(cluster, cta)
    part = slice(lane, lane + rows), slice(column, column + columns)
    yield f"tensor memory of CTA {cta}, lanes from {lane}, columns from {column}"
    yield from matrix(data[part].view(dtype.numpy), valid[part])


def _shared(debugger: Debugger, asked: _ShowArguments, cluster: int, cta: int, text: str) -> Iterator[str]:
    """Yields an mbarrier, a box, or the bytes in the order of their addresses."""
    d, place = debugger, asked.place.removeprefix("shared ")
    offset = d.names.offset_of(place, f"show {text}")
    if offset is not None and asked.dtype is not None:
        rows, columns = asked.size or SHOWN_TILE
        data, valid = d.stopped.shared(cluster, cta, offset, asked.dtype.memory_bytes((rows, columns)))
        yield f"{d.names.shared(offset, cta)}, rows of {columns} {asked.dtype.name} as they lie"
        yield from matrix(asked.dtype.from_memory(data, (rows, columns)), written_elements(valid, (rows, columns)))
        return
    barrier = d.status.barriers.get((cluster, cta, offset)) if offset is not None else None
    tile = next((t for t in d.tiles(cluster, cta) if offset is not None and t.first == offset), None)
    if barrier is not None:
        yield d.status.barrier(barrier)
    elif tile is not None:
        yield f"{tile.place}: {tile.what}, written by event {tile.write.event}"
        values, written = tile.values(d.stopped)
        rows, columns = asked.size or SHOWN_TILE
        yield from matrix(values[:rows, :columns], written[:rows, :columns])
    elif offset is not None:
        raise UsageProblem(
            f"show {text}: no box is there; give a type to see its bytes in order, as in {place} f32 8x8"
        )
    else:
        there = ", ".join([*(f"{name}[0,0]" for name in d.recording.placed), *(r.name for r in d.names.regions)])
        raise UsageProblem(
            f"show {text}: that is neither a register (%r1), tensor memory (tensor 0,0), shared memory (0x400) nor "
            f"one of {there}"
        )


def matrix(values: NDArray[Any], written: NDArray[np.bool_]) -> Iterator[str]:
    """Yields the rows of a matrix; a dot stands for an element that was never written."""
    cells = [
        [value_text(v) if w else "." for v, w in zip(row, known, strict=True)]
        for row, known in zip(values, written, strict=True)
    ]
    width = max((len(cell) for row in cells for cell in row), default=1)
    for row in cells:
        yield "  " + " ".join(cell.rjust(width) for cell in row)


def register_text(value: Any, kind: str, fragment: Fragment) -> str:
    if isinstance(value, Poison):
        return f"poison: {value.origin}"
    if isinstance(value, str):
        return value
    if value is None:
        return "nothing yet: an accumulator"
    if not isinstance(value, np.ndarray):
        return _number(value, kind)
    lanes = value[fragment.lane_index] if fragment.single < 0 else value[[fragment.single]]
    if len({x.tobytes() for x in lanes}) == 1:
        return _number(lanes[0], kind)
    return " ".join(_number(x, kind) for x in lanes)


def _number(value: Any, kind: str) -> str:
    if kind == "pred":
        return str(bool(value)).lower()
    if kind == "f32" and not isinstance(value, float | np.floating):
        value = np.uint32(value).view(np.float32)
    return value_text(value)
