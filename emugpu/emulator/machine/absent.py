"""Who is missing where warps wait for ever: the warps that have not arrived, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from emugpu.emulator.machine.barriers import CountingBarrier, MBarrier
from emugpu.emulator.machine.lanes import WARP_SIZE
from emugpu.emulator.machine.state import Cluster, Cta, Fragment, Warp

FEW = 8
"""Up to this many different states of missing warps are told."""


class Absence(NamedTuple):
    """What a barrier lacks, and which warps are missing there, as texts. ``gone``: all of these have exited."""

    cluster: int
    barrier: MBarrier | CountingBarrier
    lacks: str
    who: str
    gone: bool


def absent(clusters: Sequence[Cluster]) -> list[Absence]:
    """Returns who is missing at each barrier that is waited for; first those whose missing warps have exited."""
    found: dict[object, Absence] = {}
    for cluster in clusters:
        for cta in cluster.ctas:
            for fragment in (f for warp in cta.warps for f in warp.fragments):
                barrier = fragment.waiting.on if fragment.waiting is not None else None
                if barrier in found:
                    continue
                if isinstance(barrier, CountingBarrier):
                    found[barrier] = _missing_threads(cluster, cta, barrier)
                elif isinstance(barrier, MBarrier) and barrier.pending:
                    found[barrier] = _missing_arrivals(cluster, barrier)
    return sorted((one for one in found.values() if one.who), key=lambda one: not one.gone)


def _missing_threads(cluster: Cluster, cta: Cta, barrier: CountingBarrier) -> Absence:
    ctas = [cta] if barrier.number >= 0 else cluster.ctas
    away = [w for one in ctas for w in one.warps if not any(_waits_at(f, barrier) for f in w.fragments)]
    if barrier.everybody:
        away = [warp for warp in away if warp.alive]
    lacks = barrier.needed - barrier.arrived
    where = f"{barrier.name} of CTA {cta.index}" if barrier.number >= 0 else f"{barrier.name} of {cluster.index}"
    # Warps that have only arrived (bar.arrive) are among those that do not wait there.
    is_certain = WARP_SIZE * len(away) <= lacks
    who = _told(away) if is_certain else f"of these warps, some have not arrived: {_told(away)}"
    text = f"{where} lacks {lacks} of {barrier.needed} threads"
    return Absence(cluster.number, barrier, text, who if away else "", _gone(away))


def _missing_arrivals(cluster: Cluster, barrier: MBarrier) -> Absence:
    """Finds the warps that arrived in the phase before more often than in this one; in phase 0, those that neither wait
    nor have arrived.
    """
    name = f"{barrier.label} at shared 0x{barrier.offset:x} of CTA {cluster.ctas[barrier.cta].index}"
    text = f"{name} lacks {barrier.pending} of {barrier.expected} arrivals"
    before = barrier.arrived_before
    late = [who for who, count in before.items() if barrier.arrived.get(who, 0) < count]
    if late:
        away = [w for one in cluster.ctas for w in one.warps if w.name in late]
        others = sorted(set(late) - {warp.name for warp in away})
        then = f", which arrived in phase {barrier.phase - 1},"
        who = "; ".join([*filter(None, [_told(away, then)]), *(f"{one}{then} has not come" for one in others)])
    else:
        near = [warp for warp in cluster.ctas[barrier.cta].warps if warp.name not in barrier.arrived]
        away = [w for w in near if not any(_waits_at(f, barrier) for f in w.fragments)]
        who = _told(away) or "every warp of its CTA waits for it"
    return Absence(cluster.number, barrier, text, who, _gone(away))


def _waits_at(fragment: Fragment, barrier: MBarrier | CountingBarrier) -> bool:
    return fragment.waiting is not None and fragment.waiting.on is barrier


def _gone(warps: Sequence[Warp]) -> bool:
    return bool(warps) and not any(warp.alive for warp in warps)


def _told(warps: Iterable[Warp], which: str = "") -> str:
    """Returns what became of warps, those with the same state together. ``which`` follows their names."""
    states: dict[tuple[object, str, str, str], list[int]] = {}
    for warp in warps:
        states.setdefault((warp.cta.index, *_state(warp)), []).append(warp.index)
    texts = []
    for (index, of_one, of_several, text), numbers in list(states.items())[:FEW]:
        who, verb = ("warp", of_one) if len(numbers) == 1 else ("warps", of_several)
        texts.append(f"{who} {ranges(numbers)} of CTA {index}{which} {verb} {text}")
    return "; ".join(texts)


def _state(warp: Warp) -> tuple[str, str, str]:
    """Returns what became of a warp: the verb for one warp, the verb for several, and the rest."""
    if not warp.alive:
        return "has", "have", "exited"
    sites = {f.waiting.site.line: f.waiting.site for f in warp.fragments if f.waiting is not None}
    if not sites:
        return "has", "have", "not come to it"
    return "waits", "wait", "at " + " and ".join(f"{site.place}" for site in sites.values())


def ranges(numbers: Sequence[int]) -> str:
    """Returns 0, 1, 2, 5 as "0-2, 5"."""
    parts: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if number is not None:
            start = previous = number
    return ", ".join(parts)
