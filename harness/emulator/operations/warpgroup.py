"""wgmma (PTX ISA 9.7.15) and setmaxnreg (PTX ISA 9.7.19.5): what four warps do together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import Fault
from ..machine.fragment import FULL_MASK, WARP_SIZE, Fragment, Value
from ..machine.observer import Access
from ..machine.schedule import AsyncOperation
from ..machine.warpgroup import WARPS, AccumulatorRegisters, Member, Step, Warpgroup
from ..memory import CHUNK
from ..wgmma import Form, a_from_registers, make_plan

MAX_GROUPS_KEPT = 8
"""wgmma.wait_group allows at most 7 pending groups."""


def _member(f: Fragment, what: str) -> Member:
    """The warp's part in its warpgroup; all of the warp and of the warpgroup must be there."""
    if f.mask != FULL_MASK:
        f.require_whole_warp()
        raise Fault(f"{what} needs all {WARP_SIZE} lanes of the warp; only 0x{f.mask:08x} are alive")
    member = f.warp.member
    if member is None:
        if f.warp.index // WARPS * WARPS + WARPS > len(f.cta.warps):
            raise Fault(f"{what} needs a whole warpgroup, but the CTA has {len(f.cta.warps)} warps")
        member = f.warp.member = Member(f.warp)
    return member


def _uniform(value: Value, what: str) -> Any:
    """The one value of all lanes of a whole warp."""
    if not isinstance(value, np.ndarray):
        if value is None:
            raise Fault(f"{what} was never written")
        return value
    raw = value.tobytes()
    if raw != raw[: value.itemsize] * WARP_SIZE:
        raise Fault(f"the lanes of the warp pass different values as {what}; they must agree")
    return value[0].item()


def wgmma_fence(f: Fragment, i: int) -> None:
    _member(f, "wgmma.fence").fenced = True
    if f.cta.machine.observers:
        f.cta.machine.observe("wgmma.fence", f, i, done=True)


def wgmma_multiply(
    f: Fragment,
    i: int,
    registers: AccumulatorRegisters,
    form: Form,
    a: Value | tuple[Value, ...],
    b: Value,
    keep: Value,
    fresh: bool,
) -> None:
    """``wgmma.mma_async``: this warp issues it; when all four have, it goes to the tensor core.

    ``fresh``: the accumulator registers may have been written since the last wgmma of the block on them.
    """
    member = _member(f, "wgmma.mma_async")
    group = member.group
    keep = _uniform(keep, "scale-d")
    b = _uniform(b, "the descriptor of B")
    a_descriptor = 0 if form.a_in_registers else _uniform(a, "the descriptor of A")
    binding, initial = None, None
    if not fresh:
        binding = member.bindings.get(registers)
    if binding is None:
        binding, initial = member.bind(f, registers, form.n, keep)
    key = (registers, form, a_descriptor, b, keep)
    turn = member.issued - group.submitted
    if turn == len(group.steps):
        group.steps.append(Step(key, make_plan(form, a_descriptor, b), binding.accumulator, keep))
    step = group.steps[turn]
    if step.key != key:
        raise Fault(_disagreement(step.key, key, step.warps[0].index))
    if form.a_in_registers:
        step.put_a(member.position, a_from_registers(_stack(a, "A")))
    if initial is not None:
        step.initial.append((member.position, _stack(initial, "D")))
    member.issued += 1
    binding.last = member.issued
    binding.readable = False
    step.warps.append(f.warp)
    if len(step.warps) == WARPS:
        group.steps.popleft()
        group.submitted += 1
        _submit(f, i, group, step)


def _stack(values: Sequence[Value], what: str) -> np.ndarray:
    """Register values as an array [registers, 32]."""
    if any(value is None for value in values):
        raise Fault(f"reads a register of {what} that holds nothing yet")
    if all(type(value) is int for value in values):
        return np.repeat(np.array(values, np.uint32)[:, None], WARP_SIZE, axis=1)
    return np.array([np.broadcast_to(np.asarray(v, np.uint32), WARP_SIZE) for v in values])


