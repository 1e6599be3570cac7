"""tcgen05.mma and tcgen05.commit (PTX ISA 9.7.16.10, 9.7.16.11)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from harness.emulator.instructions import tensor_kinds
from harness.emulator.instructions.mbarrier import reached
from harness.emulator.instructions.table import (
    TENSOR_MEMORY,
    Effect,
    Translator,
    Unsupported,
    elements,
    instruction,
    memory,
    only,
    tuple_of,
)
from harness.emulator.instructions.tensor_kinds import pipe
from harness.emulator.instructions.tensor_memory import GROUPS, cta_group
from harness.emulator.machine import events
from harness.emulator.machine.events import Operation, Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import AsyncOperation, Cta, Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, SHARED_WINDOW, shared_from_generic
from harness.emulator.ptx.ast import Immediate, Instruction, Memory, Vector
from harness.emulator.units.mma import Mma, accumulator_layout


def mma(
    f: Fragment,
    site: Site,
    destination: Value,
    a_descriptor: Value,
    b_descriptor: Value,
    instruction_descriptor: Value,
    lane_masks: Sequence[Value] | None,
    accumulate: Value,
    group: int,
) -> None:
    """``tcgen05.mma.kind::f16``, both operands in shared memory: every active lane issues one MMA."""
    grid = f.grid
    ctas = f.cta.pair if group == 2 else (f.cta,)
    for lane in f.lanes:
        masks = [lane_value(m, lane) for m in lane_masks or ()]
        what = Mma(
            lane_value(destination, lane),
            lane_value(a_descriptor, lane),
            lane_value(b_descriptor, lane),
            lane_value(instruction_descriptor, lane),
            accumulate if isinstance(accumulate, bool) else bool(accumulate[lane]),
            group,
            tuple(masks) if any(masks) else None,
        )
        for member in ctas:
            member.mma_in_flight += 1
        grid.counters.mma_instructions += 1
        operation = None
        if grid.sink is not None:
            operation = _tell(f, site, ctas, what)
        run = partial(_multiply, f, ctas, what, operation)
        grid.submit(AsyncOperation("mma", run, f, site, pipe(f, lane), what))


def _tell(f: Fragment, site: Site, ctas: Sequence[Cta], what: Mma) -> Operation:
    ranks = tuple([cta.rank for cta in ctas])
    reads, writes = _regions(what, ranks)
    return f.grid.operation("mma", f, site, reads=reads, writes=writes, mma=what, ctas=ranks)


Regions = tuple[events.Region, ...]


@lru_cache(maxsize=4096)
def _regions(what: Mma, ranks: tuple[int, ...]) -> tuple[Regions, Regions]:
    """What an MMA of these CTAs reads and writes. Loops come back to the same few descriptors."""
    plan = what.plan()
    blocks, _, _ = accumulator_layout(what.d_address, plan.idesc.m, plan.idesc.n, what.cta_group)
    operands = tuple(events.SharedChunks(rank, o.positions) for rank in ranks for o in (plan.a, plan.b))
    d = tuple(
        events.TensorBlock(rank, range(b.lanes.start, b.lanes.stop), range(b.columns.start, b.columns.stop))
        for rank in ranks
        for b in blocks
    )
    return (*operands, *d) if what.accumulate else operands, d


def _multiply(f: Fragment, ctas: Sequence[Cta], what: Mma, operation: Operation | None) -> None:
    grid = f.grid
    for cta in ctas:
        cta.check_alive("an MMA uses")
    if operation is not None and grid.sink is not None:
        grid.sink(events.Started(operation))
    if grid.computes:
        grid.counters.mma_flops += grid.mma_unit.mma(ctas, *what)
    for cta in ctas:
        cta.mma_in_flight -= 1
    if operation is not None and grid.sink is not None:
        grid.sink(events.Finished(operation, operation.writes))


def _is_common(i: Instruction) -> bool:
    """kind::f16 with both operands in shared memory, and D taken as it is."""
    simple = i.has("kind::f16") and not i.has("block_scale") and not isinstance(i.operands[1], Memory)
    return simple and not (len(i.operands) > 5 and isinstance(i.operands[-1], Immediate) and not _last_is_flag(i))


def _last_is_flag(i: Instruction) -> bool:
    """Whether the last operand is the predicate and not a scale of D."""
    return len(i.operands) == 5 + isinstance(i.operands[4], Vector)


@instruction("tcgen05.mma", operands=range(5, 9), writes=0, family="mma", targets=TENSOR_MEMORY)
def _mma(i: Instruction, w: Translator) -> Effect:
    if not _is_common(i):
        return tensor_kinds.emit(i, w)
    only(i, GROUPS, "kind::f16", "collector::a::fill", "collector::a::use", "collector::a::lastuse",
         "collector::a::discard")  # fmt: skip
    group = cta_group(i)
    destination, a, b, descriptor, *rest = i.operands
    masks = "None"
    if isinstance(rest[0], Vector):
        words = elements(rest.pop(0))
        if len(words) != 4 * group:
            raise Unsupported
        masks = tuple_of(w.read(e, "b32") for e in words)
    if len(rest) != 1:
        raise Unsupported
    operands = [w.pointer(memory(destination)), w.read(a, "b64"), w.read(b, "b64"), w.read(descriptor, "b32")]
    return Effect(mma, [*operands, masks, w.read(rest[0], "pred"), str(group)])


def commit(f: Fragment, site: Site, barrier: Value, mask: Value) -> None:
    """``tcgen05.commit``: one arrival at each named barrier once this thread's earlier MMAs are complete."""
    grid, cluster = f.grid, f.cta.cluster
    for lane in f.lanes:
        address = lane_value(barrier, lane)
        offset = address & OFFSET_MASK
        if mask is None:
            targets = [cluster.cta_at(address, "tcgen05.commit")[0]]
        else:
            targets = cluster.masked(lane_value(mask, lane), "tcgen05.commit")
        grid.counters.commits += 1
        operation = None
        if grid.sink is not None:
            operation = grid.operation("commit", f, site, signals=tuple((c.rank, offset) for c in targets))
        run = partial(_signal, f, site, targets, offset, operation)
        grid.submit(AsyncOperation("commit", run, f, site, pipe(f, lane), len(targets)))


