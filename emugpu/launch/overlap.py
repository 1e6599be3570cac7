"""Launches of a launch file that may start before the one in front of them has ended (programmatic dependent launch).

The emulator runs one after the other, which is one of the orders that a GPU may choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from emugpu.check.early_launches import NOTHING_RUNS, early_races, is_not_known, still_running, touches_the_same
from emugpu.check.findings import Finding
from emugpu.check.footprint import Footprint
from emugpu.emulator import Module
from emugpu.launch.spec import Launch


def footprints_of(launches: Sequence[Launch]) -> list[Footprint]:
    """Returns a footprint for each launch, or none if no launch may start early."""
    if not any(launch.overlap for launch in launches):
        return []
    return [Footprint(lambda base: (base, 0), bool(launch.overlap)) for launch in launches]


def races_of(
    launches: Sequence[Launch], footprints: Sequence[Footprint], name_of: Callable[[int], str]
) -> tuple[list[Finding], list[str]]:
    """Returns the races of launches that ran, and what is not certain. ``name_of`` names the memory at an address."""
    found: list[Finding] = []
    unsure: list[str] = []
    running = NOTHING_RUNS
    for number, footprint in enumerate(footprints):
        running = still_running(number, footprint, running)
        footprint.close()
        for before in sorted(running.at_start.all):
            for describe, (base, _), overlap in early_races(footprint, before, footprints[before].all, running):
                where = f"{overlap.nbytes} bytes at {name_of(base)} + {overlap.place}"
                about = (launches[number].where, launches[before].where, where, overlap)
                if overlap.certain:
                    found.append(describe(*about))
                else:
                    unsure.append(is_not_known(touches_the_same(*about)))
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
