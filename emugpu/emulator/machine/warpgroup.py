"""Four warps that execute wgmma together, and the registers that hold their accumulators (PTX ISA 9.7.15).

The warps run independently here. A wgmma.mma_async becomes one operation of the tensor core when the last of the four
has issued it; all must name the same registers and operands. From the moment a warp issues it, the accumulator
registers of that warp hold nothing, until a wgmma.wait_group of the warp covers the instruction. Even then the values
stay in the accumulator until an instruction reads one of its registers, so a K loop that waits in every step does not
move them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.machine.barriers import Wakeups
from emugpu.emulator.machine.events import Operation
from emugpu.emulator.machine.poison import Poison, made
from emugpu.emulator.machine.slots import set_of
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.units.mma import MmaUnit
from emugpu.emulator.units.wgmma import (
    WARP_ROWS,
    Accumulator,
    DecodedWgmma,
    M,
    WarpRegisters,
    WgmmaA,
    a_from_registers,
)

WARPS = 4
_NOTHING = {type(None)}


class Lanes(Protocol):
    """Lanes of a warp that execute together. single: the lane if there is only one, else -1."""

    single: int

    def current(self, wanted: int) -> list[Any]: ...
    def set(self, slot: int, value: Any) -> None: ...


class RegisterList:
    """The registers that a wgmma.mma_async names as D or as A. Each distinct list of a kernel is one such object."""

    __slots__ = ("_all", "_read", "names", "slots")

    def __init__(self, slots: Sequence[int], names: Sequence[str]) -> None:
        self.slots = tuple(slots)
        self.names = tuple(names)
        self._all, self._read = set_of(slots), itemgetter(*slots)

    def read(self, f: Lanes) -> Sequence[Any]:
        """Returns their values."""
        held: Sequence[Any] = self._read(f.current(self._all))
        return held

    def __str__(self) -> str:
        return f"{{{self.names[0]}, .., {self.names[-1]}}}"


@dataclass(slots=True, eq=False)
class HeldRegisters:
    """The A registers of one warp while a wgmma may still read them. fragments: the warp's fragments at issue."""

    fragments: Sequence[Lanes]
    registers: RegisterList
    values: Sequence[Any]

    def check(self) -> None:
        """Raises Fault if one of them has been written since."""
        for fragment in self.fragments:
            held = self.registers.read(fragment)
            for now, name, value in zip(held, self.registers.names, self.values, strict=True):
                if now is value:
                    continue
                now, then = (v.value if type(v) is Poison else v for v in (now, value))
                if fragment.single >= 0 and isinstance(then, np.ndarray):
                    then = then[fragment.single]
                if (np.asarray(now) != then).any():
                    raise Fault(
                        f"register {name} was written while a wgmma that reads A from it was in flight", "wgmma"
                    )


@dataclass(slots=True, eq=False)
class WarpgroupMma:
    """One wgmma.mma_async of the whole warpgroup, until all warps have issued it and it has completed."""

    key: tuple[Any, ...]
    decoded: DecodedWgmma
    accumulator: Accumulator
    keep: bool
    warps: list[int] = field(default_factory=list)
    """The warps that have issued the step."""
    initial: list[tuple[int, WarpRegisters]] = field(default_factory=list)
    """(warp in the group, registers [N / 2, 32]), if the old D comes from registers."""
    a_registers: WgmmaA | None = None
    a_held: list[HeldRegisters] = field(default_factory=list)
    metadata: NDArray[np.uint32] | None = None
    """The metadata of a sparse A: one register per lane, [4 warps, 32]."""
    operation: Operation | None = None

    def run(self, shared: SharedMemory, origin: Callable[[Fault], str]) -> None:
        """Executes the step in the tensor core, which reads the operands now. origin: see `Accumulator.add`."""
        for held in self.a_held:
            held.check()
        self.accumulator.d_type = self.decoded.form.d_type
        if self.keep:
            for warp, registers in self.initial:
                self.accumulator.set_rows(warp, registers)
        else:
            self.accumulator.clear()
        self.accumulator.add(shared, self.decoded, self.a_registers, self.metadata, origin)

    def put_a(self, warp: int, registers: WarpRegisters) -> None:
        """Sets the rows of A that come from the registers of one warp."""
        if self.a_registers is None:
            self.a_registers = WgmmaA(np.empty((M, 2), np.complex128), np.zeros(M, np.bool_))
        rows = slice(WARP_ROWS * warp, WARP_ROWS * (warp + 1))
        self.a_registers.chunks[rows] = a_from_registers(registers.bits)
        if registers.undefined is not None:
            self.a_registers.undefined[rows] = a_from_registers(registers.undefined).view(np.uint8).any(axis=1)
            self.a_registers = self.a_registers._replace(origin=registers.origin)

    def put_metadata(self, warp: int, words: NDArray[np.uint32]) -> None:
        """Sets one warp's metadata registers, which say which elements of A are kept."""
        if self.metadata is None:
            self.metadata = np.empty((WARPS, words.size), np.uint32)
        self.metadata[warp] = words


