"""Ordinary SIMT kernels as a compiler emits them: the textbook SGEMM, and a loop over vectors."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_programs import cuda

from emugpu.emulator import Device, EmulatorError


def sgemm(m: int, n: int, k: int, entry: str = "sgemm", schedule: str = "fifo", seed: int = 0, a=None, b=None):
    """C, and A and B; small integers by default, so that every sum is exact."""
    random = np.random.default_rng(m + n + k)
    a = random.integers(-8, 9, (m, k)).astype(np.float32) if a is None else a
    b = random.integers(-8, 9, (k, n)).astype(np.float32) if b is None else b
    device = Device(schedule=schedule, seed=seed)
    c = device.alloc(4 * m * n, "c")
    result = device.launch(
        cuda("sgemm"),
        entry,
        grid=(n // 32, m // 32),
        block=(32, 32),
        arguments=[device.upload(a, "a"), device.upload(b, "b"), c, n, k],
    )
    return device.download(c, np.float32, (m, n)), a, b, result


@pytest.mark.thorough
def test_the_textbook_sgemm_is_exact():
    c, a, b, result = sgemm(128, 128, 128)
    assert (c == a @ b).all()
    assert result.counters.ctas == 16 and result.counters.warps_finished == 16 * 32
    assert result.counters.mma_flops == 0


def test_the_sgemm_adds_up_in_the_order_of_k_with_one_rounding_per_step():
    """Products of 12-bit integers are exact in float32, so a multiply-add rounds like an addition."""
    random = np.random.default_rng(1)
    a, b = (random.integers(1, 4096, shape).astype(np.float32) for shape in ((32, 64), (64, 32)))
    expected = np.zeros((32, 32), np.float32)
    for k in range(64):
        expected = expected + a[:, k, None] * b[None, k]
    assert (sgemm(32, 32, 64, a=a, b=b)[0] == expected).all()
    assert (expected != (a.astype(np.float64) @ b.astype(np.float64))).any(), "rounding happens"


@pytest.mark.parametrize("seed", range(3))
def test_the_sgemm_is_exact_in_random_schedules(seed):
    c, a, b, _ = sgemm(64, 32, 64, schedule="random", seed=seed)
    assert (c == a @ b).all()


@pytest.mark.thorough
def test_a_missing_barrier_in_the_sgemm_shows():
    """A warp that runs ahead overwrites a tile that others still read."""
    wrong = 0
    for seed in range(12):
        try:
            c, a, b, _ = sgemm(32, 32, 96, "sgemm_one_barrier", "random", seed)
            wrong += bool((c != a @ b).any())
        except EmulatorError:
            wrong += 1
    assert wrong


@pytest.mark.parametrize("count", [1, 31, 1000])
def test_threads_beyond_the_end_of_a_vector_do_nothing(count):
    device = Device()
    x, y = np.arange(count, dtype=np.float32), np.full(count, 0.5, np.float32)
    y_address = device.upload(y)
    arguments = [device.upload(x), y_address, 3.0, count]
    device.launch(cuda("sgemm"), "scale_and_add", grid=-(-count // 128), block=128, arguments=arguments)
    assert (device.download(y_address, np.float32, count) == 3 * x + y).all()
