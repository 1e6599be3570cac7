"""A warp splits into fragments where its lanes diverge, and the fragments merge again where they reconverge.

Fragments that split at a branch meet again at the branch's immediate post-dominator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.machine import events, poison
from emugpu.emulator.machine.barriers import CountingBarrier
from emugpu.emulator.machine.code import EXIT, SPLIT, Code
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import WARP_SIZE, Value, mask_of
from emugpu.emulator.machine.poison import Poison
from emugpu.emulator.machine.slots import ALL, slots_of
from emugpu.emulator.machine.state import Fragment, JoinPoint, Warp


def diverge(f: Fragment, predicate: Value, taken: int, fallthrough: int, join: int) -> int:
    """Returns the next block if all lanes agree. Otherwise splits the fragment in two and returns SPLIT."""
    yes = mask_of(predicate) & f.mask
    if yes == f.mask:
        return taken
    if not yes:
        return fallthrough
    split(f, [(yes, taken), (f.mask & ~yes, fallthrough)], join)
    return SPLIT


def diverge_many(f: Fragment, selector: Value, targets: Sequence[int], join: int) -> int:
    """Executes ``brx.idx``: each lane picks a target by its index. Returns the next block, or SPLIT."""
    groups: dict[int, int] = {}
    for lane in f.lanes:
        index = selector if isinstance(selector, int) else int(selector[lane])
        if index >= len(targets):
            raise Fault(f"brx.idx index {index} is outside its table of {len(targets)} targets")
        groups[targets[index]] = groups.get(targets[index], 0) | 1 << lane
    if len(groups) == 1:
        return next(iter(groups))
    split(f, [(mask, target) for target, mask in groups.items()], join)
    return SPLIT


def split(f: Fragment, parts: Sequence[tuple[int, int]], join: int) -> None:
    """Replaces a fragment by one for each (mask, block); they meet again at block ``join``."""
    registers = f.current(ALL)
    joins = f.joins if join == EXIT else [*f.joins, JoinPoint(join, f.mask, registers, f.native, f.unpassed)]
    children = []
    for mask, block in parts:
        child = Fragment(f.warp, mask, list(registers), block, joins)
        child.unpassed = 0
        if child.single >= 0 and block != EXIT:
            child.outdated, child.fetch = f.grid.code.live_in[block], _fetch_lane
        child.tokens = dict(f.tokens)
        child.observed = dict(f.observed)
        child.pending_loads = list(f.pending_loads)
        child.pending_stores = list(f.pending_stores)
        children.append(child)
    f.warp.fragments.remove(f)
    f.warp.fragments.extend(children)
    if f.grid.sink is not None:
        f.grid.sink(events.Diverged(f.agent, tuple(child.agent for child in children)))
    for child in children:
        f.grid.wakeups.start(child)


def _fetch_lane(f: Fragment, wanted: int) -> None:
    """Takes the only lane of a fragment from registers that it still has as they were before it split off."""
    for slot in slots_of(f.outdated & wanted & ~f.unpassed):
        value = f.registers[slot]
        if isinstance(value, np.ndarray):
            f.registers[slot] = value.item(f.single)
        elif isinstance(value, Poison):
            f.registers[slot] = value.of_lane(f.single)
    f.outdated &= ~wanted


def restrict(f: Fragment, guard: Value) -> Fragment | None:
    """Returns the lanes for which a guard holds, or None if there are none. They share the fragment's registers."""
    if guard is True:
        return f
    if guard is False:
        return None
    mask = mask_of(guard) & f.mask
    if mask in (0, f.mask):
        return f if mask else None
    return part(f, mask)


def part(f: Fragment, mask: int) -> Fragment:
    """Returns some of a fragment's lanes for one instruction, with the same registers and barrier tokens.

    State that such an instruction cannot use is left out, because using it takes the whole warp or a block of its own.
    """
    some = Fragment(f.warp, mask, f.registers, f.block, f.joins)
    some.tokens = f.tokens
    return some


