"""Runs of a kernel on a GPU, as the record and validation every run gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.build.artifacts import Artifact
from harness.build.toolchain import Gpu
from harness.errors import CannotRun
from harness.problem.shape import Shape
from harness.problem.validation import Validation
from harness.run.kinds import kind_of
from harness.run.measure import VENDORS, Measurement, measure


def device_kind(gpu: Gpu) -> str:
    """Names the record file of a kind of GPU, for example ``nvidia-h200``."""
    return kind_of(gpu.name)


def run_on_gpu(
    artifacts: Sequence[Artifact],
    shape: Shape,
    gpu: Gpu,
    *,
    inputs: str,
    seed: int,
    timeout: float,
    processes: int = 1,
    vendors: Sequence[str] = VENDORS,
) -> list[tuple[Validation, dict[str, Any]] | CannotRun]:
    """Of each build, which take turns: (the verdict, the fields of the record that depend on the device).

    CannotRun if it gave no output to judge; what was measured before a later failure is kept in the record, with the
    failure as the reason.
    """
    measured = measure(
        artifacts, shape, gpu, inputs=inputs, seed=seed, timeout=timeout, processes=processes, vendors=vendors
    )
    found: list[tuple[Validation, dict[str, Any]] | CannotRun] = []
    for artifact, one in zip(artifacts, measured, strict=True):
        try:
            found.append(_describe(artifact, shape, gpu, one))
        except CannotRun as error:
            found.append(error)
    return found


def _describe(artifact: Artifact, shape: Shape, gpu: Gpu, measured: Measurement) -> tuple[Validation, dict[str, Any]]:
    if measured.validation is None:
        label = f"{artifact.config.label} on {gpu.name}, C[{shape.m},{shape.n}], K={shape.k}"
        raise CannotRun(f"{label}: {measured.failure or 'the GPU process reported nothing'}")
    timing: dict[str, Any] = {"seconds": None, "reason": measured.failure or "not measured: wrong result"}
    if measured.timing:
        timing = measured.timing | {"reason": measured.failure}
    fields = {
        "device": {
            "kind": device_kind(gpu),
            "name": gpu.name,
            "compute_capability": gpu.compute_capability,
            "driver": gpu.driver,
            **{str(k): measured.device[k] for k in ("multiprocessors", "torch", "uuid") if k in measured.device},
        },
        "counters": {},
        "timing": timing,
        "launches": measured.launches,
        "notes": measured.notes,
    }
    return Validation.from_plain(measured.validation), fields
