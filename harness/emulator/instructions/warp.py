"""What the lanes of a warp do together: shfl, vote, redux, elect, activemask, bar.warp.sync.

PTX ISA 9.7.9.6 and 9.7.13.
"""

from __future__ import annotations

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.instructions.table import Effect, Translator, Unsupported, instruction, only
from harness.emulator.machine.divergence import complete_meeting
from harness.emulator.machine.events import Site, WarpSynced
from harness.emulator.machine.lanes import WARP_SIZE, Value, lane_value, mask_of
from harness.emulator.machine.state import Fragment
from harness.emulator.ptx.ast import Dual, Instruction, Register

_ONE_HOT = [np.arange(WARP_SIZE) == lane for lane in range(WARP_SIZE)]


def check_members(f: Fragment, site: Site, mask: Value) -> int:
    """The member mask of a ``.sync`` instruction: all its living lanes must execute it together."""
    members = f.uniform(mask, "the member mask")
    what = f"{site.opcode}.{site.modifiers[0]}" if site.modifiers else site.opcode
    if f.mask & ~members:
        raise Fault(
            f"{what} is executed by lanes 0x{f.mask:08x}, which are not all in its member mask 0x{members:08x}",
            "convergence",
        )
    absent = members & f.warp.alive & ~f.mask
    if absent:
        raise Fault(
            f"{what} names lanes 0x{members:08x}, but lanes 0x{absent:08x} are not converged with the others",
            "convergence",
        )
    if f.grid.sink is not None:
        f.grid.sink(WarpSynced(f.agent, site, members))
    return members


def shuffle(
    f: Fragment, site: Site, mode: str, value: Value, b: Value, c: Value, mask: Value, defined: int
) -> tuple[Value, Value, int]:
    """``shfl.sync``: (value, in-range predicate) per lane, and the lanes whose value is defined."""
    check_members(f, site, mask)
    if value is None:
        raise Fault("shuffles a register in which a wgmma accumulates that was not waited for", "wgmma")
    bound = f.uniform(c, "the bounds of shfl")
    if mode == "idx" and isinstance(b, int) and bound == 31:
        source = b & 31
        _check_source(f, f.lanes[0], source)
        return lane_value(value, source), True, -1 if defined >> source & 1 else 0
    lanes = np.arange(WARP_SIZE)
    clamp, segment = bound & 31, bound >> 8 & 31
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
    chosen = np.where(inside, wanted, lanes) & 31
    for lane in f.lanes:
        _check_source(f, lane, int(chosen[lane]))
    full = np.broadcast_to(np.asarray(value, np.uint32), WARP_SIZE)[chosen]
    got = -1 if not f.mask & ~defined else sum(1 << lane for lane in f.lanes if defined >> int(chosen[lane]) & 1)
    if f.single >= 0:
        return int(full[f.single]), bool(inside[f.single]), got
    return full, inside, got


def _check_source(f: Fragment, lane: int, source: int) -> None:
    if not f.mask >> source & 1:
        raise Fault(f"lane {lane} reads lane {source} by shfl.sync, which does not take part", "convergence")


def shuffle_value(
    f: Fragment, site: Site, mode: str, value: Value, b: Value, c: Value, mask: Value, defined: int
) -> tuple[Value, int]:
    """The same where nobody asks for the predicate."""
    found, _, got = shuffle(f, site, mode, value, b, c, mask, defined)
    return found, got


@instruction("shfl", operands=5)
def _shfl(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "idx", "up", "down", "bfly", "b32")
    if len(i.modifiers) != 3 or i.modifiers[0] != "sync":
        raise Unsupported
    arguments = [repr(i.modifiers[1]), *(w.read(o, "b32") for o in i.operands[1:])]
    destination, value = i.operands[:2]
    if not isinstance(value, Register):
        raise Unsupported
    if isinstance(destination, Dual):
        return Effect(shuffle, arguments, (destination.first, destination.second), partial=value)
    return Effect(shuffle_value, arguments, (destination,), partial=value)