def _disagreement(first: tuple[Any, ...], other: tuple[Any, ...], warp: int) -> str:
    names = ("accumulator registers", "shape or flags", "descriptor of A", "descriptor of B", "scale-d")
    differing = ((name, x, y) for name, x, y in zip(names, first, other, strict=True) if x != y)
    name, x, y = next(differing)
    shown = [hex(v) if type(v) is int else str(v) for v in (x, y)]
    return (
        f"the warps of a warpgroup must execute the same wgmma with the same operands, but {name} is "
        f"{shown[0]} in warp {warp} and {shown[1]} here"
    )


def _submit(f: Fragment, i: int, group: Warpgroup, step: Step) -> None:
    machine = f.cta.machine
    machine.counters.mma_instructions += 1
    if machine.observers:
        operands = [step.plan.b] if step.a_registers is not None else [step.plan.a, step.plan.b]
        accesses = []
        for operand in operands:
            low, high = int(operand.positions.min()), int(operand.positions.max()) + 1
            accesses.append(Access("shared", f.cta.rank, low * CHUNK, (high - low) * CHUNK, "read"))
        step.operation = machine.observe("mma", f, i, accesses)
    run = partial(_execute, group, step)
    machine.submit(AsyncOperation("mma", run, (f, i), ("wgmma", f.cta.rank, group.index), step.operation))


def _execute(group: Warpgroup, step: Step) -> None:
    machine = group.cta.machine
    group.cta.check_alive("a wgmma reads shared memory of")
    machine.observe_started(step.operation)
    step.run(group.cta)
    machine.counters.mma_flops += step.plan.flops
    machine.observe_completed(step.operation)
    group.wake()


def wgmma_commit(f: Fragment, i: int) -> None:
    """``wgmma.commit_group``: this warp's uncommitted wgmma instructions become one group, possibly empty."""
    member = _member(f, "wgmma.commit_group")
    member.commits.append(member.issued)
    if len(member.commits) > MAX_GROUPS_KEPT:
        member.commits.popleft()
    if f.cta.machine.observers:
        f.cta.machine.observe("wgmma.commit_group", f, i, done=True)


def wgmma_wait(f: Fragment, i: int, allowed: int) -> object:
    """``wgmma.wait_group``: suspend until at most ``allowed`` of the warp's youngest groups are pending."""
    member = _member(f, "wgmma.wait_group")
    group, commits = member.group, member.commits
    covered = commits[-1 - allowed] if len(commits) > allowed else 0
    machine = f.cta.machine
    if group.completed < covered:
        group.waiters.append((covered, f))
        return machine.suspend(f, group, f"waits until at most {allowed} wgmma-groups are pending", i)
    member.settle(f, covered)
    if machine.observers:
        machine.observe("wgmma.wait_group", f, i, done=True)
    return None


def set_max_registers(f: Fragment, i: int, count: int, increase: bool) -> object:
    """``setmaxnreg``: the warp gives registers back to the CTA's pool, or waits until the pool has them.

    The pool is only known if the kernel fixes the registers at entry; otherwise nothing is counted.
    """
    f.require_whole_warp()
    cta, machine, warp = f.cta, f.cta.machine, f.warp.index
    pool = cta.register_pool
    pool.check_request(warp, count)
    held = pool.held.get(warp, pool.at_entry)
    if held is not None:
        if count < held if increase else count > held:
            verb, rule = ("inc", "at least") if increase else ("dec", "at most")
            raise Fault(f"setmaxnreg.{verb} to {count} registers; the warp has {held}, it must be {rule} that")
        if count - held > pool.free:
            pool.waiters.append(f)
            on = f"the register pool of CTA rank {cta.rank}, which has {pool.free} per thread of a warp left"
            return machine.suspend(f, on, f"waits for {count - held} more registers per thread", i)
        pool.free -= count - held
    pool.note(warp, count)
    waiters, pool.waiters = pool.waiters, []
    for fragment in waiters:
        machine.progress += 1
        machine.resume(fragment)
    return None
