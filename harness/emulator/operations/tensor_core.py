"""tcgen05: tensor memory allocation, MMA, commit, loads and stores (PTX ISA 9.7.16)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..errors import Fault
from ..machine.fragment import WARP_SIZE, Fragment, Value, lane_value
from ..machine.grid import OFFSET_MASK, RANK_SHIFT, Cta
from ..machine.observer import Access, Operation
from ..machine.schedule import AsyncOperation

# ---- allocation ----


def alloc(f: Fragment, i: int, destination: Value, columns: Value, cta_group: int) -> object:
    """``tcgen05.alloc``: suspends until the columns are free; writes the address to shared memory.

    For a CTA pair the even CTA allocates in both tensor memories, and the odd CTA's own alloc waits for that.
    """
    f.require_whole_warp()
    cta, machine = f.cta, f.cta.machine
    address, count = lane_value(destination, f.lanes[0]), lane_value(columns, f.lanes[0])
    if address >> RANK_SHIFT != cta.rank:
        raise Fault(f"tcgen05.alloc writes its result to 0x{address:08x}, which is not in the CTA's own shared memory")
    offset = address & OFFSET_MASK
    if cta_group == 1:
        column = cta.tmem.allocate(count)
        if column is None:
            cta.allocation_waiters.append(f)
            return machine.suspend(f, f"tensor memory of CTA rank {cta.rank}", f"waits for {count} free columns", i)
    else:
        even, odd = cta.pair
        if cta is even:
            column = even.tmem.allocate(count)
            if column is None:
                cta.allocation_waiters.append(f)
                return machine.suspend(f, f"tensor memory of CTA rank {cta.rank}", f"waits for {count} free columns", i)
            if odd.tmem.allocate(count) != column:
                raise Fault("the two CTAs of the pair have different columns free; pair allocations must match")
            even.allocations.append((offset, count, column))
            _wake_allocators(odd)
        else:
            turn = len(odd.allocations)
            if turn >= len(even.allocations):
                odd.allocation_waiters.append(f)
                on = f"tensor memory of the pair of CTA ranks {even.rank} and {odd.rank}"
                return machine.suspend(f, on, "waits for the even CTA to execute the matching tcgen05.alloc", i)
            even_offset, even_count, column = even.allocations[turn]
            if (even_offset, even_count) != (offset, count):
                raise Fault(
                    f"tcgen05.alloc of {count} columns to offset 0x{offset:x}, but the even CTA of the pair "
                    f"asked for {even_count} columns to offset 0x{even_offset:x}; both must agree"
                )
            odd.allocations.append((offset, count, column))
    cta.shared.store_int(offset, 4, column)
    allocated = sum(size for _, size in cta.tmem.leaks())
    machine.counters.tmem_columns = max(machine.counters.tmem_columns, allocated)
    if machine.observers:
        machine.observe("tmem.alloc", f, i, [Access("tmem", cta.rank, column, count, "write")], done=True)
    return None


def _wake_allocators(cta: Cta) -> None:
    waiters, cta.allocation_waiters = cta.allocation_waiters, []
    for fragment in waiters:
        cta.machine.resume(fragment)


def dealloc(f: Fragment, i: int, address: Value, columns: Value) -> None:
    f.require_whole_warp()
    cta = f.cta
    if cta.mma_in_flight:
        raise Fault(
            f"frees tensor memory while {cta.mma_in_flight} MMA(s) that use this CTA's tensor memory are under way"
        )
    column, count = lane_value(address, f.lanes[0]), lane_value(columns, f.lanes[0])
    cta.tmem.deallocate(column, count)
    if cta.machine.observers:
        cta.machine.observe("tmem.dealloc", f, i, [Access("tmem", cta.rank, column, count, "write")], done=True)
    cta.machine.progress += 1
    _wake_allocators(cta)


def relinquish(f: Fragment, i: int) -> None:
    f.require_whole_warp()
    f.cta.tmem.relinquish()


# ---- MMA ----


def mma(
    f: Fragment,
    i: int,
    destination: Value,
    a_descriptor: Value,
    b_descriptor: Value,
    instruction_descriptor: Value,
    lane_masks: Sequence[Value] | None,
    accumulate: Value,
    cta_group: int,
) -> None:
    """``tcgen05.mma.kind::f16``, both operands in shared memory: every active lane issues one MMA."""
    cta, machine = f.cta, f.cta.machine
    ctas = cta.pair if cta_group == 2 else (cta,)
    for lane in f.lanes:
        masks = [lane_value(m, lane) for m in lane_masks or ()]
        keep = accumulate if isinstance(accumulate, bool) else bool(accumulate[lane])
        arguments = (
            lane_value(destination, lane),
            lane_value(a_descriptor, lane),
            lane_value(b_descriptor, lane),
            lane_value(instruction_descriptor, lane),
            keep,
            cta_group,
            masks if any(masks) else None,
        )
        for member in ctas:
            member.mma_in_flight += 1
        machine.counters.mma_instructions += 1
        operation = None
        if machine.observers:
            reads = [Access("tmem", c.rank, arguments[0] & 0xFFFF, 1, "write") for c in ctas]
            operation = machine.observe("mma", f, i, reads)
        run = partial(_multiply, f, ctas, arguments, operation)
        machine.submit(AsyncOperation("mma", run, (f, i), _pipe(f, lane), operation))


def _pipe(f: Fragment, lane: int) -> object:
    """MMAs and commits of one thread complete in order (PTX ISA 9.7.16.6)."""
    return ("mma", f.cta.rank, f.warp.index, lane)


def _multiply(f: Fragment, ctas: Sequence[Cta], arguments: tuple, operation: Operation | None) -> None:
    machine = f.cta.machine
    for cta in ctas:
        cta.check_alive("an MMA uses")
    machine.observe_started(operation)
    machine.counters.mma_flops += machine.mma_unit.mma(ctas, *arguments)
    for cta in ctas:
        cta.mma_in_flight -= 1
    machine.observe_completed(operation)


def commit(f: Fragment, i: int, barrier: Value, mask: Value) -> None:
    """``tcgen05.commit``: one arrival at each named barrier once this thread's earlier MMAs are complete."""
    machine, cluster = f.cta.machine, f.cta.cluster
    for lane in f.lanes:
        address = lane_value(barrier, lane)
        offset = address & OFFSET_MASK
        if mask is None:
            targets = [cluster.cta_at(address, "tcgen05.commit")[0]]
        else:
            targets = cluster.masked(lane_value(mask, lane), "tcgen05.commit")
        machine.counters.commits += 1
        operation = None
        if machine.observers:
            operation = machine.observe(
                "commit", f, i, [Access("shared", c.rank, offset, 8, "signal") for c in targets]
            )
        run = partial(_signal, f, i, targets, offset, operation)
        machine.submit(AsyncOperation("commit", run, (f, i), _pipe(f, lane), operation))


