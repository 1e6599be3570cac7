"""How many clusters a GPU holds at once, and in which order they start."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda_programs import cuda
from ptx_programs import STORE_R1, launch

from emugpu.emulator import Device, LaunchError, Livelock
from emugpu.emulator.machine.events import CtaEnded, CtaStarted
from emugpu.emulator.machine.grid import architecture, emulated_name, residency

KB = 1024


def tickets(grid: int, schedule: str = "fifo", seed: int = 0, **options) -> list[int]:
    """The ticket each CTA took from one counter."""
    device = Device(schedule=schedule, seed=seed)
    counter, out = device.upload(np.zeros(1, np.uint32)), device.alloc(4 * grid)
    device.launch(cuda("residency"), "tickets", grid=grid, block=32, arguments=[counter, out], **options)
    return device.download(out, np.uint32, grid).tolist()


def most_at_once(grid: int, schedule: str = "fifo", seed: int = 0, stay: int = 400, **options) -> int:
    """The greatest number of CTAs that ran at the same time."""
    device = Device(schedule=schedule, seed=seed)
    running, most = (device.upload(np.zeros(1, np.int32)) for _ in range(2))
    device.launch(cuda("residency"), "most_at_once", grid=grid, block=32, arguments=[running, most, stay], **options)
    assert device.download(running, np.int32, 1) == 0
    return int(device.download(most, np.int32, 1)[0])


def meet(grid: int, target: str = "sm_100a", threads: int = 32, schedule: str = "fifo", seed: int = 0, **options):
    """A barrier of all CTAs of the grid: it works for exactly as many as run at the same time."""
    device = Device(schedule=schedule, seed=seed)
    arrived, seen = device.upload(np.zeros(1, np.uint32), "arrived"), device.alloc(4 * grid)
    device.launch(
        cuda("residency", target), "grid_barrier", grid=grid, block=threads, arguments=[arrived, seen], **options
    )
    assert (device.download(seen, np.uint32, grid) == grid).all()


def starts(grid: int, schedule: str, seed: int = 0, **options) -> list[int]:
    """The numbers of the CTAs in the order in which they start."""
    started: list[int] = []

    def note(event: object) -> None:
        if isinstance(event, CtaStarted):
            started.append(event.ctaid[0])

    device = Device(schedule=schedule, seed=seed)
    arguments = [device.upload(np.zeros(1, np.uint32)), device.alloc(4 * grid)]
    device.launch(cuda("residency"), "tickets", grid=grid, block=32, arguments=arguments, sinks=[note], **options)
    return started


ROOM = [{}, {"resident_clusters": 5}, {"cluster": 2, "resident_clusters": 3}]


@pytest.mark.parametrize("options", ROOM)
def test_ctas_start_in_the_order_of_their_numbers_under_every_schedule(options):
    assert tickets(24, **options) == list(range(24))
    for schedule, seed in (("fifo", 0), ("declining", 0), *(("random", seed) for seed in range(6))):
        assert starts(24, schedule, seed, **options) == list(range(24)), (schedule, seed)


def test_under_the_reversed_schedule_they_start_in_the_reverse_order():
    assert starts(24, "reversed") == starts(24, "reversed", resident_clusters=5) == list(range(24))[::-1]
    assert starts(6, "reversed", cluster=2) == [4, 5, 2, 3, 0, 1]


@pytest.mark.parametrize("options", [{}, {"resident_clusters": 3}, {"cluster": 2, "resident_clusters": 2}])
def test_under_a_random_schedule_ctas_that_run_together_do_their_work_in_any_order(options):
    orders = [tuple(tickets(12, "random", seed, **options)) for seed in range(12)]
    assert all(sorted(order) == list(range(12)) for order in orders), "every CTA runs once"
    assert len(set(orders)) > 6
    assert orders[3] == tuple(tickets(12, "random", 3, **options)), "the same seed gives the same run"


def chain(schedule: str, seed: int = 0, entry: str = "chain_forward", **options) -> list[int]:
    device = Device(schedule=schedule, seed=seed)
    totals = device.alloc(6 * 4)
    arguments = [device.upload(np.zeros(6, np.uint32), "flags"), device.upload(np.ones(6 * 32, np.int32)), totals]
    if entry == "chain_by_ticket":
        arguments.append(device.upload(np.zeros(1, np.uint32)))
    device.launch(cuda("flag_chain"), entry, grid=6, block=32, arguments=arguments, **options)
    return device.download(totals, np.int32, 6).tolist()


def test_a_chain_that_relies_on_the_order_of_starts_hangs_only_in_another_order():
    """With room for all it works in any order; with room for two, only if the CTAs start in order."""
    sums = [32 * (n + 1) for n in range(6)]
    for seed in range(12):
        assert chain("random", seed, resident_clusters=2) == sums
    assert chain("fifo", resident_clusters=2) == chain("reversed") == sums
    with pytest.raises(Livelock, match="flags") as error:
        chain("reversed", resident_clusters=2)
    assert "they start in reverse order" in str(error.value)
    assert chain("reversed", entry="chain_by_ticket", resident_clusters=2) == sums


@pytest.mark.parametrize(("resident", "cluster", "ctas"), [(1, 1, 1), (2, 1, 2), (5, 1, 5), (2, 2, 4)])
def test_no_more_clusters_run_at_once_than_there_is_room_for(resident, cluster, ctas):
    assert most_at_once(12, cluster=cluster, resident_clusters=resident) <= ctas
    found = [most_at_once(12, "random", seed, cluster=cluster, resident_clusters=resident) for seed in range(10)]
    assert max(found) <= ctas


def test_with_room_for_all_random_schedules_let_clusters_overlap():
    """How much is up to the schedule; that as many as there is room for can meet is shown by the barriers below."""
    assert max(most_at_once(12, "random", seed) for seed in range(10)) > 2


def test_a_barrier_of_the_grid_needs_room_for_the_grid():
    for schedule in ("fifo", "random"):
        meet(7, schedule=schedule, resident_clusters=7)
        with pytest.raises(Livelock) as error:
            meet(7, schedule=schedule, resident_clusters=6)
        report = str(error.value)
        assert "arrived" in report and re.search(r"PTX line \d+.*ld.volatile.global.u32", report)
        assert re.search(r"\b1\b.*not.*start|not.*start.*\b1\b", report), "one CTA waits for room"


@pytest.mark.parametrize(
    ("target", "shared", "cluster", "ctas"),
    [
        ("sm_100a", 200 * KB, 1, 148),
        ("sm_100a", 100 * KB, 1, 2 * 148),
        ("sm_100a", 200 * KB, 2, 148),
        ("sm_90a", 200 * KB, 1, 132),
    ],
)
def test_the_gpu_holds_as_many_ctas_as_its_shared_memory_allows(target, shared, cluster, ctas):
    """148 SMs with sm_100a, 132 with sm_90a, and 228 KB of shared memory each."""
    meet(ctas, target, cluster=cluster, dynamic_smem=shared)
    with pytest.raises(Livelock, match="arrived"):
        meet(ctas + cluster, target, cluster=cluster, dynamic_smem=shared)


def test_an_sm_keeps_a_kilobyte_of_every_cta_for_the_system():
    """Three CTAs of 75 KB, each with 1 KB more for the system, fill the 228 KB of an SM; three of 76 KB do not fit."""
    meet(3 * 148, dynamic_smem=75 * KB)
    with pytest.raises(Livelock):
        meet(2 * 148 + 1, dynamic_smem=76 * KB)


@pytest.mark.thorough
def test_an_sm_holds_2048_threads():
    meet(2 * 148, threads=1024)
    with pytest.raises(Livelock):
        meet(2 * 148 + 1, threads=1024)


def test_the_gpu_that_runs_older_ptx_gives_the_room():
    """A DGX Spark runs PTX for sm_120, and PTX for sm_90 too. It has 48 SMs of 100 KB, an RTX 5090 has 170."""
    for target in ("sm_120", "sm_90"):
        meet(48, target, dynamic_smem=60 * KB, gpu="sm_121a")
        with pytest.raises(Livelock, match="48 at once"):
            meet(49, target, dynamic_smem=60 * KB, gpu="sm_121a")
        with pytest.raises(LaunchError, match="exceeds the limit of 101376"):
            meet(1, target, dynamic_smem=100 * KB, gpu="sm_121a")


def test_room_for_more_than_the_gpu_holds_can_be_asked_for():
    meet(160, dynamic_smem=200 * KB, resident_clusters=160)


def test_room_for_nothing_is_refused():
    with pytest.raises(LaunchError, match="resident_clusters"):
        meet(4, resident_clusters=0)


@pytest.mark.parametrize(
    ("target", "cluster", "shared", "threads", "registers", "clusters"),
    [
        ("sm_100a", 1, 228 * KB, 32, None, 148), ("sm_100a", 1, 114 * KB, 32, None, 2 * 148),
        ("sm_100a", 1, 114 * KB + 1, 32, None, 148), ("sm_90a", 1, KB, 32, None, 32 * 132),
        ("sm_90a", 1, KB, 64, None, 32 * 132), ("sm_90a", 1, KB, 65, None, 21 * 132),
        ("sm_90a", 1, KB, 1024, None, 2 * 132), ("sm_100a", 1, KB, 1024, 64, 148),
        ("sm_100a", 1, KB, 1024, 32, 2 * 148), ("sm_100a", 1, KB, 512, 64, 2 * 148), ("sm_100a", 1, KB, 512, 72, 148),
        ("sm_100a", 2, 228 * KB, 32, None, 74), ("sm_100a", 3, 228 * KB, 32, None, 49),
        ("sm_100a", 3, 114 * KB, 32, None, 98), ("sm_103a", 1, 228 * KB, 32, None, 148),
        ("sm_100a", 16, 400 * KB, 1024, 255, 9),
    ],
)  # fmt: skip
def test_what_an_sm_has_is_shared_out_among_whole_ctas(target, cluster, shared, threads, registers, clusters):
    """2048 threads, 32 CTAs, 228 KiB and 65536 registers on each of 132 or 148 SMs; sm_103 counts as sm_100."""
    assert residency(target, cluster, shared, threads, registers) == clusters


def test_a_cluster_starts_when_those_before_it_cannot_go_on():
    """Without cluster launch control nobody can see the others start, so that few have to be kept at once."""
    told: list[tuple[str, int]] = []

    def note(event: object) -> None:
        if isinstance(event, CtaStarted | CtaEnded):
            told.append((type(event).__name__, event.cluster))

    launch("mov.b32 %r1, 1;" + STORE_R1 + "ret;", grid=3, sinks=[note])
    assert told == [(name, cluster) for cluster in range(3) for name in ("CtaStarted", "CtaEnded")]


@pytest.mark.parametrize(
    ("target", "emulated", "name"),
    [
        ("sm_90a", "sm_90", "sm_90a"),
        ("sm_100a", "sm_100", "sm_100a"),
        ("sm_100f", "sm_100", "sm_100f"),
        ("sm_100a, texmode_independent", "sm_100", "sm_100a, texmode_independent"),
        ("sm_103a", "sm_103", "sm_103a"),
        ("sm_103f", "sm_103", "sm_103f"),
        ("sm_80", "sm_90", "sm_90 for PTX of sm_80"),
        ("sm_52", "sm_90", "sm_90 for PTX of sm_52"),
        ("sm_120", "sm_120", "sm_120"),
        ("sm_120f", "sm_120", "sm_120f"),
        ("sm_121a", "sm_121", "sm_121a"),
    ],
)
def test_the_architecture_that_is_emulated_is_said(target, emulated, name):
    assert architecture(target) == emulated and emulated_name(target) == name


@pytest.mark.parametrize("target", ["sm_110a", "sm_101a", "sm_130", "compute_90", "sm_"])
def test_ptx_for_an_architecture_that_is_not_emulated_is_refused(target):
    with pytest.raises(LaunchError, match=rf"PTX for {target}: the emulated GPUs are sm_90, sm_100, sm_103, sm_1"):
        launch("ret;", target=target)
