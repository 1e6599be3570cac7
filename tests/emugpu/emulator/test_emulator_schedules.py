"""What the two schedules promise: the order of things, and that a seed repeats a run."""

from __future__ import annotations

from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import pytest

from emugpu.emulator.machine.schedule import CANDIDATES, START, FifoSchedule, RandomSchedule, make_schedule
from emugpu.emulator.machine.state import AsyncOperation


def operation(name: str, pipe: Any = None, kind: str = "tma.load") -> AsyncOperation:
    return AsyncOperation(kind, lambda: None, name, None, pipe)  # type: ignore[arg-type]


def warp(index: int, rank: int = 0, cluster: int = 0) -> Any:
    cta = SimpleNamespace(cluster=SimpleNamespace(number=cluster), rank=rank)
    return SimpleNamespace(cta=cta, warp=SimpleNamespace(index=index, root=-1))


def test_in_fifo_order_warps_come_first_then_operations_one_by_one():
    schedule = FifoSchedule()
    first, second = operation("first"), operation("second")
    schedule.submit(first)
    schedule.submit(second)
    ready = deque([warp(0), warp(1)])
    a, b = ready
    assert [schedule.next(ready, True) for _ in range(5)] == [a, b, first, second, None] and not ready


def test_the_fifo_schedule_makes_no_trouble():
    schedule = make_schedule("fifo", 7)
    assert not schedule.reverses and not schedule.splits_multicast
    assert schedule.early() and not schedule.spurious_failure() and schedule.budget() == 0


@pytest.mark.parametrize("name", ["", "Fifo", "lifo"])
def test_other_schedules_are_refused(name):
    with pytest.raises(ValueError, match="must be fifo, random, declining or reversed"):
        make_schedule(name, 0)


def test_a_random_schedule_does_everything_once_and_keeps_the_order_of_each_pipe():
    for seed in range(40):
        schedule = RandomSchedule(seed)
        operations = [operation(f"{n}", pipe, kind) for n in range(12)
                      for pipe, kind in (("a", "mma"), ("b", "commit"), (None, "tma.load"))]  # fmt: skip
        for one in operations:
            schedule.submit(one)
        ready = deque(warp(n % 4, n // 4 % 2, n // 8) for n in range(20))
        everything = [*ready, *operations]
        done = []
        while (step := schedule.next(ready, False)) is not None:
            done.append(step)
        assert len(done) == len(everything) and {id(x) for x in done} == {id(x) for x in everything}
        for pipe in "ab":
            assert [x.fragment for x in done if getattr(x, "pipe", "") == pipe] == [str(n) for n in range(12)]


def test_a_seed_repeats_a_run_and_others_differ():
    def order(seed: int) -> list[Any]:
        schedule = RandomSchedule(seed)
        for n in range(10):
            schedule.submit(operation(f"{n}"))
        ready = deque(warp(n) for n in range(10))
        steps = [schedule.next(ready, False) for _ in range(20)]
        return [s.fragment if isinstance(s, AsyncOperation) else s.warp.index for s in steps]

    orders = [order(seed) for seed in range(40)]
    assert orders == [order(seed) for seed in range(40)] and len({str(o) for o in orders}) == 40
    firsts = Counter(type(o[0]) for o in orders)
    assert len(firsts) == 2, "some runs begin with a warp, some with an operation"


def test_operations_without_a_pipe_overtake_one_another():
    overtaken = 0
    for seed in range(20):
        schedule = RandomSchedule(seed)
        for n in range(6):
            schedule.submit(operation(f"{n}"))
        order = [schedule.next(deque(), False).fragment for _ in range(6)]
        assert schedule.next(deque(), False) is None
        overtaken += order != sorted(order)
    assert 5 <= overtaken <= 20


def test_clusters_start_early_late_or_in_between():
    shares = []
    for seed in range(40):
        schedule = RandomSchedule(seed)
        shares.append(sum(schedule.next(deque([warp(0)]), True) is START for _ in range(50)))
    assert {0, 50} < set(shares) and any(0 < share < 25 for share in shares)
    assert all(RandomSchedule(seed).next(deque(), False) is None for seed in range(10))


def test_trouble_is_made_as_often_as_it_should_be():
    schedule = RandomSchedule(1)
    assert schedule.splits_multicast
    assert 400 < sum(schedule.early() for _ in range(1000)) < 600
    assert 60 < sum(schedule.spurious_failure() for _ in range(1000)) < 150
    assert 850 < sum(schedule.spurious_failure(is_first=True) for _ in range(1000)) < 940
    assert {schedule.budget() for _ in range(100)} == {1, 3, 10, 100}


def test_no_warp_is_lost_or_starved_among_many():
    schedule = RandomSchedule(3)
    ready = deque(warp(n) for n in range(3 * CANDIDATES))
    everybody = set(map(id, ready))
    seen = set()
    for _ in range(3000):
        chosen = schedule.next(ready, False)
        assert len(ready) == 3 * CANDIDATES - 1 and chosen not in ready
        seen.add(id(chosen))
        ready.append(chosen)
    assert seen == everybody
