"""What a run tells those who watch it: one stream of typed events, complete enough to rebuild every memory from it.

A *sink* is any callable that takes an event; hand it to ``Device.launch(sinks=[...])``. Events come in the order in
which things happen; those of one thread in program order. With no sink no event is made, but for a moment while it is
found out whether a warp only polls.

Who: an `Agent`, the lanes of a warp that execute together. Where: a `Site`, the instruction. What was accessed:
global and generic memory by device address, shared memory by the CTA's rank in its cluster and a byte offset,
tensor memory by lanes and columns. Arrays are those of the running machine: copy what you change.

Synchronous accesses are one `Access`. An asynchronous operation is `Issued` by its thread, `Started` when it reads its
operands, `Finished` when its results are visible; `Signalled` and `BytesLanded` say which barriers it has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np


class Agent(NamedTuple):
    """Lanes of one warp that execute together."""

    cluster: int
    """Number of the cluster in the grid, x fastest."""
    cta: int
    """Rank in the cluster."""
    warp: int
    lanes: int
    """A mask."""


@dataclass(frozen=True, eq=False)
class Site:
    """An instruction of the kernel. ``semantics`` and ``scope``: as written, or the default that PTX gives them."""

    index: int
    line: int
    text: str
    opcode: str
    modifiers: tuple[str, ...]
    semantics: str
    scope: str
    source: str
    """``file:line`` of the source it was compiled from, or nothing."""

    @property
    def verb(self) -> str:
        """The first two words of the instruction, as in ``st.async``."""
        return ".".join((self.opcode, *self.modifiers[:1]))


# ---- the grid ----


class GridStarted(NamedTuple):
    """``allocations``: (name, first address, bytes) of the device memory as it is at the launch.

    ``dynamic_shared``: offset of dynamic shared memory in a CTA's window.
    """

    launch: Any
    allocations: tuple[tuple[str, int, int], ...]
    dynamic_shared: int


class CtaStarted(NamedTuple):
    """``ctaid``: its place in the grid."""

    cluster: int
    cta: int
    ctaid: tuple[int, int, int]
    warps: int


class CtaEnded(NamedTuple):
    """All threads have left."""

    cluster: int
    cta: int


class Exited(NamedTuple):
    """Lanes have left the kernel."""

    agent: Agent


class ClusterEnded(NamedTuple):
    """All CTAs have ended and nothing of theirs is in flight."""

    cluster: int


# ---- threads ----


class Diverged(NamedTuple):
    """The lanes of an agent go separate ways: one agent a part from now on."""

    agent: Agent
    parts: tuple[Agent, ...]


class Rejoined(NamedTuple):
    """Agents of one warp have met and go on as one."""

    parts: tuple[Agent, ...]
    agent: Agent


class Suspended(NamedTuple):
    """The agent cannot go on; ``what`` says what it waits for; ``mbarrier``: offset and phase, if it is one."""

    agent: Agent
    site: Site
    what: str
    mbarrier: tuple[int, int] | None = None


class Resumed(NamedTuple):
    """A fragment executes: for the first time, after a wait, or after a split or a join."""

    agent: Agent


class WarpSynced(NamedTuple):
    """The lanes of ``members`` met (bar.warp.sync, and what else synchronises lanes: elect, shfl, vote, redux)."""

    agent: Agent
    site: Site
    members: int


# ---- memory ----


class Access(NamedTuple):
    """A load, store or atomic of each of the agent's lanes (ascending), completed when the event is made.

    ``mode``: "read", "write" or "atomic". ``space``: "shared", "global", "param", "local" (each
    thread has its own; functions' parameters are there, too) or "const". ``cta``: rank whose shared memory
    it is, -1 elsewhere. ``where``: one address for all lanes, or an array with one a lane (stmatrix and ldmatrix: one
    a row). ``nbytes``: of one item; ``items`` of them lie one after another. ``values``: what is in memory afterwards,
    for writes and atomics: one scalar for all, or an array (several items: a tuple of those).
    """

    agent: Agent
    site: Site
    mode: str
    space: str
    cta: int
    where: int | np.ndarray
    nbytes: int
    items: int
    values: Any


@dataclass(slots=True, eq=False)
class Accesses:
    """Loads, or stores, that a fragment has made one after the other with nothing in between: an iterable of each
    `Access`. Only a `DeferredSink` is told of them so.

    agent: of the first one; guards may leave fewer lanes to others. base: of the one allocation of global memory that
    they access, or 0 if there is no one. chunks: those of 16 bytes of the CTA's memory, or of that allocation, that
    they touch, some of them perhaps several times. whole: some of which one access covers all bytes.
    """

    agent: Agent
    mode: str
    space: str
    cta: int
    base: int
    chunks: np.ndarray
    whole: np.ndarray
    _count: int
    _make: Callable[[], Iterator[Access]]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Access]:
        return self._make()


class Written(NamedTuple):
    """A lane has printed a text (vprintf)."""

    agent: Agent
    site: Site
    lane: int
    text: str


class Fenced(NamedTuple):
    """A fence or membar; the site's modifiers say which.

    ``address``: generic, of the tensor map that fence.proxy.tensormap acquires or tensormap.cp_fenceproxy has written.
    """

    agent: Agent
    site: Site
    address: int | np.ndarray = -1


class TensorMapRead(NamedTuple):
    """An asynchronous operation that is being issued takes its tensor map from global memory, at this address."""

    agent: Agent
    site: Site
    address: int


# ---- asynchronous operations ----


class SharedChunks(NamedTuple):
    """16-byte chunks of a CTA's shared memory: numbers are byte offset / 16."""

    cta: int
    chunks: np.ndarray


class SharedBytes(NamedTuple):
    """A range of a CTA's shared memory."""

    cta: int
    offset: int
    nbytes: int


class SharedItems(NamedTuple):
    """Items of ``nbytes`` each at offsets of a CTA's shared memory, one for each lane."""

    cta: int
    offsets: np.ndarray
    nbytes: int


class GlobalItems(NamedTuple):
    """Bytes from addresses in global memory on, one range for each lane."""

    addresses: np.ndarray
    nbytes: np.ndarray


class GlobalBox(NamedTuple):
    """The box of a tensor map that starts at ``coordinates`` (innermost first); parts may lie outside the tensor."""

    tensor_map: Any
    coordinates: tuple[int, ...]


class TensorBlock(NamedTuple):
    """A rectangle of a CTA's tensor memory."""

    cta: int
    lanes: range
    columns: range


class RegisterBlock(NamedTuple):
    """Registers of a warp, by name; all lanes."""

    warp: int
    names: tuple[str, ...]


Region = SharedChunks | SharedBytes | SharedItems | GlobalItems | GlobalBox | TensorBlock | RegisterBlock


@dataclass(slots=True, eq=False)
class Operation:
    """An asynchronous operation. The same object comes with all its events: issued, started, finished.

    What happens at issue has no start ("tmem.store", "launch-control", "commit"); a "commit" signals and a "tmem.load"
    is covered by a wait, so these do not finish.

    ``kind``: "tma.load", "tma.store", "tma.gather", "bulk.load", "bulk.store", "st.async", "mma", "commit", "wgmma",
    "tmem.load", "tmem.store", "tmem.copy", "launch-control", "cp.async", and "cp.async.arrive", which signals once its
    thread's earlier copies have landed.
    ``detail``: what the operation computes, by name, for whoever wants to do it again.
    """

    id: int
    kind: str
    agent: Agent
    site: Site
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    detail: dict[str, Any]


class Issued(NamedTuple):
    """A thread has executed the instruction; a wgmma is issued once by each warp of the warpgroup."""

    operation: Operation
    agent: Agent


class Started(NamedTuple):
    """An operation reads its operands now. One that goes to several CTAs may finish in one after the other."""

    operation: Operation


class Finished(NamedTuple):
    """An operation's results are visible. ``regions`` says which of its ``writes``: they may not all land at once."""

    operation: Operation
    regions: tuple[Region, ...]


# ---- mbarriers ----


class BarrierInit(NamedTuple):
    agent: Agent
    site: Site
    cta: int
    offset: int
    arrivals: int


class BarrierInvalidated(NamedTuple):
    agent: Agent
    site: Site
    cta: int
    offset: int


class Arrived(NamedTuple):
    """One lane arrives in a phase, ``arrivals`` times, and raises the bytes the phase expects by ``expected_bytes``.

    No arrivals: mbarrier.expect_tx alone. ``drop``: later phases expect as many fewer.
    """

    agent: Agent
    site: Site
    lane: int
    cta: int
    offset: int
    phase: int
    arrivals: int
    expected_bytes: int
    drop: bool


class Missed(NamedTuple):
    """An arrival comes to a CTA that has exited: of a thread, or of an asynchronous operation."""

    agent: Agent
    site: Site
    cta: int
    offset: int
    operation: Operation | None


class ArrivalExpected(NamedTuple):
    """The phase awaits one more arrival, which an asynchronous operation makes (cp.async.mbarrier.arrive)."""

    agent: Agent
    site: Site
    lane: int
    cta: int
    offset: int
    phase: int


class Signalled(NamedTuple):
    """An asynchronous operation arrives once (tcgen05.commit, cp.async.mbarrier.arrive)."""

    operation: Operation
    cta: int
    offset: int
    phase: int


class BytesLanded(NamedTuple):
    """Bytes complete in a phase: by an asynchronous operation, or None for mbarrier.complete_tx.

    ``agent`` and ``site``: the operation's, or who has executed the mbarrier.complete_tx.
    """

    operation: Operation | None
    agent: Agent
    site: Site
    cta: int
    offset: int
    phase: int
    nbytes: int


class PhaseCompleted(NamedTuple):
    """Neither arrivals nor bytes are pending: the phase has ended."""

    cluster: int
    cta: int
    offset: int
    phase: int


class Waited(NamedTuple):
    """Lanes have learned that a phase is over (by parity, or by the state of an arrival: ``parity`` -1)."""

    agent: Agent
    site: Site
    lanes: int
    cta: int
    offset: int
    phase: int
    parity: int


class Polled(NamedTuple):
    """test_wait or try_wait has answered that phase ``phase`` is not over."""

    agent: Agent
    site: Site
    lanes: int
    cta: int
    offset: int
    phase: int


# ---- barriers of a CTA and of the cluster ----


class GroupArrived(NamedTuple):
    """All lanes of the agent arrive. ``barrier``: 0 to 15, or -1, the cluster's. ``waits``: by bar.sync."""

    agent: Agent
    site: Site
    barrier: int
    generation: int
    waits: bool


class GroupCompleted(NamedTuple):
    """Everybody has arrived; ``cta``: whose barrier, or -1 for the cluster's."""

    cluster: int
    cta: int
    barrier: int
    generation: int


class GroupLeft(NamedTuple):
    """The agent goes on after the generation is complete."""

    agent: Agent
    site: Site
    barrier: int
    generation: int


# ---- groups of asynchronous operations ----


class Committed(NamedTuple):
    """Groups of a ``kind`` ("bulk", "cp.async", "wgmma"), each (lane, its number); wgmma: lane -1, per warp."""

    agent: Agent
    site: Site
    kind: str
    groups: tuple[tuple[int, int], ...]


class Awaited(NamedTuple):
    """Groups up to ``groups`` (lane, number) are known to be complete; ``reads_only``: only their source reads."""

    agent: Agent
    site: Site
    kind: str
    groups: tuple[tuple[int, int], ...]
    reads_only: bool


class TensorMemoryWaited(NamedTuple):
    """tcgen05.wait::ld or ::st, and the operations it covers.

    ``kind``: "ld", "st", or "use": a register of a tcgen05.ld was read before tcgen05.wait::ld.
    """

    agent: Agent
    site: Site
    kind: str
    operations: tuple[Operation, ...]


# ---- resources ----


class TensorMemoryAllocated(NamedTuple):
    """Columns of the agent's CTA. Of a pair, the even CTA's allocation empties those of the odd one, too."""

    agent: Agent
    site: Site
    column: int
    columns: int


class TensorMemoryFreed(NamedTuple):
    agent: Agent
    site: Site
    column: int
    columns: int


class TensorMemoryRelinquished(NamedTuple):
    agent: Agent
    site: Site


class RegistersSet(NamedTuple):
    """setmaxnreg has been granted: registers per thread."""

    agent: Agent
    site: Site
    registers: int


Sink = Callable[[Any], None]
"""What takes events; its result is ignored. It is told at once, unless it is a `DeferredSink`."""


class Batches(Protocol):
    """Takes what has happened natively as parts of the trace, and makes events itself where it wants any."""

    def take(self, batch: Any) -> None:
        """Take a `emugpu.emulator.native.trace.Batch`."""

    def includes(self, event: Any) -> bool:
        """Whether an event that Python has made may come as an entry of the trace, too, if it can be one."""


class DeferredSink:
    """A sink that may be told of events some time after they have happened, as it does not look at the machine: the
    native engine can run a launch that it watches. It takes `Accesses` in place of each `Access`.
    """

    is_deferred = True
    """False: it is told of each event when that happens, as any other sink."""
    batches: Batches | None = None
    """What takes parts of the trace in place of the events of what happens natively; None: nothing does."""

    def __call__(self, event: Any) -> None:
        raise NotImplementedError


def can_defer(sink: Sink | None) -> bool:
    """Whether the native engine can run a launch that this sink watches; None: nothing watches it."""
    return sink is None or (isinstance(sink, DeferredSink) and sink.is_deferred)


def tell_started(sink: Sink | None, operation: Operation | None) -> None:
    """An operation reads its operands now; None: nobody listens, or nobody did when it was issued."""
    if sink is not None and operation is not None:
        sink(Started(operation))


def tell_finished(sink: Sink | None, operation: Operation | None) -> None:
    """All results of an operation are visible."""
    if sink is not None and operation is not None:
        sink(Finished(operation, operation.writes))


def fan_out(sinks: tuple[Sink, ...]) -> Sink | None:
    """One sink for all of them, or None for none."""
    return _Several(sinks) if len(sinks) > 1 else sinks[0] if sinks else None


class _Several(DeferredSink):
    def __init__(self, sinks: tuple[Sink, ...]) -> None:
        self._sinks = sinks
        self.is_deferred = all(map(can_defer, sinks))

    def __call__(self, event: Any) -> None:
        for sink in self._sinks:
            sink(event)