def arrive_at_join(f: Fragment) -> None:
    """Records that a fragment has reached the block where it meets its siblings again."""
    f.joins[-1].arrived.append(f)
    _complete_join(f.joins[-1])


def leave(f: Fragment) -> None:
    """Removes lanes that exit the kernel. Siblings at join points no longer wait for them."""
    warp = f.warp
    warp.fragments.remove(f)
    warp.alive &= ~f.mask
    for join in reversed(f.joins):
        join.mask &= ~f.mask
        _complete_join(join)
    for meeting in list(warp.meetings):
        complete_meeting(warp, meeting)


def complete_meeting(warp: Warp, meeting: tuple[str, int]) -> None:
    """Resumes the fragments in a ``.sync`` instruction if all living lanes of its mask have arrived.

    Each fragment then finds the list of all participants in its token for the warp.
    """
    met, members, sink = warp.meetings[meeting], meeting[1], warp.cta.grid.sink
    absent = members & warp.alive
    for fragment, _ in met:
        absent &= ~fragment.mask
    for fragment, _ in met:
        assert fragment.waiting is not None
        if absent:
            fragment.waiting.what = f"waits for lanes 0x{absent:08x}"
            continue
        fragment.tokens[warp] = met
        if sink is not None:
            sink(events.WarpSynced(fragment.agent, fragment.waiting.site, members))
    if not absent:
        del warp.meetings[meeting]
        warp.cta.grid.wakeups.resume_all(fragment for fragment, _ in met)


def gather(f: Fragment, site: Site) -> object:
    """Handles an ``.aligned`` barrier, which all living lanes of the warp must execute together.

    Suspends the fragment while the missing lanes may still exit: a barrier does not wait for threads that have exited
    (CUDA C++ Programming Guide, Synchronization Functions). Raises Fault if they wait elsewhere.
    """
    if f.mask == f.warp.alive:
        return None
    for other in list(f.warp.fragments):
        if other.joins and other in other.joins[-1].arrived and _only_exits(f.grid.code, other.joins[-1].block):
            go_on_alone(other.joins[-1])
    if not any(_may_exit(other) for other in f.warp.fragments if other is not f):
        f.require_whole_warp()
    f.warp.gathering.append(f)
    what = f"waits for lanes 0x{f.warp.alive & ~f.mask:08x}, which have not exited"
    return f.grid.wakeups.suspend(f, f"the lanes of {f.warp}", what, site)


def wait_for_warp(f: Fragment, site: Site) -> object:
    """Suspends a fragment that has arrived at a barrier for some threads before other lanes of its warp.

    It waits for them (PTX ISA 9.7.13.1), which shows at the next instruction by which threads wait for one another.
    They need not re-join it to go on.
    """
    warp = f.warp
    for barrier in warp.arriving:
        if barrier.awaits(warp.index, f.mask):
            for other in list(warp.fragments):
                if other.joins and other in other.joins[-1].arrived:
                    go_on_alone(other.joins[-1])
            barrier.ahead.setdefault(warp.index, []).append(f)
            return f.grid.wakeups.suspend(f, barrier, "waits for the other lanes of its warp", site)
    return None


def _only_exits(code: Code, block: int) -> bool:
    site = code.sites[code.last[block]]
    return code.first[block] == code.last[block] and site.opcode in ("ret", "exit") and not site.text.startswith("@")


def _may_exit(f: Fragment) -> bool:
    """Returns whether a fragment runs, or waits for what does not need all lanes of its warp."""
    if f.waiting is None:
        return not any(f in join.arrived for join in f.joins)
    on = f.waiting.on
    if isinstance(on, CountingBarrier):
        return not on.everybody and f.warp.index not in on.gathering
    meets = any(fragment is f for met in f.warp.meetings.values() for fragment, _ in met)
    return not meets and f not in f.warp.gathering


