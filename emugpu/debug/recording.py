"""A recording is a run with all its events, so that going back is looking at an earlier one.

The emulated machine is deterministic by schedule and seed: what events do not tell (registers, the bytes of a tile) is
had by running again up to an event (`emugpu.debug.stopped`). A position is a number of events: at position n, n events
have happened, and event n is the last of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.check import Checker
from emugpu.check.findings import Finding
from emugpu.emulator import Device, EmulatorError
from emugpu.emulator.machine import events
from emugpu.emulator.machine.code import Code
from emugpu.emulator.machine.machine import Machine
from emugpu.errors import CannotRun
from emugpu.launch.launching import EmulationOptions, load_module, run
from emugpu.launch.spec import DataType, Differences, Launchable

MOST_EVENTS = 1_000_000
"""An event takes about a kilobyte."""


@dataclass(frozen=True)
class Placed:
    """A buffer of the launchable in device memory. first: its values before the first launch, None: unknown; unwritten:
    then the bytes that nobody has written by then.
    """

    name: str
    address: int
    dtype: DataType
    shape: tuple[int, ...]
    first: NDArray[Any] | None
    unwritten: NDArray[np.bool_] | None = None

    @property
    def nbytes(self) -> int:
        return self.dtype.memory_bytes(self.shape)

    def byte_of(self, index: Sequence[int]) -> int:
        """The address of the first byte of an element."""
        return self.address + int(np.ravel_multi_index(tuple(index), self.shape)) * self.dtype.bits // 8

    def index_of(self, address: int) -> tuple[int, ...]:
        """The first element that begins in a byte."""
        flat = -(-(address - self.address) * 8 // self.dtype.bits)
        return tuple(int(n) for n in np.unravel_index(flat, self.shape))


@dataclass
class Recording:
    """What happened. end: how the run ended, in words; fault: whether it was not by itself. sites: of the last launch.

    contents: of buffers at the end, with zeros where nothing was written, and which elements were written.
    """

    what: Launchable
    options: EmulationOptions
    events: list[Any]
    placed: Mapping[str, Placed]
    codes: tuple[Code, ...]
    end: str = ""
    fault: bool = False
    contents: Mapping[str, tuple[NDArray[Any], NDArray[np.bool_]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.events)

    @cached_property
    def launches(self) -> list[int]:
        """The numbers of the events with which launches start."""
        return [n for n, event in enumerate(self.events, 1) if type(event) is events.GridStarted]

    def launch_at(self, position: int) -> int:
        """The launch, from 0 on, that a position is in."""
        return max(0, bisect_right(self.launches, position) - 1)

    def code_at(self, position: int) -> Code:
        return self.codes[self.launch_at(position)]

    @cached_property
    def findings(self) -> list[tuple[int, Finding]]:
        """What the checker finds in this schedule, each with its event; the run is made again for it."""
        return _check(self)

    @cached_property
    def differences(self) -> Mapping[str, Differences]:
        """Of each buffer that something is expected of: what its elements must be at the end, and which are not.

        One that is not wholly written is compared as if zeros were written, and what is not written is wrong.
        """
        first = {name: placed.first for name, placed in self.placed.items()}
        found = {}
        for expectation in self.what.expectations:
            if expectation.buffer in self.contents:
                got, written = self.contents[expectation.buffer]
                expected, wrong = expectation.differences(got, first)
                found[expectation.buffer] = (expected, wrong | ~written)
        return found


class Watched(Device):
    """A device that keeps the machines of its launches for whoever looks into them."""

    machines: list[Machine]

    def __init__(self, options: EmulationOptions) -> None:
        super().__init__(options.accumulation, options.schedule, options.seed, uninitialised=options.uninitialised)
        self.machines = []

    def _make_machine(self, *arguments: Any) -> Machine:
        machine = super()._make_machine(*arguments)
        self.machines.append(machine)
        return machine

    def bytes_at(self, address: int, nbytes: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Bytes of global memory, and which of them were ever written."""
        block, offset = self._memory.find(address, nbytes)
        part = slice(offset, offset + nbytes)
        valid = np.ones(nbytes, np.bool_) if block.valid is None else block.valid[part].copy()
        return block.data[part].copy(), valid


