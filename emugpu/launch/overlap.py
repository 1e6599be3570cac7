"""Launches of a launch file that may start before the one in front of them has ended (programmatic dependent launch).

The emulator runs one after the other, which is one of the orders that a GPU may choose. A launch with ``overlap`` may
start as soon as all CTAs of the launch in front of it have executed griddepcontrol.launch_dependents or exited, and is
ordered behind that launch only after its own griddepcontrol.wait (PTX ISA, griddepcontrol).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from emugpu.check.findings import Finding
from emugpu.check.footprint import Footprint, TouchedMemory, early_access, is_not_known, touches_the_same
from emugpu.emulator import Module
from emugpu.launch.spec import Launch


def footprints_of(launches: Sequence[Launch]) -> list[Footprint]:
    """Returns a footprint for each launch, or none if no launch may start early."""
    if not any(launch.overlap for launch in launches):
        return []
    return [Footprint(lambda base: (base, 0), bool(launch.overlap)) for launch in launches]


def early_races(
    launches: Sequence[Launch], footprints: Sequence[Footprint], name_of: Callable[[int], str]
) -> tuple[list[Finding], list[str]]:
    """Returns the races of launches that ran, and what is not certain. ``name_of`` names the memory at an address."""
    found: list[Finding] = []
    unsure: list[str] = []
    first = 0
    """The first launch that may still run when one that may start early starts."""
    for number, footprint in enumerate(footprints):
        footprint.all.close()
        early = (footprint.early or TouchedMemory()).close()
        for before in range(first, number):
            for (base, _), overlap in footprints[before].all.overlaps(early):
                where = f"{overlap.nbytes} bytes at {name_of(base)} + {overlap.place}"
                about = (launches[number].where, launches[before].where, where, overlap)
                if overlap.certain:
                    found.append(early_access(*about))
                else:
                    unsure.append(is_not_known(touches_the_same(*about)))
        if not footprint.triggers:
            first = number + 1
        elif footprint.early is None or footprint.waits_before_it_lets:
            first = number  # some CTA has let the next launch start only when those before this one had ended
    return found, unsure


def unsaid(launches: Sequence[Launch], module: Module) -> str:
    """Returns which launch might start early, where the launch file does not say whether it may, or ""."""
    for before, launch in pairwise(launches):
        lets = any("launch_dependents" in site.modifiers for site in module.code(before.kernel).sites)
        if lets and launch.overlap is None:
            return (
                f"whether {launch.where} is ordered behind {before.where}, whose kernel has "
                "griddepcontrol.launch_dependents: say overlap = true if the program launches it with the attribute "
                "programmaticStreamSerialization, else overlap = false"
            )
    return ""
