"""Predicts what a launch file launches: all clusters of each launch on the timed machine, with their data.

Which bytes come from DRAM is not known beforehand: a first pass counts what is asked for; every byte of the buffers is
then taken to come from DRAM once, the rest from L2, if all of them fit in L2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from harness.errors import UsageProblem
from harness.launch.launch_file import LaunchFile
from harness.launch.launching import Options, Outcome, run
from harness.launch.listing import list_kernels, read_ptx
from harness.timing.constants import Gpu
from harness.timing.device import TimedDevice
from harness.timing.limits import TENSOR, Limit, limits
from harness.timing.machine import TimedMachine
from harness.timing.power import Clock, Work, clock_of
from harness.timing.trace import Trace
from harness.timing.units import Memory


@dataclass(frozen=True)
class LaunchPrediction:
    """Of one launch; nothing here is measured. flops: of the tensor cores only."""

    kernel: str
    grid: tuple[int, ...]
    gpu: Gpu
    cycles: float
    flops: int
    clock: Clock
    limits: tuple[Limit, ...]

    @property
    def seconds(self) -> float:
        return self.cycles / self.clock.hertz

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON. shape: the grid."""
        busy = next(limit.share for limit in self.limits if limit.name == TENSOR)
        return {
            "kernel": self.kernel,
            "config": "",
            "gpu": self.gpu.name,
            "shape": list(self.grid),
            "status": "predicted",
            "cycles": round(self.cycles),
            "seconds": self.seconds,
            "tflops": round(self.flops / self.seconds / 1e12, 3),
            "error_percent": round(100 * self.gpu["model.error_far"], 1),
            "tensor_busy": round(busy, 4),
            "limits": [
                {"limit": each.name, "cycles": round(each.cycles), "percent": round(100 * each.share, 2)}
                for each in self.limits
            ],
            "clock_mhz": round(self.clock.hertz / 1e6),
            "power_w": round(self.clock.watts),
            "power_limited": self.clock.limited,
        }


def predict_launches(
    file: LaunchFile, gpu: Gpu, options: Options, trace: Trace | None = None
) -> tuple[Outcome, list[LaunchPrediction]]:
    """The outcome is that of any run: the result is computed, and compared with what the file expects."""
    _check_target(file, gpu)
    first = TimedDevice(gpu, Memory(1.0, gpu["clock.max"], 0.0, 0.0), computes=True)
    run(file, options, device=first)
    asked = sum(machine.units.memory.traffic.l2_read for machine in first.machines)
    footprint = first.allocated
    fits = footprint <= gpu["l2.bytes"] * gpu["l2.effective"]
    miss = min(1.0, footprint / asked) if asked and fits else 1.0
    device = TimedDevice(gpu, Memory(1.0, gpu["clock.max"], miss, 1.0), computes=True, trace=trace)
    if trace is not None:
        options = replace(options, sinks=(*options.sinks, trace.event))
    outcome = run(file, options, device=device)
    found = [
        _prediction(launched.kernel, launched.grid, gpu, machine)
        for launched, machine in zip(outcome.launched, device.machines, strict=True)
    ]
    return outcome, found


def _check_target(file: LaunchFile, gpu: Gpu) -> None:
    """Code for sm_90a runs there alone, code for sm_90 on later ones, too (PTX ISA 11.1.2, .target)."""
    target = list_kernels(read_ptx(file.ptx)).target
    number, kind = target.removeprefix("sm_").rstrip("af"), target[-1]
    own = gpu.arch.removeprefix("sm_").rstrip("af")
    runs = number == own if kind in "af" else int(number) <= int(own)
    if not runs:
        raise UsageProblem(f"--gpu {gpu.name}: {gpu.title} runs {gpu.arch}, and {file.ptx.name} is for {target}")


def _prediction(kernel: str, grid: tuple[int, ...], gpu: Gpu, machine: TimedMachine) -> LaunchPrediction:
    traffic = machine.units.memory.traffic
    flops = machine.grid.counters.mma_flops
    work = Work(flops, traffic.l2_read + traffic.l2_written, traffic.dram, machine.end)
    used = len(machine.sms) / gpu.sms
    return LaunchPrediction(
        kernel, grid, gpu, machine.end, flops, clock_of(work, gpu, "normal"), tuple(limits(machine, used))
    )
