"""mbarriers, barriers of threads and bulk groups by themselves: counts at their edges, and whom they wake."""

from __future__ import annotations

import ptx_programs
import pytest

from emugpu.emulator import Deadlock, Fault
from emugpu.emulator.machine.barriers import MAX_COUNT, SUSPENDED, CountingBarrier, MBarrier, Wakeups
from emugpu.emulator.machine.copies import BulkQueue


class Waiter:
    waiting = None


def suspended(wakeups: Wakeups) -> Waiter:
    waiter = Waiter()
    assert wakeups.suspend(waiter, None, "waits", None) is SUSPENDED
    return waiter


def mbarrier(count: int, ended=None) -> MBarrier:
    return MBarrier(0, 1024, count, "mbarrier", Wakeups(), ended)


def state(barrier: MBarrier) -> tuple[int, int, int, int]:
    return barrier.phase, barrier.pending, barrier.expected, barrier.bytes


# ---- mbarriers ----


@pytest.mark.parametrize("count", [0, MAX_COUNT + 1])
def test_counts_that_no_mbarrier_has(count):
    with pytest.raises(Fault, match=r"must be 1\.\.1048575"):
        mbarrier(count)


@pytest.mark.parametrize("count", [1, MAX_COUNT])
def test_a_new_mbarrier_awaits_all_arrivals_of_phase_0(count):
    barrier = mbarrier(count)
    assert state(barrier) == (0, count, count, 0) and not barrier.used
    assert barrier.passed(1) and not barrier.passed(0)


def test_the_last_arrival_ends_the_phase_and_starts_the_next():
    phases = []
    barrier = mbarrier(3, lambda b: phases.append(b.phase))
    barrier.waiters = [suspended(barrier.wakeups), suspended(barrier.wakeups)]
    first, second = barrier.waiters
    barrier.arrive(1, "a")
    assert state(barrier) == (0, 2, 3, 0) and barrier.used and not barrier.wakeups.ready and barrier.last_arrival == "a"
    barrier.arrive(2, "b")
    assert state(barrier) == (1, 3, 3, 0) and phases == [0] and barrier.last_arrival == "b"
    assert list(barrier.wakeups.ready) == [first, second] and barrier.waiters == [] and first.waiting is None
    assert barrier.passed(0) and not barrier.passed(1)
    assert barrier.wakeups.changes == 2


@pytest.mark.parametrize("count", [0, -1, 4])
def test_more_arrivals_than_a_phase_awaits(count):
    barrier = mbarrier(3)
    with pytest.raises(Fault) as error:
        barrier.arrive(count, "a")
    assert error.value.rule == "mbarrier-count" and state(barrier) == (0, 3, 3, 0)


def test_who_drops_out_is_not_awaited_any_more():
    barrier = mbarrier(3)
    barrier.arrive(1, "a", drop=True)
    assert state(barrier) == (0, 2, 2, 0)
    barrier.arrive(2, "b")
    assert state(barrier) == (1, 2, 2, 0)


def test_a_phase_waits_for_its_bytes_in_whatever_order_they_come():
    barrier = mbarrier(1)
    barrier.complete_bytes(48)
    assert state(barrier) == (0, 1, 1, -48) and barrier.used
    barrier.arrive(1, "a")
    assert state(barrier) == (0, 0, 1, -48)
    barrier.expect_bytes(64)
    assert state(barrier) == (0, 0, 1, 16)
    barrier.complete_bytes(16)
    assert state(barrier) == (1, 1, 1, 0)


def test_expecting_bytes_and_arriving_is_one_step():
    barrier = mbarrier(1)
    barrier.expect_bytes_and_arrive(32, "a")
    assert state(barrier) == (0, 0, 1, 32)
    with pytest.raises(Fault) as error:
        barrier.expect_bytes_and_arrive(32, "b")
    assert error.value.rule == "mbarrier-count" and barrier.bytes == 32
    barrier.complete_bytes(32)
    assert state(barrier) == (1, 1, 1, 0)


