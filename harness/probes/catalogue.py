"""All probes."""

from __future__ import annotations

from harness.probes import cluster, matrix, tma, warp
from harness.probes.probe import Probe

PROBES: dict[str, Probe] = {probe.name: probe for probe in (*warp.PROBES, *tma.PROBES, *cluster.PROBES, *matrix.PROBES)}
