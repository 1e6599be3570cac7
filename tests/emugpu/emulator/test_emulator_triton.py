"""Kernels that Triton has compiled (tests/data/triton) give what NumPy gives."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from emugpu.emulator import Device, Module, TensorMap

FOLDER = Path(__file__).parents[2] / "data" / "triton"
ARCHITECTURES = (90, 100, 103, 120)


@cache
def kernel(name: str, architecture: int) -> tuple[Module, int, int]:
    """The module, its bytes of shared memory and its threads. But for softmax, Triton writes sm_100a's for sm_103a."""
    own = FOLDER / f"{name}_sm{architecture}.ptx"
    text = (own if architecture != 103 or own.exists() else FOLDER / f"{name}_sm100.ptx").read_text()
    text = text.replace(".target sm_100a", f".target sm_{architecture}a")
    found = re.search(r"(\d+) bytes of shared memory, (\d+) warps", text)
    assert found is not None
    return Module.from_text(text), int(found[1]), 32 * int(found[2])


def launch(device: Device, name: str, architecture: int, grid, arguments: list) -> None:
    """Triton's kernels take two more pointers, to scratch memory that these do not use."""
    module, shared, threads = kernel(name, architecture)
    device.launch(module, grid=grid, block=threads, dynamic_smem=shared, arguments=[*arguments, 0, 0])


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("name", "dtype", "result"),
    [
        ("matmul_f16", np.float16, np.float32),
        ("matmul_bf16", ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        ("matmul_fp8", ml_dtypes.float8_e4m3fn, np.float32),
        ("matmul_f32", np.float32, np.float32),
    ],
)
def test_a_matmul_by_pointers(name, dtype, result, architecture):
    """Ragged in every dimension: cp.async, ldmatrix, and the tensor core of either architecture."""
    m, n, k = 100, 80, 144
    rng = np.random.default_rng(k)
    a, b = rng.integers(-2, 3, (m, k)), rng.integers(-2, 3, (k, n))
    device = Device()
    addresses = [device.upload(x.astype(dtype)) for x in (a, b)]
    c = device.alloc(m * n * np.dtype(result).itemsize)
    launch(device, name, architecture, (2, 2), [*addresses, c, m, n, k])
    found = device.download(c, result, (m, n)).astype(np.float32)
    np.testing.assert_array_equal(found, (a @ b).astype(result).astype(np.float32))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_matmul_by_tensor_descriptors(architecture):
    m, n, k = 256, 64, 192
    rng = np.random.default_rng(k)
    a, b = rng.integers(-2, 3, (m, k)), rng.integers(-2, 3, (n, k))
    device = Device()
    maps = []
    for array, box in ((a, (128, 64)), (b, (64, 64))):
        address = device.upload(array.astype(ml_dtypes.bfloat16))
        maps.append(TensorMap.tiled(address, "bf16", array.shape, box, "128B"))
    c = device.alloc(m * n * 2)
    maps.append(TensorMap.tiled(c, "bf16", (m, n), (128, 64), "128B"))
    arguments = []
    for tensor_map, (rows, columns) in zip(maps, ((m, k), (n, k), (m, n)), strict=True):
        arguments += [tensor_map, rows, columns, columns, 1]
    launch(device, "tma_matmul", architecture, (2, 1), [*arguments, k])
    found = device.download(c, ml_dtypes.bfloat16, (m, n)).astype(np.float32)
    np.testing.assert_array_equal(found, (a @ b.T).astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("architecture", (100, 103, 120))
@pytest.mark.parametrize(
    ("name", "dtype", "scale", "block"),
    [
        ("scaled_fp8", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, 32),
        ("scaled_mxfp4", ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu, 32),
        ("scaled_nvfp4", ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, 16),
    ],
)
def test_a_matmul_of_scaled_blocks(name, dtype, scale, block, architecture):
    """kind::mxf8f6f4, mxf4 and mxf4nvf4: every row and block has a factor of its own."""
    m, n, k = 128, 64, 256
    rng = np.random.default_rng(block)
    numbers = np.arange(-3, 4).astype(dtype)
    a, b = (rng.choice(numbers, (rows, k)) for rows in (m, n))
    factors = np.array([0.25, 0.5, 1, 2, 4]).astype(scale)
    a_scale, b_scale = (rng.choice(factors, (rows, k // block)) for rows in (m, n))
    device = Device()
    stored = [_packed(a), a_scale, _packed(b), b_scale]
    addresses = [device.upload(x.view(np.uint8)) for x in stored]
    c = device.alloc(4 * m * n)
    launch(device, name, architecture, 1, [*addresses, c, k])
    wide = [
        x.astype(np.float64) * np.repeat(s.astype(np.float64), block, axis=1) for x, s in ((a, a_scale), (b, b_scale))
    ]
    np.testing.assert_array_equal(device.download(c, np.float32, (m, n)), wide[0] @ wide[1].T)


def _packed(values: np.ndarray) -> np.ndarray:
    """Two numbers of 4 bits to a byte, the first in the lower half; others as they are."""
    codes = values.view(np.uint8)
    return (codes[:, 0::2] & 15) | codes[:, 1::2] << 4 if values.dtype == ml_dtypes.float4_e2m1fn else codes


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_softmax(architecture):
    rows, columns = 3, 200
    x = np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32) * 4
    device = Device()
    source, y = device.upload(x), device.alloc(x.nbytes)
    launch(device, "softmax", architecture, rows, [source, y, columns])
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        device.download(y, np.float32, x.shape), powers / powers.sum(axis=1, keepdims=True), rtol=3e-6
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_layer_norm(architecture):
    rows, columns = 2, 300
    rng = np.random.default_rng(2)
    x = rng.normal(1, 2, (rows, columns)).astype(np.float16)
    weight, bias = rng.normal(size=(2, columns)).astype(np.float32)
    device = Device()
    addresses = [device.upload(v) for v in (x, weight, bias)]
    y = device.alloc(x.nbytes)
    launch(device, "layer_norm", architecture, rows, [*addresses, y, columns, 1e-5])
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(device.download(y, np.float16, x.shape), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_sum_by_atomics(architecture):
    x = np.arange(1500, dtype=np.float32)
    device = Device()
    source, total = device.upload(x), device.upload(np.zeros(1, np.float32))
    launch(device, "split_sum", architecture, 3, [source, total, len(x)])
    assert device.download(total, np.float32, 1) == x.sum()
