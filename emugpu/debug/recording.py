"""A recording is a run with all its events; to go back means to look at an earlier event.

The emulated machine is deterministic for a schedule and a seed. For data that no event carries (registers, the bytes
of a tile), the program runs again up to an event (`emugpu.debug.stopped`). A position is a number of events: at
position n, n events have happened, and event n is the last of them.
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
from emugpu.emulator.machine.sinks import DeferredSink
from emugpu.emulator.native.library import library_for
from emugpu.errors import CannotRun
from emugpu.launch.launching import EmulationOptions, load_module, run
from emugpu.launch.spec import DataType, Differences, Launchable

MOST_EVENTS = 1_000_000
"""The largest number of events. An event takes about a kilobyte."""


@dataclass(frozen=True)
class RecordedBuffer:
    """A buffer of the launchable in device memory.

    ``first`` holds its values before the first launch, or None if they are unknown; ``unwritten`` then marks the
    bytes that had not been written.
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
        """Returns the address of the first byte of an element."""
        return self.address + int(np.ravel_multi_index(tuple(index), self.shape)) * self.dtype.bits // 8

    def index_of(self, address: int) -> tuple[int, ...]:
        """Returns the index of the first element that begins at an address or after it."""
        flat = -(-(address - self.address) * 8 // self.dtype.bits)
        return tuple(int(n) for n in np.unravel_index(flat, self.shape))


@dataclass
class Recording:
    """The events of a run and its outcome.

    ``end`` says how the run ended; ``fault``: it ended with an error. ``sites`` are those of the last launch.
    ``contents`` holds the final values of buffers, with zeros for what was not written, and which elements were
    written.
    """

    what: Launchable
    options: EmulationOptions
    events: list[Any]
    placed: Mapping[str, RecordedBuffer]
    codes: tuple[Code, ...]
    end: str = ""
    fault: bool = False
    contents: Mapping[str, tuple[NDArray[Any], NDArray[np.bool_]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.events)

    @cached_property
    def launches(self) -> list[int]:
        """Returns the numbers of the events with which launches start."""
        return [n for n, event in enumerate(self.events, 1) if type(event) is events.GridStarted]

    def launch_at(self, position: int) -> int:
        """Returns the launch at a position, counted from 0."""
        return max(0, bisect_right(self.launches, position) - 1)

    def code_at(self, position: int) -> Code:
        return self.codes[self.launch_at(position)]

    @cached_property
    def findings(self) -> list[tuple[int, Finding]]:
        """Returns the checker's findings in this schedule, each with its event. The program runs again for this."""
        return _check(self)

    @cached_property
    def differences(self) -> Mapping[str, Differences]:
        """Returns, for each buffer with an expectation, the expected elements and which of them are wrong.

        In a buffer that is written only in part, the other elements count as zeros in the comparison, and as wrong.
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
    """A device that keeps the machines of its launches for inspection."""

    machines: list[Machine]

    def __init__(self, options: EmulationOptions) -> None:
        about = (options.accumulation, options.schedule, options.seed, None, None, options.uninitialised)
        super().__init__(*about, library_for(options.engine))
        self.machines = []

    def _make_machine(self, *arguments: Any) -> Machine:
        machine = super()._make_machine(*arguments)
        self.machines.append(machine)
        return machine

    def bytes_at(self, address: int, nbytes: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Returns bytes of global memory, and which of them were ever written."""
        block, offset = self._memory.find(address, nbytes)
        part = slice(offset, offset + nbytes)
        valid = np.ones(nbytes, np.bool_) if block.valid is None else block.valid[part].copy()
        return block.data[part].copy(), valid


class _Recorder(DeferredSink):
    """The sink that keeps events."""

    def __init__(self, device: Watched, what: Launchable) -> None:
        self.device = device
        self.what = what
        self.events: list[Any] = []
        self.placed: dict[str, RecordedBuffer] = {}

    def __call__(self, event: Any) -> None:
        if type(event) is events.GridStarted and not self.placed:
            self.placed = _placed(self.device, self.what, event)
        for one in event if type(event) is events.Accesses else (event,):
            if len(self.events) == MOST_EVENTS:
                raise CannotRun(f"the run has more than {MOST_EVENTS:,} events; debug a smaller problem")
            self.events.append(one)


def record(what: Launchable, options: EmulationOptions) -> Recording:
    """Runs a launchable to its end and returns the recording.

    Raises UsageProblem for an error in a launch file, and CannotRun if the run cannot start.
    """
    options = replace(options, strict=False, jobs=1, sinks=())
    device = Watched(options)
    recorder = _Recorder(device, what)
    end, fault = "the program has ended", False
    try:
        run(what, replace(options, sinks=(recorder,)), device=device, keep=())
    except CannotRun as error:
        # A buffer that was never written is a fault of the result, not of the run.
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


def _placed(device: Watched, what: Launchable, event: events.GridStarted) -> dict[str, RecordedBuffer]:
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
        placed = RecordedBuffer(name, address, buffer.dtype, shape, None)
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
