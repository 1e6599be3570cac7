"""The targets of the debugger. Each one is a list of positions in a recording; going back goes to the previous one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from emugpu.debug.names import LaunchNames, mnemonic
from emugpu.debug.reading import element_of, qualified, tensor_place, whole
from emugpu.debug.recording import RecordedBuffer, Recording
from emugpu.debug.writers import Write, Writers
from emugpu.emulator.machine import events
from emugpu.errors import UsageProblem

FORMS = """\
  C[3,517]              a write to an element of a buffer; C alone: to any element
  0x7f0000000400        a write to an address of global memory
  shared 0x400 [cta 1]  a write to a byte of shared memory, also by name: shared A stage 0
  tensor 3,5 [cta 1]    a write to lane 3, column 5 of tensor memory
  full[0] [phase 3] [cta 1]   the end of a phase of an mbarrier, by its name or as 0x400
  line 120              an instruction of this PTX line
  kernel7.mojo:210      an instruction of this source line (.loc)
  tcgen05.mma           an executed instruction with this prefix; tma.load: an operation of this kind
  watch C[3,517]        where its value changes; also shared A stage 0 bf16 [cta 1]
  wrong                 the first write of a value that differs from the expectation
  finding               what the checker finds in this schedule
  fault                 where the run was stopped, or hung
  event 1234            after this many events; start; end"""

WORDS = ("start", "end", "event", "fault", "wrong", "finding", "line", "shared", "tensor", "watch")
"""The words with which a target may begin."""


@dataclass(frozen=True)
class Target:
    """Positions to go to, ascending. ``what`` describes them. ``why`` holds a text for each position."""

    what: str
    positions: tuple[int, ...]
    why: tuple[str, ...] = ()

    def text_at(self, position: int) -> str:
        if not self.why:
            return ""
        return self.why[self.positions.index(position)]


class Targets:
    """Reads the targets of one recording."""

    def __init__(self, recording: Recording, writers: Writers) -> None:
        self._recording = recording
        self._writers = writers

    def read(self, text: str, names: LaunchNames) -> Target:
        """Reads a target. Raises UsageProblem if the text cannot be read or names nothing that exists."""
        recording = self._recording
        words = text.split()
        if not words:
            raise UsageProblem("where to? help lists the places")
        match words:
            case ["start"]:
                return Target(text, (0,))
            case ["end"]:
                return Target(text, (len(recording),))
            case ["event", after]:
                position = whole(after, text)
                if position > len(recording):
                    raise UsageProblem(f"{text}: the run has {len(recording):,} events")
                return Target(text, (position,))
            case ["fault"]:
                return Target(text, (len(recording),) if recording.fault else ())
            case ["wrong"]:
                return self._wrong()
            case ["finding"]:
                found = {at: f"{f.severity} {f.rule}: {f.message}" for at, f in reversed(recording.findings)}
                at = tuple(sorted(found))
                return Target(text, at, tuple(found[n] for n in at))
            case ["line", line]:
                return self._line(whole(line, text), text)
        words, asked = qualified(words, text, "phase", "cta")
        names.check_cta(asked.get("cta"), text)
        match words:
            case ["shared", *place] if "phase" not in asked:
                return self._shared(" ".join(place), asked.get("cta"), text, names)
            case ["tensor", place] if "phase" not in asked:
                return self._tensor(place, asked.get("cta"), text)
        return self._named(" ".join(words), asked, text, names)

    def _named(self, place: str, asked: dict[str, int], text: str, names: LaunchNames) -> Target:
        recording = self._recording
        name, index, _ = place.partition("[")
        if name in recording.placed and not asked:
            if not index:
                placed = recording.placed[name]
                return self._written(placed.address, placed.address + placed.nbytes, text)
            placed, at = element_of(place, recording.placed)
            first = placed.byte_of(at)
            return self._written(first, first + max(1, placed.dtype.bits // 8), text)
        if re.fullmatch(r"0x[0-9a-fA-F]{7,}", place) and not asked:
            address = whole(place, text)
            if not names.is_allocated(address):
                raise UsageProblem(f"{text}: {place} is in no allocation; buffers shows where they are")
            return self._written(address, address + 1, text)
        offset = names.offset_of(place, text)
        if offset is not None:
            return self._barrier(offset, asked, text)
        if re.fullmatch(r"[^:]+:\d+", text):
            return self._source(text)
        found = tuple(
            n
            for n, e in enumerate(recording.events, 1)
            if (site := _site(e))
            and (mnemonic(site).startswith(text) or (type(e) is events.Issued and e.operation.kind == text))
        )
        if not found:
            there = ", ".join([*recording.placed, *sorted({r.name for r in names.regions if r.nbytes == 8})])
            raise UsageProblem(
                f"'{text}' names nothing in this run; buffers and barriers: {there}; help lists what one may write"
            )
        return Target(text, found)

    # ---- instructions ----

    @cached_property
    def lines(self) -> dict[str, dict[int, list[int]]]:
        """Returns the lines that have events, with the numbers of these: by file, which is "" for the PTX, or a
        source file (.loc).
        """
        found: dict[str, dict[int, list[int]]] = {"": {}}
        for n, event in enumerate(self._recording.events, 1):
            site = _site(event)
            if site is not None:
                found[""].setdefault(site.line, []).append(n)
                if site.source:
                    file, _, line = site.source.rpartition(":")
                    found.setdefault(file, {}).setdefault(int(line), []).append(n)
        return found

    def _line(self, line: int, text: str) -> Target:
        lines = self.lines[""]
        if line not in lines:
            nearest = sorted(sorted(lines, key=lambda other: (abs(other - line), other))[:4])
            raise UsageProblem(
                f"line {line}: it has no event (it was not executed, or uses only registers); the nearest lines "
                f"with events are {', '.join(map(str, nearest))}"
            )
        return Target(text, tuple(lines[line]))

    def _source(self, text: str) -> Target:
        file, _, line = text.rpartition(":")
        sources = {name: lines for name, lines in self.lines.items() if name == file or name.endswith("/" + file)}
        found = sorted(n for lines in sources.values() for n in lines.get(int(line), ()))
        if not found:
            some = sorted({line for lines in sources.values() for line in lines})[:20]
            files = ", ".join(sorted({name.rpartition("/")[2] for name in self.lines if name}))
            where = f"; its lines with events are {', '.join(map(str, some))}" if some else ""
            where = where or f"; files with events: {files or 'none (.loc is missing)'}"
            raise UsageProblem(f"{text}: that source line has no event{where}")
        return Target(text, tuple(found))

    # ---- memory ----

    def _written(self, first: int, end: int, text: str) -> Target:
        return self._writes(self._writers.all_to(("global",), first, end), text)

    def _shared(self, place: str, cta: int | None, text: str, names: LaunchNames) -> Target:
        offset = names.offset_of(place, text)
        if offset is None:
            raise UsageProblem(
                f"{text}: write a place in shared memory: the name of a region, or an address as in shared 0x400"
            )
        found = [
            write
            for memory in self._writers.memories("shared", cta)
            for write in self._writers.all_to(memory, offset, offset + 1)
        ]
        return self._writes(found, text)

    def _tensor(self, place: str, cta: int | None, text: str) -> Target:
        at = tensor_place(place, text)
        found = [
            write
            for memory in self._writers.memories("tensor", cta)
            for write in self._writers.backwards(memory, len(self._recording))
            if write.holds(*at)
        ]
        return self._writes(found, text)

    def _writes(self, writes: list[Write], text: str) -> Target:
        return Target(text, tuple(sorted({write.event for write in writes})))

    def _barrier(self, offset: int, asked: dict[str, int], text: str) -> Target:
        ends = [
            (n, e)
            for n, e in enumerate(self._recording.events, 1)
            if type(e) is events.PhaseCompleted and e.offset == offset
        ]
        if not any(type(e) is events.BarrierInit and e.offset == offset for e in self._recording.events):
            raise UsageProblem(f"{text}: no mbarrier was initialised there")
        found = [n for n, e in ends if asked.get("phase", e.phase) == e.phase and asked.get("cta", e.cta) == e.cta]
        return Target(text, tuple(found))

    # ---- the expectation ----

    def _wrong(self) -> Target:
        """Returns the last write to each element that is wrong at the end; earlier ones may have been partial sums."""
        recording, texts = self._recording, dict[int, str]()
        if not recording.what.expectations:
            raise UsageProblem("wrong: no buffer has an expectation; add one to the launch file, as in expect.C")
        for name, (_, wrong) in recording.differences.items():
            if not wrong.any():
                continue
            placed = recording.placed[name]
            last = last_writes(self._writers, placed, len(recording))
            for number in np.unique(last[wrong]).tolist():
                if not number:
                    continue
                mine = np.argwhere(wrong & (last == number))
                index = ",".join(map(str, mine[0].tolist()))
                more = f" and {len(mine) - 1:,} more" if len(mine) > 1 else ""
                texts.setdefault(number, f"{name}[{index}]{more}: wrong from here on")
        positions = tuple(sorted(texts))
        return Target("wrong", positions, tuple(texts[n] for n in positions))


def last_writes(writers: Writers, placed: RecordedBuffer, before: int) -> NDArray[np.int64]:
    """Returns for each element of a buffer the event that wrote it last, or 0 if none did."""
    nbytes = placed.nbytes
    last = np.zeros(nbytes, np.int64)
    for write in reversed(list(writers.backwards(("global",), before))):
        starts, size = write.ranges()
        inside = starts - placed.address
        for start in inside[(inside < nbytes) & (inside + size > 0)].tolist():
            last[max(0, start) : start + size] = write.event
    first = np.arange(int(np.prod(placed.shape))) * placed.dtype.bits // 8
    found: NDArray[np.int64] = last[first].reshape(placed.shape)
    return found


def _site(event: object) -> events.Site | None:
    """Returns the instruction of an event, if a thread executed one."""
    if isinstance(event, events.Issued):
        return event.operation.site
    if isinstance(event, events.BytesLanded | events.Suspended):
        return None
    return getattr(event, "site", None)
