"""CTAs that wait for each other through global memory: they run at the same time, as on a GPU.

Every program has a broken twin that ends in a report or in a wrong result.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from cuda_programs import cuda

from emugpu.emulator import Device, EmulatorError, Fault, Livelock

SCHEDULES = [("fifo", 0), *(("random", seed) for seed in range(8))]


def polls(report: str, name: str, address: int, instruction: str) -> bool:
    """Whether one line of a report says that a warp polls this word with this instruction."""
    return any(
        name in line and f"{address:#x}" in line and instruction in line and re.search(r"PTX line \d+", line)
        for line in report.splitlines()
    )


# ---- a chain of flags ----


class Chain:
    """``count`` CTAs, or clusters of two, that pass a running total on; launched as the test likes."""

    THREADS = 32

    def __init__(self, count: int, schedule: str = "fifo", seed: int = 0, ctas_per_link: int = 1):
        self.count, self.ctas = count, count * ctas_per_link
        self.device = Device(schedule=schedule, seed=seed)
        self.input = np.arange(self.ctas * self.THREADS, dtype=np.int32) % 97
        self.flags = self.device.upload(np.zeros(count, np.uint32), "flags")
        self.totals = self.device.alloc(4 * count, "totals")
        self.arguments = [self.flags, self.device.upload(self.input, "input"), self.totals]

    def launch(self, entry: str, *more, **options):
        return self.device.launch(
            cuda("flag_chain"), entry, grid=self.ctas, block=self.THREADS, arguments=[*self.arguments, *more], **options
        )

    def is_right(self, backward: bool = False) -> bool:
        sums = self.input.reshape(self.count, -1).sum(axis=1)
        expected = np.cumsum(sums[::-1])[::-1] if backward else np.cumsum(sums)
        return bool((self.device.download(self.totals, np.int32, self.count) == expected).all())


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("entry", ["chain_forward", "chain_backward"])
def test_ctas_wait_for_the_one_before_and_for_the_one_after(entry, schedule, seed):
    chain = Chain(12, schedule, seed)
    result = chain.launch(entry)
    assert chain.is_right(backward=entry == "chain_backward")
    assert result.counters.clusters == result.counters.clusters_launched == 12
    assert result.counters.clusters_granted == 0


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
@pytest.mark.parametrize("entry", ["chain_forward", "chain_backward"])
def test_a_chain_goes_through_ctas_of_one_cluster_and_of_others(entry, schedule, seed):
    chain = Chain(12, schedule, seed)
    assert chain.launch(entry, cluster=2).counters.clusters == 6
    assert chain.is_right(backward=entry == "chain_backward")


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
@pytest.mark.parametrize("backward", [0, 1])
def test_whole_clusters_pass_a_total_on(backward, schedule, seed):
    chain = Chain(6, schedule, seed, ctas_per_link=2)
    chain.launch("chain_of_clusters", backward, cluster=2)
    assert chain.is_right(bool(backward))


def test_a_chain_in_the_order_of_the_grid_needs_only_one_cta_at_a_time():
    chain = Chain(8)
    chain.launch("chain_forward", resident_clusters=1)
    assert chain.is_right()


@pytest.mark.parametrize("resident", [1, 3])
def test_a_chain_in_the_order_of_tickets_works_in_any_order_of_starts(resident):
    for seed in range(10):
        chain = Chain(8, "random", seed)
        chain.launch("chain_by_ticket", chain.device.upload(np.zeros(1, np.uint32)), resident_clusters=resident)
        assert chain.is_right()


def test_a_chain_against_the_order_of_the_grid_needs_all_its_ctas_at_once():
    chain = Chain(6)
    chain.launch("chain_backward", resident_clusters=6)
    assert chain.is_right(backward=True)
    chain = Chain(6)
    with pytest.raises(Livelock) as error:
        chain.launch("chain_backward", resident_clusters=2)
    report = str(error.value)
    assert "kernel 'chain_backward'" in report
    assert polls(report, "flags", chain.flags + 4 * 1, "ld.acquire.gpu"), "CTA 0 looks at the flag of CTA 1"
    assert polls(report, "flags", chain.flags + 4 * 2, "ld.acquire.gpu"), "CTA 1 looks at the flag of CTA 2"
    assert re.search(r"CTA \(0, 0, 0\)", report) and re.search(r"CTA \(1, 0, 0\)", report)
    assert re.search(r"\b4\b.*not.*start|not.*start.*\b4\b", report), "four CTAs wait for room"


def test_clusters_against_the_order_of_the_grid_with_too_little_room_are_reported():
    chain = Chain(4, ctas_per_link=2)
    with pytest.raises(Livelock) as error:
        chain.launch("chain_of_clusters", 1, cluster=2, resident_clusters=3)
    assert polls(str(error.value), "flags", chain.flags + 4 * 3, "ld.acquire.gpu")


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
def test_a_flag_that_nobody_raises_is_named(schedule, seed):
    chain = Chain(5, schedule, seed)
    with pytest.raises(Livelock) as error:
        chain.launch("chain_with_a_silent_cta", 2)
    report = str(error.value)
    for silent in (2, 3):
        assert polls(report, "flags", chain.flags + 4 * silent, "ld.acquire.gpu")
    for raised in (0, 1):
        assert not polls(report, "flags", chain.flags + 4 * raised, "ld.acquire.gpu")


# ---- one sum, several CTAs ----

M, N, K = 16, 16, 32


def operands(kind) -> tuple[np.ndarray, np.ndarray]:
    """Products below 2^24 are exact in float32; their sums are not, so that the order of a sum shows."""
    random = np.random.default_rng(5)
    return random.integers(1, 4096, (M, K)).astype(kind), random.integers(1, 4096, (K, N)).astype(kind)


def sum_in_pieces(a, b, cuts, order=None) -> np.ndarray:
    """What adding up piece by piece gives: each from zero, k by k, then the pieces in their order."""
    pieces = []
    for start, stop in pairwise(cuts):
        piece = np.zeros((M, N), a.dtype)
        for k in range(start, stop):
            piece = piece + a[:, k, None] * b[None, k]
        pieces.append(piece)
    total = None
    for index in order if order is not None else range(len(pieces)):
        total = pieces[index] if total is None else total + pieces[index]
    return total


def run_split_k(entry: str, kind, splits: int, schedule: str = "fifo", seed: int = 0, **options):
    device = Device(schedule=schedule, seed=seed)
    a, b = operands(kind)
    c = device.alloc(4 * M * N, "c")
    locks = device.upload(np.zeros(M * N // 64, np.int32), "locks")
    arguments = [device.upload(a), device.upload(b), c, locks, N, K]
    device.launch(cuda("split_k"), entry, grid=(N // 8, M // 8, splits), block=(8, 8), arguments=arguments, **options)
    assert not device.download(locks, np.int32, M * N // 64).any()
    return device.download(c, kind, (M, N))


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:5])
@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_a_semaphore_orders_the_pieces_of_a_split_sum(kind, schedule, seed):
    a, b = operands(kind)
    cuts = [0, 8, 16, 24, 32]
    c = run_split_k("split_k_f32" if kind is np.float32 else "split_k_s32", kind, 4, schedule, seed)
    assert (c == sum_in_pieces(a, b, cuts)).all()
    if kind is np.float32:
        assert (c != sum_in_pieces(a, b, cuts, order=[3, 2, 1, 0])).any(), "the order matters for these numbers"


def test_a_turn_that_never_comes_is_reported_with_the_lock():
    with pytest.raises(Livelock) as error:
        run_split_k("split_k_wrong_turn", np.int32, 3)
    report = str(error.value)
    assert "locks" in report and "ld.acquire.gpu.global.s32" in report


def test_pieces_that_are_added_without_a_lock_get_lost():
    a, b = operands(np.int32)
    expected = a @ b
    wrong = 0
    for seed in range(10):
        device = Device(schedule="random", seed=seed)
        c = device.upload(np.zeros((M, N), np.int32))
        arguments = [device.upload(a), device.upload(b), c, N, K]
        device.launch(cuda("split_k"), "split_k_without_lock", grid=(2, 2, 4), block=(8, 8), arguments=arguments)
        wrong += bool((device.download(c, np.int32, (M, N)) != expected).any())
    assert wrong


def run_stream_k(ctas: int, k_block: int, schedule: str = "fifo", seed: int = 0, **options) -> np.ndarray:
    device = Device(schedule=schedule, seed=seed)
    a, b = operands(np.float32)
    c = device.alloc(4 * M * N, "c")
    pieces = device.alloc(4 * 64 * ctas, "pieces")
    flags = device.upload(np.zeros(ctas, np.int32), "flags")
    arguments = [device.upload(a), device.upload(b), c, pieces, flags, N, K, k_block, N // 8, M * N // 64]
    device.launch(cuda("split_k"), "stream_k", grid=ctas, block=(8, 8), arguments=arguments, **options)
    return device.download(c, np.float32, (M, N))


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
@pytest.mark.parametrize("ctas", [3, 5, 16])
def test_stream_k_fixes_tiles_up_that_several_ctas_share(ctas, schedule, seed):
    """5 CTAs: shares of 4 blocks of 16; 3 CTAs: shares of 6; 16 CTAs: one block each, all four of a tile to add up."""
    k_block = 8
    a, b = operands(np.float32)
    blocks = K // k_block
    share = -(-4 * blocks // ctas)
    expected = np.empty((M, N), np.float32)
    for tile in range(4):
        inner = {b for b in range(0, 4 * blocks, share) if tile * blocks < b < (tile + 1) * blocks}
        cuts = [0, *((b - tile * blocks) * k_block for b in sorted(inner)), K]
        rows, columns = slice(tile // 2 * 8, tile // 2 * 8 + 8), slice(tile % 2 * 8, tile % 2 * 8 + 8)
        expected[rows, columns] = sum_in_pieces(a, b, cuts)[rows, columns]
    assert (run_stream_k(ctas, k_block, schedule, seed) == expected).all()


def test_stream_k_with_room_for_one_cta_waits_for_ever():
    with pytest.raises(Livelock, match="flags"):
        run_stream_k(3, 8, resident_clusters=1)


# ---- one counter, several CTAs ----


def run_tiles(entry: str, schedule: str, seed: int) -> np.ndarray:
    """How often each of 10 tiles was done by 4 CTAs; checks that what was done is right."""
    tiles, threads = 10, 32
    device = Device(schedule=schedule, seed=seed)
    values = np.arange(tiles * threads, dtype=np.int32)
    output = device.alloc(values.nbytes, "output")
    times_done = device.upload(np.zeros(tiles, np.uint32), "times done")
    counter = device.upload(np.zeros(1, np.uint32), "counter")
    arguments = [counter, tiles, device.upload(values), output, times_done]
    device.launch(cuda("tile_counter"), entry, grid=4, block=threads, arguments=arguments)
    assert (device.download(output, np.int32, values.size) == 3 * values + 1).all()
    return device.download(times_done, np.uint32, tiles)


def test_an_atomic_counter_gives_every_tile_out_once_in_any_order_of_events():
    assert (run_tiles("tiles_by_atomic", "fifo", 0) == 1).all()
    for seed in range(60):
        assert (run_tiles("tiles_by_atomic", "random", seed) == 1).all(), seed


def test_a_counter_that_is_read_and_then_written_gives_tiles_out_twice():
    assert any((run_tiles("tiles_by_load_and_store", "random", seed) > 1).any() for seed in range(10))


def test_random_schedules_come_between_a_load_and_the_store_right_after_it():
    """The two stand in one basic block; a GPU may run other CTAs in between all the same."""
    lost = 0
    for seed in range(30):
        device = Device(schedule="random", seed=seed)
        counter, tickets = device.upload(np.zeros(1, np.uint32)), device.alloc(4 * 6)
        arguments = [counter, tickets]
        device.launch(cuda("tile_counter"), "tickets_by_load_and_store", grid=6, block=32, arguments=arguments)
        lost += len(set(device.download(tickets, np.uint32, 6).tolist())) < 6
    assert lost


# ---- from one CTA to another ----

VARIANTS = ["handoff_release_acquire", "handoff_fence_relaxed", "handoff_membar_volatile"]
ROUNDS, THREADS = 5, 64


def run_handoff(entry: str, schedule: str = "fifo", seed: int = 0) -> np.ndarray:
    device = Device(schedule=schedule, seed=seed)
    full, empty = (device.upload(np.zeros(1, np.uint32), name) for name in ("full", "empty"))
    ring, sums = device.alloc(4 * 2 * THREADS, "ring"), device.alloc(4 * THREADS, "sums")
    device.launch(cuda("handoff"), entry, grid=2, block=THREADS, arguments=[full, empty, ring, sums, ROUNDS])
    return device.download(sums, np.int32, THREADS)


def expected_sums() -> np.ndarray:
    sums = np.zeros(THREADS, np.int32)
    for step in range(ROUNDS):
        sums = 3 * sums + step * 1000 + np.arange(THREADS, dtype=np.int32)
    return sums


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:5])
@pytest.mark.parametrize("entry", VARIANTS)
def test_a_ring_in_global_memory_hands_data_over(entry, schedule, seed):
    assert (run_handoff(entry, schedule, seed) == expected_sums()).all()


@pytest.mark.parametrize("entry", ["handoff_flag_before_data", "handoff_without_empty"])
def test_a_handoff_out_of_order_reads_what_is_not_there_yet_or_no_longer(entry):
    outcomes = set()
    for seed in range(20):
        try:
            outcomes.add("right" if (run_handoff(entry, "random", seed) == expected_sums()).all() else "wrong")
        except Fault as fault:
            assert "written" in str(fault) or "race" in str(fault)
            outcomes.add("fault")
        except EmulatorError as error:
            outcomes.add(type(error).__name__)
    assert outcomes & {"wrong", "fault"}, outcomes


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
def test_two_ctas_that_wait_for_each_other_are_both_named(schedule, seed):
    with pytest.raises(Livelock) as error:
        run_handoff("handoff_empty_too_late", schedule, seed)
    report = str(error.value)
    assert re.search(r"CTA \(0, 0, 0\).*empty|empty(.|\n)*?CTA \(0, 0, 0\)", report)
    assert re.search(r"CTA \(1, 0, 0\).*full|full(.|\n)*?CTA \(1, 0, 0\)", report)
