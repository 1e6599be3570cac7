"""Runs a kernel as a GPU run does, through MAX in a child process, but on the emulated driver: for tests of the two.

The emulator alone takes the kernel and its launch from the plan. Here MAX's own host code does it all: it loads the
module, makes the tensor maps, sets attributes and launches; what arrives at the driver is compared with the plan.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from max_models import compile_artifact, op_operands

from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import LaunchRecord, Log
from emugpu.driver.server import run_program
from emugpu.driver.state import SharedGpu
from emugpu.emulator import Counters, LaunchResult
from emugpu.errors import CannotRun
from emugpu.gpus import usual_gpu
from emugpu.launch.launching import EmulationOptions, Launched, LaunchOutcome, about_device
from emugpu.launch.spec import DATA_TYPES, Buffer, Launchable, Scalar
from harness import paths
from harness.compile.artifacts import C_SCALE, Artifact
from harness.compile.config import KernelConfig
from harness.compile.planner import Plan, TensorArgument, TensorMapArgument
from harness.problem import FP8, Inputs
from harness.validation import Matmul


def run_on_emulated_gpu(
    artifact: Artifact, plan: Plan, what: Launchable, inputs: Inputs, options: EmulationOptions
) -> LaunchOutcome:
    """Compiles the MAX model with PTX in it, and runs it in a child process. what: the same launched by the harness.

    Raises CannotRun if there is no output, or if MAX launched something else than the plan says.
    """
    model, _ = compile_artifact(artifact.config, ptx=True, views=bool(plan.problem.ld))
    gpu = gpu_model(usual_gpu(plan.arch).name)
    log = Log(quiet=True)
    with tempfile.TemporaryDirectory(prefix="emulated-gpu-run-") as temporary:
        folder = Path(temporary)
        _hand_over(folder, model, artifact.config, plan, inputs, what)
        with open(folder / "stderr", "wb") as said:
            code = run_program(
                [sys.executable, str(Path(__file__).with_name("max_on_emulated_gpu_worker.py")), str(folder)],
                SharedGpu(gpu, options, log),
                {**os.environ, "PYTHONPATH": os.pathsep.join([str(paths.ROOT), *filter(None, sys.path)])},
                said,
            )
        failed = next((one.error for one in log.launches if one.error), "") or log.failure
        if failed:  # then MAX's own words, a traceback, only say that its launch failed
            raise CannotRun(failed)
        sys.stderr.write((folder / "stderr").read_text(encoding="utf-8", errors="replace"))
        if code:
            raise CannotRun(f"the process that runs MAX on the emulated {gpu.name} ended with code {code}")
        with np.load(folder / "outputs.npz") as kept:
            contents = {
                name: what.buffers[name].dtype.from_memory(
                    kept[name].reshape(-1).view(np.uint8), what.buffers[name].shape or ()
                )
                for name in kept
            }
    launch = _the_launch(log, plan)
    for warning in launch.warnings:
        if options.strict and warning.rule not in options.allow:
            raise CannotRun(f"{warning.rule}: {warning.message}")
    result = LaunchResult(_with_arguments(launch.counters, plan), launch.seconds, launch.warnings)
    launched = Launched(what.launches[0].where, launch.kernel, plan.grid, result)
    verdicts = tuple(each.judge(contents[each.buffer], {}) for each in what.expectations if isinstance(each, Matmul))
    about = about_device(plan.arch, options, launch.seconds)
    return LaunchOutcome(what, about, plan.arch, (launched,), verdicts, launch.seconds, contents)


def _hand_over(folder: Path, model: Path, config: KernelConfig, plan: Plan, inputs: Inputs, what: Launchable) -> None:
    scale = dict(what.launches[0].arguments).get(C_SCALE)
    arrays, numbers = op_operands(config, inputs, plan.problem.ld, scale.value if isinstance(scale, Scalar) else 1.0)
    outputs = [what.buffers[each.buffer] for each in what.expectations if isinstance(each, Matmul)]
    request: dict[str, Any] = {"model": str(model), "numbers": numbers}
    request["outputs"] = [_as_max_has_it(each, plan) for each in outputs]
    request["types"] = [array.dtype.name for array in arrays]
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    np.savez(folder / "operands.npz", *(array.view(f"u{array.itemsize}") for array in arrays))


def _as_max_has_it(buffer: Buffer, plan: Plan) -> tuple[str, str, tuple[int, ...]]:
    """Name, type and shape of an output; a byte of two elements of 4 bits goes as e4m3, whose NaN is two large ones."""
    shapes = {argument.name: argument.shape for argument in plan.arguments if isinstance(argument, TensorArgument)}
    shape = shapes.get(buffer.name, buffer.shape or ())
    if buffer.dtype.packed:
        return buffer.name, DATA_TYPES[FP8].numpy.name, (*shape[:-1], shape[-1] * buffer.dtype.bits // 8)
    return buffer.name, buffer.dtype.numpy.name, (prod(shape),) if plan.problem.ld else shape


def _the_launch(log: Log, plan: Plan) -> LaunchRecord:
    """The one launch of the kernel. Raises CannotRun if it is not what the plan says."""
    if len(log.launches) != 1:
        kernels = ", ".join(one.kernel for one in log.launches) or "none"
        raise CannotRun(f"MAX was to launch one kernel and launched {len(log.launches)} ({kernels})")
    launch = log.launches[0]
    for what, seen, planned in (
        ("name", _without_hash(launch.kernel), _without_hash(plan.entry or "")),
        ("grid", launch.grid, plan.grid),
        ("cluster", launch.cluster, plan.cluster),
        ("block", launch.block, plan.block),
        ("dynamic shared memory", launch.dynamic_shared, plan.dynamic_smem),
    ):
        if seen != planned:
            raise CannotRun(f"MAX launched {launch.kernel} with {what} {seen}; the plan says {planned}")
    return launch


def _without_hash(name: str) -> str:
    """The name of a kernel without the compiler's own suffix, which differs between MAX and ``mojo build``."""
    return name.rpartition("_")[0]


def _with_arguments(counters: Counters, plan: Plan) -> Counters:
    """The driver counts bytes by the place of a tensor map in the parameters; the emulator by its number."""
    maps = [argument for argument in plan.arguments if isinstance(argument, TensorMapArgument)]
    assert list(plan.arguments[: len(maps)]) == maps, "tensor maps come first"
    numbers = {f"param 0x{128 * n:x}": f"argument {n}" for n in range(len(maps))}
    by_tensor = {numbers[key]: value for key, value in counters.tma_global_bytes_read_by_tensor.items()}
    return replace(counters, tma_global_bytes_read_by_tensor=by_tensor)
