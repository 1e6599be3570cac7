"""The debugger as a Python class: a recording, a position in it, and ways to go forward and back.

with debug(launchable) as d:
    d.to("wrong")
    print("\\n".join(d.why("C[3,517]")))
    d.step_back()
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from emugpu.debug.chain import Chain, lines_of
from emugpu.debug.names import LaunchNames, line_of
from emugpu.debug.reading import element_of, whole
from emugpu.debug.recording import RecordedBuffer, Recording, record
from emugpu.debug.status import Status
from emugpu.debug.stopped import Stopped
from emugpu.debug.targets import WORDS, Target, Targets
from emugpu.debug.tiles import Tile, tiles, written_elements
from emugpu.debug.watch import watch
from emugpu.debug.why import Why
from emugpu.debug.writers import Writers
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Agent, Site
from emugpu.errors import UsageProblem
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.spec import DataType, Launchable, Raw

START = "the start: nothing has happened yet"
CONTEXT = 2
"""Lines of PTX shown before and after an instruction."""
POINTER = 8
"""Bytes of a pointer."""
THREAD_EVENTS = (events.Resumed, events.Rejoined, events.Diverged, events.BytesLanded)
"""Events of an agent that do not belong to one of its instructions."""


class Debugger:
    """Moves through a recording.

    ``position`` is the number of events that have happened. ``warp`` (cluster, CTA, warp) is the warp that steps.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.position = 0
        self.warp: tuple[int, int, int] | None = None
        self.breakpoints: dict[int, Target] = {}
        self._last_breakpoint = 0
        self._names: dict[int, LaunchNames] = {}
        self._steps: dict[tuple[int, int, int], list[tuple[int, bool]]] = {}
        self._stopped: tuple[int, Stopped] | None = None
        self._status: tuple[int, Status] | None = None

    def __enter__(self) -> Debugger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped = None

    @cached_property
    def writers(self) -> Writers:
        return Writers(self.recording)

    @cached_property
    def targets(self) -> Targets:
        return Targets(self.recording, self.writers)

    @property
    def names(self) -> LaunchNames:
        """Returns the names of the launch at the position."""
        return self.names_of(self.recording.launch_at(self.position))

    def names_of(self, launch: int) -> LaunchNames:
        """Returns the names of a launch, counted from 0."""
        if launch not in self._names:
            self._names[launch] = LaunchNames(self.recording, launch)
        return self._names[launch]

    def name_buffer(self, name: str, place: str, dtype: DataType, shape: tuple[int, ...]) -> RecordedBuffer:
        """Gives memory a name, a type and a shape.

        ``place`` is a buffer, an address, or a pointer parameter of the kernel, optionally followed by + and a
        number of bytes. Raises UsageProblem if there is no such memory.
        """
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in WORDS or self.names.has_region(name):
            raise UsageProblem(f"'{name}' cannot name a buffer; use letters, digits and _, but not the name of a place")
        if name in self.recording.what.buffers:
            raise UsageProblem(f"{name} is a buffer of the launch; take another name")
        base, _, more = (part.strip() for part in place.partition("+"))
        known = {**dict(self.pointers), **{other.name: other.address for other in self.recording.placed.values()}}
        # Compilers prefix the names of parameters with the mangled name of the kernel.
        address = next((at for other, at in known.items() if other == base or other.endswith(f"_{base}")), None)
        if address is None and not base.startswith("0x"):
            raise UsageProblem(f"'{place}' is not memory of this launch; write 0xADDRESS or one of {', '.join(known)}")
        address = (whole(base, place) if address is None else address) + whole(more or "0", place)
        placed = RecordedBuffer(name, address, dtype, shape, None)
        within = self.names.buffer_at(address)
        if within is not None and within.dtype.packed:
            raise UsageProblem(f"{name}: the elements of {within.name} share bytes; it has its type already")
        if within is None or address + placed.nbytes > within.address + within.nbytes:
            raise UsageProblem(f"{name}: {placed.nbytes:,} bytes from 0x{address:x} are not all memory of one buffer")
        part = slice(address - within.address, address - within.address + placed.nbytes)
        if within.unwritten is not None and within.unwritten[part].any():
            placed = replace(placed, unwritten=within.unwritten[part])
        elif within.first is not None:
            data = within.dtype.to_memory(within.first)[part]
            placed = replace(placed, first=dtype.from_memory(data.copy(), shape))
        values, written = self.recording.contents[within.name]
        bytes_written = np.repeat(written.reshape(-1), -(-within.dtype.bits // 8))[part]
        held = dtype.from_memory(within.dtype.to_memory(values)[part].copy(), shape)
        self.recording.contents = {**self.recording.contents, name: (held, written_elements(bytes_written, shape))}
        self.recording.placed = {name: placed, **{n: p for n, p in self.recording.placed.items() if n != name}}
        self._names.clear()
        return placed

    @property
    def pointers(self) -> list[tuple[str, int]]:
        """Returns the kernel's parameters that are addresses of buffers, as a recorded launch has them."""
        launch = self.recording.launch_at(self.position)
        given = [argument for _, argument in self.recording.what.launches[launch].arguments]
        found = []
        for parameter, argument in zip(self.recording.codes[launch].kernel.parameters, given, strict=False):
            if isinstance(argument, Raw) and len(argument.data) == POINTER:
                address = int.from_bytes(argument.data, "little")
                if self.names.buffer_at(address) is not None:
                    found.append((parameter.name, address))
        return found

    # ---- forward and back ----

    def target(self, text: str) -> Target:
        """Reads a target: see `emugpu.debug.targets.FORMS`."""
        if text.startswith("watch "):
            cluster, cta, _ = self.warp or (0, 0, 0)
            here = self.recording.launch_at(self.position), cluster, cta
            return watch(self.recording, self.writers, self.names, text.removeprefix("watch ").strip(), here)
        return self.targets.read(text, self.names)

    def add_breakpoint(self, place: str | Target) -> int:
        """Sets a breakpoint and returns its number."""
        target = self.target(place) if isinstance(place, str) else place
        self._last_breakpoint += 1
        self.breakpoints[self._last_breakpoint] = target
        return self._last_breakpoint

    def run(self) -> str:
        """Goes forward to the next breakpoint, or to the end. Returns why it stopped."""
        return self._go([*self.breakpoints.values()], forward=True)

    def run_back(self) -> str:
        """Goes back to the previous breakpoint, or to the start."""
        return self._go([*self.breakpoints.values()], forward=False)

    def to(self, text: str) -> str:
        """Goes forward to the next position of a target; stays if there is none.

        Raises UsageProblem if the text is not a target.
        """
        return self._to(text, forward=True)

    def back_to(self, text: str) -> str:
        """Goes back to the previous position of a target."""
        return self._to(text, forward=False)

    def step(self, count: int = 1) -> str:
        """Goes forward to the next event of the selected warp. If none is selected, selects that of the nearest
        event.
        """
        return self._step(count, lines=False, forward=True)

    def step_back(self, count: int = 1) -> str:
        """Goes back to the previous event of the selected warp."""
        return self._step(count, lines=False, forward=False)

    def next(self, count: int = 1) -> str:
        """Goes forward to the warp's next source line, or to its next PTX line if it has no source lines."""
        return self._step(count, lines=True, forward=True)

    def next_back(self, count: int = 1) -> str:
        """Goes back to the beginning of the warp's previous source line."""
        return self._step(count, lines=True, forward=False)

    def _go(self, targets: list[Target], forward: bool) -> str:
        found = []
        for target in targets:
            at = _following(target.positions, self.position) if forward else _preceding(target.positions, self.position)
            if at is not None:
                found.append((at, target))
        if not found:
            self.position = len(self.recording) if forward else 0
            return self.recording.end if forward else START
        self.position, target = min(found, key=lambda f: f[0]) if forward else max(found, key=lambda f: f[0])
        self._follow()
        return target.text_at(self.position) or target.what

    def _to(self, text: str, forward: bool) -> str:
        target = self.target(text)
        at = _following(target.positions, self.position) if forward else _preceding(target.positions, self.position)
        if at is None:
            there = f" {'after' if forward else 'before'} event {self.position:,}" if target.positions else ""
            return f"{text}: there is none in this run{there}"
        self.position = at
        self._follow()
        if at in (0, len(self.recording)):
            return self.recording.end if at else START
        return target.text_at(at) or target.what

    def _follow(self) -> None:
        """Selects the warp of the current event for stepping."""
        agent = agent_of(self.event)
        if agent is not None:
            self.warp = agent[:3]

    def _step(self, count: int, lines: bool, forward: bool) -> str:
        if count < 1:
            raise UsageProblem(f"{count}: the count must be a whole number above 0")
        if self.warp is None:
            steps = tuple(n for n, event in enumerate(self.recording.events, 1) if _is_step(event))
            nearest = (_following if forward else _preceding)(steps, self.position)
            self.warp = self.recording.events[nearest - 1].agent[:3] if nearest else None
        stops = [n for n, begins in self._stops() if begins or not lines]
        place = bisect_right(stops, self.position) + count - 1 if forward else bisect_left(stops, self.position) - count
        if 0 <= place < len(stops):
            self.position = stops[place]
            return ""
        self.position = len(self.recording) if forward else 0
        return self.recording.end if forward else START

    def _stops(self) -> list[tuple[int, bool]]:
        """Returns the events of the selected warp, each with whether a line begins there."""
        if self.warp is not None and self.warp not in self._steps:
            found: list[tuple[int, bool]] = []
            line = ""
            for number, event in enumerate(self.recording.events, 1):
                if _is_step(event) and event.agent[:3] == self.warp:
                    site = self.site_at(number)
                    now = line if site is None else site.source or line_of(site)
                    found.append((number, now != line))
                    line = now
            self._steps[self.warp] = found
        return self._steps[self.warp] if self.warp is not None else []

    # ---- what a user can inspect ----

    @property
    def event(self) -> Any:
        """Returns the last event that has happened, or None at the start."""
        return self.recording.events[self.position - 1] if self.position else None

    def site_at(self, position: int) -> Site | None:
        """Returns the instruction of the last event before a position, or None if it belongs to no instruction."""
        event = self.recording.events[position - 1] if position else None
        operation = getattr(event, "operation", None)
        return operation.site if operation is not None else getattr(event, "site", None)

    def where(self) -> Iterator[str]:
        """Yields the position, the last event, and the lines of PTX around it."""
        if not self.position:
            yield f"at the start of {len(self.recording):,} events"
            return
        yield f"event {self.position:,} of {len(self.recording):,}: {self.names.event(self.event)}"
        site = self.site_at(self.position)
        lines = self.recording.code_at(self.position).kernel.text
        if site is None or not lines:
            return
        for number in range(max(1, site.line - CONTEXT), min(len(lines), site.line + CONTEXT) + 1):
            yield f"  {'>' if number == site.line else ' '} {number:>5} | {lines[number - 1].strip()[:110]}"

    def source_file(self, name: str) -> Path | None:
        """Returns the file that .loc names, relative to the working directory or to the PTX, or None."""
        folders = Path(), self.recording.what.ptx.parent
        return next((folder / name for folder in folders if (folder / name).is_file()), None)

    @property
    def warps(self) -> list[tuple[int, int, int]]:
        """Returns all warps of the launch at the position: cluster, CTA, warp."""
        launches, launch = [*self.recording.launches, len(self.recording)], self.recording.launch_at(self.position)
        happened = self.recording.events[launches[launch] - 1 : launches[launch + 1]]
        return sorted({event.agent[:3] for event in happened if type(event) is events.Resumed})

    @property
    def status(self) -> Status:
        """Returns the state of all warps and barriers."""
        if self._status is None or self._status[0] != self.position:
            first = self.recording.launches[self.recording.launch_at(self.position)] if self.recording.launches else 1
            status = Status(self.recording.events[first - 1 : self.position], first, self.names)
            self._status = self.position, status
        return self._status[1]

    def tiles(self, cluster: int, cta: int) -> list[Tile]:
        """Returns the tiles in a CTA's shared and tensor memory at the position."""
        launch = self.recording.launch_at(self.position)
        return tiles(self.writers, self.names, launch, cluster, cta, self.position)

    @property
    def stopped(self) -> Stopped:
        """Returns the machine at the position.

        The Python engine runs the program again up to the position, once for each position; this takes as long as
        the run took until then.
        """
        if not self.position:
            raise UsageProblem("nothing has run yet; continue first")
        if self._stopped is None or self._stopped[0] != self.position:
            self._stopped = self.position, Stopped(self.recording, self.position)
        return self._stopped[1]

    def chain(self, text: str) -> Chain:
        """Returns the chain of what made an element of a buffer, such as ``C[3,517]``, at the position."""
        placed, at = element_of(text, self.recording.placed)
        first = placed.byte_of(at)
        write = self.writers.last(("global",), first, first + max(1, placed.dtype.bits // 8), self.position)
        launch = self.recording.launch_at(write.event if write is not None else self.position)
        return Why(self.recording, self.writers, self.names_of(launch), launch).element(placed, at, self.position)

    def why(self, text: str) -> list[str]:
        """Returns the chain as lines of text."""
        return lines_of(self.chain(text), self.names)


def debug(what: Launchable | str | Path, options: EmulationOptions | None = None) -> Debugger:
    """Records a run of a launchable, or of a launch file, and returns a debugger at its start.

    ``options`` set the schedule, the seed and the poison of memory. Raises UsageProblem for an error in a launch
    file, CannotRun for a kernel that the emulator cannot run.
    """
    launchable = what if isinstance(what, Launchable) else read_launch_file(Path(what))
    return Debugger(record(launchable, options or EmulationOptions()))


def agent_of(event: Any) -> Agent | None:
    """Returns the agent of an event, or None; of an asynchronous operation's events, only the issue has one."""
    return getattr(event, "agent", None) if not isinstance(event, events.BytesLanded) else None


def _is_step(event: Any) -> bool:
    return agent_of(event) is not None and not isinstance(event, THREAD_EVENTS)


def _following(positions: tuple[int, ...], position: int) -> int | None:
    n = bisect_right(positions, position)
    return positions[n] if n < len(positions) else None


def _preceding(positions: tuple[int, ...], position: int) -> int | None:
    n = bisect_left(positions, position)
    return positions[n - 1] if n else None
