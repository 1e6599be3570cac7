"""Messages: where in the program something happened, and which warp waits for what."""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection, Iterable, Sequence

from emugpu.emulator.errors import Deadlock, Fault
from emugpu.emulator.instructions import values
from emugpu.emulator.machine import poison
from emugpu.emulator.machine.absent import absent, ranges
from emugpu.emulator.machine.barriers import CountingBarrier, MBarrier
from emugpu.emulator.machine.code import Code
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.grid import Clusters
from emugpu.emulator.machine.lanes import FULL_MASK
from emugpu.emulator.machine.poison import Poison
from emugpu.emulator.machine.state import Cluster, Fragment
from emugpu.emulator.names import brief, short_name
from emugpu.emulator.rules import RULES

FEW_CTAS = 8
"""Up to this many CTAs are listed; more are only counted."""
CONTEXT = 2
"""Lines of PTX shown before and after the line of the message."""


def place(code: Code, message: str, rule: str, fragment: Fragment, site: Site, asynchronous: bool = False) -> str:
    """Returns a message with the instruction, the warp that executed it, the fix, and the PTX lines around it."""
    cta, warp = fragment.cta, fragment.warp
    lanes = "" if fragment.mask == FULL_MASK else f", lanes 0x{fragment.mask:08x}"
    when = " (while it completed asynchronously)" if asynchronous else ""
    source = f", {site.source}" if site.source else ""
    return (
        f"kernel '{short_name(code.kernel.name)}', PTX line {site.line}: {site.text}{source}\n"
        f"  by CTA {cta.index} (rank {cta.rank} of its cluster), warp {warp.index}{lanes}{when}:\n"
        f"  {message}\n  {RULES[rule].advice}\n" + _context(code, site)
    )


def _context(code: Code, site: Site) -> str:
    """Returns the lines of PTX around an instruction, with the instruction's own line marked."""
    lines = code.kernel.text
    if not lines:
        return ""
    first = max(0, site.line - 1 - CONTEXT)
    shown = lines[first : site.line + CONTEXT]
    width = len(str(first + len(shown)))
    return "\n".join(
        f"  {'>' if number == site.line else ' '} {number:>{width}} | {brief(text.strip())}"
        for number, text in enumerate(shown, first + 1)
    )


def explain(code: Code, fault: Fault, fragment: Fragment, site: Site, asynchronous: bool = False) -> Fault:
    """Returns the fault with its place, its lane, and the name of the shared memory it concerns."""
    message = str(fault)
    if fault.position is not None and len(fragment.lanes) > fault.position:
        message += f" (lane {fragment.lanes[fault.position]})"
    elif fragment.single >= 0:
        message += f" (lane {fragment.single})"
    if fault.offset is not None:
        region = fragment.grid.region_at(fault.offset)
        if region and region not in message:
            message += f"; that is {region}"
    message = place(code, message, fault.rule, fragment, site, asynchronous)
    return Fault(message, fault.rule, fault.offset, fault.position)


def located(code: Code, error: Exception, fragment: Fragment) -> Exception:
    """Returns an error from a block function with the instruction that raised it.

    If an instruction cannot handle its operands, that is a Fault. Other internal errors are returned unchanged.
    """
    for frame, python_line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename != code.filename:
            continue
        index = code.instruction_at[python_line - 1]
        if index is None:
            break
        site = code.sites[index]
        guarded = frame.f_locals.get("t")
        executing = guarded if code.kernel.instructions[index].guard and guarded is not None else fragment
        undefined = [
            (name, held)
            for slot, name in _registers_of(code, index)
            if isinstance(held := frame.f_locals.get(f"v{slot}"), Poison)
        ]
        if isinstance(error, Fault):
            name, held = next(((n, p) for n, p in undefined if str(error).startswith(f"uses {p.origin}")), ("", None))
            if held is not None and f" {name}," not in held.origin:
                error = Fault(str(error).replace("uses", f"uses register {name}, which comes from", 1), error.rule)
            return explain(code, error, executing, site)
        for slot, name in _registers_of(code, index):
            if frame.f_locals.get(f"v{slot}", 0) is None:
                member = fragment.warp.member
                pending = member is not None and member.pending(slot)
                why = "and no wgmma.wait_group has covered that" if pending else "but none has yet"
                text = f"reads register {name}, which holds nothing yet (a wgmma accumulates in it, {why})"
                return Fault(place(code, text, "wgmma", fragment, site), "wgmma")
        if _raised_by_instruction(error, code):
            text = f"these operands are not implemented ({type(error).__name__}: {error})"
            return Fault(place(code, text, "unsupported", fragment, site), "unsupported")
        break
    return error


