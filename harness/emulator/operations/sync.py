"""mbarrier, bar, barrier.cluster, elect.sync, nanosleep (PTX ISA 9.7.13)."""

from __future__ import annotations

import numpy as np

from ..errors import Fault
from ..machine.barriers import CountingBarrier, MBarrier
from ..machine.fragment import SUSPENDED, WARP_SIZE, Fragment, Value, lane_value
from ..machine.grid import NAMED_BARRIERS, OFFSET_MASK, RANK_SHIFT
from ..machine.observer import Access

_ONE_HOT = [np.arange(WARP_SIZE) == lane for lane in range(WARP_SIZE)]


def _who(f: Fragment) -> str:
    return f"CTA rank {f.cta.rank} warp {f.warp.index}"


def _own_offset(f: Fragment, address: int) -> int:
    """Offset of a shared::cta address; it must be the CTA's own."""
    if address >> RANK_SHIFT != f.cta.rank:
        raise Fault(
            f"shared::cta address 0x{address:08x} names CTA rank {address >> RANK_SHIFT}, not its own {f.cta.rank}"
        )
    return address & OFFSET_MASK


def _barrier(f: Fragment, address: int, cluster: bool) -> MBarrier:
    if cluster:
        cta, offset = f.cta.cluster.cta_at(address, "an mbarrier operation")
        return cta.mbarrier(offset)
    return f.cta.mbarrier(_own_offset(f, address))


def _observe(f: Fragment, i: int, kind: str, barrier: MBarrier) -> None:
    machine = f.cta.machine
    if machine.observers:
        machine.observe(kind, f, i, [Access("shared", barrier.cta.rank, barrier.offset, 8, "signal")], done=True)


def mbarrier_init(f: Fragment, i: int, address: Value, count: Value) -> None:
    for lane in f.lanes:
        offset = _own_offset(f, lane_value(address, lane))
        if offset % 8:
            raise Fault(f"mbarrier address 0x{offset:x} is not a multiple of 8")
        if offset in f.cta.mbarriers:
            raise Fault(f"initialises the live {f.cta.mbarriers[offset]} again; mbarrier.inval must come first")
        f.cta.shared.check_range(offset, 8, 8)
        barrier = f.cta.mbarriers[offset] = MBarrier(f.cta, offset, lane_value(count, lane))
        _observe(f, i, "mbarrier.init", barrier)


def mbarrier_inval(f: Fragment, i: int, address: Value) -> None:
    for lane in f.lanes:
        barrier = f.cta.mbarrier(_own_offset(f, lane_value(address, lane)))
        if barrier.waiters:
            raise Fault(f"invalidates {barrier} while somebody waits on it")
        del f.cta.mbarriers[barrier.offset]
        _observe(f, i, "mbarrier.inval", barrier)


def mbarrier_arrive(f: Fragment, i: int, address: Value, count: Value, cluster: bool, drop: bool) -> Value:
    """Every lane arrives; returns the phase it arrived in, as the opaque state."""
    phase = 0
    for lane in f.lanes:
        barrier = _barrier(f, lane_value(address, lane), cluster)
        phase = barrier.phase
        barrier.arrive(lane_value(count, lane), _who(f), drop)
        f.cta.machine.counters.mbarrier_arrivals += 1
        _observe(f, i, "mbarrier.arrive", barrier)
    return phase


def mbarrier_arrive_expect(f: Fragment, i: int, address: Value, count: Value, cluster: bool) -> Value:
    phase = 0
    for lane in f.lanes:
        barrier = _barrier(f, lane_value(address, lane), cluster)
        phase = barrier.phase
        barrier.expect_bytes_and_arrive(lane_value(count, lane), _who(f))
        f.cta.machine.counters.mbarrier_arrivals += 1
        _observe(f, i, "mbarrier.arrive.expect_tx", barrier)
    return phase


def mbarrier_expect(f: Fragment, i: int, address: Value, count: Value, cluster: bool) -> None:
    for lane in f.lanes:
        barrier = _barrier(f, lane_value(address, lane), cluster)
        barrier.expect_bytes(lane_value(count, lane))
        _observe(f, i, "mbarrier.expect_tx", barrier)


def mbarrier_complete(f: Fragment, i: int, address: Value, count: Value, cluster: bool) -> None:
    for lane in f.lanes:
        barrier = _barrier(f, lane_value(address, lane), cluster)
        barrier.complete_bytes(lane_value(count, lane))
        _observe(f, i, "mbarrier.complete_tx", barrier)