@dataclass(slots=True, eq=False)
class Warpgroup:
    """Warps 4g .. 4g + 3 of a CTA. ``label`` names it."""

    label: str
    unit: MmaUnit
    wakeups: Wakeups[Any]
    steps: deque[WarpgroupMma] = field(default_factory=deque)
    """The instructions that some warps, but not all, have issued."""
    submitted: int = 0
    completed: int = 0
    accumulators: dict[RegisterList, Accumulator] = field(default_factory=dict)
    waiters: list[tuple[int, Any]] = field(default_factory=list)

    def finish(self) -> None:
        """Checks, when the CTA has exited, that no wgmma is in flight."""
        if self.submitted != self.completed or self.steps:
            raise Fault(f"exits while a wgmma of {self} is in flight; wgmma.wait_group 0 is missing", "exit")
        for accumulator in self.accumulators.values():
            accumulator.retire()

    def wake(self) -> None:
        """Counts a completed instruction, and resumes the waits that it satisfies."""
        self.completed += 1
        ready = [fragment for needed, fragment in self.waiters if needed <= self.completed]
        self.waiters = [waiter for waiter in self.waiters if waiter[0] > self.completed]
        self.wakeups.resume_all(ready)

    def __str__(self) -> str:
        text = self.label
        if self.steps:
            warps = ", ".join(str(i) for i in sorted(self.steps[0].warps))
            text += f", whose oldest wgmma was issued by warp(s) {warps} of its {WARPS} only"
        return text


@dataclass(slots=True, eq=False)
class Binding:
    """An accumulator in the registers of one warp. last: the number of the youngest wgmma that adds to it."""

    registers: RegisterList
    accumulator: Accumulator
    last: int = 0
    readable: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """One warp's part in its warpgroup."""

    group: Warpgroup
    position: int
    issued: int = 0
    commits: deque[int] = field(default_factory=deque)
    """For each committed wgmma-group that may be pending: the number of instructions in it and in older groups."""
    groups: int = 0
    """The number of groups committed so far."""
    fenced: bool = False
    """Whether a wgmma.fence has followed the last access to accumulator registers."""
    bindings: dict[RegisterList, Binding] = field(default_factory=dict)

    def bind(
        self,
        f: Lanes,
        fragments: Iterable[Lanes],
        registers: RegisterList,
        n: int,
        keep: bool,
        warn: Callable[[str], None],
    ) -> tuple[Binding, Any]:
        """Returns the binding that a 64 x n wgmma adds to, and the old values if they come from registers.

        warn: called with a message if a fence is missing; ptxas inserts that fence itself.
        """
        held = registers.read(f)
        binding = self.bindings.get(registers)
        if set(map(type, held)) == _NOTHING:
            if binding is not None:
                return binding, None
            if keep:
                raise Fault(f"adds to the registers {registers}, which hold nothing yet", "wgmma")
        elif binding is not None:
            if not binding.readable:
                raise self.overwritten(f, binding)
            # Some registers were written since the wait. The others are still in the accumulator.
            self._publish(fragments)
        if not self.fenced:
            warn(
                f"takes the registers {registers} as they are in the registers, but no wgmma.fence.sync.aligned stands "
                "between their last access and this instruction; ptxas injects one (C7519)"
            )
        self._release_overlapping(registers, fragments)
        if keep:
            held = registers.read(f)
            if any(value is None for value in held):
                lacking = next(n for n, v in zip(registers.names, held, strict=True) if v is None)
                raise Fault(f"adds to register {lacking}, which holds nothing yet", "wgmma")
        for slot in registers.slots:
            f.set(slot, None)
        accumulator = self.group.accumulators.get(registers)
        if accumulator is None:
            accumulator = Accumulator(self.group.unit, n)
            self.group.accumulators[registers] = accumulator
        binding = self.bindings[registers] = Binding(registers, accumulator)
        return binding, held if keep else None

    def _release_overlapping(self, registers: RegisterList, fragments: Iterable[Lanes]) -> None:
        mine = set(registers.slots)
        for other in list(self.bindings.values()):
            if mine.isdisjoint(other.registers.slots):
                continue
            if not other.readable:
                raise Fault(
                    f"uses the registers {registers} while a wgmma of another shape or order of registers, "
                    f"{other.registers}, is in flight in some of them; wgmma.wait_group must come first",
                    "wgmma",
                )
            self._publish(fragments)

    def settle(self, f: Lanes, covered: int) -> None:
        """Makes the results of the first ``covered`` instructions readable, because a wait covers them."""
        for binding in self.bindings.values():
            if not binding.readable and binding.last <= covered:
                if set(map(type, binding.registers.read(f))) != _NOTHING:
                    raise self.overwritten(f, binding)
                binding.readable = True

    def overwritten(self, f: Lanes, binding: Binding) -> Fault:
        held = binding.registers.read(f)
        name = next(n for n, v in zip(binding.registers.names, held, strict=True) if v is not None)
        return Fault(f"register {name} was written while a wgmma that accumulates in it was in flight", "wgmma")

    def publish(self, fragments: Iterable[Lanes]) -> None:
        """Called before an instruction of the warp reads accumulator registers. fragments: the warp's fragments."""
        if self.bindings:
            self._publish(fragments)
            self.fenced = False

    def _publish(self, fragments: Iterable[Lanes]) -> None:
        """Copies readable accumulators into the registers of all the warp's fragments."""
        for registers, binding in list(self.bindings.items()):
            if not binding.readable:
                continue
            values = _values(binding.accumulator.rows(self.position))
            for fragment in fragments:
                lane = fragment.single
                own = values if lane < 0 else [_of_lane(value, lane) for value in values]
                held = registers.read(fragment)
                for slot, old, value in zip(registers.slots, held, own, strict=True):
                    if old is None:
                        fragment.set(slot, value)
            del self.bindings[registers]

    def pending(self, slot: int) -> bool:
        """Returns whether a register belongs to an accumulator that no wait has covered."""
        return any(not b.readable and slot in b.registers.slots for b in self.bindings.values())


def _values(registers: WarpRegisters) -> list[Any]:
    """Returns the values of registers, of which some bits may be undefined."""
    if registers.undefined is None:
        return list(registers.bits)
    pairs = zip(registers.bits, registers.undefined, strict=True)
    return [made(bits, undefined, registers.origin) for bits, undefined in pairs]


def _of_lane(value: Any, lane: int) -> Any:
    return value.of_lane(lane) if type(value) is Poison else value.item(lane)
