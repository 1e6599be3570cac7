"""wgmma: four warps multiply matrices together (PTX ISA 9.7.15)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import loaded_origin
from emugpu.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    immediate,
    instruction,
    only,
    registers,
    tuple_of,
)
from emugpu.emulator.instructions.warp_mma import stack, undefined_bits
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import FULL_MASK, WARP_SIZE, Value, stack_rows
from emugpu.emulator.machine.poison import Poison
from emugpu.emulator.machine.state import AsyncOperation, Fragment
from emugpu.emulator.machine.warpgroup import WARPS, HeldRegisters, Member, RegisterList, Warpgroup, WarpgroupMma
from emugpu.emulator.memory.descriptors import Major
from emugpu.emulator.ptx.ast import Instruction, Operand, Vector
from emugpu.emulator.units.sparsity import selectors
from emugpu.emulator.units.warp_mma import results_of
from emugpu.emulator.units.wgmma import WarpRegisters, WgmmaForm, decode_wgmma

MAX_GROUPS_KEPT = 8
"""wgmma.wait_group allows at most 7 pending groups."""


def _member(f: Fragment, what: str) -> Member:
    """Returns the warp's part in its warpgroup. The whole warp and the whole warpgroup must exist."""
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
    """Returns the one value of all lanes of a whole warp; raises Fault if they differ."""
    if type(value) is Poison:
        value = value.used()
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


@instruction("wgmma.fence", operands=0, writes=0, family="fence")
def _fence(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "aligned")
    return Effect(fence)


