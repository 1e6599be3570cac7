"""What one can go to: each target is a list of positions in a recording, and going back is the last one before."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.debug.names import Names, mnemonic, read_index
from harness.debug.recording import Placed, Recording
from harness.debug.writers import Write, Writers
from harness.emulator.machine import events
from harness.errors import UsageProblem

FORMS = """\
  C[3,517]              a write to an element of a buffer; C alone: to any
  0x7f0000000400        a write to an address of global memory
  shared 0x400 [cta 1]  a write to a byte of shared memory
  tensor 3,5 [cta 1]    a write to lane 3, column 5 of tensor memory
  full[0] [phase 3] [cta 1]   the end of a phase of an mbarrier, by its name or as 0x400
  line 120              an instruction of this PTX line
  kernel7.mojo:210      an instruction of this source line (.loc)
  tcgen05.mma           an instruction that begins so, and has been seen to execute
  watch C[3,517]        where its value changes; also shared A stage 0 bf16 [cta 1]
  wrong                 the first write of a value that differs from the expectation
  finding               what the checker finds in this schedule
  fault                 where the run was stopped, or hung
  event 1234            so many events from the start; start; end"""


@dataclass(frozen=True)
class Target:
    """Where to go. positions: ascending. what: in words. why: of each position, what is to be said there."""

    what: str
    positions: tuple[int, ...]
    why: tuple[str, ...] = ()

    def said_at(self, position: int) -> str:
        if not self.why:
            return ""
        return self.why[self.positions.index(position)]


class Targets:
    """Reads targets, of one recording."""

    def __init__(self, recording: Recording, writers: Writers) -> None:
        self._recording = recording
        self._writers = writers

    def read(self, text: str, names: Names) -> Target:
        """Raises UsageProblem for what cannot be read, or names nothing that there is."""
        recording = self._recording
        words = text.split()
        if not words:
            raise UsageProblem(f"where to? One of\n{FORMS}")
        match words:
            case ["start"]:
                return Target(text, (0,))
            case ["end"]:
                return Target(text, (len(recording),))
            case ["event", number]:
                position = _number(number, text)
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
            case ["line", number]:
                return self._line(_number(number, text), text)
            case ["shared", offset, *rest]:
                return self._shared(_number(offset, text), _qualified(rest, text, "cta").get("cta"), text)
            case ["tensor", place, *rest]:
                return self._tensor(place, _qualified(rest, text, "cta").get("cta"), text)
        return self._named(words, text, names)

    def _named(self, words: list[str], text: str, names: Names) -> Target:
        recording = self._recording
        name, _, index = words[0].partition("[")
        if name in recording.placed:
            if len(words) > 1:
                raise UsageProblem(f"{text}: nothing may follow the element")
            placed = recording.placed[name]
            if not index:
                return self._written(placed.address, placed.address + placed.nbytes, text)
            if not index.endswith("]"):
                raise UsageProblem(f"{text}: a ] is missing; write {name}[0,0]")
            first = placed.byte_of(read_index(index[:-1], placed))
            return self._written(first, first + max(1, placed.dtype.bits // 8), text)
        offset = names.offset_of(words[0])
        rest = words[1:]
        if offset is None and re.fullmatch(r"0x[0-9a-f]+", words[0]):
            number = int(words[0], 16)
            if number >= 1 << 24:
                return self._written(number, number + 1, text)
            offset = number
        if offset is not None:
            return self._barrier(offset, _qualified(rest, text, "phase", "cta"), text)
        if re.fullmatch(r"[^:]+:\d+", words[0]) and not rest:
            return self._source(words[0])
        found = tuple(
            n for n, e in enumerate(recording.events, 1) if (site := _site(e)) and mnemonic(site).startswith(text)
        )
        if not found:
            there = ", ".join([*recording.placed, *sorted({r.name for r in names.regions if r.nbytes == 8})])
            raise UsageProblem(
                f"'{text}' is nothing that there is here; buffers and barriers: {there}. One may write\n{FORMS}"
            )
        return Target(text, found)

    # ---- instructions ----

    @cached_property
    def lines(self) -> dict[str, dict[int, list[int]]]:
        """The lines that have events, each with their numbers: of the PTX, whose name is empty here, and of each source
        file (.loc).
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
                f"line {line}: no event is of it (it was not executed, or works on registers alone); the nearest lines "
                f"that have some are {', '.join(map(str, nearest))}"
            )
        return Target(text, tuple(lines[line]))

    def _source(self, text: str) -> Target:
        file, _, line = text.rpartition(":")
        sources = {name: lines for name, lines in self.lines.items() if name == file or name.endswith("/" + file)}
        found = sorted(n for lines in sources.values() for n in lines.get(int(line), ()))
        if not found:
            some = sorted({line for lines in sources.values() for line in lines})[:20]
            files = ", ".join(sorted({name.rpartition("/")[2] for name in self.lines if name}))
            where = f"; it has some on lines {', '.join(map(str, some))}" if some else ""
            where = where or f"; files that have some: {files or 'none (.loc is missing)'}"
            raise UsageProblem(f"{text}: no event is of that source line{where}")
        return Target(text, tuple(found))

    # ---- memory ----

    def _written(self, first: int, end: int, text: str) -> Target:
        return self._writes(self._writers.all_to(("global",), first, end), text)

    def _shared(self, offset: int, cta: int | None, text: str) -> Target:
        found = [
            write
            for memory in self._writers.memories("shared", cta)
            for write in self._writers.all_to(memory, offset, offset + 1)
        ]
        return self._writes(found, text)

    def _tensor(self, place: str, cta: int | None, text: str) -> Target:
        lane, comma, column = place.partition(",")
        if not comma:
            raise UsageProblem(f"{text}: write the lane and the column, as in tensor 3,5")
        at = _number(lane, text), _number(column, text)
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
        """The last write to each element that is wrong at the end: earlier ones may have been partial sums."""
        recording, said = self._recording, dict[int, str]()
        if not recording.what.expectations:
            raise UsageProblem("wrong: nothing is expected of a buffer; say so in the launch file, as in expect.C")
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
                said.setdefault(number, f"{name}[{index}]{more}: wrong from here on")
        positions = tuple(sorted(said))
        return Target("wrong", positions, tuple(said[n] for n in positions))


def last_writes(writers: Writers, placed: Placed, before: int) -> NDArray[np.int64]:
    """Of each element of a buffer, the event that has written it last; 0: none has."""
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
    """The instruction that an event is of, where a thread has executed it."""
    if isinstance(event, events.Issued):
        return event.operation.site
    if isinstance(event, events.BytesLanded | events.Suspended):
        return None
    return getattr(event, "site", None)


def _number(word: str, text: str) -> int:
    try:
        return int(word, 0)
    except ValueError:
        raise UsageProblem(f"{text}: '{word}' is not a whole number") from None


def _qualified(words: list[str], text: str, *known: str) -> dict[str, int]:
    """``phase 3 cta 1``."""
    found = {}
    for name, number in zip(words[::2], words[1::2], strict=False):
        found[name] = _number(number, text)
    if len(words) % 2 or not found.keys() <= set(known):
        raise UsageProblem(f"{text}: after the place there may be {' and '.join(f'{k} NUMBER' for k in known)}")
    return found
