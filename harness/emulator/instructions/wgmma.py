"""wgmma: matrix multiplication by four warps together (PTX ISA 9.7.15)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    immediate,
    instruction,
    only,
    registers,
    tuple_of,
)
from harness.emulator.machine import events
from harness.emulator.machine.events import Operation, Site
from harness.emulator.machine.lanes import FULL_MASK, WARP_SIZE, Value, stack_rows
from harness.emulator.machine.state import AsyncOperation, Fragment
from harness.emulator.machine.warpgroup import WARPS, HeldRegisters, Member, RegisterList, Step, Warpgroup
from harness.emulator.memory.descriptors import Major
from harness.emulator.ptx.ast import Instruction, Vector
from harness.emulator.units.wgmma import Form, a_from_registers, make_plan

MAX_GROUPS_KEPT = 8
"""wgmma.wait_group allows at most 7 pending groups."""
_SM90 = ("sm_90a",)


def _member(f: Fragment, what: str) -> Member:
    """The warp's part in its warpgroup; all of the warp and of the warpgroup must be there."""
    if f.mask != FULL_MASK:
        f.require_whole_warp()
        raise Fault(f"{what} needs all {WARP_SIZE} lanes of the warp; only 0x{f.mask:08x} are alive", "convergence")
    member = f.warp.member
    if member is None:
        cta = f.cta
        index, position = divmod(f.warp.index, WARPS)
        if index * WARPS + WARPS > len(cta.warps):
            raise Fault(f"{what} needs a whole warpgroup, but the CTA has {len(cta.warps)} warps", "convergence")
        if index not in cta.warpgroups:
            label = f"warpgroup {index} of CTA rank {cta.rank}"
            cta.warpgroups[index] = Warpgroup(label, f.grid.mma_unit, f.grid.wakeups)
        member = f.warp.member = Member(cta.warpgroups[index], position)
    return member


def _uniform(value: Value, what: str) -> Any:
    """The one value of all lanes of a whole warp."""
    if not isinstance(value, np.ndarray):
        return value
    raw = value.tobytes()
    if raw != raw[: value.itemsize] * WARP_SIZE:
        raise Fault(f"the lanes of the warp pass different values as {what}; they must agree", "convergence")
    return value[0].item()


def fence(f: Fragment, site: Site) -> None:
    _member(f, "wgmma.fence").fenced = True
    if f.grid.sink is not None:
        f.grid.sink(events.Fenced(f.agent, site))


@instruction("wgmma.fence", operands=0, writes=0, family="fence", targets=_SM90)
def _fence(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "aligned")
    return Effect(fence)


def multiply(
    f: Fragment,
    site: Site,
    d: RegisterList,
    form: Form,
    a_registers: RegisterList | None,
    a: Value | tuple[Value, ...],
    b: Value,
    keep: Value,
    written: bool,
) -> None:
    """``wgmma.mma_async``: this warp issues it; when all four have, it goes to the tensor core.

    written: whether accumulator registers may have been written since the last wgmma of the block on them.
    """
    member = _member(f, "wgmma.mma_async")
    group = member.group
    keep = _uniform(keep, "scale-d")
    b = _uniform(b, "the descriptor of B")
    a_descriptor = 0 if form.a_in_registers else _uniform(a, "the descriptor of A")
    binding, initial = None, None
    if not written:
        binding = member.bindings.get(d)
    if binding is None:
        binding, initial = member.bind(f, f.warp.fragments, d, form.n, keep)
    key = (d, form, a_descriptor, b, keep)
    turn = member.issued - group.submitted
    if turn == len(group.steps):
        group.steps.append(Step(key, make_plan(form, a_descriptor, b), binding.accumulator, keep))
    step = group.steps[turn]
    if step.key != key:
        raise Fault(_disagreement(step.key, key, step.warps[0]), "convergence")
    if a_registers is not None:
        step.put_a(member.position, a_from_registers(_stack(a, "A")))
        step.a_held.append(HeldRegisters(f.warp.fragments, a_registers, a))
    if initial is not None:
        step.initial.append((member.position, _stack(initial, "D")))
    member.issued += 1
    binding.last = member.issued
    binding.readable = False
    step.warps.append(f.warp.index)
    if len(step.warps) == WARPS:
        group.steps.popleft()
        group.submitted += 1
        _submit(f, site, group, step)


def _stack(values: Sequence[Value], what: str) -> np.ndarray:
    """Register values as an array [registers, 32]."""
    if any(value is None for value in values):
        raise Fault(f"reads a register of {what} that holds nothing yet", "wgmma")
    return stack_rows(values)


def _disagreement(first: tuple[Any, ...], other: tuple[Any, ...], warp: int) -> str:
    names = ("accumulator registers", "shape or flags", "descriptor of A", "descriptor of B", "scale-d")
    differing = ((name, x, y) for name, x, y in zip(names, first, other, strict=True) if x != y)
    name, x, y = next(differing)
    shown = [hex(v) if type(v) is int else str(v) for v in (x, y)]
    return (
        f"the warps of a warpgroup must execute the same wgmma with the same operands, but {name} is "
        f"{shown[0]} in warp {warp} and {shown[1]} here"
    )


