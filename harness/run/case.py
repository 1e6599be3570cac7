"""What is computed: the case that a run, a job of a sweep and a measurement of the benchmark have in common; and what
it runs on: a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from emugpu.launch.launching import STRICT, EmulationOptions
from harness.compile.compiler import Gpu
from harness.compile.config import KernelConfig
from harness.problem import Shape
from harness.run import records


@dataclass(frozen=True)
class Case:
    """A kernel in one configuration on one problem. inputs: the kind of values of A and B; seed: of these values."""

    config: KernelConfig
    shape: Shape
    inputs: str = "integer"
    seed: int = 0


@dataclass(frozen=True)
class Request(Case):
    """A case, and on what it runs: this GPU, or the emulator (gpu None). timeout: seconds that a GPU may be silent.
    schedules: how many it must be right under, see `emugpu.launch.launching.under_schedules`; processes of the
    emulation share them. processes: how many time it on a GPU, one after the other. vendors: see `harness.run.measure`.
    emulation: how the emulator runs it. ptx: where edited PTX is from that the artifact holds, if it does. ptxas:
    whether PTX is an error that ptxas refuses.
    """

    emulation: EmulationOptions = STRICT
    schedules: int = 1
    gpu: Gpu | None = None
    timeout: float = 60.0
    processes: int = 1
    vendors: tuple[str, ...] = records.VENDORS
    ptx: Path | None = None
    ptxas: bool = True

    @property
    def device_kind(self) -> str:
        if self.gpu:
            return self.gpu.kind
        return f"emulated-{self.config.arch}"