class _Recorder:
    """The sink that keeps events."""

    def __init__(self, device: Watched, what: Launchable) -> None:
        self.device = device
        self.what = what
        self.events: list[Any] = []
        self.placed: dict[str, Placed] = {}

    def __call__(self, event: Any) -> None:
        if type(event) is events.GridStarted and not self.placed:
            self.placed = _placed(self.device, self.what, event)
        if len(self.events) == MOST_EVENTS:
            raise CannotRun(f"the run has more than {MOST_EVENTS:,} events; debug a smaller problem")
        self.events.append(event)


def record(what: Launchable, options: EmulationOptions) -> Recording:
    """Runs a launchable to its end and returns all that happened.

    Raises UsageProblem for what a launch file asks wrongly, CannotRun if it cannot even start.
    """
    options = replace(options, strict=False, jobs=1, sinks=())
    device = Watched(options)
    recorder = _Recorder(device, what)
    end, fault = "the program has ended", False
    try:
        run(what, replace(options, sinks=(recorder,)), device=device, keep=())
    except CannotRun as error:
        # That a buffer was never written is a fault of the result, not of the run.
        ended = isinstance(error.__cause__, EmulatorError) or error.__cause__ is None
        if not recorder.events or not ended or len(recorder.events) == MOST_EVENTS:
            raise
        end, fault = str(error), True
    codes = tuple(machine.code for machine in device.machines)
    contents = {}
    for name, placed in recorder.placed.items():
        data, valid = device.bytes_at(placed.address, placed.nbytes)
        data[~valid] = 0
        written = np.array(placed.dtype.from_memory(np.where(valid, 0, 255).astype(np.uint8), placed.shape).view("u1"))
        contents[name] = placed.dtype.from_memory(data, placed.shape), written.reshape(*placed.shape, -1).max(-1) == 0
    return Recording(what, options, recorder.events, recorder.placed, codes, end, fault, contents)


def _placed(device: Watched, what: Launchable, event: events.GridStarted) -> dict[str, Placed]:
    module = load_module(what)
    at = {name: address for name, address, _ in event.allocations}
    found = {}
    for name, buffer in what.buffers.items():
        address = device.symbol(name, module) if buffer.symbol else at.get(name)
        fill = buffer.fill.array if buffer.fill is not None else None
        shape = buffer.shape if buffer.shape is not None or fill is None else fill.shape
        if shape is None and buffer.symbol:
            shape = (device.symbol_bytes(name, module) * 8 // buffer.dtype.bits,)
        if address is None or shape is None:
            continue
        placed = Placed(name, address, buffer.dtype, shape, None)
        with np.errstate(all="ignore"):
            try:
                data, valid = device.bytes_at(address, placed.nbytes)
            except EmulatorError:
                continue
        if valid.all():
            placed = replace(placed, first=buffer.dtype.from_memory(data, shape))
        else:
            placed = replace(placed, unwritten=~valid)
        found[name] = placed
    return found


def _check(recording: Recording) -> list[tuple[int, Finding]]:
    found: list[tuple[int, Finding]] = []
    count = 0

    def note(finding: Finding) -> None:
        if finding.severity != "note":
            found.append((count, finding))

    checker = Checker(roles=recording.what.roles, on_finding=note)

    def watch(event: Any) -> None:
        nonlocal count
        count += 1
        checker(event)

    try:
        run(recording.what, replace(recording.options, sinks=(watch,)), keep=())
    except CannotRun as error:
        if isinstance(error.__cause__, Exception):
            checker.failed(error.__cause__)
    checker.report()
    return found
