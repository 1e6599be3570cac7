"""The commands of the debugger, one a line: what a script says, and what is typed at the prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.check.findings import by_cause
from harness.debug.debugger import Debugger
from harness.debug.names import read_index
from harness.debug.recording import Placed
from harness.debug.targets import FORMS
from harness.debug.tiles import written_elements
from harness.emulator.machine.poison import Poison
from harness.emulator.machine.state import Fragment
from harness.errors import UsageProblem
from harness.launch.spec import find_type

HELP = f"""\
continue [TO], run    on to the next breakpoint or the end; or once to a place
back [TO]             back to the breakpoint before, or the start; or once to a place
step, next [N]        on to the selected warp's next event; its next source line (or PTX line)
back step, back next  the same, backwards
break TO              stop at these places;  breakpoints: list them;  delete N
watch C[3,517]        the same as break watch C[3,517]
warp [[CLUSTER:]CTA:WARP]   select who steps; without one, say who it is
why C[3,517]          what has made an element, and the first step at which it is wrong
why-waits             for each waiting warp: on which barrier, who would have to arrive, and where that thread is
where                 the event, and the PTX around it
warps, barriers       where all warps are; the mbarriers, and who has arrived
findings              what the checker finds in this schedule
shared PLACE TYPE ROWSxCOLUMNS [cta N]   a tile of shared memory, as it lies; PLACE: a region's name or 0x400
tensor LANE,COLUMN TYPE ROWSxCOLUMNS [cta N]   a rectangle of tensor memory
show C[3,517] [ROWSxCOLUMNS]   elements of a buffer here
show A stage 0 [ROWSxCOLUMNS] [cta N]   the box that lies in shared memory, its swizzle undone; show full[0]; show %r1
registers [NAME...]   of the selected warp; without names those that it may still read
buffer C PLACE TYPE SHAPE   give memory a name: PLACE is a buffer, 0xADDRESS or a parameter (+ bytes); SHAPE as 64x64
buffers               what has a name, and where the kernel's pointers go
quit
TO is one of
{FORMS}
In a tile, '.' is a place that nobody has written."""
LARGEST_TILE = 64 * 64
SHOWN_TILE = "8x16"


class Quit(Exception):
    """The script or the user is done."""


class Commands:
    """Carries out commands on a debugger; each gives lines of text."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._known: dict[str, Callable[[str], Iterator[str]]] = {
            "continue": self._continue, "c": self._continue, "run": self._continue, "back": self._back,
            "step": self._step, "next": self._next, "break": self._break, "breakpoints": self._breakpoints,
            "watch": lambda rest: self._break(f"watch {rest}"),
            "delete": self._delete, "warp": self._warp, "why": self._why, "why-waits": self._why_waits,
            "where": lambda rest: self._debugger.where(), "warps": lambda rest: self._debugger.status.warp_lines(),
            "barriers": lambda rest: self._debugger.status.barrier_lines(), "findings": self._findings,
            "shared": self._shared, "tensor": self._tensor, "show": self._show, "registers": self._registers,
            "buffer": self._buffer, "buffers": self._buffers,
            "help": lambda rest: iter(HELP.split("\n")), "quit": self._quit,
        }  # fmt: skip

    @property
    def names(self) -> list[str]:
        return list(self._known)

    def do(self, line: str) -> list[str]:
        """Carries out one line. Raises UsageProblem for what is no command, Quit for quit."""
        word, _, rest = line.partition("#")[0].strip().partition(" ")
        if not word:
            return []
        if word not in self._known:
            raise UsageProblem(f"'{word}' is no command; help lists them")
        return "\n".join(self._known[word](rest.strip())).splitlines()

    # ---- forward and back ----

    def _continue(self, to: str) -> Iterator[str]:
        to = to.removeprefix("to ")
        yield from self._arrived(self._debugger.to(to) if to else self._debugger.run())

    def _back(self, to: str) -> Iterator[str]:
        d, (word, _, count) = self._debugger, to.partition(" ")
        to = to.removeprefix("to ")
        if word == "step":
            yield from self._arrived(d.step_back(_count(count)))
        elif word == "next":
            yield from self._arrived(d.next_back(_count(count)))
        else:
            yield from self._arrived(d.back_to(to) if to else d.run_back())

    def _step(self, count: str) -> Iterator[str]:
        yield from self._arrived(self._debugger.step(_count(count)))

    def _next(self, count: str) -> Iterator[str]:
        yield from self._arrived(self._debugger.next(_count(count)))

    def _arrived(self, why: str) -> Iterator[str]:
        if why:
            yield why
        yield from self._debugger.where()

    def _break(self, to: str) -> Iterator[str]:
        number = self._debugger.add_breakpoint(to)
        count = len(self._debugger.breakpoints[number].positions)
        yield f"breakpoint {number}: {to}, {f'{count:,} times in this run' if count != 1 else 'once in this run'}"

    def _breakpoints(self, rest: str) -> Iterator[str]:
        for number, target in self._debugger.breakpoints.items():
            yield f"breakpoint {number}: {target.what}, at {len(target.positions):,} events"

    def _delete(self, number: str) -> Iterator[str]:
        if not number.isdecimal() or int(number) not in self._debugger.breakpoints:
            raise UsageProblem(f"delete {number}: no such breakpoint; breakpoints lists them")
        del self._debugger.breakpoints[int(number)]
        yield from ()

    def _warp(self, text: str) -> Iterator[str]:
        d = self._debugger
        if text:
            words = text.split(":")
            if not 2 <= len(words) <= 3 or not all(word.isdecimal() for word in words):
                raise UsageProblem(f"warp {text}: write CTA:WARP or CLUSTER:CTA:WARP, as in 0:4")
            cluster, cta, warp = (int(word) for word in (["0", *words] if len(words) == 2 else words))
            d.warp = cluster, cta, warp
        if d.warp is None:
            raise UsageProblem("no warp is selected; write warp CTA:WARP")
        status = d.status
        agents = [agent for agent in status.warps if agent[:3] == d.warp]
        yield from status.warp_lines(agents) if agents else iter([f"{d.names.warp(*d.warp)} has done nothing yet"])

    # ---- why ----

    def _why(self, text: str) -> Iterator[str]:
        yield from self._debugger.why(text)

    def _why_waits(self, rest: str) -> Iterator[str]:
        said = list(self._debugger.status.waits())
        yield from said or ["nobody waits here"]

    def _findings(self, rest: str) -> Iterator[str]:
        found = self._debugger.recording.findings
        at = {id(finding): event for event, finding in found}
        for cause in by_cause(finding for _, finding in found):
            first = cause[0]
            more = f" (and {len(cause) - 1} more like it)" if len(cause) > 1 else ""
            yield f"event {at[id(first)]}: {first.severity} {first.rule}: {first.message}{more}"
            yield from (f"    {place}" for place in (first.first, first.second) if place is not None)
            yield from (f"    {said}" for said in (first.missing, first.mend) if said)
        if not found:
            yield "the checker has found nothing in this schedule"

    # ---- shows ----

    def _selected(self) -> tuple[int, int, int]:
        return self._debugger.warp or (0, 0, 0)

    def _shared(self, text: str) -> Iterator[str]:
        d, (place, dtype, (rows, columns), cta) = self._debugger, self._tile(text, "shared")
        offset = d.names.offset_of(place)
        if offset is None:
            if not place.startswith("0x"):
                raise UsageProblem(f"shared {place}: no region is called so; give an offset as 0x400")
            offset = _hex(place)
        data, valid = d.stopped.shared(self._selected()[0], cta, offset, dtype.memory_bytes((rows, columns)))
        yield f"{d.names.shared(offset, cta)}, rows of {columns} {dtype.name} as they lie"
        yield from matrix(dtype.from_memory(data, (rows, columns)), written_elements(valid, (rows, columns)))

    def _tensor(self, text: str) -> Iterator[str]:
        d, (place, dtype, (rows, columns), cta) = self._debugger, self._tile(text, "tensor")
        if dtype.bits != 32:
            raise UsageProblem(f"tensor {place}: columns of tensor memory have 32 bits; name f32, s32 or u32")
        lane, column = (_whole(word) for word in (*place.split(","), "", "")[:2])
        data, valid = d.stopped.tensor(self._selected()[0], cta)
        part = slice(lane, lane + rows), slice(column, column + columns)
        yield f"tensor memory of CTA {cta}, lanes from {lane}, columns from {column}"
        yield from matrix(data[part].view(dtype.numpy), valid[part])

    def _tile(self, text: str, what: str) -> tuple[str, Any, tuple[int, int], int]:
        words, cta = text.split(), self._selected()[1]
        if words[-2:-1] == ["cta"]:
            cta, words = _whole(words[-1]), words[:-2]
        dtype = find_type(words[-2]) if len(words) >= 3 else None
        if dtype is None:
            raise UsageProblem(f"{what} {text}: write the place, a type and a size, as in {what} 0,0 f32 8x8 cta 0")
        return " ".join(words[:-2]), dtype, _size(words[-1]), cta

    def _show(self, text: str) -> Iterator[str]:
        d = self._debugger
        if text.startswith("%"):
            yield from self._registers(text)
            return
        place, _, size = text.partition(" ")
        name, bracket, index = place.partition("[")
        placed = d.recording.placed.get(name)
        if placed is None or not bracket:
            yield from self._show_shared(text)
            return
        at = read_index(index.rstrip("]"), placed)
        rows, columns = _size(size) if size else (1, 1)
        data, valid = d.stopped.device.bytes_at(placed.address, placed.nbytes)
        values = placed.dtype.from_memory(data, placed.shape)
        written = written_elements(valid, placed.shape)
        if len(at) == 1:
            values, written, at = values[None], written[None], (0, *at)
        part: Any = (*at[:-2], slice(at[-2], at[-2] + rows), slice(at[-1], at[-1] + columns))
        yield from matrix(values[part], written[part])

    def _show_shared(self, text: str) -> Iterator[str]:
        """An mbarrier, or a box that lies in shared memory, by name or offset."""
        d, (cluster, selected, _) = self._debugger, self._selected()
        words = text.split()
        cta = _whole(words.pop()) if words[-2:-1] == ["cta"] else selected
        words = words[:-1] if words[-1:] == ["cta"] else words
        size = words.pop() if re.fullmatch(r"\d+x\d+", words[-1] if words else "") else ""
        place = " ".join(words)
        offset = d.names.offset_of(place)
        if offset is None and place.startswith("0x"):
            offset = _hex(place)
        barrier = d.status.barriers.get((cluster, cta, -1 if offset is None else offset))
        if barrier is not None:
            yield d.status.barrier(barrier)
            return
        for tile in d.tiles(cluster, cta):
            if offset is not None and tile.first == offset:
                yield f"{tile.place}: {tile.what}, written by event {tile.write.event}"
                values, written = tile.values(d.stopped)
                rows, columns = _size(size or SHOWN_TILE)
                yield from matrix(values[:rows, :columns], written[:rows, :columns])
                return
        there = ", ".join([*(f"{name}[0,0]" for name in d.recording.placed), *(t.place for t in d.tiles(cluster, cta))])
        raise UsageProblem(f"show {text}: that is neither a register (%r1) nor a barrier, nor one of {there}")

    def _registers(self, text: str) -> Iterator[str]:
        d, wanted = self._debugger, text.split()
        if d.warp is None:
            raise UsageProblem("no warp is selected; write warp CTA:WARP")
        fragments = d.stopped.fragments(*d.warp)
        if not fragments:
            yield f"{d.names.warp(*d.warp)} has left the kernel"
        for fragment in fragments:
            yield d.names.agent(fragment.agent)
            for name, kind, value in d.stopped.registers(fragment, wanted):
                yield f"  {name:<8} .{kind:<5} {value_text(value, kind, fragment)}"

    def _buffer(self, text: str) -> Iterator[str]:
        words = text.split()
        dtype = find_type(words[2]) if len(words) == len(("name", "place", "type", "shape")) else None
        if dtype is None or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", words[3]):
            raise UsageProblem(f"buffer {text}: write name, place, type and shape, as in C param_2 f32 64x64")
        shape = tuple(int(extent) for extent in words[3].split("x"))
        yield self._said(self._debugger.name_buffer(words[0], words[1], dtype, shape))

    def _buffers(self, rest: str) -> Iterator[str]:
        d = self._debugger
        yield from (self._said(placed) for placed in d.recording.placed.values())
        yield from (f"{name} points to {d.names.address(address)}" for name, address in d.pointers)

    def _said(self, placed: Placed) -> str:
        return f"{placed.name}: {'x'.join(map(str, placed.shape))} {placed.dtype.name} at 0x{placed.address:x}"

    def _quit(self, rest: str) -> Iterator[str]:
        raise Quit


def _count(text: str) -> int:
    if text and not (text.isdecimal() and int(text) > 0):
        raise UsageProblem(f"'{text}': how often is a whole number above 0")
    return int(text or 1)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise UsageProblem(f"'{text}' is not a whole number")
    return int(text)


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise UsageProblem(f"'{text}' is not an offset such as 0x400") from None


def _size(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal()) or not 0 < int(rows) * int(columns) <= LARGEST_TILE:
        raise UsageProblem(f"'{text}': a size is ROWSxCOLUMNS, as 8x16, of at most {LARGEST_TILE:,} elements")
    return int(rows), int(columns)


def matrix(values: NDArray[Any], written: NDArray[np.bool_]) -> Iterator[str]:
    cells = [
        [f"{float(v):g}" if w else "." for v, w in zip(row, known, strict=True)]
        for row, known in zip(values, written, strict=True)
    ]
    width = max((len(cell) for row in cells for cell in row), default=1)
    for row in cells:
        yield "  " + " ".join(cell.rjust(width) for cell in row)


def value_text(value: Any, kind: str, fragment: Fragment) -> str:
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
        return f"{np.uint32(value).view(np.float32):g}"
    return f"{value:g}" if isinstance(value, float | np.floating) else f"{int(value)}"
