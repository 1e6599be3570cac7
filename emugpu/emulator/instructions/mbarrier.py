"""mbarrier (PTX ISA 9.7.13.15)."""

from __future__ import annotations

from typing import Any

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import own_offsets
from emugpu.emulator.instructions.table import (
    Assign,
    Effect,
    Temporary,
    Translator,
    Unsupported,
    instruction,
    micro,
    only,
    shared_pointer,
)
from emugpu.emulator.machine.barriers import SUSPENDED, MBarrier
from emugpu.emulator.machine.events import (
    Arrived,
    BarrierInit,
    BarrierInvalidated,
    BytesLanded,
    Missed,
    Operation,
    Polled,
    Site,
    Waited,
)
from emugpu.emulator.machine.lanes import WARP_SIZE, Value, lane_value
from emugpu.emulator.machine.poison import made
from emugpu.emulator.machine.state import Cta, Fragment
from emugpu.emulator.ptx.ast import Dual, Instruction, MemoryOperand

_SPACES = ("shared", "shared::cta", "shared::cluster")
_ORDER = ("release", "relaxed", "acquire", "cta", "cluster", "b64")
_LAYOUTS = ("layout::v0", "layout::v1")
"""An mbarrier of layout v1 also holds a report, which only operations between several GPUs set: here it is zero."""


def _place(f: Fragment, address: int, cluster: bool) -> tuple[Cta, int]:
    if cluster:
        return f.cta.cluster.cta_at(address, "an mbarrier operation")
    return f.cta, own_offsets(f, address)


def reached(
    f: Fragment, site: Site, cta: Cta, offset: int, what: str, operation: Operation | None = None
) -> MBarrier | None:
    """Returns the mbarrier that an arrival reaches. If it comes too late to matter, warns and returns None."""
    if cta.exited:
        if f.grid.sink is not None:
            f.grid.sink(Missed(f.agent, site, cta.rank, offset, operation))
        f.grid.findings.warn("peer-exited", site, f"{what} reaches CTA rank {cta.rank}, which has already exited")
        return None
    if offset in cta.invalidated and offset not in cta.mbarriers:
        f.grid.findings.warn(
            "mbarrier-after-inval", site, f"{what} reaches {cta.invalidated[offset]} after mbarrier.inval"
        )
        return None
    return cta.mbarrier(offset)


def mbarrier_init(f: Fragment, site: Site, address: Value, count: Value, layout: int) -> None:
    for lane in f.lanes:
        offset = own_offsets(f, lane_value(address, lane))
        if offset % 8:
            raise Fault(f"mbarrier address 0x{offset:x} is not a multiple of 8", "alignment", offset)
        wanted = lane_value(count, lane)
        live = f.cta.mbarriers.get(offset)
        if live is not None:
            if live.used or (live.expected, live.layout) != (wanted, layout):
                raise Fault(
                    f"initialises the live {live} again; mbarrier.inval must come first", "mbarrier-init", offset
                )
            f.grid.findings.warn("mbarrier-reinit", site, f"initialises {live} a second time, before any use")
        f.cta.new_mbarrier(offset, wanted, layout)
        if f.grid.sink is not None:
            f.grid.sink(BarrierInit(f.agent, site, f.cta.rank, offset, wanted))


@instruction("mbarrier.init", operands=2, writes=0, family="barrier")
def _init(i: Instruction, w: Translator) -> Effect:
    _check(i, ("shared", "shared::cta"), *_LAYOUTS)
    layout = str(int(i.has("layout::v1")))
    return Effect(mbarrier_init, [shared_pointer(i, w, i.operands[0]), w.read(i.operands[1], "u32"), layout])


def has_layout(f: Fragment, site: Site, address: Value, layout: int) -> Value:
    """Executes ``check_layout``: returns for each lane whether its mbarrier has this layout."""
    result = np.zeros(WARP_SIZE, np.bool_)
    for lane in f.lanes:
        result[lane] = f.cta.mbarrier(own_offsets(f, lane_value(address, lane))).layout == layout
    return bool(result[f.lanes[0]]) if (result[f.lane_index] == result[f.lanes[0]]).all() else result


@instruction("mbarrier.check_layout", operands=2, family="barrier")
def _check_layout(i: Instruction, w: Translator) -> Effect:
    _check(i, ("shared", "shared::cta"), *_LAYOUTS)
    if not any(i.has(layout) for layout in _LAYOUTS):
        raise Unsupported
    return Effect(has_layout, [shared_pointer(i, w, i.operands[1]), str(int(i.has("layout::v1")))], i.operands[:1])


