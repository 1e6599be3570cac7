"""The events of a run: one stream of typed events, complete enough to rebuild every memory from it.

A *sink* (`emugpu.emulator.machine.sinks`) takes them; pass it to ``Device.launch(sinks=[...])``. Events come in the
order in which things happen, and the events of one thread in program order. Without a sink no events are made, except
for a moment in which the machine detects whether a warp only polls.

The actor is an `Agent`, the lanes of a warp that execute together. The place is a `Site`, the instruction. Accesses
name global and generic memory by device address, shared memory by the CTA's rank in its cluster and a byte offset,
tensor memory by lanes and columns. Arrays belong to the running machine: copy what you change.

A synchronous access is one `Access`. An asynchronous operation is `Issued` by its thread, `Started` when it reads its
operands, `Finished` when its results are visible; `Signalled` and `BytesLanded` name the barriers that it has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from emugpu.emulator.machine.sinks import Sink


class Agent(NamedTuple):
    """Lanes of one warp that execute together."""

    cluster: int
    """The number of the cluster in the grid, x fastest."""
    cta: int
    """The rank in the cluster."""
    warp: int
    lanes: int
    """The mask of the lanes."""


@dataclass(frozen=True, eq=False)
class Site:
    """An instruction of the kernel. ``semantics`` and ``scope`` are those in the text, or PTX's defaults."""

    index: int
    line: int
    text: str
    opcode: str
    modifiers: tuple[str, ...]
    semantics: str
    scope: str
    source: str
    """``file:line`` of the source from which it was compiled, or empty."""

    @property
    def place(self) -> str:
        """Returns the line in the PTX, with that of the source if it is known."""
        return f"PTX line {self.line}{f' ({self.source})' if self.source else ''}"

    @property
    def verb(self) -> str:
        """Returns the instruction as the PTX ISA names it, as in ``st.async`` and ``cp.async.bulk``."""
        parts = 2 if self.modifiers[:2] == ("async", "bulk") else 1
        return ".".join((self.opcode, *self.modifiers[:parts]))

    @property
    def is_incoherent(self) -> bool:
        """Whether it loads what nobody may write while the kernel runs (PTX ISA, ``ld.global.nc`` and ``ldu``)."""
        return self.opcode == "ldu" or "nc" in self.modifiers


# ---- the grid ----


class GridStarted(NamedTuple):
    """A grid starts. ``allocations`` holds (name, first address, bytes) of the device memory at the launch.

    ``dynamic_shared`` is the offset of dynamic shared memory in a CTA's window. ``sites`` are the instructions of the
    kernel, ``values`` the `emugpu.emulator.translate.loaded_values.LoadedValues` of it.
    """

    launch: Any
    allocations: tuple[tuple[str, int, int], ...]
    dynamic_shared: int
    sites: Sequence[Site]
    values: Any


class CtaStarted(NamedTuple):
    """A CTA starts. ``ctaid`` is its place in the grid."""

    cluster: int
    cta: int
    ctaid: tuple[int, int, int]
    warps: int


class CtaEnded(NamedTuple):
    """All threads of a CTA have exited."""

    cluster: int
    cta: int


class Exited(NamedTuple):
    """Lanes have exited."""

    agent: Agent


class ClusterEnded(NamedTuple):
    """All CTAs of a cluster have ended, and none of their operations is in flight."""

    cluster: int


# ---- threads ----


class Diverged(NamedTuple):
    """The lanes of an agent diverge: each part is an agent from now on."""

    agent: Agent
    parts: tuple[Agent, ...]


class Rejoined(NamedTuple):
    """Agents of one warp have reconverged and continue as one."""

    parts: tuple[Agent, ...]
    agent: Agent


class Suspended(NamedTuple):
    """The agent cannot continue. ``what`` names what it waits for; ``mbarrier`` is its offset and phase, if any."""

    agent: Agent
    site: Site
    what: str
    mbarrier: tuple[int, int] | None = None


class Resumed(NamedTuple):
    """A fragment executes for the first time, after a wait, or after diverging or reconverging."""

    agent: Agent


