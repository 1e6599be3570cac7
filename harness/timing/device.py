"""An emulated GPU with a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.emulator import Device
from harness.emulator.machine.grid import Clusters
from harness.emulator.machine.machine import Limits, Machine
from harness.emulator.machine.state import Grid
from harness.timing.constants import Gpu
from harness.timing.machine import Clock, TimedMachine
from harness.timing.trace import Trace
from harness.timing.units import Memory, Units


class TimedDevice(Device):
    """``computes``: whether data is moved and multiplied, or only the time is wanted that it takes.

    ``numbers``: the clusters of a grid that run here, None: all; ``sms``, ``gpcs``: multiprocessors, and the parts of
    the GPU that they lie in, of which a cluster needs one; None: all of the GPU;
    ``beside``: whether all CTAs of a launch find room beside those of the one before.
    ``machines``: one for each launch so far.
    """

    def __init__(
        self,
        gpu: Gpu,
        memory: Memory,
        *,
        computes: bool,
        numbers: Sequence[int] | None = None,
        sms: int | None = None,
        gpcs: int | None = None,
        trace: Trace | None = None,
        beside: bool = False,
    ) -> None:
        super().__init__()
        self.gpu = gpu
        self.l2_and_dram = memory
        self.computes = computes
        self.numbers = numbers
        self.sms = sms or gpu.sms
        self.gpcs = gpcs or len(gpu.gpcs)
        self.trace = trace
        self.beside = beside
        self.machines: list[TimedMachine] = []

    @property
    def allocated(self) -> int:
        """Bytes of global memory."""
        return sum(nbytes for _, _, nbytes in self._memory.ranges())

    def _make_schedule(self) -> Any:
        return Clock()

    def _make_machine(self, grid: Grid, schedule: Any, clusters: Clusters, limits: Limits) -> Machine:
        grid.computes = self.computes
        numbers = range(clusters.total) if self.numbers is None else self.numbers
        clusters.take(numbers, self.gpcs)
        units = Units(self.gpu, self.l2_and_dram.fresh())
        machine = TimedMachine(grid, schedule, clusters, limits, self.gpu, units, self.sms, self.trace, self.beside)
        self.machines.append(machine)
        return machine
