"""Runs a kernel once: chooses the device, builds, emulates under one schedule or several, validates and records."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from emugpu.emulator import RuleWarning
from emugpu.errors import CannotRun
from emugpu.gpus import arch_of_gpu, check_arch
from emugpu.launch.launching import LaunchOutcome, run_schedules
from emugpu.record import new_record, source_version
from harness.compile.artifacts import OUTPUT, Artifact, build, judged, to_launchable
from harness.compile.catalog import Kernel
from harness.compile.compiler import Gpu, find_gpus, package_version, versions
from harness.compile.planner import Plan
from harness.problem import F32, Inputs, Shape, make_inputs, operand_bits
from harness.run.case import Request
from harness.validation import Reference, Validation, compute_reference


class NoDevice(CannotRun):
    """No GPU can be used; the message says why. The emulator can always be used."""


CHOICES = ("auto", "gpu", "emulator")


def choose_device(wanted: str, kernel: Kernel, arch: str) -> tuple[Gpu | None, str]:
    """Returns the GPU to use (None: the emulator) and the architecture to compile for.

    ``auto`` takes a GPU that runs the kernel, otherwise the emulator. ``gpu`` raises an error that says why there is no
    such GPU. ``arch`` may be ``auto``: the GPU's own, or the first of the kernel.
    """
    emulated = kernel.archs[0] if arch == "auto" else arch
    if wanted == "emulator":
        return None, emulated
    try:
        return _usable_gpu(kernel, arch)
    except CannotRun as error:
        if wanted == "gpu":
            raise NoDevice(str(error)) from None
        return None, emulated


def _usable_gpu(kernel: Kernel, arch: str) -> tuple[Gpu, str]:
    gpus = find_gpus()
    if not gpus:
        raise CannotRun("no NVIDIA GPU was found (nvidia-smi lists none)")
    gpu = gpus[0]
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    if arch != "auto":
        check_arch(arch, major, minor, gpu.name)
    own = arch_of_gpu(major, minor)
    if own not in kernel.archs:
        raise CannotRun(f"{kernel.name} is written for {', '.join(kernel.archs)}; {gpu.name} runs {own}")
    if package_version("torch") is None:
        raise CannotRun(
            "a GPU run needs torch (pip install '.[torch]') for its inputs, reference and the vendor's GEMM"
        )
    return gpu, own


_log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Arrays:
    """The inputs and the output of a run, and the expected output."""

    inputs: Inputs
    output: np.ndarray
    reference: Reference


@dataclass(frozen=True)
class Outcome:
    """The result of a run. ``record`` is the same as plain data for the log.

    If one of several schedules gave a wrong result, ``request`` is the run under this schedule alone. ``arrays``
    belongs to an emulated run with a wrong result.
    """

    request: Request
    artifact: Artifact
    plan: Plan
    validation: Validation
    record: dict
    arrays: Arrays | None = None


class ScheduleProblem(CannotRun):
    """One of several schedules gave no result. ``request`` is the run under this schedule alone."""

    def __init__(self, message: str, request: Request) -> None:
        super().__init__(message)
        self.request = request


def run(
    request: Request,
    artifact: Artifact | None = None,
    progress: Progress | None = None,
    known: Mapping[str, object] | None = None,
) -> Outcome:
    """Runs one request and validates the output; builds the kernel if necessary.

    The emulator calls ``progress`` with (clusters done, all clusters). ``known`` holds `surroundings`, for callers that
    run many requests. Raises `CannotRun` if there is no result.
    """
    artifact = artifact or build([request.config])[0]
    if request.gpu is None:
        if request.ptxas:
            artifact.require_accepted()
        plan = artifact.plan(request.shape)
        _log.info("%s, %s is emulated under %d schedules", artifact.config.label, request.shape, request.schedules)
        return _outcome(artifact, plan, *_emulate(request, artifact, plan, progress), known)
    [found] = run_in_turns(request, [artifact], known)
    if isinstance(found, CannotRun):
        raise found
    return found


def run_in_turns(
    request: Request, artifacts: Sequence[Artifact], known: Mapping[str, object] | None = None
) -> list[Outcome | CannotRun]:
    """Runs one request with several builds of its kernel. On a GPU their processes take turns; the emulator measures no
    time and runs one after the other.
    """
    found: list[Outcome | CannotRun] = []
    if request.gpu is None:
        for artifact in artifacts:
            try:
                found.append(run(request, artifact, known=known))
            except CannotRun as error:
                found.append(error)
        return found
    from harness.run.measure import run_on_gpu  # imported here because the emulator does not need it

    for artifact, answer in zip(artifacts, run_on_gpu(artifacts, request), strict=True):
        if isinstance(answer, CannotRun):
            found.append(answer)
        else:
            validation, fields = answer
            plan = artifact.plan(request.shape)
            found.append(_outcome(artifact, plan, request, validation, None, fields, known))
    return found


def _outcome(
    artifact: Artifact,
    plan: Plan,
    request: Request,
    validation: Validation,
    arrays: Arrays | None,
    fields: dict,
    known: Mapping[str, object] | None,
) -> Outcome:
    """Returns the outcome. ``fields`` are the device-dependent fields of the record."""
    record = new_record(
        kernel=request.config.kernel,
        config={"arch": plan.arch, **plan.config},
        problem=request.shape.as_dict(),
        inputs={"kind": request.inputs, "seed": request.seed},
        validation=validation.as_dict(),
        ptx=_about_ptx(artifact),
        **fields,
        **(surroundings() if known is None else known),
    )
    return Outcome(request, artifact, plan, validation, record, arrays)


def surroundings() -> dict[str, object]:
    """Returns the fields of a record about the programs that made it."""
    return {"toolchain": versions(), "git": source_version()}


def _about_ptx(artifact: Artifact) -> dict:
    """Returns the fields about the PTX. They mark edited PTX, so that its record is never taken for the compiled
    kernel's.
    """
    edited = {"edited": str(artifact.edited)} if artifact.edited else {}
    return {"sha256": artifact.ptx_sha256, **edited, "ptxas": artifact.statistics()}


def _emulate(
    request: Request, artifact: Artifact, plan: Plan, progress: Progress | None
) -> tuple[Request, Validation, Arrays | None, dict]:
    """Returns the request (the first wrong one of several schedules), the verdict, the arrays of a wrong result, and
    the fields of the record.

    The counters are those of the first schedule, because the number of waits depends on the schedule.
    """
    config = request.config
    epilogue = config.fused_epilogue
    inputs = make_inputs(request.shape, config.dtype, request.inputs, request.seed, epilogue, config.scales)
    what = to_launchable(artifact, plan, inputs)
    several = run_schedules(what, request.emulation, request.schedules, progress, keep=(OUTPUT,))
    done: list[LaunchOutcome] = []
    for tried in several:
        one = replace(request, emulation=replace(tried.options, jobs=request.emulation.jobs), schedules=1)
        try:
            found = judged(tried.require(), plan)
        except CannotRun as error:
            if request.schedules == 1:
                raise
            raise ScheduleProblem(f"under the {tried.options.schedule_name}: {error}", one) from error
        done.append(tried.require())
        if not found.validation.passed:
            arrays = Arrays(inputs, found.output, compute_reference(inputs))
            return one, found.validation, arrays, _emulated_fields(one, found.counters, done[-1:])
        if len(done) == 1:
            first = found
    return request, first.validation, None, _emulated_fields(request, first.counters, done)


def _emulated_fields(request: Request, counters: dict, done: Sequence[LaunchOutcome]) -> dict:
    """Returns the device-dependent fields, from the emulations under all schedules of a request."""
    options = request.emulation
    device = {
        "kind": request.device_kind,
        "name": f"emulated {request.config.arch}",
        "accumulation": options.accumulation,
        "schedule": options.schedule,
        "schedule_seed": options.seed,
        "schedules": request.schedules,
        "engine": options.engine_used,
        "emulation_seconds": round(sum(result.seconds for outcome in done for result in outcome.results), 3),
    }
    fields: dict = {
        "device": device,
        "counters": counters,
        "timing": {"seconds": None, "reason": "not measured: emulated"},
    }
    warnings: dict[tuple[str, str], RuleWarning] = {}
    for finding in (finding for outcome in done for finding in outcome.warnings):
        warnings.setdefault((finding.rule, finding.message), finding)
    if warnings:
        fields["warnings"] = [asdict(finding) for finding in warnings.values()]
    return fields


def check_memory(shape: Shape, dtype: str) -> None:
    """Refuses a problem that does not fit into this machine's memory, before a kernel is built for it."""
    operands = shape.m * shape.k + shape.b_rows * shape.k
    bytes_each = operand_bits(dtype) / 8
    outputs = shape.m * shape.n
    # Operands are drawn in f32, kept twice (here and on the device), and once in f64 for the reference. Outputs are on
    # the device and downloaded; the reference is f64, and the comparison needs as much again three times.
    needed = operands * (2 * bytes_each + 8) + outputs * (2 * F32.bytes + 4 * 8)
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > have:
        raise CannotRun(
            f"shape {shape} needs about {needed / 2**30:.1f} GiB to emulate and check; this machine has "
            f"{have / 2**30:.1f} GiB; use a smaller shape"
        )