def vote(f: Fragment, site: Site, mode: str, predicate: Value, mask: Value) -> Value:
    """``vote.sync``: all, any, uni or ballot over the member lanes."""
    check_members(f, site, mask)
    ballot = mask_of(predicate) & f.mask
    if mode == "ballot":
        return ballot
    every = ballot == f.mask
    return {"all": every, "any": ballot != 0, "uni": every or ballot == 0}[mode]


@instruction("vote.sync", operands=3)
def _vote(i: Instruction, w: Translator) -> Effect:
    only(i, "all", "any", "uni", "ballot")
    predicate, mask = w.read(i.operands[1], "pred"), w.read(i.operands[2], "b32")
    return Effect(vote, [repr(i.modifiers[1]), predicate, mask], i.operands[:1])


def reduce(f: Fragment, site: Site, operation: str, is_signed: bool, value: Value, mask: Value) -> int:
    """``redux.sync`` on 32-bit integers."""
    check_members(f, site, mask)
    values = [lane_value(value, lane) for lane in f.lanes]
    if is_signed and operation in ("min", "max"):
        values = [v - (1 << 32) if v >> 31 else v for v in values]
    result = values[0]
    for v in values[1:]:
        result = {"add": result + v, "min": min(result, v), "max": max(result, v), "and": result & v,
                  "or": result | v, "xor": result ^ v}[operation]  # fmt: skip
    return result & 0xFFFFFFFF


@instruction("redux.sync", operands=3)
def _redux(i: Instruction, w: Translator) -> Effect:
    only(i, "add", "min", "max", "and", "or", "xor")
    if i.modifiers[-1] not in ("s32", "u32", "b32"):
        raise Unsupported
    value, mask = w.read(i.operands[1], "b32"), w.read(i.operands[2], "b32")
    return Effect(reduce, [repr(i.modifiers[1]), str(i.modifiers[-1] == "s32"), value, mask], i.operands[:1])


def active_mask(f: Fragment, site: Site) -> int:
    return f.mask


@instruction("activemask", operands=1)
def _activemask(i: Instruction, w: Translator) -> Effect:
    return Effect(active_mask, [], i.operands[:1])


def elect(f: Fragment, site: Site, mask: Value) -> tuple[int, Value]:
    """``elect.sync``: the lowest lane of the mask. Returns (its lane, the predicate)."""
    members = check_members(f, site, mask) & f.mask
    leader = (members & -members).bit_length() - 1
    return leader, True if f.single >= 0 else _ONE_HOT[leader]


@instruction("elect.sync", operands=2, family="barrier")
def _elect(i: Instruction, w: Translator) -> Effect:
    destination = i.operands[0]
    if not isinstance(destination, Dual) or len(i.modifiers) != 1:
        raise Unsupported
    return Effect(elect, [w.read(i.operands[1], "b32")], (destination.first, destination.second))


def warp_sync(f: Fragment, site: Site, mask: Value) -> object:
    """``bar.warp.sync``: the living lanes of the mask meet, wherever in the program each of them is."""
    members = f.uniform(mask, "the member mask")
    if f.mask & ~members:
        raise Fault(
            f"bar.warp.sync is executed by lanes 0x{f.mask:08x}, not all in its member mask 0x{members:08x}",
            "convergence",
        )
    if f.tokens.pop(f.warp, None) is not None:
        return None
    if members & f.warp.alive & ~f.mask:
        f.tokens[f.warp] = members
        f.warp.meetings.setdefault(members, []).append(f)
        suspended = f.grid.wakeups.suspend(f, f"bar.warp.sync of {f.warp}", f"waits for lanes 0x{members:08x}", site)
        complete_meeting(f.warp, members)
        return suspended
    if f.grid.sink is not None:
        f.grid.sink(WarpSynced(f.agent, site, members))
    return None


@instruction("bar.warp", operands=1, writes=0, blocks=True, family="barrier")
def _warp_sync(i: Instruction, w: Translator) -> Effect:
    only(i, "sync")
    return Effect(warp_sync, [w.read(i.operands[0], "b32")])