def multiply(
    f: Fragment,
    site: Site,
    d: RegisterList,
    form: WgmmaForm,
    a_registers: RegisterList | None,
    a: Value | tuple[Value, ...],
    b: Value,
    keep: Value,
    metadata: Value,
    written: bool,
) -> None:
    """Executes ``wgmma.mma_async`` of one warp. When all four have issued it, it goes to the tensor core.

    metadata: for a sparse A, else None. written: whether accumulator registers may have been written since the last
    wgmma of the block on them.
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
        warn = partial(f.grid.findings.warn, "wgmma-fence", site)
        binding, initial = member.bind(f, f.warp.fragments, d, form.n, keep, warn)
    key = (d, form, a_descriptor, b, keep)
    turn = member.issued - group.submitted
    if turn == len(group.steps):
        group.steps.append(WarpgroupMma(key, decode_wgmma(form, a_descriptor, b), binding.accumulator, keep))
    step = group.steps[turn]
    if step.key != key:
        raise Fault(_disagreement(step.key, key, step.warps[0]), "convergence")
    if f.grid.sink is not None:
        _report(f, site, step, a_registers)
    if a_registers is not None:
        step.put_a(member.position, _stack(a, "A"))
        step.a_held.append(HeldRegisters(f.warp.fragments, a_registers, a))
    if metadata is not None:
        step.put_metadata(member.position, stack_rows([metadata])[0])
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


def _stack(values: Sequence[Value], what: str) -> WarpRegisters:
    """Returns register values, of which some bits may be undefined."""
    if any(value is None for value in values):
        raise Fault(f"reads a register of {what} that holds nothing yet", "wgmma")
    poison = next((value for value in values if type(value) is Poison), None)
    if poison is None:
        return WarpRegisters(stack_rows(values))
    return WarpRegisters(stack(values, False), stack_rows([undefined_bits(v) for v in values]), poison.origin)


def _disagreement(first: tuple[Any, ...], other: tuple[Any, ...], warp: int) -> str:
    names = ("accumulator registers", "shape or flags", "descriptor of A", "descriptor of B", "scale-d")
    differing = ((name, x, y) for name, x, y in zip(names, first, other, strict=True) if x != y)
    name, x, y = next(differing)
    shown = [hex(v) if type(v) is int else str(v) for v in (x, y)]
    return (
        f"the warps of a warpgroup must execute the same wgmma with the same operands, but {name} is "
        f"{shown[0]} in warp {warp} and {shown[1]} here"
    )


def _submit(f: Fragment, site: Site, group: Warpgroup, step: WarpgroupMma) -> None:
    grid, cta = f.grid, f.cta
    grid.counters.mma_instructions += 1
    run = partial(_execute, f, site, group, step)
    pipe = ("wgmma", cta.cluster.number, cta.rank, f.warp.index // WARPS)
    grid.submit(AsyncOperation("mma", run, f, site, pipe, step))


def _report(f: Fragment, site: Site, step: WarpgroupMma, a_registers: RegisterList | None) -> None:
    """Reports that a warp has issued a step. The first of the four warps makes the operation."""
    grid, operation = f.grid, step.operation
    assert grid.sink is not None
    own = () if a_registers is None else (events.RegisterBlock(f.warp.index, a_registers.names),)
    if operation is not None:
        operation.reads += own
        grid.sink(events.Issued(operation, f.agent))
        return
    d, form, a_descriptor, b, keep = step.key
    operands = [step.decoded.b] if form.a_in_registers else [step.decoded.a, step.decoded.b]
    reads = (*(events.SharedChunks(f.cta.rank, operand.positions) for operand in operands), *own)
    first = f.warp.index // WARPS * WARPS
    writes = tuple(events.RegisterBlock(first + warp, d.names) for warp in range(WARPS))
    step.operation = grid.operation(
        "wgmma", f, site, reads=reads, writes=writes, form=form, a=a_descriptor, b=b, keep=keep
    )


def _execute(f: Fragment, site: Site, group: Warpgroup, step: WarpgroupMma) -> None:
    grid = f.grid
    f.cta.check_alive("a wgmma reads shared memory of")
    events.report_started(grid.sink, step.operation)
    if grid.computes:
        step.run(f.cta.shared, partial(loaded_origin, f, site))
    grid.counters.mma_flops += step.decoded.flops
    events.report_finished(grid.sink, step.operation)
    group.wake()


_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
_MAJOR = {0: Major.K, 1: Major.MN}
_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
_SAME = ("f16", "bf16", "tf32")
"""If A has one of these types, B must have the same."""


@instruction("wgmma.mma_async", operands=range(4, 9), family="mma")
def _mma_async(i: Instruction, w: Translator) -> Effect:
    return _multiply(i, w, list(i.modifiers[1:]), i.operands, None)


@instruction("wgmma.mma_async.sp", operands=range(6, 11), family="mma")
def _sparse_mma_async(i: Instruction, w: Translator) -> Effect:
    """Emits a sparse wgmma. Metadata and the sparsity selector come after B."""
    return _multiply(i, w, list(i.modifiers[2:]), (*i.operands[:3], *i.operands[5:]), immediate(i.operands[4]))


def _multiply(
    i: Instruction, w: Translator, words: list[str], operands: Sequence[Operand], selector: int | None
) -> Effect:
    """Emits a wgmma with A in shared memory or in registers.

    Types of 16 bits have major-ness flags. Integers have no flags.
    """
    saturate = words[-1] == "satfinite"
    if saturate:
        words.pop()
    if len(words) != 6:
        raise Unsupported
    sync, aligned, shape, result, a_type, b_type = words
    size = _SHAPE.match(shape)
    if (sync, aligned) != ("sync", "aligned") or size is None or i.guard is not None:
        raise Unsupported
    n, k = int(size.group(1)), int(size.group(2))
    kept = k if selector is None else k // 2
    if _DEPTH.get(a_type) != kept or _DEPTH.get(b_type) != kept or result not in results_of(a_type):
        raise Unsupported
    if selector is not None and not 0 <= selector < selectors(a_type, k):
        raise Unsupported
    integers = result == "s32"
    if (a_type != b_type and a_type in _SAME) or (saturate and not integers) or n % 8 or not 8 <= n <= 256:
        raise Unsupported
    if integers and n > 32 and n % 16:
        raise Unsupported
    d, a, b, keep, *flags = operands
    accumulator = registers(d)
    count = n // 4 if result == "f16" else n // 2
    if len({r.slot for r in accumulator}) != count or len(accumulator) != count:
        raise Unsupported
    in_registers = isinstance(a, Vector)
    negate, majors = _flags(flags, 0 if integers else 2, (1 if in_registers else 2) if kept == 16 else 0)
    a_major = Major.K if in_registers or not majors else _MAJOR[majors[0]]
    b_major = _MAJOR[majors[-1]] if majors else Major.K
    form = WgmmaForm(n, a_type, a_major, b_major, negate, in_registers, b_type, result, saturate, selector)
    where = _register_list(w, accumulator)
    if in_registers:
        held = registers(a)
        if len(held) != 4:
            raise Unsupported
        a_list, a_value = _register_list(w, held), tuple_of(w.read(e, "b32") for e in held)
    else:
        a_list, a_value = "None", w.read(a, "b64")
    metadata = "None" if selector is None else w.read(i.operands[3], "b32")
    arguments = [where, w.constant(WgmmaForm, *form), a_list, a_value, w.read(b, "b64"), w.read(keep, "pred"), metadata]
    return Effect(multiply, arguments, poisons=accumulator, stores=accumulator)


def _flags(flags: Sequence[Operand], scales: int, majors: int) -> tuple[bool, list[int]]:
    """Returns whether exactly one of A and B is negated, and the major-ness flags."""
    numbers = [immediate(flag) for flag in flags]
    if len(numbers) != scales + majors:
        raise Unsupported
    signs, rest = numbers[:scales], numbers[scales:]
    if not set(signs) <= {1, -1} or not set(rest) <= {0, 1}:
        raise Unsupported
    return signs.count(-1) == 1, rest


def _register_list(w: Translator, named: Sequence[Any]) -> str:
    return w.constant(RegisterList, tuple(r.slot for r in named), tuple(r.name for r in named))


def commit(f: Fragment, site: Site) -> None:
    """Executes ``wgmma.commit_group``: this warp's uncommitted wgmma instructions become one group, possibly empty."""
    member = _member(f, "wgmma.commit_group")
    member.commits.append(member.issued)
    if len(member.commits) > MAX_GROUPS_KEPT:
        member.commits.popleft()
    if f.grid.sink is not None:
        f.grid.sink(events.Committed(f.agent, site, "wgmma", ((-1, member.groups),)))
    member.groups += 1


@instruction("wgmma.commit_group", operands=0, writes=0, family="barrier")
def _commit(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "aligned")
    return Effect(commit)


def wait(f: Fragment, site: Site, allowed: int) -> object:
    """Executes ``wgmma.wait_group``: suspends until at most ``allowed`` of the warp's youngest groups are pending."""
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


@instruction("wgmma.wait_group", operands=1, writes=0, blocks=True, settles=True, family="barrier")
def _wait(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "aligned")
    allowed = immediate(i.operands[0])
    if not 0 <= allowed <= 7:
        raise Unsupported
    return Effect(wait, [str(allowed)])