def _signal(f: Fragment, site: Site, targets: list[Cta], offset: int, operation: Operation | None) -> None:
    grid = f.grid
    if grid.choices.splits_multicast and len(targets) > 1:
        for target in targets:
            run = partial(_signal, f, site, [target], offset, operation)
            grid.submit(AsyncOperation("commit.arrive", run, f, site))
        return
    who = f"tcgen05.commit of CTA rank {f.cta.rank}"
    for target in targets:
        barrier = reached(f, site, target, offset, "tcgen05.commit", operation)
        grid.counters.commit_arrivals += 1
        if barrier is None:
            continue
        if operation is not None and grid.sink is not None:
            grid.sink(events.Signalled(operation, target.rank, offset, barrier.phase))
        barrier.arrive(1, who)


def barrier_address(address: Value) -> Value:
    """The shared::cluster address of a generic one. Compilers pass shared addresses here, too, zero-extended."""
    if isinstance(address, int) and address < SHARED_WINDOW:
        return address
    return shared_from_generic(address)


@instruction("tcgen05.commit", operands=range(1, 3), writes=0, family="barrier", targets=TENSOR_MEMORY)
def _commit(i: Instruction, w: Translator) -> Effect:
    only(i, GROUPS, "mbarrier::arrive::one", "shared::cluster", "multicast::cluster")
    cta_group(i)
    multicast = i.has("multicast::cluster")
    if len(i.operands) != 1 + multicast:
        raise Unsupported
    pointer = w.pointer(memory(i.operands[0]))
    if not i.has("shared::cluster"):
        pointer = f"{w.use(barrier_address)}({pointer})"
    return Effect(commit, [pointer, w.read(i.operands[1], "b16") if multicast else "None"])
