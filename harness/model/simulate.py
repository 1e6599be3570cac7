"""Runs a representative part of a launch on the timed machine, without its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emugpu.errors import UsageProblem
from emugpu.launch.launching import EmulationOptions, run
from emugpu.launch.spec import DATA_TYPES, Buffer, Fill, Launchable
from harness import fp8
from harness.block_scaling import ATOM_ROWS
from harness.compile.artifacts import Artifact, launch_of, maps_of, workspace_buffer
from harness.compile.planner import Plan, TensorArgument, TensorMapArgument, WorkspaceArgument
from harness.model.cache import Hits, hits
from harness.model.constants import GpuConstants
from harness.model.first_use import FirstUse
from harness.model.gemm import Gemm, Spread, gained
from harness.model.machine import TimedDevice, TimedMachine, TimedTrace
from harness.model.units import MemorySystem
from harness.problem import ELEMENT_TYPES, LARGEST

FIRST_ADDRESS = 1 << 40
"""The address of A; nothing is read there."""


@dataclass(frozen=True)
class Simulation:
    """A timed launch. ``hits`` is the result of the model of L2."""

    gemm: Gemm
    spread: Spread
    hits: Hits
    machine: TimedMachine

    @property
    def cycles(self) -> float:
        return self.machine.end

    @property
    def used(self) -> float:
        """Returns the work of an average SM over that of an average simulated one."""
        simulated = self.gemm.part(self.spread, self.gemm.parts_multiplied)
        return len(self.machine.sms) / self.gemm.gpu.sms / simulated


def simulate(
    artifact: Artifact,
    plan: Plan,
    gpu: GpuConstants,
    clock: float,
    trace: TimedTrace | None = None,
    detail: int | None = None,
) -> Simulation:
    """Runs a launch. ``clock`` is the SMs' in hertz; it decides the bytes of L2 and of DRAM per cycle.

    Raises CannotRun if the kernel does not end.
    """
    _check_modelled(plan)
    statistics = artifact.statistics()
    gemm = Gemm(plan, gpu, statistics.get("registers"), statistics.get("barriers"))
    spread = gemm.spread() if detail is None else gemm.spread(detail)
    found = hits(gemm.traffic(), spread.resident, gpu["l2.bytes"] * gpu["l2.effective"])
    maps = [argument for argument in plan.arguments if isinstance(argument, TensorMapArgument)]
    addresses = {argument.tensor: FIRST_ADDRESS * n for n, argument in enumerate(maps, 1)}
    fetched = {addresses[argument.tensor]: argument.l2_promotion for argument in maps}
    wave_of, ahead = gemm.waves(spread.resident), gained(gemm, spread.resident)
    memory = MemorySystem(
        spread.share,
        clock,
        miss=found.miss,
        waits=gpu["l2.together"],
        coalesced=gemm.coalesced,
        left=found.written * spread.share,  # in successive launches L2 is full of the output of the earlier ones
        outside=gemm.parts(spread, gemm.rows_filled),
        first_use=FirstUse(found.waves, _panels(plan, gemm, addresses), wave_of, fetched, ahead),
        clusters=spread.slots,
    )
    device = TimedDevice(
        gpu,
        memory,
        computes=False,
        numbers=spread.numbers,
        sms=gemm.simulated_sms(spread),
        gpcs=gemm.simulated_gpcs(spread),
        trace=trace,
        two_fit=gemm.two_fit,
    )
    buffers = _buffers(plan, addresses, gemm.first_counts(spread))
    what = Launchable(artifact.ptx_file, buffers, maps_of(plan), (launch_of(plan),), text_given=artifact.ptx)
    sinks = () if trace is None else (trace.event,)
    run(what, EmulationOptions(strict=False, resident_clusters=spread.slots, sinks=sinks), device=device, keep=())
    return Simulation(gemm, spread, found, device.machines[0])


def _check_modelled(plan: Plan) -> None:
    if plan.is_direct:
        raise UsageProblem(f"{plan.kernel}: the timing model knows loads by TMA only; use kernel8")
    if plan.layout != "nt":
        raise UsageProblem(f"layout={plan.layout}: the timing model knows K-major A and B only; use layout=nt")
    if plan.problem.ld:
        raise UsageProblem(f"shape {plan.problem}: the timing model does not model leading dimensions; leave them out")


def _panels(plan: Plan, gemm: Gemm, addresses: Mapping[str, int]) -> dict[int, tuple[str, int]]:
    """Returns for each input's address the operand that it belongs to, and the rows of it that a tile needs."""
    tensors = "BA" if plan.swapped else "AB"
    panels = {addresses[each]: (name, rows) for each, name, rows in zip(tensors, "AB", gemm.tile, strict=True)}
    if plan.has_f32_factors:  # those of B, too; the factors of A are few, and their rows are rows of blocks of K
        panels[addresses["A scales"]] = "A", LARGEST
        panels[addresses["B scales"]] = "B", max(1, gemm.tile[1] // fp8.BLOCK)
    elif plan.scaling:  # scale factors come with the rows they belong to, by a map whose rows are rows of atoms
        panels |= {addresses[f"{name} scales"]: (name, rows // ATOM_ROWS) for name, rows in list(panels.values())}
    return panels


def _buffers(plan: Plan, addresses: Mapping[str, int], counts: Mapping[int, int]) -> dict[str, Buffer]:
    """Returns the buffers of the launch. Only the workspace and the tensors that ordinary loads read have values."""
    nothing = DATA_TYPES["u8"], (1,), Fill("absent")
    buffers = {name: Buffer(name, *nothing, address=at) for name, at in addresses.items()}
    for argument in plan.arguments:
        if isinstance(argument, WorkspaceArgument):
            buffers[argument.name] = workspace_buffer(argument, counts)
        elif isinstance(argument, TensorArgument):
            words = DATA_TYPES["u16" if argument.dtype in ELEMENT_TYPES else "u32"]
            buffers[argument.name] = Buffer(argument.name, words, argument.shape, Fill("zeros"))
    return buffers
