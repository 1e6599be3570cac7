"""What other compilers make for the same block-scaled problem gives, bit for bit, what kernel 9 gives: kernels of
Triton and CuTe DSL (tests/data), on the same elements and atoms of scale factors, with the sums of the tensor core.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_kernel9 import CONFIGS as OF_KERNEL9

from emugpu.check import Checker
from emugpu.emulator import Device, Module, TensorMap
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.launching import run as launch
from harness.block_scaling import FORMATS, to_atoms
from harness.compile.artifacts import OUTPUT, judged, to_launchable
from harness.problem import OUT_TYPES, Inputs, Shape, make_inputs

DATA = Path(__file__).parents[1] / "data"
NAMES = ("nvfp4 one accumulator", "mxfp8 one CTA", "mxfp8-e5m2 narrow", "mxfp4 4x4")
CONFIGS = {config.dtype: config for config in map(OF_KERNEL9.get, NAMES) if config}
TILE = 128
"""Rows and columns of the twins, which have one tile for each CTA."""


def stored(device: Device, inputs: Inputs, bits: int) -> tuple[list[int], list[np.ndarray]]:
    """Addresses of A and B, and the atoms of their scale factors."""
    assert inputs.factors is not None
    codes = [x.view(np.uint8) for x in (inputs.a, inputs.b)]
    codes = [x[:, ::2] & 15 | x[:, 1::2] << 4 if bits == 4 else x for x in codes]
    return [device.upload(x) for x in codes], [to_atoms(x) for x in inputs.factors]


def triton(device: Device, inputs: Inputs, dtype: str, c: int) -> tuple[str, list]:
    """The file, and its arguments: each map with its sizes and strides; two pointers to scratch memory."""
    bits, block = FORMATS[dtype].bits, FORMATS[dtype].block
    (m, k), n = inputs.a.shape, len(inputs.b)
    row = k * bits // 8
    addresses, atoms = stored(device, inputs, bits)
    arguments: list = []
    for address, rows in zip(addresses, (m, n), strict=True):
        arguments += [TensorMap.tiled(address, "u8", (rows, row), (TILE, 128), "128B"), rows, row, row, 1]
    for each in atoms:
        down, across, _ = each.shape
        a_step = 128 * 8 // bits // block // 4  # atoms along K
        box = TensorMap.tiled(device.upload(each), "u8", (down, across, 2, 256), (1, a_step, 2, 256))
        arguments += [box, down, across, 2, 256, 512 * across, 512, 256, 1]
    arguments += [TensorMap.tiled(c, "f32", (m, n), (TILE, 32), "128B"), m, n, n, 1]
    return f"triton/scaled_tma_{dtype}_sm100.ptx", [*arguments, k, 0, 0]


def cute(device: Device, inputs: Inputs, dtype: str, c: int) -> tuple[str, list]:
    """The file, and its arguments: maps, and structs of sizes."""
    (m, k), n = inputs.a.shape, len(inputs.b)
    addresses, atoms = stored(device, inputs, 4)
    maps = [
        TensorMap.tiled(address, "b4x16", (rows, k), (TILE, 256), "128B")
        for address, rows in zip(addresses, (m, n), strict=True)
    ]
    for each in atoms:
        words = each.view(np.uint16)
        maps.append(TensorMap.tiled(device.upload(words), "u16", words.shape, (1, 4, 256)))
    m32, n32, k32 = (np.int32(size) for size in (m, n, k))
    sizes = [(m32, k32), (n32, k32)] * 2
    return f"cute/scaled_{dtype}_sm100.ptx", [None, *maps, *sizes, (c, m32, n32, np.int64(n))]


@pytest.mark.parametrize(
    ("compiler", "dtype"),
    [
        (triton, "nvfp4"),
        (cute, "nvfp4"),
        (triton, "mxfp8"),
        (triton, "mxfp8-e5m2"),
        pytest.param(triton, "mxfp4", marks=pytest.mark.slow),
    ],
)
def test_the_same_bits(built, compiler, dtype):
    """Two by two tiles and three steps along K."""
    artifact = built[dtype]
    size = Shape(2 * TILE, 2 * TILE, 3 * 1024 // FORMATS[dtype].bits)
    inputs = replace(make_inputs(size, dtype, "codes", 11), alpha=0.75)
    options = EmulationOptions(schedule="random", seed=4, accumulation="tensor_core")
    plan = artifact.plan(size)
    ours = judged(launch(to_launchable(artifact, plan, inputs), options, keep=(OUTPUT,)), plan).output

    device, checker = Device(accumulation="tensor_core"), Checker()
    c = device.upload(np.full((size.m, size.n), np.nan, np.float32))
    file, arguments = compiler(device, inputs, dtype, c)
    text = (DATA / file).read_text()
    shared = re.search(r"(\d+) bytes of shared memory", text)
    assert shared is not None
    how = {"grid": (2, 2), "block": 128, "dynamic_smem": int(shared[1])}
    device.launch(Module.from_text(text), arguments=arguments, sinks=[checker], **how)
    assert not checker.report().errors
    product = device.download(c, np.float32, (size.m, size.n)) * np.float32(inputs.alpha)
    theirs = product.astype(OUT_TYPES[artifact.config.out_dtype].numpy)
    assert np.isfinite(product).all() and len(np.unique(product)) > size.n
    assert theirs.tobytes() == ours.tobytes(), f"{(theirs != ours).sum()} of {ours.size} differ"