class WarpSynced(NamedTuple):
    """The lanes of ``members`` met: bar.warp.sync, or another warp-synchronous instruction (elect, shfl, vote,
    redux).
    """

    agent: Agent
    site: Site
    members: int


# ---- memory ----


class Access(NamedTuple):
    """A load, store or atomic of each of the agent's lanes (ascending), completed when the event is made.

    ``mode``: "read", "write" or "atomic". ``space``: "shared", "global", "param", "local" (private to a thread;
    includes functions' parameters) or "const". ``cta``: rank of the CTA with the shared memory, -1 for other spaces.
    ``where``: one address for all lanes, or an array with one per lane (stmatrix and ldmatrix: one per row).
    ``nbytes``: bytes of one item; ``items``: the number of consecutive items. ``values``: what a write stores, or the
    memory's contents after an atomic: one scalar for all lanes, or an array with one per lane, of which the last wins
    at one address (for several items a tuple of those).
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
    """Consecutive loads or stores of a fragment, with nothing in between: an iterable of each `Access`. Only a
    `DeferredSink` gets them. All or none of the loads are incoherent.

    ``agent`` is that of the first one; guards may leave fewer lanes to some of them, and ``lanes`` are those of all.
    ``base`` is the base of the only allocation of global memory that they access, or 0 if there is not exactly one.
    ``chunks`` are the 16-byte chunks of the CTA's memory, or of that allocation, that they touch, possibly with
    repetitions. ``whole`` are chunks that one access covers completely.
    """

    agent: Agent
    mode: str
    space: str
    cta: int
    lanes: int
    base: int
    chunks: np.ndarray
    whole: np.ndarray
    _count: int
    _make: Callable[[], Iterator[Access]]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Access]:
        return self._make()


class PrintedText(NamedTuple):
    """A lane has printed a text (vprintf)."""

    agent: Agent
    site: Site
    lane: int
    text: str


class Fenced(NamedTuple):
    """A fence or membar; the site's modifiers say which.

    ``address`` is the generic address of the tensor map that fence.proxy.tensormap acquires or tensormap.cp_fenceproxy
    has written.
    """

    agent: Agent
    site: Site
    address: int | np.ndarray = -1


class GridDependency(NamedTuple):
    """griddepcontrol.wait, or griddepcontrol.launch_dependents; the site's modifiers say which."""

    agent: Agent
    site: Site


class TensorMapRead(NamedTuple):
    """An asynchronous operation is issued, and reads its tensor map from this address in global memory."""

    agent: Agent
    site: Site
    address: int


# ---- asynchronous operations ----


class SharedChunks(NamedTuple):
    """16-byte chunks of a CTA's shared memory, numbered by byte offset / 16."""

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
    """Ranges of global memory, one for each lane, by their first addresses."""

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
    """Registers of a warp by name, with all lanes."""

    warp: int
    names: tuple[str, ...]


Region = SharedChunks | SharedBytes | SharedItems | GlobalItems | GlobalBox | TensorBlock | RegisterBlock


@dataclass(slots=True, eq=False)
class Operation:
    """An asynchronous operation. All its events (issued, started, finished) refer to the same object.

    Operations that execute at issue have no start ("tmem.store", "launch-control", "commit"). A "commit" signals and a
    wait covers a "tmem.load", so these have no finish.

    ``kind``: "tma.load", "tma.store", "tma.gather", "bulk.load", "bulk.store", "st.async", "mma", "commit", "wgmma",
    "tmem.load", "tmem.store", "tmem.copy", "launch-control", "cp.async", and "cp.async.arrive", which signals once its
    thread's earlier copies have landed. ``detail``: the computation of the operation, by name, for sinks that repeat
    it.
    """

    id: int
    kind: str
    agent: Agent
    site: Site
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    detail: dict[str, Any]


class Issued(NamedTuple):
    """A thread has executed the instruction. Each warp of the warpgroup issues a wgmma once."""

    operation: Operation
    agent: Agent


class Started(NamedTuple):
    """An operation reads its operands now. One that goes to several CTAs may finish in one after the other."""

    operation: Operation


