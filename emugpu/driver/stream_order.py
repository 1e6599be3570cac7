"""The order of launches and copies among streams, events and the host, and races between those that nothing orders.

Calls are emulated one after the other, which is one of the orders that CUDA allows. Here each stream, each event and
the host has a clock: for each stream, the number of its operations that are known to be over (CUDA Programming Guide:
Streams, Events, Implicit Synchronization; Programmatic Dependent Launch). Two operations that touch the same bytes of
device or pinned memory, of which one writes, race if the later one may start before the earlier one is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from emugpu.check.early_launches import (
    NOTHING_RUNS,
    Describe,
    StillRunning,
    early_races,
    is_not_known,
    still_running,
    touches_the_same,
)
from emugpu.check.findings import Finding
from emugpu.check.footprint import Footprint, Key, Overlap, TouchedMemory
from emugpu.driver.log import LaunchRecord, Log
from emugpu.driver.memory import Window
from emugpu.emulator.names import short_name

Clock = dict[int, int]
LEGACY, PER_THREAD = 1, 2
NON_BLOCKING = 1
KEPT = 256
"""The latest operations of a stream that are kept, as long as the host does not know that they are over."""


def joined(*clocks: Clock) -> Clock:
    found: Clock = {}
    for clock in clocks:
        for stream, count in clock.items():
            found[stream] = max(count, found.get(stream, 0))
    return found


@dataclass(eq=False)
class StreamOperation:
    """A launch, a copy, a fill or a free.

    ``number`` counts in its stream. ``running`` says which earlier launches of its stream may still run, if it may
    start early or lets the next one start early.
    """

    name: str
    stream: int
    touched: TouchedMemory
    record: LaunchRecord | None = None
    number: int = 0
    running: StillRunning = NOTHING_RUNS


@dataclass(eq=False)
class TrackedStream:
    """A stream: what is over when its next operation starts, and its operations that may still run.

    ``dropped`` is the number of the last one that is not kept, and ``dropped_writes`` says of the bases of what such
    operations write who wrote there last. Both are empty if the host knows that all of them are over.
    """

    handle: int
    blocks: bool
    clock: Clock = field(default_factory=dict)
    count: int = 0
    dropped: int = 0
    dropped_writes: dict[int, str] = field(default_factory=dict)
    running: list[StreamOperation] = field(default_factory=list)

    def add(self, operation: StreamOperation) -> None:
        self.running.append(operation)
        if len(self.running) > KEPT:
            first = self.running.pop(0)
            self.dropped = first.number
            self.dropped_writes |= {base: first.name for base, _ in first.touched.written()}


class StreamOrder:
    """The clocks of one process."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._host: Clock = {}
        self._streams: dict[int, TrackedStream] = {}
        self._events: dict[int, Clock] = {}
        self._generations: dict[int, int] = {}
        self._computed = ""

    def renewed(self, log: Log) -> StreamOrder:
        """Returns clocks for the same streams and memory, with nothing that runs."""
        made = StreamOrder(log)
        made._generations = self._generations
        made._streams = {handle: TrackedStream(handle, one.blocks) for handle, one in self._streams.items()}
        return made

    # ---- memory ----

    def key(self, base: int) -> Key:
        return base, self._generations.get(base, 0)

    def freed(self, base: int) -> None:
        """A later allocation at this address is another one: the driver orders its uses behind the free."""
        self._generations[base] = self._generations.get(base, 0) + 1

    # ---- streams, events and the host ----

    def stream(self, handle: int, flags: int = 0) -> TrackedStream:
        handle = handle or LEGACY
        found = self._streams.get(handle)
        if found is None:
            found = self._streams[handle] = TrackedStream(handle, not flags & NON_BLOCKING)
        return found

    def _clock(self, stream: TrackedStream) -> Clock:
        """Returns what is over when the next operation of a stream starts, unless it may start early."""
        return joined(stream.clock, self._clock_of_others(stream))

    def _clock_of_others(self, stream: TrackedStream) -> Clock:
        """Returns what the host and other streams know to be over, when they let the next operation of a stream start.
        The legacy stream and blocking streams wait for one another.
        """
        if stream.handle == LEGACY:
            others = [other.clock for other in self._streams.values() if other.blocks and other is not stream]
        else:
            others = [self.stream(LEGACY).clock] if stream.blocks else []
        return joined(self._host, *others)

    def record(self, event: int, stream: int) -> None:
        self._events[event] = self._clock(self.stream(stream))

    def wait(self, stream: int, event: int) -> None:
        waiting = self.stream(stream)
        waiting.clock = joined(waiting.clock, self._events.get(event, {}))
        # A launch that may start early waits for the event as every operation does.
        if waiting.running:
            waiting.running[-1].running = NOTHING_RUNS

    def host_waits_for_event(self, event: int) -> None:
        self._host_knows(self._events.get(event, {}))

    def host_waits_for_stream(self, stream: int) -> None:
        self._host_knows(self._clock(self.stream(stream)))

    def host_waits(self) -> None:
        """Handles a wait of the host for everything."""
        self._host_knows(joined(*(stream.clock for stream in self._streams.values())))

    def _host_knows(self, clock: Clock) -> None:
        self._host = joined(self._host, clock)
        for stream in self._streams.values():
            over = self._host.get(stream.handle, 0)
            stream.running = [one for one in stream.running if one.number > over]
            if over >= stream.dropped:
                stream.dropped = 0
                stream.dropped_writes.clear()

    # ---- operations ----

    def submit(self, operation: StreamOperation, footprint: Footprint | None = None) -> None:
        """Handles the submission of an operation to its stream, and reports its races with those that may still run.

        A launch has a ``footprint``.
        """
        stream = self.stream(operation.stream)
        operation.stream = stream.handle
        clock = self._clock(stream)
        operation.number = stream.count = stream.count + 1
        if footprint is not None:
            before = stream.running[-1].running if stream.running else NOTHING_RUNS
            over = self._clock_of_others(stream).get(stream.handle, 0)
            before = StillRunning(*(part.behind(over) for part in before))
            if footprint.early is not None and any(one <= stream.dropped for one in before.at_next_start.all):
                self._log.not_looked_at(
                    f"more than {KEPT} launches of a stream started early one after the other; those before the last "
                    f"{KEPT} were not compared with the later ones"
                )
            before = StillRunning(*(part.behind(stream.dropped) for part in before))
            operation.running = still_running(operation.number, footprint, before)
        for other in self._streams.values():
            if other.dropped > clock.get(other.handle, 0) and other is not stream:
                self._log.not_looked_at(
                    f"more than {KEPT} operations of a stream ran without a wait of the host; those before the last "
                    f"{KEPT} were not compared with other streams"
                )
            for earlier in other.running:
                if clock.get(earlier.stream, 0) < earlier.number:
                    describe = partial(unordered, earlier.stream, stream.handle)
                    pairs = earlier.touched.overlaps(operation.touched)
                    self._report(earlier, operation, ((describe, *pair) for pair in pairs))
                elif other is stream and footprint is not None:
                    races = early_races(footprint, earlier.number, earlier.touched, operation.running)
                    self._report(earlier, operation, races)
        stream.clock = joined(stream.clock, clock, {stream.handle: stream.count})
        stream.add(operation)
        if self._computed:
            self.computed(self._computed)

    def computed(self, name: str) -> None:
        """Handles an operation of a library, whose stream and memory are not known."""
        self._computed = name
        if len([stream for stream in self._streams.values() if stream.count]) > 1:
            self._log.not_looked_at(f"{name} was not compared with the operations of other streams")

    def end(self, pinned: Window) -> None:
        """Handles the end of the process. What it reads in pinned memory is not seen, but a wait must come first."""
        for stream in self._streams.values():
            writes = [(one.name, base) for one in stream.running for base, _ in one.touched.written()]
            writes += [(name, base) for base, name in stream.dropped_writes.items()]
            for name in dict.fromkeys(name for name, base in writes if pinned.holds(base)):
                self._log.not_looked_at(
                    f"what the program reads of the pinned or managed memory that {name} writes: the host does "
                    "not wait for it afterwards"
                )

    def _report(
        self, earlier: StreamOperation, later: StreamOperation, races: Iterable[tuple[Describe, Key, Overlap]]
    ) -> None:
        for describe, (base, _), overlap in races:
            about = (later.name, earlier.name, f"{overlap.nbytes} at {base + overlap.place:#x}", overlap)
            if overlap.certain:
                self._say(later.record or earlier.record, describe(*about))
            else:
                self._log.not_looked_at(is_not_known(touches_the_same(*about)))

    def _say(self, record: LaunchRecord | None, finding: Finding) -> None:
        record = record or (self._log.launches[-1] if self._log.launches else None)
        if record is None:
            self._log.not_looked_at(finding.message)
        elif finding not in record.findings:
            record.findings = (*record.findings, finding)


def unordered(first: int, second: int, later: str, earlier: str, where: str, found: Overlap) -> Finding:
    """Returns the finding about operations of two streams that nothing orders. ``first`` and ``second`` are those."""
    return Finding(
        "race-launches", "error", f"{touches_the_same(later, earlier, where, found)}, and nothing orders the two", None,
        missing=f"no event or wait of the host between stream {first:#x} and stream {second:#x}",
        fix="cudaEventRecord in the first stream and cudaStreamWaitEvent in the second one, or a synchronisation",
    )  # fmt: skip


def submit_launch(order: StreamOrder, record: LaunchRecord, stream: int, footprint: Footprint) -> None:
    name = f"launch {record.number} of kernel '{short_name(record.kernel)}'"
    footprint.close()
    operation = StreamOperation(name, stream, footprint.all, record)
    order.submit(operation, footprint)