def _raised_by_instruction(error: Exception, code: Code) -> bool:
    """Returns whether the error comes from the generated code of an instruction, and not from a sink."""
    if not isinstance(error, ArithmeticError | LookupError | TypeError | ValueError):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_filename in (code.filename, values.__file__, poison.__file__)


def _registers_of(code: Code, index: int) -> Iterable[tuple[int, str]]:
    instruction = code.kernel.instructions[index]
    if instruction.guard is not None:
        yield instruction.guard.slot, instruction.guard.name
    for operand in instruction.operands:
        for register in operand.registers():
            yield register.slot, register.name


# ---- waits ----


def deadlock(code: Code, clusters: Clusters) -> Deadlock:
    """Returns a deadlock with its report: who is missing, equal waits grouped, and the state of every barrier that is
    waited for.
    """
    living = clusters.living
    missing = absent(living)
    numbers = ", ".join(str(cluster.index) for cluster in living[:4]) + (", .." if len(living) > 4 else "")
    which = f"cluster {numbers}" if len(living) == 1 else f"{len(living)} clusters ({numbers})"
    stuck = "no warp can run and nothing asynchronous is in flight"
    first = f"{missing[0].lacks}: {missing[0].who}; " if missing else ""
    head = f"deadlock in kernel '{short_name(code.kernel.name)}', {which}: {first}{stuck}"
    at = {(one.cluster, b.cta, b.offset): one.who for one in missing if isinstance(b := one.barrier, MBarrier)}
    return Deadlock("\n".join([head, *_waits(code, living)]), at)


def _waits(code: Code, clusters: Sequence[Cluster], but: Collection[Fragment] = ()) -> list[str]:
    """Returns the waits of all warps, grouped by barrier. Barriers with the same name in different CTAs are grouped."""
    groups: dict[tuple[str, str], list[Fragment]] = {}
    for fragment in _fragments(clusters):
        if fragment not in but:
            groups.setdefault(_wait_of(code, fragment), []).append(fragment)
    by_barrier: dict[str, list[str]] = {}
    for (barrier, what), fragments in groups.items():
        ranks = sorted({fragment.cta.rank for fragment in fragments})
        place = barrier.replace(_RANKS, f"CTA rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}")
        by_barrier.setdefault(place, []).append(f"    {_who(fragments)}: {what}")
    lines = []
    for place, texts in by_barrier.items():
        lines += [f"  {place}", *texts]
    return lines


_RANKS = "{its own CTA}"
"""A placeholder for the waiters' CTAs, until these are known."""


def _wait_of(code: Code, fragment: Fragment) -> tuple[str, str]:
    """Returns the object a fragment waits on, and a text. Fragments with the same pair are reported together."""
    waiting = fragment.waiting
    if waiting is None:
        return "the rest of their warps", f"waits to re-join its warp at PTX line {_running_at(code, fragment).line}"
    site = waiting.site
    text = f"{waiting.what}, PTX line {site.line}: {site.text}"
    on = waiting.on
    if isinstance(on, MBarrier):
        lapped = fragment.observed.get(on)
        if lapped is None and on.phase > 0:
            meant = f"phase {on.phase - 2}" if on.phase > 1 else "a barrier whose phase 0 has not ended"
            text += f" [its first look, in phase {on.phase}: phase-lapped, if {meant} was meant]"
        elif lapped is not None and on.phase - lapped > 2:
            text += f" [phase-lapped: it last saw phase {lapped} end, and the barrier is in phase {on.phase}]"
        return _describe(on), text
    if isinstance(on, CountingBarrier):
        name = on.name if on.number < 0 else f"{on.name} of {_RANKS}"
        return f"{name}: {on.state()}", text
    return str(on), text


