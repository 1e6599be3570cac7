"""Instructions that the lanes of a warp execute together: shfl, vote, redux, match, elect, activemask, bar.warp.sync.

PTX ISA 9.7.9.6 and 9.7.13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.floats import extremum
from emugpu.emulator.instructions.table import (
    Effect,
    Micro,
    Temporary,
    Translator,
    Unsupported,
    instruction,
    micro,
    micro_of,
    only,
    only_form,
)
from emugpu.emulator.machine.divergence import complete_meeting, merge_values, part, wait_for_warp
from emugpu.emulator.machine.events import Site, WarpSynced
from emugpu.emulator.machine.lanes import WARP_SIZE, Value, lane_value, mask_of
from emugpu.emulator.machine.poison import Poison, made
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.ptx.ast import Dual, Instruction, Operand, Sink

_ONE_HOT = [np.arange(WARP_SIZE) == lane for lane in range(WARP_SIZE)]


def _groups(f: Fragment, mask: Value) -> list[Fragment]:
    """Returns the parts of a fragment that name the same members. Tiles of a warp are separate groups."""
    if isinstance(mask, int):
        return [f]
    named: dict[int, int] = {}
    for lane in f.lanes:
        members = int(mask[lane])
        named[members] = named.get(members, 0) | 1 << lane
    return [f] if len(named) == 1 else [part(f, lanes) for lanes in named.values()]


def together(run: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a ``.sync`` instruction: the living lanes of its member mask meet, wherever in the program each one is.

    run: executes the instruction for lanes that have met, with all operands but the member mask. It returns a value or
    a tuple of values. Groups of lanes with different member masks execute it separately. If lanes are missing, the
    wrapper suspends the fragment; when all have come, the fragment's token is the list of participants with their
    operands.
    """

    @wraps(run)
    def each(f: Fragment, site: Site, *arguments: Any) -> Any:
        if (met := f.tokens.pop(f.warp, None)) is not None:
            everybody = part(f, sum(other.mask for other, _ in met))
            passed = [_joined([(other, its[n]) for other, its in met], np.uint64) for n in range(len(arguments) - 1)]
            return _of_each(lambda value: _own(f, value), run(everybody, *passed))
        if f.warp.arriving and (suspended := wait_for_warp(f, site)) is not None:
            return suspended
        groups = _groups(f, arguments[-1])
        members = [_members(group, site, arguments[-1]) for group in groups]
        if len(groups) == 1 and members[0] & f.warp.alive & ~f.mask:
            suspended = f.grid.wakeups.suspend(f, f"{_name(site)} of {f.warp}", "", site)
            meeting = (_name(site), members[0])
            f.warp.meetings.setdefault(meeting, []).append((f, arguments))
            complete_meeting(f.warp, meeting)
            return suspended
        for group, named in zip(groups, members, strict=True):
            _check_all_here(group, site, named)
        found = [run(group, *arguments[:-1]) for group in groups]
        if len(groups) == 1:
            return found[0]
        return _of_each(lambda *values: _joined(list(zip(groups, values, strict=True)), np.uint32), *found)

    return each


def _of_each(function: Callable[..., Value], *results: Any) -> Any:
    """Applies a function to the value that instructions have returned, or to each value of a tuple."""
    return tuple(map(function, *results)) if isinstance(results[0], tuple) else function(*results)


def _name(site: Site) -> str:
    return ".".join((site.opcode, *site.modifiers))


def _members(f: Fragment, site: Site, mask: Value) -> int:
    """Returns the member mask of a ``.sync`` instruction, which must name all lanes that execute it."""
    members = f.uniform(mask, "the member mask")
    if f.mask & ~members:
        raise Fault(
            f"{_name(site)} is executed by lanes 0x{f.mask:08x}, which are not all in its member mask 0x{members:08x}",
            "convergence",
        )
    return members


def _check_all_here(f: Fragment, site: Site, members: int) -> None:
    absent = members & f.warp.alive & ~f.mask
    if absent:
        raise Fault(
            f"{_name(site)} of lanes 0x{f.mask:08x} would wait until lanes 0x{absent:08x} execute it with member mask "
            f"0x{members:08x}; that is not implemented where lanes that are together name different members",
            "unsupported",
        )
    if f.grid.sink is not None:
        f.grid.sink(WarpSynced(f.agent, site, members))


def _joined(found: list[tuple[Fragment, Any]], dtype: type) -> Any:
    """Merges the values of several fragments, each in its own lanes. dtype: for values that are no predicates."""
    first = found[0][1]
    if isinstance(first, str):
        return first  # the mode of an instruction
    if any(value is None for _, value in found):
        return None
    is_predicate = isinstance(first, bool) or getattr(first, "dtype", None) == np.bool_
    return merge_values(found, np.bool_ if is_predicate else dtype)


def _own(f: Fragment, value: Any) -> Any:
    """Returns a fragment's part of a value of more lanes."""
    if f.single < 0 or not isinstance(value, np.ndarray | Poison):
        return value
    return value.of_lane(f.single) if isinstance(value, Poison) else value.item(f.single)


