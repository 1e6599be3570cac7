"""One kernel on one problem on this machine's GPU: validated, then timed beside the vendor's GEMM."""

from __future__ import annotations

import statistics as standard
from dataclasses import dataclass, field
from typing import Any

from harness.compiler.build import Artifact
from harness.compiler.toolchain import Gpu
from harness.gpu import statistics
from harness.gpu.capability import check_arch
from harness.gpu.model import compile_artifact
from harness.gpu.supervisor import supervise
from harness.problem.shape import Shape

CAP_SECONDS = 10.0
"""Longest time to sample one kernel, if the medians stay uncertain."""


@dataclass(frozen=True)
class Measurement:
    """What came back from the GPU process.

    validation: a `Validation` as plain data, None if the kernel did not get that far. timing: for records; None
    without samples. failure: why it ended early, None if it did not. device: name, compute capability,
    multiprocessors. launches: the kernel launches that MAX enqueued for one call (name, grid, block, dynamic_smem).
    """

    validation: dict[str, Any] | None
    timing: dict[str, Any] | None
    failure: str | None
    compiled_now: bool
    notes: list[str] = field(default_factory=list)
    device: dict[str, Any] = field(default_factory=dict)
    launches: list[dict[str, Any]] = field(default_factory=list)


def measure(
    artifact: Artifact,
    shape: Shape,
    gpu: Gpu,
    *,
    inputs: str,
    seed: int,
    timeout: float,
    time: bool = True,
    vendor: bool = True,
) -> Measurement:
    """Runs in a child process. ``timeout``: seconds without a sign of life after which the child is ended."""
    config = artifact.config
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    check_arch(config.arch, major, minor, gpu.name)
    model, compiled_now = compile_artifact(config)
    outcome = supervise(
        {
            "config": config.to_json(),
            "artifact": str(model),
            "tile": list(artifact.plan(shape).tile),
            "shape": [shape.m, shape.n, shape.k],
            "inputs": inputs,
            "seed": seed,
            "cap_seconds": CAP_SECONDS,
            "vendor": vendor,
            "time": time,
        },
        timeout,
    )
    events = outcome.events
    validation = events.get("checked", {}).get("validation")
    timing = None
    if validation and validation["passed"] and ("finished" in events or "sampled" in events):
        finished = events.get("finished", {}).get("timing") or {}
        samples = finished.get("samples") or events.get("sampled", {}).get("samples")
        if samples and len(samples["kernel"]) >= 2:
            timing = describe(samples, shape) | {
                k: finished[k] for k in ("input_sets", "before", "after") if k in finished
            }
    return Measurement(
        validation,
        timing,
        outcome.failure,
        compiled_now,
        outcome.notes,
        events.get("started", {}),
        events.get("launched", {}).get("launches", []),
    )


def describe(samples: dict[str, list[float]], shape: Shape) -> dict[str, Any]:
    """Timing part of a record: medians, spread, TFLOPS, and ratios to the vendor's GEMM pair by pair.

    Ratios above 1 mean that the kernel is faster. FLOPs are 2 M N K.
    """
    flops = 2 * shape.m * shape.n * shape.k
    kernel = statistics.summarize(samples["kernel"])
    record: dict[str, Any] = {
        "seconds": kernel.median,
        "tflops": flops / kernel.median / 1e12,
        "summary": kernel.as_dict(),
        "samples": samples["kernel"],
        "vendor": {},
    }
    for name, times in samples.items():
        if name == "kernel" or len(times) < 2:
            continue
        count = min(len(times), len(samples["kernel"]))
        pairs = statistics.ratios(times[:count], samples["kernel"][:count])
        summary = statistics.summarize(times)
        record["vendor"][name] = {
            "seconds": summary.median,
            "tflops": flops / summary.median / 1e12,
            "ratio": standard.median(pairs),
            "summary": summary.as_dict(),
            "samples": times,
        }
    return record