def go_on_alone(join: JoinPoint) -> bool:
    """Lets lanes that have arrived go on; the others will pass the join point alone. Returns whether any had arrived.

    Threads of a warp make progress independently of one another (PTX ISA 3.1, on sm_70 and later). Waiting for one
    another at the end of a branch is only an optimisation.
    """
    arrived = 0
    for fragment in join.arrived:
        arrived |= fragment.mask
    if not arrived:
        return False
    rest = join.mask & ~arrived
    join.mask = arrived
    _complete_join(join)
    join.mask = rest
    return True


def _complete_join(join: JoinPoint) -> None:
    """Merges the arrived fragments once they include every lane that is still alive."""
    arrived = 0
    for fragment in join.arrived:
        arrived |= fragment.mask
    if not join.arrived or arrived != join.mask:
        return
    parts, join.arrived = join.arrived, []
    if len(parts) == 1:
        merged = parts[0]
        if merged.native is None:
            # It may also have been written between an outer split and this one.
            merged.current(ALL)
            merged.unpassed = ALL
    else:
        merged = _merge(parts, join)
    merged.joins = merged.joins[:-1]
    merged.join_block = merged.joins[-1].block if merged.joins else None
    merged.block = join.block
    merged.grid.wakeups.start(merged)


def _merge(parts: list[Fragment], join: JoinPoint) -> Fragment:
    first = parts[0]
    code: Code = first.grid.code
    written = ALL if all(fragment.single >= 0 for fragment in parts) else 0
    for fragment in parts:
        written |= ALL if fragment.native is not None else fragment.unpassed
    written &= code.live_in[join.block]
    registers, second, unpassed = list(join.before), parts[1].registers, join.unpassed
    for fragment in parts:
        fragment.current(written)
    for slot in slots_of(written):
        value, before = first.registers[slot], join.before[slot]
        if value is not second[slot] or len(parts) > 2:
            if isinstance(before, np.ndarray) and _is_unchanged(parts, slot, before):
                value = before
            else:
                value = merge_values([(p, p.registers[slot]) for p in parts], code.dtypes[slot])
        if value is not before:
            registers[slot] = value
            unpassed |= 1 << slot
    merged = Fragment(first.warp, join.mask, registers, join.block, first.joins)
    merged.native, merged.unpassed = join.native, unpassed
    join.native, join.unpassed = None, ALL
    for fragment in parts:
        merged.tokens.update(fragment.tokens)
        for barrier, phase in fragment.observed.items():
            merged.observed[barrier] = max(phase, merged.observed.get(barrier, phase))
        if fragment.pending_loads:
            merged.pending_loads.extend(p for p in fragment.pending_loads if p not in merged.pending_loads)
        if fragment.pending_stores:
            merged.pending_stores.extend(p for p in fragment.pending_stores if p not in merged.pending_stores)
        first.warp.fragments.remove(fragment)
    first.warp.fragments.append(merged)
    if first.grid.sink is not None:
        first.grid.sink(events.Rejoined(tuple(fragment.agent for fragment in parts), merged.agent))
    return merged


def _is_unchanged(parts: list[Fragment], slot: int, before: np.ndarray) -> bool:
    """Returns whether a register has the values of before the split in all fragments. If these are one and the same
    scalar, it is not, because `merge_values` then returns the scalar, as the native engine does.
    """
    values = [f.registers[slot] for f in parts]
    if all(isinstance(value, int) and value == values[0] for value in values):
        return False
    for f, value in zip(parts, values, strict=True):
        if value is not before and (f.single < 0 or type(value) is Poison or value != before.item(f.single)):
            return False
    return True


def merge_values(parts: list[tuple[Fragment, Value]], dtype: type) -> Value:
    """Merges the values of several fragments into one, each in its own lanes."""
    first = parts[0][1]
    if all(value is first for _, value in parts):
        return first
    if all(isinstance(value, int) and value == first for _, value in parts):
        return first
    if any(type(value) is Poison for _, value in parts):
        return poison.merged(parts, dtype)
    merged: np.ndarray = np.zeros(WARP_SIZE, dtype)
    for fragment, value in parts:
        if value is not None:
            merged[fragment.lane_index] = value[fragment.lane_index] if isinstance(value, np.ndarray) else value
    return merged