def _submit(f: Fragment, site: Site, group: Warpgroup, step: Step) -> None:
    grid, cta = f.grid, f.cta
    grid.counters.mma_instructions += 1
    if grid.sink is not None:
        step.operation = _tell(f, site, step)
    run = partial(_execute, f, group, step)
    pipe = ("wgmma", cta.cluster.number, cta.rank, f.warp.index // WARPS)
    grid.submit(AsyncOperation("mma", run, f, site, pipe))


def _tell(f: Fragment, site: Site, step: Step) -> Operation:
    d, form, a_descriptor, b, keep = step.key
    operands = [step.plan.b] if step.a_registers is not None else [step.plan.a, step.plan.b]
    reads: list[events.Region] = [events.SharedChunks(f.cta.rank, operand.positions) for operand in operands]
    first = f.warp.index // WARPS * WARPS
    for held in step.a_held:
        reads.append(events.RegisterBlock(first + len(reads) - 1, held.registers.names))
    writes = tuple(events.RegisterBlock(first + warp, d.names) for warp in range(WARPS))
    return f.grid.operation(
        "wgmma", f, site, reads=tuple(reads), writes=writes, form=form, a=a_descriptor, b=b, keep=keep
    )


def _execute(f: Fragment, group: Warpgroup, step: Step) -> None:
    grid = f.grid
    f.cta.check_alive("a wgmma reads shared memory of")
    if step.operation is not None and grid.sink is not None:
        grid.sink(events.Started(step.operation))
    step.run(f.cta.shared)
    grid.counters.mma_flops += step.plan.flops
    if step.operation is not None and grid.sink is not None:
        grid.sink(events.Finished(step.operation, step.operation.writes))
    group.wake()


_SHAPE = re.compile(r"m64n(\d+)k16$")
_MAJOR = {0: Major.K, 1: Major.MN}


@instruction("wgmma.mma_async", operands=range(6, 9), family="mma", targets=_SM90)
def _mma_async(i: Instruction, w: Translator) -> Effect:
    """16-bit inputs and f32 results; A from shared memory or from registers."""
    if len(i.modifiers) != 7:
        raise Unsupported
    _, sync, aligned, shape, result, a_type, b_type = i.modifiers
    size = _SHAPE.match(shape)
    if (sync, aligned, result) != ("sync", "aligned", "f32") or a_type != b_type or size is None:
        raise Unsupported
    n = int(size.group(1))
    if a_type not in ("bf16", "f16") or n % 8 or not 8 <= n <= 256 or i.guard is not None:
        raise Unsupported
    d, a, b, keep, *flags = i.operands
    accumulator = registers(d)
    if len({r.slot for r in accumulator}) != n // 2 or len(accumulator) != n // 2:
        raise Unsupported
    in_registers = isinstance(a, Vector)
    scale_a, scale_b, *majors = (immediate(flag) for flag in flags)
    if not {scale_a, scale_b} <= {1, -1} or len(majors) != (1 if in_registers else 2) or not set(majors) <= {0, 1}:
        raise Unsupported
    a_major = Major.K if in_registers else _MAJOR[majors[0]]
    form = Form(n, a_type, a_major, _MAJOR[majors[-1]], scale_a != scale_b, in_registers)
    where = _register_list(w, accumulator)
    if in_registers:
        held = registers(a)
        if len(held) != 4:
            raise Unsupported
        a_list, a_value = _register_list(w, held), tuple_of(w.read(e, "b32") for e in held)
    else:
        a_list, a_value = "None", w.read(a, "b64")
    arguments = [where, w.constant(Form, *form), a_list, a_value, w.read(b, "b64"), w.read(keep, "pred")]
    return Effect(multiply, arguments, poisons=accumulator, stores=accumulator)


def _register_list(w: Translator, named: Sequence[Any]) -> str:
    return w.constant(RegisterList, tuple(r.slot for r in named), tuple(r.name for r in named))


def commit(f: Fragment, site: Site) -> None:
    """``wgmma.commit_group``: this warp's uncommitted wgmma instructions become one group, possibly empty."""
    member = _member(f, "wgmma.commit_group")
    member.commits.append(member.issued)
    if len(member.commits) > MAX_GROUPS_KEPT:
        member.commits.popleft()
    if f.grid.sink is not None:
        f.grid.sink(events.Committed(f.agent, site, "wgmma", ((-1, member.groups),)))
    member.groups += 1


@instruction("wgmma.commit_group", operands=0, writes=0, family="barrier", targets=_SM90)
def _commit(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "aligned")
    return Effect(commit)


def wait(f: Fragment, site: Site, allowed: int) -> object:
    """``wgmma.wait_group``: suspend until at most ``allowed`` of the warp's youngest groups are pending."""
    member = _member(f, "wgmma.wait_group")
    group, commits = member.group, member.commits
    covered = commits[-1 - allowed] if len(commits) > allowed else 0
    if group.completed < covered:
        group.waiters.append((covered, f))
        return f.grid.wakeups.suspend(f, group, f"waits until at most {allowed} wgmma-groups are pending", site)
    member.settle(f, covered)
    if f.grid.sink is not None:
        f.grid.sink(events.Awaited(f.agent, site, "wgmma", ((-1, member.groups - allowed - 1),), False))
    return None


@instruction("wgmma.wait_group", operands=1, writes=0, blocks=True, settles=True, family="barrier", targets=_SM90)
def _wait(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "aligned")
    allowed = immediate(i.operands[0])
    if not 0 <= allowed <= 7:
        raise Unsupported
    return Effect(wait, [str(allowed)])
