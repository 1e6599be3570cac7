"""Fences, hints and discard (PTX ISA 9.7.13.4, 9.7.9.15, 9.7.10, 9.7.19).

Execution is sequentially consistent here, so a fence is only reported to the sink. A hint has no effect at all.
"""

from __future__ import annotations

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import every_lane
from emugpu.emulator.instructions.table import (
    NOTHING,
    Assign,
    Effect,
    Translator,
    instruction,
    micro,
    only_form,
)
from emugpu.emulator.machine.events import Access, Fenced, GridDependency, Site
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.ptx.ast import Instruction


def fence(f: Fragment, site: Site) -> None:
    if f.grid.sink is not None:
        f.grid.sink(Fenced(f.agent, site))


def acquire_tensor_map(f: Fragment, site: Site, address: Value) -> None:
    if f.grid.sink is not None:
        f.grid.sink(Fenced(f.agent, site, address if isinstance(address, int) else address[f.lane_index]))


_SCOPES = ("cta", "cluster", "gpu", "sys")
_FENCES = (
    *(f"{order}.{scope}" for order in ("sc", "acq_rel", "acquire", "release") for scope in _SCOPES),
    *_SCOPES,
    "mbarrier_init.release.cluster",
    "acquire.sync_restrict::shared::cluster.cluster",
    "release.sync_restrict::shared::cta.cluster",
    "proxy.alias",
    "proxy.alias.acquire.sys",
    "proxy.alias.release.sys",
    *(f"proxy.async{space}" for space in ("", ".global", ".shared::cta", ".shared::cluster")),
    "proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
    "proxy.async::generic.release.sync_restrict::shared::cta.cluster",
    *(f"proxy.tensormap::generic.release.{scope}" for scope in _SCOPES),
)
_ACQUIRING = tuple(f"proxy.tensormap::generic.acquire.{scope}" for scope in _SCOPES)


@instruction("fence", operands=range(3), writes=0, family="fence")
def _fence(i: Instruction, w: Translator) -> Effect:
    only_form(i, *{0: _FENCES, 2: _ACQUIRING}.get(len(i.operands), ()))
    if i.operands:
        return Effect(acquire_tensor_map, [w.pointer(i.operands[0])])
    return Effect(fence, micro=(NOTHING,))


@instruction("membar", operands=0, writes=0, family="fence")
def _membar(i: Instruction, w: Translator) -> Effect:
    only_form(i, "cta", "gl", "sys", "proxy.alias")
    return Effect(fence, micro=(NOTHING,))


_PREFETCHES = (
    *(f"{space}{level}" for space in ("", "global.", "local.") for level in ("L1", "L2")),
    "global.L2::evict_last",
    "global.L2::evict_normal",
    *(f"{space}tensormap" for space in ("", "param.", "const.")),
)


@instruction("prefetch", operands=1, writes=0, family="other")
def _prefetch(i: Instruction, w: Translator) -> None:
    only_form(i, *_PREFETCHES)


@instruction("prefetchu", operands=1, writes=0, family="other")
def _prefetchu(i: Instruction, w: Translator) -> None:
    only_form(i, "L1")


@instruction("applypriority", operands=2, writes=0, family="other")
def _cache_hint(i: Instruction, w: Translator) -> None:
    only_form(i, "global.L2::evict_normal", "L2::evict_normal")


LINE = 128
"""Bytes of a line of the L2 cache, which is all that ``discard`` takes."""


def discard(f: Fragment, site: Site, address: Value, nbytes: Value) -> None:
    """Executes ``discard``, a weak write of bytes that nobody knows (PTX ISA 9.7.10, discard)."""
    where = every_lane(f, address)
    what = f"{site.place} in CTA {f.cta.index}, warp {f.warp.index}", "discards it"
    for position, place in enumerate(where.tolist()):
        if nbytes != LINE or place % LINE:
            message = f"discards {nbytes} bytes at {place:#x}; it must be {LINE} at a multiple of {LINE}"
            raise Fault(message, "alignment", position=position)
        f.grid.memory.find(place, LINE)
        f.grid.memory.undefine(place + np.arange(LINE), what)
    f.grid.wakeups.changes += 1
    if f.grid.sink is not None:
        words = LINE // 8
        f.grid.sink(Access(f.agent, site, "write", "global", -1, where, 8, words, (0,) * words))


@instruction("discard", operands=2, writes=0, family="other")
def _discard(i: Instruction, w: Translator) -> Effect:
    only_form(i, "global.L2", "L2")
    return Effect(discard, [w.pointer(i.operands[0]), w.read(i.operands[1], "u32")])


_POLICY = 0x12F0_0000_0000_0000
"""The result of createpolicy, which is opaque and has no effect."""
_EVICTIONS = tuple(f"L2::evict_{name}" for name in ("last", "normal", "first", "unchanged"))


@instruction("createpolicy", operands=range(1, 5))
def _createpolicy(i: Instruction, w: Translator) -> Assign:
    pairs = ("", ".L2::evict_first", ".L2::evict_unchanged")
    only_form(
        i,
        "cvt.L2.b64",
        *(
            f"{m}.{first}{second}.b64"
            for m in ("fractional", "range", "range.global")
            for first in _EVICTIONS
            for second in pairs
        ),
    )
    return Assign(micro("mov.64", i.operands[0], "b64", _POLICY))


@instruction("griddepcontrol", operands=0, writes=0, family="barrier")
def _dependent_launch(i: Instruction, w: Translator) -> Effect:
    """Emits an event alone: launches here run one after the other."""
    only_form(i, "wait", "launch_dependents")
    return Effect(depend, micro=(NOTHING,))


def depend(f: Fragment, site: Site) -> None:
    """Executes ``griddepcontrol``."""
    if f.grid.sink is not None:
        f.grid.sink(GridDependency(f.agent, site))


def sleep(f: Fragment, site: Site, nanoseconds: Value) -> None:
    """Executes ``nanosleep``, which advances the clock."""
    longest = nanoseconds if isinstance(nanoseconds, int) else int(nanoseconds[f.lane_index].max())
    f.grid.clock += min(longest, 1_000_000)


@instruction("nanosleep", operands=1, writes=0, family="other")
def _nanosleep(i: Instruction, w: Translator) -> Effect:
    only_form(i, "u32")
    return Effect(sleep, [w.read(i.operands[0], "u32")])