@together
def shuffle(f: Fragment, mode: str, value: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """Executes ``shfl.sync``: returns (value, in-range predicate) for each lane.

    What a lane reads from one that does not take part is undefined; reductions of part of a warp do that, and do not
    use what they get.
    """
    if value is None:
        raise Fault("shuffles a register in which a wgmma accumulates that was not waited for", "wgmma")
    is_broadcast = mode == "idx" and isinstance(b, int) and isinstance(c, int) and c & 0x1F1F == 31
    if is_broadcast and f.mask >> (b & 31) & 1 and not isinstance(value, Poison):
        return lane_value(value, b & 31), True
    chosen, inside = _sources(mode, b, c)
    absent = [lane for lane in f.lanes if not f.mask >> int(chosen[lane]) & 1]
    held = value.value if isinstance(value, Poison) else value
    moved = held[chosen] if isinstance(held, np.ndarray) else held
    if absent or isinstance(value, Poison):
        undefined = value.undefined[chosen] if isinstance(value, Poison) else np.zeros(WARP_SIZE, np.uint32)
        origin, rule = (value.origin, value.rule) if isinstance(value, Poison) else ("", "")
        if absent:
            undefined[absent] = 0xFFFFFFFF
            lane = absent[0]
            origin = f"what lane {lane} reads by shfl.sync from lane {chosen[lane]}, which does not execute it,"
            rule = "convergence"
        moved = made(np.broadcast_to(np.asarray(moved, np.uint32), WARP_SIZE), undefined, origin, rule)
    if f.single >= 0:
        return _own(f, moved), bool(inside[f.single])
    return moved, inside


def _sources(mode: str, b: Value, c: Value) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lane from which each lane reads, and whether that is in range (PTX ISA 9.7.9.6)."""
    lanes = np.arange(WARP_SIZE)
    bound = np.broadcast_to(np.asarray(c, np.int64), WARP_SIZE)
    clamp, segment = bound & 31, bound >> 8 & 31  # of each lane
    highest = (lanes & segment) | (clamp & ~segment & 31)
    lowest = lanes & segment
    by = np.broadcast_to(np.asarray(b, np.int64), WARP_SIZE) & 31
    wanted: np.ndarray = {
        "idx": lowest | (by & ~segment & 31),
        "up": lanes - by,
        "down": lanes + by,
        "bfly": lanes ^ by,
    }[mode]
    inside = wanted >= highest if mode == "up" else wanted <= highest
    return np.where(inside, wanted, lanes) & 31, inside


@instruction("shfl", operands=5, blocks=True)
def _shfl(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "idx", "up", "down", "bfly", "b32")
    if len(i.modifiers) != 3 or i.modifiers[0] != "sync":
        raise Unsupported
    arguments = [repr(i.modifiers[1]), *(w.read(operand, "b32") for operand in i.operands[1:])]
    results = _both(i.operands[0])
    native = micro(f"shfl.{i.modifiers[1]}", results[0], "b32", *i.operands[1:])
    return Effect(shuffle, arguments, results, micro=(native,))


def _both(destination: Operand) -> tuple[Operand, Operand]:
    """Returns the destinations of a value and of a predicate; the second may be unused."""
    return (destination.first, destination.second) if isinstance(destination, Dual) else (destination, Sink())


@together
def vote(f: Fragment, mode: str, predicate: Value) -> Value:
    """Executes ``vote.sync``: all, any, uni or ballot over the member lanes."""
    ballot = mask_of(predicate) & f.mask
    if mode == "ballot":
        return ballot
    every = ballot == f.mask
    return {"all": every, "any": ballot != 0, "uni": every or ballot == 0}[mode]


@instruction("vote.sync", operands=3, blocks=True)
def _vote(i: Instruction, w: Translator) -> Effect:
    only(i, "all", "any", "uni", "ballot")
    predicate, mask = w.read(i.operands[1], "pred"), w.read(i.operands[2], "b32")
    native = Micro(f"vote.{i.modifiers[1]}", i.operands[0], ((i.operands[1], "pred"), (i.operands[2], "b32")))
    return Effect(vote, [repr(i.modifiers[1]), predicate, mask], i.operands[:1], micro=(native,))


@together
def reduce(f: Fragment, operation: str, is_signed: bool, value: Value) -> int:
    """Executes ``redux.sync`` on 32-bit integers."""
    values = [lane_value(value, lane) for lane in f.lanes]
    if is_signed and operation in ("min", "max"):
        values = [v - (1 << 32) if v >> 31 else v for v in values]
    result = values[0]
    for v in values[1:]:
        result = {"add": result + v, "min": min(result, v), "max": max(result, v), "and": result & v,
                  "or": result | v, "xor": result ^ v}[operation]  # fmt: skip
    return result & 0xFFFFFFFF


@together
def reduce_floats(f: Fragment, operation: str, magnitudes: bool, nan: bool, value: Value) -> int:
    """Executes ``redux.sync`` on f32: min or max, with the rules of those instructions."""
    result = lane_value(value, f.lanes[0])
    if magnitudes:
        result &= 0x7FFFFFFF
    for lane in f.lanes[1:]:
        other = lane_value(value, lane)
        result = extremum(operation, "f32", False, nan, magnitudes, False, result, other)
    # A single lane: a NaN still becomes the canonical NaN.
    return int(extremum(operation, "f32", False, nan, magnitudes, False, result, result))


def _redux_floats(i: Instruction, w: Translator) -> Effect:
    operation = i.modifiers[1]
    if operation not in ("min", "max"):
        raise Unsupported
    only_form(i, *(f"sync.{operation}{a}{n}.f32" for a in ("", ".abs") for n in ("", ".NaN")))
    value, mask = w.read(i.operands[1], "b32"), w.read(i.operands[2], "b32")
    name = f"redux.{operation}{'.nan' if i.has('NaN') else ''}.f32"
    native = () if i.has("abs") else (micro_of(i, name, "b32"),)
    arguments = [repr(operation), str(i.has("abs")), str(i.has("NaN")), value, mask]
    return Effect(reduce_floats, arguments, i.operands[:1], micro=native)


@instruction("redux.sync", operands=3, blocks=True)
def _redux(i: Instruction, w: Translator) -> Effect:
    if i.modifiers[-1] == "f32":
        return _redux_floats(i, w)
    only(i, "add", "min", "max", "and", "or", "xor")
    if i.modifiers[-1] not in ("s32", "u32", "b32"):
        raise Unsupported
    value, mask = w.read(i.operands[1], "b32"), w.read(i.operands[2], "b32")
    operation, kind = i.modifiers[1], i.modifiers[-1]
    name = f"redux.{operation}" + (f".{kind}" if operation in ("min", "max") else "")
    arguments = [repr(operation), str(kind == "s32"), value, mask]
    native = micro_of(i, name, "b32")
    return Effect(reduce, arguments, i.operands[:1], micro=(native,))


@together
def match_any(f: Fragment, value: Value) -> Value:
    """Executes ``match.any.sync``: returns, for each lane, the mask of lanes that have the same value."""
    same: dict[int, int] = {}
    for lane in f.lanes:
        held = lane_value(value, lane)
        same[held] = same.get(held, 0) | 1 << lane
    if f.single >= 0:
        return 1 << f.single
    found = np.zeros(WARP_SIZE, np.uint32)
    for lane in f.lanes:
        found[lane] = same[lane_value(value, lane)]
    return found


@together
def match_all(f: Fragment, value: Value) -> tuple[int, bool]:
    """Executes ``match.all.sync``: returns (mask, True) if all lanes have the same value, else (0, False).

    The mask does not contain lanes that do not exist.
    """
    alike = len({lane_value(value, lane) for lane in f.lanes}) == 1
    return f.mask if alike else 0, alike


@instruction("match.any", "match.all", operands=3, blocks=True)
def _match(i: Instruction, w: Translator) -> Effect:
    only_form(i, *(f"{m}.sync.{t}" for m in ("any", "all") for t in ("b32", "b64")))
    arguments = [w.read(i.operands[1], i.modifiers[-1]), w.read(i.operands[2], "b32")]
    if i.has("all"):
        return Effect(match_all, arguments, _both(i.operands[0]))
    if isinstance(i.operands[0], Dual):
        raise Unsupported
    return Effect(match_any, arguments, i.operands[:1])


def active_mask(f: Fragment, site: Site) -> int:
    return f.mask


@instruction("activemask", operands=1)
def _activemask(i: Instruction, w: Translator) -> Effect:
    return Effect(active_mask, [], i.operands[:1], micro=(micro("activemask", i.operands[0], "b32", 0),))


@together
def elect(f: Fragment) -> tuple[int, Value]:
    """Executes ``elect.sync``: elects the lowest lane of those that meet. Returns (its lane, the predicate)."""
    return f.lanes[0], True if f.single >= 0 else _ONE_HOT[f.lanes[0]]


@instruction("elect.sync", operands=2, blocks=True, family="barrier")
def _elect(i: Instruction, w: Translator) -> Effect:
    destination = i.operands[0]
    if not isinstance(destination, Dual) or len(i.modifiers) != 1:
        raise Unsupported
    native = micro("elect", destination.second, "b32", i.operands[1])
    return Effect(elect, [w.read(i.operands[1], "b32")], _both(destination), micro=(native,))


@together
def warp_sync(f: Fragment) -> None:
    """Executes ``bar.warp.sync``: the living lanes of the mask meet."""


@instruction("bar.warp", operands=1, writes=0, blocks=True, family="barrier")
def _warp_sync(i: Instruction, w: Translator) -> Effect:
    only(i, "sync")
    meeting = micro("elect", Temporary(), "b32", i.operands[0])
    return Effect(warp_sync, [w.read(i.operands[0], "b32")], micro=(meeting,))