def test_a_plain_arrival_does_not_drop_out():
    barrier = mbarrier(2)
    barrier.expect_bytes_and_arrive(0, "a")
    assert state(barrier) == (0, 1, 2, 0)
    barrier.expect_bytes_and_arrive(0, "b", drop=True)
    assert state(barrier) == (1, 1, 1, 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_count_of_bytes_has_a_limit_either_way(sign):
    barrier = mbarrier(1)
    count = barrier.expect_bytes if sign > 0 else barrier.complete_bytes
    count(MAX_COUNT)
    assert barrier.bytes == sign * MAX_COUNT
    with pytest.raises(Fault) as error:
        count(1)
    assert error.value.rule == "mbarrier-bytes"


# ---- barriers of threads ----


def counting(ended=None) -> CountingBarrier:
    return CountingBarrier("barrier 3", 3, Wakeups(), ended)


def test_the_last_thread_lets_all_go_and_the_barrier_can_be_used_again():
    generations = []
    barrier = counting(lambda b: generations.append((b.generation, b.arrived)))
    waiter = suspended(barrier.wakeups)
    barrier.waiters.append(waiter)
    assert barrier.arrive(32, 96, False) == 0 and barrier.arrived == 32
    assert barrier.arrive(63, 96, False) == 0 and not barrier.wakeups.ready
    assert barrier.arrive(1, 96, False) == 0
    assert (barrier.arrived, barrier.generation, barrier.waiters) == (0, 1, []) and generations == [(0, 96)]
    assert list(barrier.wakeups.ready) == [waiter] and barrier.wakeups.changes == 3
    assert barrier.arrive(64, 64, True) == 1 and barrier.generation == 2


@pytest.mark.parametrize(("needed", "everybody"), [(64, False), (96, True)])
def test_threads_of_one_round_agree_on_the_count(needed, everybody):
    barrier = counting()
    barrier.arrive(32, 96, False)
    with pytest.raises(Fault, match="is used with"):
        barrier.arrive(32, needed, everybody)


def test_more_threads_than_the_barrier_needs():
    barrier = counting()
    barrier.arrive(32, 64, False)
    with pytest.raises(Fault, match="got 96 arrivals and needs only 64"):
        barrier.arrive(64, 64, False)


def test_who_leaves_is_not_awaited_where_a_barrier_is_for_everybody():
    barrier = counting()
    barrier.leave(64, 0)
    assert (barrier.generation, barrier.needed, barrier.wakeups.changes) == (0, 0, 0)
    barrier.arrive(32, 96, True)
    barrier.leave(64, 0)
    assert (barrier.arrived, barrier.needed, barrier.generation) == (32, 64, 0)
    barrier.leave(33, 0)
    assert barrier.generation == 0
    barrier.leave(32, 0)
    assert (barrier.arrived, barrier.generation) == (0, 1)


def test_who_leaves_after_arriving_takes_the_arrival_along():
    barrier = counting()
    barrier.arrive(64, 96, True)
    barrier.leave(64, 32)
    assert (barrier.arrived, barrier.needed, barrier.generation) == (32, 64, 0)


def test_a_barrier_for_a_number_of_threads_waits_for_them_whoever_leaves():
    barrier = counting()
    barrier.arrive(32, 64, False)
    barrier.leave(32, 0)
    assert (barrier.arrived, barrier.needed, barrier.generation) == (32, 64, 0)


# ---- whom is woken ----


def test_nobody_is_made_ready_twice():
    wakeups = Wakeups()
    waiter = suspended(wakeups)
    wakeups.resume_all([waiter, waiter])
    wakeups.resume(waiter)
    assert list(wakeups.ready) == [waiter]
    wakeups.start(waiter)
    assert list(wakeups.ready) == [waiter, waiter] and waiter.waiting is None


# ---- bulk groups ----


def queue_of(*groups: tuple[int, int]) -> BulkQueue:
    """Committed groups with so many copies that are still read, and written."""
    queue = BulkQueue()
    for reading, writing in groups:
        queue.open.reading, queue.open.writing = reading, writing
        queue.commit()
    return queue


@pytest.mark.parametrize(
    ("groups", "reads_only", "least"),
    [
        ([], False, 0), ([(0, 0)], False, 0), ([(1, 1)], False, 1), ([(1, 1)], True, 1), ([(0, 1)], False, 1),
        ([(0, 1)], True, 0), ([(0, 1), (1, 1), (1, 1)], True, 2), ([(0, 1), (1, 1), (1, 1)], False, 3),
        ([(1, 1), (0, 0), (0, 0)], False, 3), ([(0, 0), (0, 0), (1, 1)], False, 1),
        ([(0, 0), (2, 2), (0, 0), (0, 2)], True, 3),
    ],
)  # fmt: skip
def test_a_wait_ends_when_no_more_of_the_youngest_groups_are_pending(groups, reads_only, least):
    for allowed in range(5):
        assert queue_of(*groups).satisfied(allowed, reads_only) == (allowed >= least), allowed


def test_groups_are_numbered_and_begin_empty():
    queue = queue_of((1, 2), (0, 1), (3, 3))
    assert queue.number == 3 and (queue.open.reading, queue.open.writing) == (0, 0)
    assert queue.reads_in_flight == 2 and queue.reading
    assert not queue_of((0, 1)).reading and queue_of((0, 1)).reads_in_flight == 0
    queue = queue_of((0, 0))
    queue.open.reading = 1
    assert queue.reading, "a copy that was never committed is in flight, too"


def test_a_deadlock_names_the_lanes_that_wait_for_others_of_their_warp():
    """Lane 0 has arrived and exited; its warp counts at barrier 1 only when the other lanes come (PTX ISA 9.7.13.1)."""
    body = """
    setp.ge.u32 %p1, %r0, 32; setp.ne.u32 %p2, %r0, 0; @%p1 bra SECOND; @%p2 bra OTHERS; barrier.arrive 1, 64; exit;
    OTHERS: barrier.sync 2, 64; exit;
    SECOND: barrier.sync 1, 64; barrier.sync 2, 64; exit;
    """
    with pytest.raises(Deadlock, match="lanes 0x00000001 of warp 0 are here, but the warp counts only when its others"):
        ptx_programs.launch(body, threads=64)


def test_three_parts_of_a_warp_at_aligned_barriers_do_not_wake_each_other_for_ever():
    body = """
    setp.lt.u32 %p1, %r0, 8; setp.lt.u32 %p2, %r0, 16; @%p1 bra THIRD; @%p2 bra SECOND;
    bar.sync 7; exit; SECOND: bar.sync 7; exit; THIRD: bar.sync 7; exit;
    """
    with pytest.raises(Fault, match="needs the whole warp converged"):
        ptx_programs.launch(body, threads=32)