def mbarrier_inval(f: Fragment, site: Site, address: Value) -> None:
    cta = f.cta
    for lane in f.lanes:
        barrier = cta.mbarrier(own_offsets(f, lane_value(address, lane)))
        if barrier.waiters:
            raise Fault(f"invalidates {barrier} while a warp waits on it", "mbarrier-init", barrier.offset)
        del cta.mbarriers[barrier.offset]
        cta.invalidated[barrier.offset] = barrier
        cta.shared.release_mbarrier(barrier.offset)
        if f.grid.sink is not None:
            f.grid.sink(BarrierInvalidated(f.agent, site, cta.rank, barrier.offset))


@instruction("mbarrier.inval", operands=1, writes=0, family="barrier")
def _inval(i: Instruction, w: Translator) -> Effect:
    _check(i, ("shared", "shared::cta"))
    return Effect(mbarrier_inval, [shared_pointer(i, w, i.operands[0])])


_PENDING_SHIFT = 32
_PHASE = (1 << _PENDING_SHIFT) - 1
"""An opaque state holds the phase of the arrival, and above it how many arrivals were pending before."""


def arrive(
    f: Fragment,
    site: Site,
    address: Value,
    count: Value,
    cluster: bool,
    drop: bool,
    expects: bool,
    completes: bool = True,
) -> Value:
    """Executes ``arrive``, ``arrive_drop`` or their ``.expect_tx`` forms for every lane. Returns the opaque state.

    count: a number of arrivals, or of bytes. completes: whether the arrival may end the phase (no ``.noComplete``).
    """
    if isinstance(address, int) and isinstance(count, int) and completes and not expects:
        cta, offset = _place(f, address, cluster)
        barrier = None if cta.exited else cta.mbarriers.get(offset)
        if barrier is not None and 0 < count * len(f.lanes) <= barrier.pending:
            return _arrive_together(f, site, cta, barrier, count, drop)
    phases = []
    for lane in f.lanes:
        cta, offset = _place(f, lane_value(address, lane), cluster)
        barrier = reached(f, site, cta, offset, "an arrival")
        amount = lane_value(count, lane)
        if barrier is None:
            phases.append(0)
            continue
        phase = barrier.phase
        phases.append(phase | barrier.pending << _PENDING_SHIFT)
        if not completes and amount >= barrier.pending and not barrier.bytes:
            raise Fault(f"an arrival with .noComplete ends phase {phase} of {barrier}", "mbarrier-count")
        if f.grid.sink is not None:
            arrivals, nbytes = (1, amount) if expects else (amount, 0)
            f.grid.sink(Arrived(f.agent, site, lane, cta.rank, offset, phase, arrivals, nbytes, drop))
        if expects:
            barrier.expect_bytes_and_arrive(amount, f.warp.name, drop)
        else:
            barrier.arrive(amount, f.warp.name, drop)
        f.grid.counters.mbarrier_arrivals += 1
        f.grid.arrivals_elsewhere += cta is not f.cta
    if phases.count(phases[0]) == len(phases):
        return phases[0]
    states = np.zeros(WARP_SIZE, np.uint64)
    states[f.lane_index] = phases
    return states


def _arrive_together(f: Fragment, site: Site, cta: Cta, barrier: MBarrier, count: int, drop: bool) -> Value:
    """Executes the arrivals of all lanes at one mbarrier, whose phase does not end before the last of them."""
    phase, pending, lanes = barrier.phase, barrier.pending, len(f.lanes)
    if f.grid.sink is not None:
        for lane in f.lanes:
            f.grid.sink(Arrived(f.agent, site, lane, cta.rank, barrier.offset, phase, count, 0, drop))
    barrier.arrive(count * lanes, f.warp.name, drop)
    f.grid.counters.mbarrier_arrivals += lanes
    f.grid.arrivals_elsewhere += lanes * (cta is not f.cta)
    if lanes == 1:
        return phase | pending << _PENDING_SHIFT
    states = np.zeros(WARP_SIZE, np.uint64)
    states[f.lane_index] = phase | (pending - count * np.arange(lanes, dtype=np.uint64)) << np.uint64(_PENDING_SHIFT)
    return states


