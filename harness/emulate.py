"""Runs a compiled kernel on the emulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.dtypes import element_type
from harness.emulator import Device, EmulatorError, Module, TensorMap
from harness.errors import CannotRun
from harness.inputs import Inputs
from harness.plan import Plan, ScalarArgument, TensorMapArgument

ACCUMULATIONS = ("f32", "tensor_core")
SCHEDULES = ("fifo", "random")


@dataclass(frozen=True)
class Emulation:
    """What came out of a run. output: C [M, N]. counters: exact. seconds: what the emulation took."""

    output: np.ndarray
    counters: dict
    seconds: float


def emulate(
    ptx: str,
    plan: Plan,
    inputs: Inputs,
    *,
    accumulation: str = "f32",
    schedule: str = "fifo",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Emulation:
    """Launches the plan's kernel with these inputs. progress is called with (clusters done, clusters)."""
    dtype = element_type(plan.config["dtype"])
    output_shape = (plan.problem.m, plan.problem.n)
    try:
        device = Device(accumulation=accumulation, schedule=schedule, seed=seed)
        addresses = {
            "A": device.upload(inputs.a),
            "B": device.upload(inputs.b),
            "C": device.alloc(output_shape[0] * output_shape[1] * dtype.bytes),
        }
        result = device.launch(
            Module.from_text(ptx),
            plan.entry,
            grid=plan.grid,
            cluster=plan.cluster,
            block=plan.block,
            dynamic_smem=plan.dynamic_smem,
            arguments=[_argument(argument, addresses) for argument in plan.arguments],
            progress=progress,
        )
        output = device.download(addresses["C"], dtype.numpy, output_shape)
    except EmulatorError as error:
        raise CannotRun(f"{type(error).__name__}: {error}") from error
    return Emulation(output, result.counters.as_dict(), result.seconds)


def _argument(argument: TensorMapArgument | ScalarArgument, addresses: dict[str, int]) -> TensorMap | int:
    if isinstance(argument, ScalarArgument):
        return argument.value
    try:
        return TensorMap(
            address=addresses[argument.tensor],
            element=argument.dtype,
            dims=argument.dims,
            strides=argument.strides,
            box=argument.box,
            swizzle=argument.swizzle,
        )
    except ValueError as error:
        raise CannotRun(f"argument {argument.name}: {error}") from error
