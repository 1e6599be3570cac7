"""Adds to a kernel's PTX that some of its warps write down the clock before and after what they wait for or start.

An event is 16 bytes in global memory: which place of the kernel it is (u32), an address or another operand that says
more (u32; of a wait for groups, how many may be left), the SM's clock (u64). Each warp that is traced has room for
`Room.events`; its first lane writes, which is the one that `elect.sync` chooses. The kernel gets one more parameter,
the address of the room.

It works on text, line by line, as the compiler formats it: an instruction on a line of its own. A wait is found as a
loop around `mbarrier.try_wait` that a branch back to its label closes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.errors import CannotRun
from harness.timing.survey_archive import BEGIN, END, GLOBAL_TIMER, POINT, SM, START, STOP, Site

PARAMETER = "trace_room"
EVENT_BYTES = 16


@dataclass(frozen=True)
class Room:
    """Which warps are traced: of the first ``ctas`` CTAs every ``warp_step``-th, of ``warps``; events: of each."""

    ctas: int
    warps: int
    warp_step: int
    events: int

    @property
    def traced(self) -> int:
        """Warps of a CTA."""
        return -(-self.warps // self.warp_step)

    @property
    def bytes(self) -> int:
        return self.ctas * self.traced * self.events * EVENT_BYTES


@dataclass(frozen=True)
class Instrumented:
    """PTX that writes events, and what their numbers mean."""

    ptx: str
    sites: tuple[Site, ...]
    room: Room


# What is written down, by the instruction, and where the operand is that says more: a number of a [..] in its text.
_AROUND = (
    (re.compile(r"\bwgmma\.wait_group\b"), "wait for MMA"),
    (re.compile(r"\bcp\.async\.bulk\.wait_group\b"), "wait for store"),
    (re.compile(r"\b(bar|barrier)\.(cta\.)?sync\b"), "barrier"),
    (re.compile(r"\bbarrier\.cluster\.wait\b"), "cluster barrier"),
    (re.compile(r"\btcgen05\.wait::ld\b"), "wait for TMEM"),
    (re.compile(r"\bgriddepcontrol\.wait\b"), "wait for the launch before"),
)
_AFTER = (
    (re.compile(r"\bcp\.async\.bulk\.tensor\S*\.shared::cluster\.global\b"), "load", 0),
    (re.compile(r"\bcp\.async\.bulk\.tensor\S*\.global\.shared::cta\b"), "store", 1),
    (re.compile(r"\bmbarrier\.arrive\.(?!expect_tx)"), "release", 0),
    (re.compile(r"\btcgen05\.commit\b"), "commit", 0),
)
_LEFT = re.compile(r"\bwait_group\S*\s+(\d+)\s*;")
"""How many groups may be left when a wait for groups ends."""
_MULTIPLY_BEGINS = re.compile(r"\bwgmma\.fence\b")
_MULTIPLY_ENDS = re.compile(r"\bwgmma\.commit_group\b")
_TRY_WAIT = re.compile(r"\bmbarrier\.try_wait\S*\s+\S+,\s*\[([^\]+]+)")
_LABEL = re.compile(r"^\s*(\$?\w+):\s*$")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$?\w+)\s*;")
_RETURN = re.compile(r"^\s*(@!?%\w+\s+)?ret\s*;")
_ADDRESS = re.compile(r"\[\s*(%\w+)[^\]]*\]")
_SHARED = re.compile(r"^\s*\.extern\s+\.shared\s.*?(\S+)\[\]\s*;")

_DECLARED = """	.reg .b64 %trace_at, %trace_end, %trace_now, %trace_tag;
	.reg .b32 %trace_r0, %trace_r1, %trace_r2;
	.reg .pred %trace_on;