class Finished(NamedTuple):
    """The results of an operation are visible. ``regions`` are the finished ones of its ``writes``."""

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
    """One lane arrives in a phase, ``arrivals`` times, and raises the bytes that the phase expects by
    ``expected_bytes``.

    Without arrivals it is mbarrier.expect_tx alone. ``drop`` is the number of arrivals that later phases no longer
    expect.
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
    """An arrival of a thread or of an asynchronous operation reaches a CTA that has exited."""

    agent: Agent
    site: Site
    cta: int
    offset: int
    operation: Operation | None


class ArrivalExpected(NamedTuple):
    """The phase expects one more arrival, from an asynchronous operation (cp.async.mbarrier.arrive)."""

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

    ``agent`` and ``site`` belong to the operation or to the mbarrier.complete_tx.
    """

    operation: Operation | None
    agent: Agent
    site: Site
    cta: int
    offset: int
    phase: int
    nbytes: int


class PhaseCompleted(NamedTuple):
    """The phase has ended: neither arrivals nor bytes are pending."""

    cluster: int
    cta: int
    offset: int
    phase: int


class Waited(NamedTuple):
    """Lanes have observed the end of a phase (by parity, or by the state of an arrival: ``parity`` -1)."""

    agent: Agent
    site: Site
    lanes: int
    cta: int
    offset: int
    phase: int
    parity: int


class Polled(NamedTuple):
    """test_wait or try_wait has returned that phase ``phase`` has not ended."""

    agent: Agent
    site: Site
    lanes: int
    cta: int
    offset: int
    phase: int


# ---- barriers of a CTA and of the cluster ----


class GroupArrived(NamedTuple):
    """All lanes of the agent arrive. ``barrier`` is 0 to 15, or -1 for the cluster's. ``waits`` is set for bar.sync."""

    agent: Agent
    site: Site
    barrier: int
    generation: int
    waits: bool


class GroupCompleted(NamedTuple):
    """All expected threads have arrived. ``cta`` is the owner of the barrier, or -1 for the cluster's."""

    cluster: int
    cta: int
    barrier: int
    generation: int


class GroupLeft(NamedTuple):
    """The agent continues after the generation is complete."""

    agent: Agent
    site: Site
    barrier: int
    generation: int


# ---- groups of asynchronous operations ----


class Committed(NamedTuple):
    """Groups of a ``kind`` ("bulk", "cp.async", "wgmma") are committed, as (lane, number). A group of wgmma belongs to
    the warp and has lane -1.
    """

    agent: Agent
    site: Site
    kind: str
    groups: tuple[tuple[int, int], ...]


class Awaited(NamedTuple):
    """Groups up to ``groups`` (lane, number) are known to be complete. With ``reads_only`` only the reads of their
    sources are.
    """

    agent: Agent
    site: Site
    kind: str
    groups: tuple[tuple[int, int], ...]
    reads_only: bool


class TensorMemoryWaited(NamedTuple):
    """tcgen05.wait::ld or ::st, and the operations that it covers.

    ``kind``: "ld", "st", "use" if a register of a tcgen05.ld was read before tcgen05.wait::ld, or "st by ld" if a
    tcgen05.ld reads what a tcgen05.st of its warp stores, before tcgen05.wait::st.
    """

    agent: Agent
    site: Site
    kind: str
    operations: tuple[Operation, ...]


# ---- resources ----


class TensorMemoryAllocated(NamedTuple):
    """Columns of the agent's CTA are allocated. In a pair, the even CTA's allocation also empties the same columns of
    the odd one.
    """

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
    """setmaxnreg has been granted, with this number of registers per thread."""

    agent: Agent
    site: Site
    registers: int


def report_started(sink: Sink | None, operation: Operation | None) -> None:
    """Reports that an operation reads its operands now. ``operation`` is None if no sink is attached, or none was when
    it was issued.
    """
    if sink is not None and operation is not None:
        sink(Started(operation))


def report_finished(sink: Sink | None, operation: Operation | None) -> None:
    """Reports that all results of an operation are visible."""
    if sink is not None and operation is not None:
        sink(Finished(operation, operation.writes))