def mbarrier_wait(f: Fragment, i: int, address: Value, parity: Value, by_state: bool, poll: bool) -> Value:
    """``try_wait`` suspends until the phase completes; ``test_wait`` (poll) looks again only when nothing else can run.

    Returns True once every lane's phase is complete, False after a fruitless poll.
    """
    machine = f.cta.machine
    barrier = None
    uniform = isinstance(address, int) and isinstance(parity, int)
    for lane in f.lanes[:1] if uniform else f.lanes:
        barrier = f.cta.mbarrier(_own_offset(f, lane_value(address, lane)))
        wanted = lane_value(parity, lane)
        if barrier.passed(wanted & 1 if by_state else wanted):
            continue
        if machine.schedule.spurious_failure():
            return False
        kind = "state" if by_state else "parity"
        if poll:
            if f.polled == machine.progress:
                machine.polling.append(f)
                return machine.suspend(f, barrier, f"polls for {kind} {wanted}", i)
            f.polled = machine.progress
            return False
        machine.counters.mbarrier_stalls += 1
        barrier.waiters.append(f)
        return machine.suspend(f, barrier, f"waits for {kind} {wanted}", i)
    assert barrier is not None
    machine.counters.mbarrier_waits += 1
    _observe(f, i, "mbarrier.wait", barrier)
    return True


def _wait_for(f: Fragment, i: int, barrier: CountingBarrier, needed: int) -> object:
    """Arrive once, then wait for the generation to end."""
    machine = f.cta.machine
    generation = barrier.generation
    arrived_for = f.tokens.get(barrier)
    if arrived_for is None:
        barrier.arrive(f, needed)
        arrived_for = generation
    if barrier.generation == arrived_for:
        barrier.waiters.append(f)
        return machine.suspend(f, barrier, "waits", i)
    del f.tokens[barrier]
    return None


def bar_sync(f: Fragment, i: int, number: Value, count: Value, aligned: bool) -> object:
    """``bar.sync``; without a count every thread of the CTA takes part."""
    if aligned:
        f.require_whole_warp()
    barrier = _named(f, number)
    machine = f.cta.machine
    if machine.observers and barrier not in f.tokens:
        machine.observe("bar.sync", f, i, [Access("barrier", f.cta.rank, lane_value(number, f.lanes[0]), 1, "signal")])
    return _wait_for(f, i, barrier, _thread_count(f, count))


def bar_arrive(f: Fragment, i: int, number: Value, count: Value, aligned: bool) -> None:
    if aligned:
        f.require_whole_warp()
    barrier = _named(f, number)
    barrier.arrive(f, _thread_count(f, count))
    f.tokens.pop(barrier, None)


def _named(f: Fragment, number: Value) -> CountingBarrier:
    index = lane_value(number, f.lanes[0])
    if index >= NAMED_BARRIERS:
        raise Fault(f"names barrier {index}; a CTA has barriers 0..{NAMED_BARRIERS - 1}")
    return f.cta.named[index]


def _thread_count(f: Fragment, count: Value) -> int:
    if count is None:
        return f.cta.threads
    threads = lane_value(count, f.lanes[0])
    if threads % WARP_SIZE or not 0 < threads <= f.cta.threads:
        raise Fault(
            f"barrier thread count {threads} must be a multiple of {WARP_SIZE}, at most the CTA's {f.cta.threads}"
        )
    return threads


def warp_sync(f: Fragment, i: int, mask: Value) -> None:
    """``bar.warp.sync``: the lanes of the mask must be here together."""
    check_member_mask(f, mask, "bar.warp.sync")


def check_member_mask(f: Fragment, mask: Value, what: str) -> int:
    """The member mask of a ``.sync`` instruction: all its living lanes must execute it together."""
    members = lane_value(mask, f.lanes[0])
    if f.mask & ~members:
        raise Fault(f"{what} is executed by lanes 0x{f.mask:08x}, which are not all in its member mask 0x{members:08x}")
    if members & f.warp.alive & ~f.mask:
        absent = members & f.warp.alive & ~f.mask
        raise Fault(f"{what} names lanes 0x{members:08x}, but lanes 0x{absent:08x} are not converged with the others")
    return members


def cluster_arrive(f: Fragment, i: int, aligned: bool) -> None:
    if aligned:
        f.require_whole_warp()
    barrier = f.cta.cluster.barrier
    if barrier in f.tokens:
        raise Fault("arrives at the cluster barrier twice without waiting (PTX ISA 9.7.13.3)")
    machine = f.cta.machine
    if machine.observers:
        machine.observe("cluster.arrive", f, i, done=True)
    generation = barrier.generation
    barrier.arrive(f, f.cta.cluster.living_threads)
    f.tokens[barrier] = generation


def cluster_wait(f: Fragment, i: int, aligned: bool) -> object:
    if aligned:
        f.require_whole_warp()
    barrier = f.cta.cluster.barrier
    if barrier not in f.tokens:
        raise Fault("waits for the cluster barrier without having arrived (PTX ISA 9.7.13.3)")
    result = _wait_for(f, i, barrier, 0)
    machine = f.cta.machine
    if result is not SUSPENDED and machine.observers:
        machine.observe("cluster.wait", f, i, done=True)
    return result


def elect(f: Fragment, i: int, mask: Value) -> tuple[int, Value]:
    """``elect.sync``: the lowest lane of the mask. Returns (its lane, the predicate)."""
    members = check_member_mask(f, mask, "elect.sync")
    leader = (members & f.mask & -(members & f.mask)).bit_length() - 1
    return leader, True if f.single >= 0 else _ONE_HOT[leader]
