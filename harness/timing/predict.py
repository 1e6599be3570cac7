"""A prediction: cycles from the timed machine, seconds from the power model's clock, and where the cycles go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.build.artifacts import Artifact
from harness.build.config import KernelConfig
from harness.build.plan import Plan
from harness.problem.shape import Shape
from harness.timing.constants import Gpu
from harness.timing.error_band import largest_error
from harness.timing.limits import TENSOR, Limit, limits
from harness.timing.power import Clock, Work, clock_of
from harness.timing.simulate import Simulation, simulate


@dataclass(frozen=True)
class Prediction:
    """What the model says of one launch; nothing here is measured. error_percent: of the cycles, the largest one that
    is expected.
    """

    config: KernelConfig
    label: str
    gpu: Gpu
    shape: Shape
    simulation: Simulation
    cycles: float
    clock: Clock
    limits: tuple[Limit, ...]

    @property
    def kernel(self) -> str:
        return self.config.kernel

    @property
    def seconds(self) -> float:
        return self.cycles / self.clock.hertz

    @property
    def tflops(self) -> float:
        return self.simulation.gemm.flops / self.seconds / 1e12

    @property
    def tensor_busy(self) -> float:
        """The part of all SMs' cycles in which the tensor cores multiply."""
        return next(limit.share for limit in self.limits if limit.name == TENSOR)

    @property
    def error_percent(self) -> float:
        return 100 * largest_error(self.gpu, self.config, self.shape)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found, shape = self.simulation.hits, self.shape
        return {
            "kernel": self.kernel,
            "config": self.label,
            "gpu": self.gpu.name,
            "shape": [shape.m, shape.n, shape.k],
            "status": "predicted",
            "cycles": round(self.cycles),
            "seconds": self.seconds,
            "tflops": round(self.tflops, 1),
            "error_percent": round(self.error_percent, 1),
            "tensor_busy": round(self.tensor_busy, 4),
            "limits": [
                {"limit": each.name, "cycles": round(each.cycles), "percent": round(100 * each.share, 2)}
                for each in self.limits
            ],
            "clock_mhz": round(self.clock.hertz / 1e6),
            "power_w": round(self.clock.watts),
            "power_limited": self.clock.limited,
            "l2_bytes": round(found.requested + found.written),
            "dram_bytes_read": round(found.dram),
        }


def predict(
    artifact: Artifact, shape: Shape, gpu: Gpu, inputs: str = "normal", constants: Mapping[str, float] | None = None
) -> Prediction:
    """``constants``: changed values, by name. Raises UsageProblem for what there is not, CannotRun if there is no
    result.
    """
    gpu = gpu.with_values(constants or {})
    plan = artifact.plan(shape)
    # The clock decides how much DRAM brings in a cycle, and the cycles which clock the power allows: once round.
    simulation = simulate(artifact, plan, gpu, gpu["clock.max"])
    clock = _clock(simulation, gpu, inputs)
    if clock.limited:
        simulation = simulate(artifact, plan, gpu, clock.hertz)
        clock = _clock(simulation, gpu, inputs)
    return _prediction(artifact, plan, gpu, shape, simulation, clock)


def _clock(simulation: Simulation, gpu: Gpu, inputs: str) -> Clock:
    found = simulation.hits
    work = Work(simulation.gemm.flops, found.requested + found.written, found.dram + found.written, simulation.cycles)
    return clock_of(work, gpu, inputs)


def _prediction(
    artifact: Artifact, plan: Plan, gpu: Gpu, shape: Shape, simulation: Simulation, clock: Clock
) -> Prediction:
    return Prediction(
        artifact.config,
        plan.config["label"],
        gpu,
        shape,
        simulation,
        simulation.cycles,
        clock,
        tuple(limits(simulation.machine, simulation.used)),
    )