def _signal(f: Fragment, i: int, targets: list[Cta], offset: int, operation: Operation | None) -> None:
    machine = f.cta.machine
    if machine.schedule.splits_multicast and len(targets) > 1:
        for target in targets:
            run = partial(_signal, f, i, [target], offset, operation)
            machine.submit(AsyncOperation("commit.arrive", run, (f, i)))
        return
    for target in targets:
        target.check_alive("tcgen05.commit signals")
        target.mbarrier(offset).arrive(1, f"tcgen05.commit of CTA rank {f.cta.rank}")
        machine.counters.commit_arrivals += 1
    machine.observe_completed(operation)


# ---- tensor memory and registers ----


def load(
    f: Fragment, i: int, slots: Sequence[int], shape: str, num: int, address: Value, pack: bool, split: int
) -> None:
    """``tcgen05.ld``: the registers stay poison until ``tcgen05.wait::ld``.

    The value is taken at issue or only at the wait, as the schedule decides: both are legal.
    """
    f.require_whole_warp()
    cta, machine = f.cta, f.cta.machine
    where = _uniform(f, address)
    read = partial(cta.tmem.load, shape, num, where, f.warp.index % 4, pack16=pack, half_split=split)
    if machine.observers:
        machine.observe("tmem.load", f, i, [Access("tmem", cta.rank, where & 0xFFFF, num, "read")])
    for slot in slots:
        f.registers[slot] = None
    f.pending_loads.append((slots, read() if machine.schedule.early() else read))


def store(
    f: Fragment, i: int, values: Sequence[Value], shape: str, num: int, address: Value, unpack: bool, split: int
) -> None:
    """``tcgen05.st``: takes effect at once (waiting for it with ``tcgen05.wait::st`` is then trivially satisfied)."""
    f.require_whole_warp()
    cta = f.cta
    where = _uniform(f, address)
    if any(v is None for v in values):
        raise Fault("stores a register that was never written")
    rows = np.array([np.broadcast_to(np.asarray(v, np.uint32), WARP_SIZE) for v in values])
    cta.tmem.store(shape, num, where, f.warp.index % 4, rows, unpack16=unpack, half_split=split)
    if cta.machine.observers:
        cta.machine.observe("tmem.store", f, i, [Access("tmem", cta.rank, where & 0xFFFF, num, "write")], done=True)


def _uniform(f: Fragment, address: Value) -> int:
    """All lanes must pass the same tensor-memory address."""
    first = lane_value(address, f.lanes[0])
    if not isinstance(address, int) and (address[f.lane_index] != first).any():
        raise Fault("the lanes of the warp pass different tensor-memory addresses; they must agree")
    return first
