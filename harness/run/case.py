"""The case that runs, jobs of sweeps and measurements have in common, and the request that says where it runs."""

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
    """A kernel in one configuration on one problem. ``inputs`` is the kind of values in A and B, ``seed`` is theirs."""

    config: KernelConfig
    shape: Shape
    inputs: str = "integer"
    seed: int = 0


@dataclass(frozen=True)
class Request(Case):
    """A case, and the GPU that runs it, or the emulator if ``gpu`` is None.

    ``timeout``: seconds without an event after which a GPU run is given up. ``schedules``: number of schedules under
    which the result must be right (`emugpu.launch.launching.under_schedules`); the processes of the emulation share
    them. ``processes``: number of processes that time it on a GPU, one after the other. ``alone``: whether each
    times the kernel and the vendors alone, too, and the host's part of a call. ``vendors``: see `harness.run.measure`.
    ``emulation``: options of the emulator. ``ptx``: the source of edited PTX in the artifact, if any. ``ptxas``:
    whether PTX that ptxas refuses is an error.
    """

    emulation: EmulationOptions = STRICT
    schedules: int = 1
    gpu: Gpu | None = None
    timeout: float = 60.0
    processes: int = 1
    alone: bool = False
    vendors: tuple[str, ...] = records.VENDORS
    ptx: Path | None = None
    ptxas: bool = True

    @property
    def device_kind(self) -> str:
        if self.gpu:
            return self.gpu.kind
        return f"emulated-{self.config.arch}"
