"""One run of a kernel: build, emulate, validate, record."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass

from harness.compiler.build import Artifact, build
from harness.compiler.plan import Plan
from harness.compiler.toolchain import Gpu, versions
from harness.config.config import KernelConfig
from harness.errors import CannotRun
from harness.gpu.backend import device_kind, run_on_gpu
from harness.problem.dtypes import element_type
from harness.problem.inputs import Inputs, make_inputs
from harness.problem.reference import compute_reference
from harness.problem.shape import Shape
from harness.problem.validation import Validation, validate
from harness.run import records
from harness.run.emulate import DEFAULT, EmulationOptions, emulate

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Request:
    """What to run, and on what: this GPU, or the emulator (gpu None). timeout: seconds that a GPU may be silent.
    processes: how many time it on a GPU, one after the other. emulation: how the emulator runs it.
    """

    config: KernelConfig
    shape: Shape
    inputs: str = "integer"
    seed: int = 0
    emulation: EmulationOptions = DEFAULT
    gpu: Gpu | None = None
    timeout: float = 60.0
    processes: int = 1

    @property
    def device_kind(self) -> str:
        return device_kind(self.gpu) if self.gpu else f"emulated-{self.config.arch}"


@dataclass(frozen=True)
class Outcome:
    """What a run gave. record: the same as plain data, ready to be logged."""

    request: Request
    artifact: Artifact
    plan: Plan
    validation: Validation
    record: dict


def run(request: Request, artifact: Artifact | None = None, progress: Progress | None = None) -> Outcome:
    """Runs one request and validates the output; builds the kernel if need be.

    progress is called with (clusters done, clusters in all) by the emulator. Raises `CannotRun` if there is no result.
    """
    artifact = artifact or build([request.config])[0]
    plan = artifact.plan(request.shape)
    if request.gpu:
        validation, fields = _run_on_gpu(request, request.gpu, artifact)
    else:
        validation, fields = _emulate(request, artifact, plan, progress)
    record = records.new_record(
        kernel=request.config.kernel,
        config={"arch": plan.arch, **plan.config},
        problem={"m": request.shape.m, "n": request.shape.n, "k": request.shape.k},
        inputs={"kind": request.inputs, "seed": request.seed},
        toolchain=versions(),
        validation=validation.as_dict(),
        ptx={"sha256": artifact.ptx_sha256, "ptxas": artifact.statistics()},
        **fields,
    )
    return Outcome(request, artifact, plan, validation, record)


def _run_on_gpu(request: Request, gpu: Gpu, artifact: Artifact) -> tuple[Validation, dict]:
    """The verdict, and the fields of the record that depend on the device."""
    return run_on_gpu(
        artifact,
        request.shape,
        gpu,
        inputs=request.inputs,
        seed=request.seed,
        timeout=request.timeout,
        processes=request.processes,
    )


def _emulate(request: Request, artifact: Artifact, plan: Plan, progress: Progress | None) -> tuple[Validation, dict]:
    inputs = make_inputs(request.shape, request.config.dtype, request.inputs, request.seed)
    options = request.emulation
    emulation = emulate(artifact.ptx, plan, inputs, options, progress)
    device = {
        "kind": request.device_kind,
        "name": f"emulated {request.config.arch}",
        "accumulation": options.accumulation,
        "schedule": options.schedule,
        "schedule_seed": options.seed,
        "emulation_seconds": round(emulation.seconds, 3),
    }
    timing = {"seconds": None, "reason": "not measured: emulated"}
    validation = validate_output(emulation.output, inputs, request.config.dtype, plan)
    fields: dict = {"device": device, "counters": emulation.counters, "timing": timing}
    if emulation.warnings:
        fields["warnings"] = [asdict(finding) for finding in emulation.warnings]
    return validation, fields


def validate_output(output, inputs: Inputs, dtype: str, plan: Plan) -> Validation:
    """Compares C with the reference, by the plan's tiles."""
    return validate(output, compute_reference(inputs), element_type(dtype), plan.tile)


def check_memory(shape: Shape, dtype: str) -> None:
    """Refuses a problem that this machine cannot hold; to be asked before a kernel is built for it."""
    size = element_type(dtype).bytes
    operands = shape.m * shape.k + shape.n * shape.k
    outputs = shape.m * shape.n
    # Operands: drawn in f32, kept twice (here and on the device), and once in f64 for the reference.
    # Outputs: on the device and downloaded, the reference in f64, and as much again three times while they
    # are compared.
    needed = operands * (2 * size + 8) + outputs * (2 * size + 4 * 8)
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > have:
        raise CannotRun(
            f"shape {shape} needs about {needed / 2**30:.1f} GiB to emulate and check; this machine has "
            f"{have / 2**30:.1f} GiB; use a smaller --shape"
        )
