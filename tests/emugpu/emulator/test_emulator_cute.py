"""Kernels that CuTe DSL has compiled (tests/data/cute) give what NumPy gives."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from emugpu.emulator import Device, LaunchResult, Module, TensorMap

FOLDER = Path(__file__).parents[2] / "data" / "cute"


@cache
def kernel(name: str) -> tuple[Module, int]:
    """The module and its bytes of dynamic shared memory. For sm_103a, CuTe DSL writes what it does for sm_100a."""
    text = (FOLDER / f"{name.replace('_sm103', '_sm100')}.ptx").read_text()
    if name.endswith("_sm103"):
        text = text.replace(".target sm_100a", ".target sm_103a")
    found = re.search(r"(\d+) bytes of shared memory", text)
    assert found is not None
    return Module.from_text(text), int(found[1])


@pytest.mark.parametrize("architecture", (90, 100, 103))
def test_elements(architecture):
    x, y = np.random.default_rng(3).integers(-100, 101, (2, 300)).astype(np.float32)
    device = Device()
    addresses = [device.upload(v) for v in (x, y)]
    module, shared = kernel(f"axpy_sm{architecture}")
    vectors = [(address, np.int32(x.size)) for address in addresses]
    device.launch(module, grid=3, dynamic_smem=shared, arguments=[0.25, *vectors])
    np.testing.assert_array_equal(device.download(addresses[1], np.float32, x.shape), 0.25 * x + y)


def matmul(name, kind, dtype, result, sizes, boxes, grid, cluster, **how) -> tuple[LaunchResult, bool]:
    """Launch C = A @ B.T on data whose rows, columns and slices of K differ; whether C is exact.

    ``boxes``: rows of A, rows of B and columns of both that one load takes.
    """
    m, n, k = sizes
    rng = np.random.default_rng(k)
    a, b = rng.integers(-2, 3, (m, k)), rng.integers(-2, 3, (n, k))
    device = Device(**how)
    maps = []
    for array, rows in ((a, boxes[0]), (b, boxes[1])):
        maps.append(TensorMap.tiled(device.upload(array.astype(dtype)), kind, array.shape, (rows, boxes[2]), "128B"))
    c = device.upload(np.full((m, n), np.nan, result))
    module, shared = kernel(name)
    m32, n32, k32 = (np.int32(size) for size in sizes)
    arguments = [None, maps[0], (m32, k32), maps[1], (n32, k32), (c, m32, n32, np.int64(n))]
    done = device.launch(module, grid=grid, cluster=cluster, dynamic_smem=shared, arguments=arguments)
    found = device.download(c, result, (m, n)).astype(np.float32)
    return done, np.array_equal(found, (a @ b.T).astype(result).astype(np.float32))


ONE_CTA = {
    "gemm_bf16_sm100": ("bf16", ml_dtypes.bfloat16, ml_dtypes.bfloat16, (256, 128, 320), (128, 64, 64)),
    "gemm_fp8_sm100": ("e4m3", ml_dtypes.float8_e4m3fn, np.float32, (256, 128, 640), (128, 64, 128)),
    "gemm_fp8_sm103": ("e4m3", ml_dtypes.float8_e4m3fn, np.float32, (256, 128, 640), (128, 64, 128)),
}


@pytest.mark.parametrize("how", [{}, {"schedule": "random", "seed": 1}])
@pytest.mark.parametrize("name", ONE_CTA)
def test_a_matmul_by_single_ctas(name, how):
    """More slices of K than stages: every stage is filled again. Three CTAs share four tiles, and store one while they
    compute the next.
    """
    done, exact = matmul(name, *ONE_CTA[name], grid=(1, 1, 3), cluster=None, **how)
    assert exact
    # Registers are moved above the wait for tensor memory by the compiler of the one, and not by that of the other.
    assert {w.rule for w in done.warnings} == ({"register-before-wait"} if "bf16" in name else set())


@pytest.mark.parametrize("architecture", (100, 103))
def test_a_matmul_of_scaled_blocks(architecture):
    """kind::mxf4nvf4: every row and block has a factor of its own, which tcgen05.cp takes to tensor memory."""
    m, n, k = 256, 256, 1280
    rng = np.random.default_rng(k)
    numbers = np.arange(-3, 4).astype(ml_dtypes.float4_e2m1fn)
    a, b = (rng.choice(numbers, (rows, k)) for rows in (m, n))
    factors = np.array([0.25, 0.5, 1, 2, 4]).astype(ml_dtypes.float8_e4m3fn)
    a_scale, b_scale = (rng.choice(factors, (rows, k // 16)) for rows in (m, n))
    device = Device()
    maps = [TensorMap.tiled(device.upload(_packed(x)), "b4x16", x.shape, (128, 256), "128B") for x in (a, b)]
    for scale in (a_scale, b_scale):
        parts = _parts(scale)
        maps.append(TensorMap.tiled(device.upload(parts), "u16", parts.shape, (1, 4, 256)))
    c = device.upload(np.full((m, n), np.nan, np.float32))
    module, shared = kernel(f"scaled_nvfp4_sm{architecture}")
    m32, n32, k32 = (np.int32(size) for size in (m, n, k))
    arguments = [None, *maps, *[(m32, k32), (n32, k32)] * 2, (c, m32, n32, np.int64(n))]
    done = device.launch(module, grid=(2, 2), dynamic_smem=shared, arguments=arguments)
    wide = [x.astype(np.float64) * np.repeat(s.astype(np.float64), 16, axis=1) for x, s in ((a, a_scale), (b, b_scale))]
    np.testing.assert_array_equal(device.download(c, np.float32, (m, n)), wide[0] @ wide[1].T)
    assert not done.warnings


def _packed(values: np.ndarray) -> np.ndarray:
    """Two numbers of 4 bits to a byte, the first in the lower half."""
    codes = values.view(np.uint8)
    return (codes[:, 0::2] & 15) | codes[:, 1::2] << 4


def _parts(scale: np.ndarray) -> np.ndarray:
    """Of 128 rows and 4 columns, each 512 bytes: rows 0, 32, 64 and 96 lie together, as u16."""
    rows, columns = scale.shape
    parts = scale.reshape(rows // 128, 4, 32, columns // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(parts).view(np.uint16).reshape(rows // 128, columns // 4, 256)


PAIRS = ("gemm_f16_pairs_sm100", "f16", np.float16, np.float32, (512, 384, 320), (64, 16, 64))


@pytest.mark.parametrize("how", [{}, {"schedule": "random", "seed": 1}, {"schedule": "random", "seed": 2}])
def test_a_matmul_by_pairs_with_multicast(how):
    """Two pairs down and two across, which are persistent for three waves; each load goes to two CTAs."""
    done, exact = matmul(*PAIRS, grid=(4, 2, 1), cluster=(4, 2), **how)
    assert exact and not done.warnings
    assert done.counters.tma_shared_bytes_written == 2 * done.counters.tma_box_bytes


PERSISTENT = {
    "persistent_f16_sm90": ("f16", np.float16, np.float16, (256, 192, 320), (64, 64, 64)),
    "persistent_fp8_sm90": ("e4m3", ml_dtypes.float8_e4m3fn, np.float32, (256, 192, 640), (64, 64, 128)),
}


@pytest.mark.parametrize("how", [{}, {"schedule": "random", "seed": 3}])
@pytest.mark.parametrize("name", PERSISTENT)
def test_a_matmul_by_ctas_that_stay(name, how):
    """Twelve tiles for five CTAs, so that some take two and some three."""
    done, exact = matmul(name, *PERSISTENT[name], grid=5, cluster=None, **how)
    assert exact and not done.warnings
