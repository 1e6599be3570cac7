"""Predicts cycles by the timed machine, seconds by the power model's clock, and where the cycles go.

For our kernels a representative part runs, without its data (`harness.model.simulate`). For other PTX all clusters of
each launch run, with their data. It is not known beforehand which bytes come from DRAM then: a first pass counts the
requests; every byte of the buffers is assumed to come from DRAM once, the rest from L2, if all of them fit into L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from emugpu.errors import UsageProblem
from emugpu.launch.launching import TOLERANT, EmulationOptions, Launched, LaunchOutcome, run
from emugpu.launch.listing import list_kernels
from emugpu.launch.spec import Launchable
from harness.compile.artifacts import Artifact
from harness.compile.config import KernelConfig, make_config
from harness.model.constants import GpuConstants
from harness.model.limits import TENSOR, Limit, limits
from harness.model.machine import TimedDevice, TimedMachine, TimedTrace
from harness.model.power import CoreClock, Work, clock_of
from harness.model.simulate import Simulation, simulate
from harness.model.units import MemorySystem
from harness.problem import Shape, operand_bits

FEW = 2
"""Most options in which a configuration near the defaults differs from them."""


@dataclass(frozen=True)
class Prediction:
    """The prediction for one launch; nothing here is measured.

    ``shape``: M, N, K, or the grid for other PTX. ``flops``: of the tensor cores only. ``error``: the largest expected
    error of the cycles, as a fraction. ``memory``: moved bytes by name, if the model has them. ``digits``: significant
    digits of the TFLOPS.
    """

    kernel: str
    label: str
    gpu: GpuConstants
    shape: tuple[int, ...]
    cycles: float
    flops: int
    clock: CoreClock
    limits: tuple[Limit, ...]
    error: float
    memory: Mapping[str, int] = field(default_factory=dict)
    digits: int = 1

    @property
    def seconds(self) -> float:
        return self.cycles / self.clock.hertz

    @property
    def tflops(self) -> float:
        return self.flops / self.seconds / 1e12

    @property
    def tensor_busy(self) -> float:
        """Returns the part of all SMs' cycles in which the tensor cores multiply."""
        return next(limit.share for limit in self.limits if limit.name == TENSOR)

    @property
    def error_percent(self) -> float:
        return 100 * self.error

    @property
    def band(self) -> str:
        """Returns the error as a remark on a figure."""
        return f"±{self.error_percent:.0f}%{'' if self.gpu.compared else ' (a guess)'}"

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "kernel": self.kernel,
            "config": self.label,
            "gpu": self.gpu.name,
            "shape": list(self.shape),
            "status": "predicted",
            "cycles": round(self.cycles),
            "seconds": self.seconds,
            "tflops": round(self.tflops, self.digits),
            "error_percent": round(self.error_percent, 1),
            "tensor_busy": round(self.tensor_busy, 4),
            "limits": [
                {"limit": each.name, "cycles": round(each.cycles), "percent": round(100 * each.share, 2)}
                for each in self.limits
            ],
            "clock_mhz": round(self.clock.hertz / 1e6),
            "power_w": round(self.clock.watts),
            "power_limited": self.clock.limited,
            **self.memory,
        }


def predict(
    artifact: Artifact,
    shape: Shape,
    gpu: GpuConstants,
    inputs: str = "normal",
    constants: Mapping[str, float] | None = None,
) -> Prediction:
    """Predicts one of our kernels. ``constants`` are changed values, by name.

    Raises UsageProblem for unknown names, CannotRun if there is no result.
    """
    if shape.groups:
        raise UsageProblem(f"{shape}: the timing model does not model groups; leave them out")
    gpu = gpu.with_values(constants or {})
    plan = artifact.plan(shape)
    # The DRAM bytes per cycle depend on the clock, and the clock allowed by the power limit on the cycles: one
    # iteration.
    simulation = simulate(artifact, plan, gpu, gpu["clock.max"])
    clock = _clock(simulation, gpu, inputs)
    if clock.limited:
        simulation = simulate(artifact, plan, gpu, clock.hertz)
        clock = _clock(simulation, gpu, inputs)
    found = simulation.hits
    return Prediction(
        artifact.config.kernel,
        plan.config["label"],
        gpu,
        (shape.m, shape.n, shape.k),
        simulation.cycles,
        simulation.gemm.flops,
        clock,
        tuple(limits(simulation.machine, simulation.used)),
        largest_error(gpu, artifact.config, shape),
        {"l2_bytes": round(found.requested + found.written), "dram_bytes_read": round(found.dram)},
    )


