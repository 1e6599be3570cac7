"""Computes how often L2 answers CTAs that request the same rows of A or B.

Requests of a GPC's SMs for the same line are combined on their way to L2 if they come at the same time; requests of two
GPCs never are. (NVIDIA's counters call this the L2 request coalescer.) Multicast data is requested once, and not
combined with anything else.

The first clusters of a launch are distributed round-robin over the GPCs (H200: %smid of each CTA). So clusters whose
numbers differ by a multiple of the number of GPCs share one, and the order of tiles decides which rows these have in
common. A later cluster starts wherever one has ended. The model ignores that one GPC may be full before the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.model.boxes import LINE
from harness.model.cache import Place

FIRST = {"A": 0.1, "B": 0.82}
"""The probability that two clusters of a GPC that need the same rows request them at the same time, in the first wave.
Clusters that need the same rows of B lie above one another, and start together.
"""
LATER = {"A": 0.03, "B": 0.82}
"""The same probability in later waves, in which clusters start as others end."""
PERSISTENT = {"A": 0.03, "B": 0.06}
"""The same probability for persistent clusters, which advance at different speeds."""
LEAST = 0.36
"""The smallest part of the requested bytes, over all waves, that L2 delivers, even if many clusters request the same.
These seven constants are fitted to the counters of an H200: bytes that L2 gave to SMs, not cycles.
"""
SPLIT = {LINE: 1.0, 64: 0.8, 32: 0.75, 16: 0.0}
"""The part of the saving that is left if rows lie in two lines each, by the alignment of the rows; fitted likewise. SMs
that only load save less: 0.48, 0.41 and 0.09 of it.
"""


@dataclass(frozen=True)
class SharedOperand:
    """A or B as a cluster requests it. ``rows``: of a CTA. ``users``: CTAs of the cluster that need the same rows.
    ``cast``: whether these share them by multicast.
    """

    name: str
    rows: int
    users: int
    cast: bool

    @property
    def asked(self) -> float:
        """Returns the rows that a CTA requests itself."""
        return self.rows / self.users if self.cast else self.rows


def coalesced(
    operands: Sequence[SharedOperand], places: Sequence[Place], waves: float, persistent: bool, gpcs: int
) -> Mapping[int, float]:
    """Returns the bytes that L2 delivers per requested byte, by the alignment of the rows.

    ``places`` are the tiles of the clusters that start at once, in their order; later ones are assumed to be alike.
    ``waves`` is the number of waves of tiles. ``persistent`` says whether clusters compute several tiles.
    """
    asked = sum(operand.asked for operand in operands)
    answered = sum(operand.asked * _answers(operand, places, waves, persistent, gpcs) for operand in operands)
    return {aligned: 1 - left * (1 - answered / asked) for aligned, left in SPLIT.items()}


def _answers(operand: SharedOperand, places: Sequence[Place], waves: float, persistent: bool, gpcs: int) -> float:
    """Returns the number of L2's answers per request."""
    if operand.cast:
        return 1.0
    name = operand.name
    panels = [row if name == "A" else column for row, column in places]
    dealt = _on_a_gpc(panels, gpcs)
    first = _together(dealt, FIRST[name])
    later = _together(dealt, PERSISTENT[name]) if persistent else _together(_anywhere(panels, gpcs), LATER[name])
    return max(LEAST, (later + (first - later) / waves) / operand.users)


def _together(clusters: float, surely: float) -> float:
    """Returns the answers per request for this many clusters of a GPC."""
    return 1 / (1 + surely * (clusters - 1))


def _on_a_gpc(panels: Sequence[int], gpcs: int) -> float:
    """Returns the average number of clusters of a GPC, including itself, that need the same panel as a cluster."""
    same = Counter((number % gpcs, panel) for number, panel in enumerate(panels))
    return sum(count * count for count in same.values()) / len(panels)


def _anywhere(panels: Sequence[int], gpcs: int) -> float:
    """Returns the same number if clusters are distributed over the GPCs at random."""
    others = sum(count * count for count in Counter(panels).values()) / len(panels) - 1
    return 1 + others * max(0.0, len(panels) / gpcs - 1) / max(1, len(panels) - 1)