def _describe(barrier: MBarrier) -> str:
    """Describes an mbarrier from the view of its own CTA, so that the text is the same in every CTA."""
    last = re.sub(rf"CTA rank {barrier.cta}\b", "its own CTA", barrier.last_arrival)
    return f"{barrier.label} at shared 0x{barrier.offset:x} of {_RANKS}: {barrier.state()}, last arrival: {last}"


def _who(fragments: Sequence[Fragment]) -> str:
    """Names fragments, e.g. "CTA ranks 0-3 warps 0-3"."""
    clusters = {fragment.cta.cluster.number for fragment in fragments}
    ranks = sorted({fragment.cta.rank for fragment in fragments})
    warps = sorted({fragment.warp.index for fragment in fragments})
    masks = {fragment.mask for fragment in fragments}
    lanes = f" lanes 0x{masks.pop():08x}" if len(masks) == 1 else ""
    where = f"CTA rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"
    if len(clusters) == 1 and len(ranks) == 1:
        where = f"CTA {fragments[0].cta.index}, rank {ranks[0]},"
    if len(clusters) > 1:
        indexes = sorted({fragment.cta.index for fragment in fragments})
        few = len(indexes) <= FEW_CTAS
        where = ", ".join(f"CTA {index}" for index in indexes) + "," if few else f"{len(clusters)} clusters, {where}"
    return f"{where} warp{'s' if len(warps) > 1 else ''} {ranges(warps)}{lanes}"


def livelock(code: Code, polls: Sequence[tuple[Fragment, str]], clusters: Clusters) -> str:
    """Returns the report of a livelock: which warps poll what, which wait meanwhile, and which clusters have not
    started.
    """
    head = f"livelock in kernel '{short_name(code.kernel.name)}': warps only poll, and nothing else happens"
    waits = _waits(code, clusters.living, {fragment for fragment, _ in polls})
    return "\n".join([head, *_together(polls), *waits, *_without_room(clusters)])


def _together(texts: Iterable[tuple[Fragment, str]]) -> list[str]:
    """Returns one line for all fragments that have the same text."""
    groups: dict[str, list[Fragment]] = {}
    for fragment, what in texts:
        groups.setdefault(what, []).append(fragment)
    return [f"    {_who(fragments)}: {what}" for what, fragments in groups.items()]


def _without_room(clusters: Clusters) -> list[str]:
    left = len(clusters.launched) + clusters.left
    if not left:
        return []
    started = "; they start in reverse order" if clusters.reverses else ""
    return [
        f"  {left} of {clusters.total} clusters have not started: "
        f"the GPU has room for {clusters.capacity} at once{started}"
    ]


def _fragments(clusters: Sequence[Cluster]) -> list[Fragment]:
    return [f for cluster in clusters for cta in cluster.ctas for warp in cta.warps for f in warp.fragments]


def first_site(code: Code, clusters: Sequence[Cluster]) -> Site | None:
    """Returns the site of the first warp that does not wait, or of the first warp if all wait."""
    fragments = _fragments(clusters)
    found = next((f for f in fragments if f.waiting is None), fragments[0] if fragments else None)
    if found is None:
        return None
    return found.waiting.site if found.waiting is not None else _running_at(code, found)


def _running_at(code: Code, fragment: Fragment) -> Site:
    return code.sites[min(code.first[max(fragment.block, 0)], len(code.sites) - 1)]


def where_all_warps_are(code: Code, clusters: Sequence[Cluster]) -> str:
    """Returns where every warp is, for the report of a run that was ended from outside."""

    def doing(fragment: Fragment) -> str:
        if fragment.waiting is None:
            site = _running_at(code, fragment)
            return f"runs, at PTX line {site.line}: {site.text}"
        barrier, text = _wait_of(code, fragment)
        return f"{text}; {barrier.replace(_RANKS, 'the CTA')}"

    return "\n".join(_together((fragment, doing(fragment)) for fragment in _fragments(clusters)))