@instruction("mbarrier.arrive", "mbarrier.arrive_drop", operands=range(1, 4), family="barrier")
def _arrive(i: Instruction, w: Translator) -> Effect:
    _check(i, _SPACES, "expect_tx", "noComplete")
    results = i.operands[: 0 if isinstance(i.operands[0], MemoryOperand) else 1]
    address, *count = i.operands[len(results) :]
    expects = i.has("expect_tx")
    partial = i.has("noComplete")
    if len(count) > 1 or (expects and not count) or (partial and (expects or not count)):
        raise Unsupported
    amount = w.read(count[0], "u32") if count else "1"
    flags = [str(i.has("shared::cluster")), str(i.modifiers[0] == "arrive_drop"), str(expects)]
    if partial:
        flags.append("False")
    return Effect(arrive, [shared_pointer(i, w, address), amount, *flags], results)


@instruction("mbarrier.pending_count", operands=2, family="barrier")
def _pending_count(i: Instruction, w: Translator) -> Assign:
    """Returns the number of arrivals that were pending before the one that returned a state."""
    only(i, "b64", "layout::v0")
    destination, state = i.operands
    count = Temporary(is_wide=True)
    return Assign(micro("shr.64", count, "b64", state, _PENDING_SHIFT), micro("trunc.32", destination, "b64", count))


def count_bytes(f: Fragment, site: Site, address: Value, count: Value, cluster: bool, completes: bool) -> None:
    """Executes ``expect_tx``, or ``complete_tx``, which acts like a copy whose bytes have landed."""
    for lane in f.lanes:
        cta, offset = _place(f, lane_value(address, lane), cluster)
        barrier = cta.mbarrier(offset)
        amount = lane_value(count, lane)
        if f.grid.sink is not None:
            agent = f.agent._replace(lanes=1 << lane)
            f.grid.sink(
                BytesLanded(None, agent, site, cta.rank, offset, barrier.phase, amount)
                if completes
                else Arrived(f.agent, site, lane, cta.rank, offset, barrier.phase, 0, amount, False)
            )
        if completes:
            barrier.complete_bytes(amount)
        else:
            barrier.expect_bytes(amount)


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx", operands=2, writes=0, family="barrier")
def _bytes(i: Instruction, w: Translator) -> Effect:
    _check(i, _SPACES)
    flags = [str(i.has("shared::cluster")), str(i.modifiers[0] == "complete_tx")]
    return Effect(count_bytes, [shared_pointer(i, w, i.operands[0]), w.read(i.operands[1], "u32"), *flags])


def _phase_of(f: Fragment, state: Value) -> Value:
    """Returns the phase in opaque states, as one scalar if it is the same in all lanes."""
    if isinstance(state, int):
        return state & _PHASE
    phases = state & np.uint64(_PHASE)
    first = int(phases[f.lanes[0]])
    return first if (phases[f.lane_index] == first).all() else phases


def wait(f: Fragment, site: Site, address: Value, parity: Value, by_state: bool, poll: bool) -> Value:
    """Executes ``try_wait``, which suspends until a phase has ended, or ``test_wait`` (poll), which only tests.

    Returns whether the phase has ended, for each lane if lanes test different barriers. A fruitless test also suspends
    if nothing has happened since the last one, so that time passes for all others.
    """
    if by_state:
        parity = _phase_of(f, parity)
    if isinstance(address, int) and isinstance(parity, int):
        return _wait_for_one(f, site, f.cta.mbarrier(own_offsets(f, address)), parity, by_state, poll)
    looked = []
    for lane in f.lanes:
        barrier = f.cta.mbarrier(own_offsets(f, lane_value(address, lane)))
        looked.append((lane, barrier, lane_value(parity, lane)))
    passed = [_passed(f, barrier, wanted, by_state) for _, barrier, wanted in looked]
    if not any(passed) and not _gives_up(f, site, poll):
        for _, barrier, _ in looked:
            if f not in barrier.waiters:
                barrier.waiters.append(f)
        f.grid.counters.mbarrier_stalls += 1
        several = f"{'polls' if poll else 'waits'} for one of {len({b for _, b, _ in looked})} mbarriers"
        return f.grid.wakeups.suspend(f, looked[0][1], several, site)
    for (lane, barrier, wanted), over in zip(looked, passed, strict=True):
        _report(f, site, 1 << lane, barrier, wanted, by_state, over)
        if over:
            f.observed[barrier] = barrier.phase - 1
    if all(passed):
        f.grid.counters.mbarrier_waits += 1
        return True
    result = np.zeros(WARP_SIZE, np.bool_)
    result[f.lane_index] = passed
    return result


