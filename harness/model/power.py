"""Clock and power, apart from the cycles: the clock at which the board reaches its power limit.

P(f) = idle + (energy per cycle at the highest clock) * f * (V(f) / V(max))^2, with V linear in f

The energy of a cycle is that of the multiplications, which depends on the kind of inputs, and of the bytes from L2 and
from DRAM.
"""

from __future__ import annotations

from dataclasses import dataclass

from emugpu.errors import UsageProblem
from harness.model.constants import GpuConstants

INPUTS = {
    "normal": "",
    "uniform": "",
    "codes": "",
    "integer": "power.integers",
    "index": "power.integers",
    "zeros": "power.zeros",
}
"""Kinds of inputs, and the constant by which the energy of a multiplication is smaller than with normal inputs."""
STEPS = 60


@dataclass(frozen=True)
class Work:
    """The work of one launch: floating-point operations, bytes from L2 into SMs, bytes of DRAM, cycles."""

    flops: float
    l2_bytes: float
    dram_bytes: float
    cycles: float


@dataclass(frozen=True)
class CoreClock:
    """Hertz, and watts at that clock. ``limited`` says whether the highest clock would need more than the board's
    limit.
    """

    hertz: float
    watts: float
    limited: bool


def clock_of(work: Work, gpu: GpuConstants, inputs: str) -> CoreClock:
    """Returns the highest clock at which successive launches stay within the limit."""
    if inputs not in INPUTS:
        raise UsageProblem(f"inputs '{inputs}': the power model knows {', '.join(INPUTS)}")
    factor = gpu[INPUTS[inputs]] if INPUTS[inputs] else 1.0
    energy = work.flops * gpu["power.flop"] * factor
    energy += work.l2_bytes * gpu["power.l2_byte"] + work.dram_bytes * gpu["power.dram_byte"]
    per_cycle = energy / work.cycles
    low, high = gpu["clock.min"], gpu["clock.max"]

    def watts(hertz: float) -> float:
        voltage = gpu["power.voltage"] + (1 - gpu["power.voltage"]) * hertz / gpu["clock.max"]
        return gpu["power.idle"] + per_cycle * hertz * voltage**2

    limit = gpu["power.limit"]
    if watts(high) <= limit:
        return CoreClock(high, watts(high), False)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if watts(middle) > limit:
            high = middle
        else:
            low = middle
    return CoreClock(low, watts(low), True)