def _clock(simulation: Simulation, gpu: GpuConstants, inputs: str) -> CoreClock:
    found = simulation.hits
    # A guess: an MMA takes the energy of a bf16 MMA whose operands have as many bytes.
    bits = operand_bits(simulation.gemm.plan.config["dtype"])
    flops = simulation.gemm.flops * bits / 16
    work = Work(flops, found.requested + found.written, found.dram + found.written, simulation.cycles)
    return clock_of(work, gpu, inputs)


def predict_launches(
    what: Launchable, gpu: GpuConstants, options: EmulationOptions = TOLERANT, trace: TimedTrace | None = None
) -> tuple[LaunchOutcome, list[Prediction]]:
    """Predicts the launches of any PTX. The outcome is that of a normal run: the result is computed and compared with
    the expected one.
    """
    _check_target(what, gpu)
    first = TimedDevice(gpu, MemorySystem(1.0, gpu["clock.max"], 0.0, 0.0), computes=True)
    run(what, options, device=first, keep=())
    asked = sum(machine.units.memory.traffic.l2_read for machine in first.machines)
    footprint = first.allocated
    fits = footprint <= gpu["l2.bytes"] * gpu["l2.effective"]
    miss = min(1.0, footprint / asked) if asked and fits else 1.0
    device = TimedDevice(gpu, MemorySystem(1.0, gpu["clock.max"], miss, 1.0), computes=True, trace=trace)
    if trace is not None:
        options = replace(options, sinks=(*options.sinks, trace.event))
    outcome = run(what, options, device=device, keep=())
    pairs = zip(outcome.launched, device.machines, strict=True)
    return outcome, [_of_launch(launched, gpu, machine) for launched, machine in pairs]


def _check_target(what: Launchable, gpu: GpuConstants) -> None:
    """Checks the target: code for sm_90a runs only there, code for sm_90 on later GPUs, too (PTX ISA 11.1.2,
    .target).
    """
    target = list_kernels(what.text).target
    number, kind = target.removeprefix("sm_").rstrip("af"), target[-1]
    own = gpu.arch.removeprefix("sm_").rstrip("af")
    runs = number == own if kind in "af" else int(number) <= int(own)
    if not runs:
        raise UsageProblem(f"--gpu {gpu.name}: {gpu.title} runs {gpu.arch}, and {what.ptx.name} is for {target}")


def _of_launch(launched: Launched, gpu: GpuConstants, machine: TimedMachine) -> Prediction:
    traffic = machine.units.memory.traffic
    flops = machine.grid.counters.mma_flops
    work = Work(flops, traffic.l2_read + traffic.l2_written, traffic.dram, machine.end)
    return Prediction(
        launched.kernel,
        "",
        gpu,
        launched.grid,
        machine.end,
        flops,
        clock_of(work, gpu, "normal"),
        tuple(limits(machine, len(machine.sms) / gpu.sms)),
        gpu["model.error_far"],
        digits=3,
    )


def largest_error(gpu: GpuConstants, config: KernelConfig, shape: Shape) -> float:
    """Returns the expected error of the cycles, as a fraction: the largest error of any run that was compared with a
    GPU. For kernels with one stage on a Blackwell GPU only one measurement is published, and its error is large.
    """
    alone = gpu.has_tcgen05 and config.stages == 1
    return gpu["model.error" if near_defaults(config, shape) and not alone else "model.error_far"]


def near_defaults(config: KernelConfig, shape: Shape) -> bool:
    """Returns whether few options differ from the defaults. Options that follow from others count, too: another tile
    may have another depth of the ring.
    """
    arguments = config.arguments()
    usual = make_config(arguments["kernel"], arch=config.arch, dtype=config.dtype, shape=shape).arguments()
    return sum(arguments[name] != usual[name] for name in arguments) <= FEW