"""


def read_room(words: np.ndarray, room: Room) -> dict[str, np.ndarray]:
    """The events, as `harness.timing.measured` reads them, of a room that was zero before: u64 words. A warp's events
    end where the clock is 0.
    """
    slots = words.reshape(room.ctas, room.traced, room.events, EVENT_BYTES // 8)
    cta, warp, place = np.nonzero(slots[..., 1])
    tags = slots[cta, warp, place, 0]
    return {
        "cta": cta.astype(np.uint16),
        "warp": (warp * room.warp_step).astype(np.uint8),
        "site": (tags & 0xFFFFFFFF).astype(np.uint16),
        "operand": (tags >> 32).astype(np.uint32),
        "clock": slots[cta, warp, place, 1],
    }


def instrument(ptx: str, room: Room) -> Instrumented:
    """The kernel with events. Raises CannotRun for PTX that is not one kernel as a compiler formats it."""
    return _Writer(ptx.splitlines(), room).write()


class _Writer:
    def __init__(self, lines: list[str], room: Room) -> None:
        self.lines, self.room = lines, room
        self.sites: list[Site] = []
        self.shared = next((m.group(1) for line in lines if (m := _SHARED.match(line))), None)
        self.waits = {wait.label_line: wait for wait in _waits(lines)}
        self.wait_ends = {wait.branch_line: wait for wait in self.waits.values()}

    def write(self) -> Instrumented:
        head = self._body_start()
        out: list[str] = []
        for number, line in enumerate(self.lines):
            if number == head.parameters_end:
                out[-1] += ","
                out.append(f"	.param .b64 {PARAMETER}")
            if number == head.first_instruction:
                out += [_DECLARED.rstrip("\n"), *self._start(number)]
            if number < head.first_instruction:
                out.append(line)
            else:
                out += self._with_events(number, line)
        return Instrumented("\n".join(out) + "\n", tuple(self.sites), self.room)

    def _with_events(self, number: int, line: str) -> Iterator[str]:
        if wait := self.waits.get(number):
            yield from self._event("wait", BEGIN, wait.try_line)  # the address may be worked out inside of the loop
        what = next((what for pattern, what in _AROUND if pattern.search(line)), None)
        if what:
            yield from self._event(what, BEGIN, number)
        if _MULTIPLY_BEGINS.search(line):
            yield from self._event("multiply", BEGIN, number)
        if _RETURN.match(line):
            yield from self._event(STOP, POINT, number)  # of a return that is not taken, too: the last one counts
        yield line
        if wait := self.wait_ends.get(number):
            yield from self._event("wait", END, wait.try_line, wait.barrier)
        if what:
            left = _LEFT.search(line)
            yield from self._event(what, END, number, left.group(1) if left else "0")
        if _MULTIPLY_ENDS.search(line):
            yield from self._event("multiply", END, number)
        for pattern, what, operand in _AFTER:
            if pattern.search(line):
                yield from self._event(what, POINT, number, _ADDRESS.findall(line)[operand])

    def _site(self, what: str, edge: str, line: int) -> int:
        self.sites.append(Site(len(self.sites), what, edge, line + 1))
        return self.sites[-1].number

    def _event(self, what: str, edge: str, line: int, operand: str = "0", clock: str = "%clock64"):
        """One lane of each traced warp writes it, and goes on to the next place unless that is the end of its room."""
        yield f"	mov.u64 %trace_now, {clock};"
        yield f"	mov.b32 %trace_r0, {self._site(what, edge, line)};"
        yield f"	mov.b32 %trace_r1, {operand};"
        yield "	mov.b64 %trace_tag, {%trace_r0, %trace_r1};"
        yield "	@%trace_on st.global.v2.b64 [%trace_at], {%trace_tag, %trace_now};"
        yield f"	@%trace_on add.u64 %trace_at, %trace_at, {EVENT_BYTES};"
        yield "	setp.lt.u64 %trace_on, %trace_at, %trace_end;"

    def _start(self, line: int) -> Iterator[str]:
        """Where this warp writes; 0 for lanes and warps that do not."""
        room = self.room
        step = room.warp_step
        yield f"""	mov.b64 %trace_at, 0;
	mov.b64 %trace_end, 0;
	mov.u32 %trace_r0, %ctaid.z;
	mov.u32 %trace_r1, %nctaid.y;
	mov.u32 %trace_r2, %ctaid.y;
	mad.lo.u32 %trace_r0, %trace_r0, %trace_r1, %trace_r2;
	mov.u32 %trace_r1, %nctaid.x;
	mov.u32 %trace_r2, %ctaid.x;
	mad.lo.u32 %trace_r0, %trace_r0, %trace_r1, %trace_r2;
	setp.lt.u32 %trace_on, %trace_r0, {room.ctas};
	mul.lo.u32 %trace_r0, %trace_r0, {room.traced};
	mov.u32 %trace_r1, %tid.x;
	rem.u32 %trace_r2, %trace_r1, {32 * step};
	setp.eq.and.u32 %trace_on, %trace_r2, 0, %trace_on;
	div.u32 %trace_r1, %trace_r1, {32 * step};
	add.u32 %trace_r0, %trace_r0, %trace_r1;
	@%trace_on ld.param.b64 %trace_at, [{PARAMETER}];
	cvta.to.global.u64 %trace_at, %trace_at;
	mul.wide.u32 %trace_tag, %trace_r0, {room.events * EVENT_BYTES};
	@%trace_on add.u64 %trace_at, %trace_at, %trace_tag;
	@%trace_on add.u64 %trace_end, %trace_at, {room.events * EVENT_BYTES};"""
        yield from self._event(START, POINT, line, self.shared or "0")
        yield from self._event(GLOBAL_TIMER, POINT, line, clock="%globaltimer")
        yield "	mov.u32 %trace_r2, %smid;"
        yield from self._event(SM, POINT, line, "%trace_r2")

    def _body_start(self) -> _Head:
        entries = [i for i, line in enumerate(self.lines) if re.search(r"\.entry\b", line)]
        if len(entries) != 1:
            raise CannotRun(f"events can be added to PTX with one kernel; this has {len(entries)}")
        parameters = next((i for i in range(entries[0], len(self.lines)) if self.lines[i].strip() == ")"), None)
        if parameters is None or parameters == entries[0] + 1:
            raise CannotRun("events can be added to a kernel whose parameters are each on a line, and ')' after them")
        brace = next(i for i in range(parameters, len(self.lines)) if self.lines[i].strip() == "{")
        first = next(i for i in range(brace + 1, len(self.lines)) if not re.match(r"^\s*(\.reg\b.*)?$", self.lines[i]))
        return _Head(parameters, first)


@dataclass(frozen=True)
class _Head:
    """Lines: of the ')' after the parameters, and of the first that is no declaration of registers."""

    parameters_end: int
    first_instruction: int


@dataclass(frozen=True)
class _Wait:
    """A loop around a try_wait: lines of its label, of the instruction, of the branch back; the barrier's address."""

    label_line: int
    try_line: int
    branch_line: int
    barrier: str


def _waits(lines: list[str]) -> Iterator[_Wait]:
    for number, line in enumerate(lines):
        match = _TRY_WAIT.search(line)
        if not match:
            continue
        before = next((i for i in range(number - 1, max(-1, number - 6), -1) if _LABEL.match(lines[i])), None)
        if before is None:
            continue
        label = _LABEL.match(lines[before]).group(1)  # type: ignore[union-attr]
        back = next((i for i in range(number + 1, min(len(lines), number + 6)) if _branches_to(lines[i], label)), None)
        if back is not None:
            yield _Wait(before, number, back, match.group(1).strip())


def _branches_to(line: str, label: str) -> bool:
    match = _BRANCH.search(line)
    return bool(match) and match.group(1) == label  # type: ignore[union-attr]
