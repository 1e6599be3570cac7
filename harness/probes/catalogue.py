"""All probes."""

from __future__ import annotations

from harness.probes import (
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
from harness.probes.probe import Probe

_FAMILIES = (
    warp, tma, cluster, matrix, addresses, barriers, async_copies, atomics, conversions, approximations, kinds
)  # fmt: skip

PROBES: dict[str, Probe] = {probe.name: probe for family in _FAMILIES for probe in family.PROBES}
