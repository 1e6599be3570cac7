"""Programs of nvcc (tests/data/cuda): a GEMM by mma.sync, a histogram in a cluster, CUDA's functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from cuda_programs import cuda

from emugpu.check import Checker
from emugpu.emulator import Device

TARGETS = ("sm_90a", "sm_100a", "sm_103a")


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_a_gemm_by_cp_async_and_mma(target, schedule):
    m, n, k = 128, 64, 160
    rng = np.random.default_rng(k)
    a, b = rng.integers(-2, 3, (m, k)), rng.integers(-2, 3, (n, k))
    device = Device(schedule=schedule, seed=4)
    addresses = [device.upload(x.astype(np.float16)) for x in (a, b)]
    c = device.alloc(2 * m * n)
    device.launch(cuda("mma_gemm", target), grid=(n // 64, m // 64), block=128, arguments=[*addresses, c, n, k])
    np.testing.assert_array_equal(device.download(c, np.float16, (m, n)), (a @ b.T).astype(np.float16))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_a_histogram_in_distributed_shared_memory(target, schedule):
    data = np.random.default_rng(1).integers(0, 1 << 31, 700)
    device = Device(schedule=schedule, seed=2)
    source, bins = device.upload(data.astype(np.uint32)), device.upload(np.zeros(256, np.uint32))
    device.launch(cuda("histogram", target), grid=8, cluster=4, block=32, arguments=[source, len(data), bins])
    assert device.download(bins, np.uint32, 256).tolist() == np.bincount(data % 256, minlength=256).tolist()


@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_the_greatest_of_each_row_by_a_load_with_a_reduction(schedule):
    """A program that only a B300 runs: tcgen05.ld.red has the rows and the greatest magnitude of each."""
    rows = np.random.default_rng(8).integers(-100, 101, (2 * 128, 8)).astype(np.float32)
    rows[:, 0] = np.where(rows[:, 0] == 0, 1, rows[:, 0])
    device, checker = Device(schedule=schedule, seed=5), Checker()
    source, scaled, greatest = device.upload(rows), device.alloc(rows.nbytes), device.alloc(4 * len(rows))
    device.launch(cuda("row_max"), grid=2, block=128, arguments=[source, scaled, greatest], sinks=[checker])
    most = np.abs(rows).max(axis=1)
    assert device.download(greatest, np.float32, most.shape).tolist() == most.tolist()
    np.testing.assert_array_equal(device.download(scaled, np.float32, rows.shape), rows / most[:, None])
    assert checker.report().findings == ()


def computed(name: str, x: np.ndarray, functions: int) -> np.ndarray:
    device = Device()
    source, out = device.upload(x), device.alloc(functions * x.nbytes)
    device.launch(cuda("numerics"), name, grid=1, block=len(x), arguments=[source, out, len(x)])
    return device.download(out, x.dtype, (functions, len(x)))


SINGLES: list[tuple[Callable[[float], float], float]] = [
    (math.exp, 2), (lambda v: math.log(abs(v) + 0.5), 3), (math.sin, 3), (lambda v: math.cos(1000 * v), 3),
    (math.tanh, 3), (lambda v: 1 / math.sqrt(v * v + 1), 3), (lambda v: (abs(v) + 0.1) ** 1.7, 10),
    (lambda v: v / 3, 1), (lambda v: math.sqrt(abs(v)), 1), (math.exp, 20), (lambda v: v / 7, 3), (math.erf, 3),
    (lambda v: math.copysign(abs(v) ** (1 / 3), v), 2), (lambda v: math.log1p(v * v), 3),
    (lambda v: math.fmod(v, float(np.float32(0.7))), 0), (lambda v: math.atan2(v, 2), 4),
]  # fmt: skip
"""The functions of the kernel, and how many units in the last place CUDA allows itself, generously."""


def test_functions_of_single_precision():
    x = np.random.default_rng(3).uniform(-6, 6, 32).astype(np.float32)
    found = computed("singles", x, len(SINGLES))
    for (function, allowed), row in zip(SINGLES, found, strict=True):
        for v, y in zip(x.tolist(), row.tolist(), strict=True):
            # Arguments that the kernel computes are rounded to f32 before the function sees them.
            slack = 2.0**-11 if allowed == 3 and function(0.0) == 1.0 and function is not SINGLES[5][0] else 0.0
            exact = function(v)
            unit = 2.0 ** (math.frexp(exact)[1] - 24) if exact else 2.0**-149
            assert abs(y - exact) <= (allowed + 0.5) * unit + slack, (v, y, exact)


def test_functions_of_double_precision():
    x = np.random.default_rng(4).uniform(-4, 4, 32)
    found = computed("doubles", x, 8)
    functions = [math.exp, lambda v: math.log(abs(v) + 0.5), math.sin, lambda v: v / 3, lambda v: math.sqrt(abs(v)),
                 lambda v: 1 / math.sqrt(v * v + 1), lambda v: v * v + 0.1, math.tanh]  # fmt: skip
    for function, row in zip(functions, found, strict=True):
        np.testing.assert_allclose(row, [function(v) for v in x.tolist()], rtol=5e-16 * 2)


def test_types_of_sixteen_and_eight_bits():
    x = np.random.default_rng(5).uniform(-5, 5, 32).astype(np.float32)
    found = computed("halves", x, 10)
    h, b = x.astype(np.float16).astype(np.float64), x.astype(ml_dtypes.bfloat16).astype(np.float64)

    def f16(v: np.ndarray) -> np.ndarray:
        return v.astype(np.float16).astype(np.float32)

    def bf16(v: np.ndarray) -> np.ndarray:
        return v.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)

    wanted = [
        None, f16(h * 1.5 + 0.25), f16(h * -2 + 3), bf16(b * 3), bf16(b * float(ml_dtypes.bfloat16(0.1))),
        f16(np.maximum(h, 0.5)), x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32),
        x.astype(ml_dtypes.float8_e5m2).astype(np.float32), np.rint(h), None,
    ]  # fmt: skip
    for row, exact in zip(found, wanted, strict=True):
        if exact is not None:
            np.testing.assert_array_equal(row, exact)
    np.testing.assert_allclose(found[0], np.exp(h), rtol=2e-3)
    np.testing.assert_allclose(found[9], h / 3, rtol=1e-3)
