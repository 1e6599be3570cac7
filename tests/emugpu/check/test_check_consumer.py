"""Kernels of Triton for consumer Blackwell: right as they are, and wrong without any one of their barriers."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from emugpu.check import Checker
from emugpu.emulator import Device, Module
from emugpu.emulator.errors import Fault

FOLDER = Path(__file__).parents[2] / "data" / "triton"


def errors(name: str, left_out: int | None) -> set[str]:
    """The rules that a kernel breaks under two schedules, with one of its ``bar.sync`` left out."""
    text = (FOLDER / f"{name}_sm120.ptx").read_text()
    sizes = re.search(r"(\d+) bytes of shared memory, (\d+) warps", text)
    assert sizes is not None
    if left_out is not None:
        start = [found.start() for found in re.finditer(r"bar\.sync", text)][left_out]
        text = text[:start] + "//" + text[start:]
    found: set[str] = set()
    for options in ({}, {"schedule": "random", "seed": 7}):
        device, checker = Device(**options), Checker()
        launch = {"block": 32 * int(sizes[2]), "dynamic_smem": int(sizes[1]), "sinks": [checker]}
        try:
            device.launch(Module.from_text(text), grid=GRIDS[name], arguments=[*operands(name, device), 0, 0], **launch)
        except Fault as error:
            checker.failed(error)
        found |= {finding.rule for finding in checker.report().errors}
    return found


GRIDS = {"matmul_fp8": (2, 2), "scaled_nvfp4": 1}
BARRIERS = {"matmul_fp8": 4, "scaled_nvfp4": 10}


def operands(name: str, device: Device) -> list[int]:
    rng = np.random.default_rng(3)
    if name == "scaled_nvfp4":
        m, n, k = 128, 64, 256
        a, b = (rng.integers(0, 256, (rows, k // 2)).astype(np.uint8) for rows in (m, n))
        of_a, of_b = (rng.integers(0x30, 0x40, (rows, k // 16)).astype(np.uint8) for rows in (m, n))
        return [*(device.upload(x) for x in (a, of_a, b, of_b)), device.alloc(4 * m * n), k]
    m, n, k = 100, 80, 144
    shapes = ((m, k), (k, n))
    sources = [device.upload(rng.integers(-2, 3, shape).astype(ml_dtypes.float8_e4m3fn)) for shape in shapes]
    return [*sources, device.alloc(4 * m * n), m, n, k]


@pytest.mark.parametrize("name", GRIDS)
def test_a_kernel_is_right_as_it_is(name):
    assert errors(name, None) == set()
    assert (FOLDER / f"{name}_sm120.ptx").read_text().count("bar.sync") == BARRIERS[name]


@pytest.mark.parametrize(("name", "left_out"), [(name, n) for name, count in BARRIERS.items() for n in range(count)])
def test_each_barrier_matters(name, left_out):
    assert errors(name, left_out) & {"race-shared", "race-lanes", "memory"}
