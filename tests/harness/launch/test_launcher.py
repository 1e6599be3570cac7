"""Launches from prepared tables, as PyTorch's functions make them, on the emulated GPU."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import launched_kernels
import pytest
from driver_programs import needs_mojo
from driver_programs import run as run_program

from emugpu.cuda.driver import LaunchConfig
from emugpu.emulator.memory.tensor_map_bytes import NBYTES, Fields
from harness.compile.artifacts import build
from harness.compile.planner import ScalarArgument, TensorMapArgument
from harness.launch.launcher import KernelLoader

GPUS = {"dynamic": "h200", "no overlap": "h200", "residual": "b200"}


def test_a_tensor_map_that_would_not_be_aligned_is_no_table():
    number = ScalarArgument("rows", "u32", 1)
    described = TensorMapArgument("a_map", "A", "bf16", (64, 8), (128,), (64, 8), "128B", 128)
    with pytest.raises(AssertionError, match=r"the tensor map a_map is at word 1 of the parameters.*put it before"):
        KernelLoader._table(KernelLoader.__new__(KernelLoader), ctypes.c_void_p(), LaunchConfig(), [number, described])


@pytest.mark.slow
@needs_mojo
@pytest.mark.parametrize("name", GPUS)
def test_launches_from_a_table(capfd, name):
    program = Path(launched_kernels.__file__)
    done = run_program(capfd, GPUS[name], sys.executable, program, name)
    assert done.code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    assert found["wrong"] == [0, 0, 0]
    assert found["attributes"] == (name == "dynamic"), "only a kernel that waits for the one before it overlaps"
    assert found.get("counters", [0]) == [0]
    assert found["misaligned"] == 1, "the number of A"
    assert found["misaligned residual"] == (4 if name == "residual" else -10000), "the number, where it is read"
    assert found["without context"] == [0, None]
    assert found["prepared in a thread"].startswith("kernel")
    config, shape = launched_kernels.CASES[name]
    plan = build([config])[0].plan(shape)
    for launch in done.log.launches:
        assert (launch.grid, launch.cluster, launch.block) == (plan.grid, plan.cluster, plan.block)
        assert launch.dynamic_shared == plan.dynamic_smem and not launch.error
    maps = [argument for argument in plan.arguments if isinstance(argument, TensorMapArgument)]
    seen = [
        [Fields.unpack(launch.parameters[NBYTES * n : NBYTES * (n + 1)]) for n in range(len(maps))]
        for launch in done.log.launches
    ]
    for fields in seen:
        assert [each.dims for each in fields] == [planned.dims for planned in maps]
        assert [each.strides for each in fields] == [planned.strides for planned in maps]
        assert [each.box for each in fields] == [planned.box for planned in maps]
    assert len({fields[0].address for fields in seen}) == 3, "each launch has the addresses of its own operands"
