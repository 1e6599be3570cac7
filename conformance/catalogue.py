"""The list of all probes."""

from __future__ import annotations

from math import prod

from conformance import (
    addresses,
    approximations,
    async_copies,
    atomics,
    barriers,
    cluster,
    conversions,
    kinds,
    matrix,
    tma,
    warp,
)
from conformance.blackwell import (
    allocation,
    collectors,
    commits,
    copies,
    launch_control,
    layouts,
    modifiers,
    narrow,
    operands,
    pair_barriers,
    rules,
    scaled_sums,
    scales,
    sums,
    tensor_memory,
    tile,
)
from conformance.blackwell import tma as blackwell_tma
from conformance.probe import Probe

_FAMILIES = (
    warp, tma, cluster, matrix, addresses, barriers, async_copies, atomics, conversions, approximations, kinds
)  # fmt: skip

_BLACKWELL_FAMILIES = (
    tensor_memory, allocation, tile, layouts, operands, pair_barriers, blackwell_tma, commits, launch_control, copies,
    scales, modifiers, collectors, rules, sums, scaled_sums, narrow,
)  # fmt: skip

PROBES: dict[str, Probe] = {probe.name: probe for family in _FAMILIES for probe in family.PROBES}
"""The probes for Hopper."""


def _risk(probe: Probe) -> tuple[bool, bool]:
    """Returns a sort key that puts clusters late and probes that the ISA may forbid last. If they hang, everything else
    is known.
    """
    return not probe.modelled, max(prod(case.cluster) for case in probe.cases) > 1


BLACKWELL: dict[str, Probe] = {
    probe.name: probe
    for probe in sorted((probe for family in _BLACKWELL_FAMILIES for probe in family.PROBES), key=_risk)
}
"""The probes that only Blackwell supports."""
ALL: dict[str, Probe] = {**PROBES, **BLACKWELL}


def for_target(target: str) -> dict[str, Probe]:
    """Returns the probes for a GPU, named as in PTX."""
    return {name: probe.on(target) for name, probe in ALL.items() if target in probe.targets}