def _passed(f: Fragment, barrier: MBarrier, wanted: int, by_state: bool) -> bool:
    if barrier.passed(wanted & 1 if by_state else wanted):
        return True
    return f.awaited is not None and f.awaited[0] is barrier and f.awaited[1] < barrier.phase


def _wait_for_one(f: Fragment, site: Site, barrier: MBarrier, wanted: int, by_state: bool, poll: bool) -> Value:
    barrier.used = True
    over = _passed(f, barrier, wanted, by_state)
    if not over and not _gives_up(f, site, poll):
        barrier.waiters.append(f)
        f.grid.counters.mbarrier_stalls += 1
        f.awaited = (barrier, barrier.phase)
        what = f"{'polls' if poll else 'waits'} for {'state' if by_state else 'parity'} {wanted}"
        return f.grid.wakeups.suspend(f, barrier, what, site)
    if f.grid.sink is not None:
        _report(f, site, f.mask, barrier, wanted, by_state, over)
    if over:
        f.awaited = None
        f.observed[barrier] = barrier.phase - 1
        f.grid.counters.mbarrier_waits += 1
    return over


def _gives_up(f: Fragment, site: Site, poll: bool) -> bool:
    """Returns whether the wait ends with false: its time is over, or the schedule lets it fail."""
    if f.timed_out:
        f.timed_out = False
        f.polled = f.grid.wakeups.changes
        return True
    if poll:
        looked_before = f.polled == f.grid.wakeups.changes
        f.polled = f.grid.wakeups.changes
        return not looked_before
    is_first = site.index not in f.grid.tried
    f.grid.tried.add(site.index)
    return f.grid.choices.spurious_failure(is_first)


def _report(f: Fragment, site: Site, lanes: int, barrier: MBarrier, wanted: int, by_state: bool, over: bool) -> None:
    sink = f.grid.sink
    if sink is None:
        return
    if over:
        # Two phases may have ended since. The fragment has learned of the one it waited for.
        ended = barrier.phase - 1 if barrier.passed(wanted & 1) else barrier.phase - 2
        sink(Waited(f.agent, site, lanes, barrier.cta, barrier.offset, ended, -1 if by_state else wanted))
    else:
        sink(Polled(f.agent, site, lanes, barrier.cta, barrier.offset, barrier.phase))


def wait_with_report(f: Fragment, site: Site, values: int, *arguments: Any) -> object:
    """Executes a wait that also returns the report of the phase, as so many values: a predicate, and a byte.

    It is zero, for no operation here makes one, and undefined where the phase is not over (PTX ISA 9.7.15.16.19).
    """
    over = wait(f, site, *arguments)
    if over is SUSPENDED:
        return over
    undefined = ~np.broadcast_to(np.asarray(over, np.bool_), WARP_SIZE)
    origin = f"the report of {site.place}, whose phase is not over"
    zeros = [np.zeros(WARP_SIZE, kind) for kind in (np.bool_, np.uint32)[:values]]
    return (over, *(made(zero, undefined * zero.dtype.type(0xFF), origin) for zero in zeros))


@instruction("mbarrier.try_wait", "mbarrier.test_wait", operands=range(3, 6), writes=2, blocks=True, family="barrier")
def _wait(i: Instruction, w: Translator) -> Effect:
    """Emits a wait. Its primary and its conditional phase are the same here (PTX ISA 9.7.15.16.5)."""
    _check(i, ("shared", "shared::cta"), "parity", "phase_type::primary", "phase_type::conditional")
    by_state = not i.has("parity")
    at = next(n for n, operand in enumerate(i.operands) if isinstance(operand, MemoryOperand))
    over, *value = i.operands[:at]
    if (by_state and i.has("phase_type::conditional")) or len(value) > 1:
        raise Unsupported
    operand = w.read(i.operands[at + 1], "b64")
    arguments = [shared_pointer(i, w, i.operands[at]), operand, str(by_state), str(i.modifiers[0] == "test_wait")]
    if not isinstance(over, Dual):
        if value:
            raise Unsupported
        return Effect(wait, arguments, [over])
    if not i.has("phase_type::primary"):
        raise Unsupported
    return Effect(wait_with_report, [str(1 + len(value)), *arguments], [over.first, over.second, *value])


def _check(i: Instruction, spaces: tuple[str, ...], *more: str) -> None:
    only(i, spaces, _ORDER, more)
    if i.modifiers[-1] != "b64":
        raise Unsupported
