"""How often L2 answers CTAs that ask for the same rows of A or B.

On their way to L2 the requests of a GPC's SMs for the same line are answered together if they come at the same time;
those of two GPCs never are. (NVIDIA's counters call this the L2 request coalescer.) What is multicast is asked for
once, and is not answered together with anything else.

The first clusters of a launch are dealt to the GPCs one after the other (H200: %smid of each CTA). So clusters whose
numbers differ by a multiple of the GPCs share one, and which rows these have in common follows from the order of tiles.
A later one starts wherever one has ended. That a GPC may be full before the others is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.model.boxes import LINE
from harness.model.cache import Place

FIRST = {"A": 0.1, "B": 0.82}
"""How surely two clusters of a GPC that need the same rows ask at the same time, in the first wave. Those
that need the same rows of B lie above one another, and start together."""
LATER = {"A": 0.03, "B": 0.82}
"""The same in the waves after it, in which clusters start as others end."""
PERSISTENT = {"A": 0.03, "B": 0.06}
"""The same where clusters are persistent and go on by themselves: they have lost step."""
LEAST = 0.36
"""Of the bytes asked for in all waves, what L2 gives out however many ask. These seven are fitted to the counters of
an H200: bytes that L2 gave to SMs, not cycles."""
SPLIT = {LINE: 1.0, 64: 0.8, 32: 0.75, 16: 0.0}
"""Of what is saved where rows are lines, by what the rows begin with, the part that is left where they lie in two lines
each; fitted likewise. SMs that do nothing but load save less: 0.48, 0.41 and 0.09 of it."""


@dataclass(frozen=True)
class Operand:
    """A or B as a cluster asks for it. ``rows``: of a CTA; ``users``: CTAs of the cluster that need the same of them;
    ``cast``: whether these share them by multicast."""

    name: str
    rows: int
    users: int
    cast: bool

    @property
    def asked(self) -> float:
        """Returns the rows that a CTA asks for itself."""
        return self.rows / self.users if self.cast else self.rows


def coalesced(
    operands: Sequence[Operand], places: Sequence[Place], waves: float, persistent: bool, gpcs: int
) -> Mapping[int, float]:
    """Returns the bytes that L2 gives out for each byte that is asked for, by what the rows begin with. ``places``: the
    tiles of the clusters that start at once, in their order, as later ones are taken to be; ``waves``: of tiles;
    ``persistent``: whether clusters compute several.
    """
    asked = sum(operand.asked for operand in operands)
    answered = sum(operand.asked * _answers(operand, places, waves, persistent, gpcs) for operand in operands)
    return {aligned: 1 - left * (1 - answered / asked) for aligned, left in SPLIT.items()}


def _answers(operand: Operand, places: Sequence[Place], waves: float, persistent: bool, gpcs: int) -> float:
    """Answers for each request."""
    if operand.cast:
        return 1.0
    name = operand.name
    panels = [row if name == "A" else column for row, column in places]
    dealt = _on_a_gpc(panels, gpcs)
    first = _together(dealt, FIRST[name])
    later = _together(dealt, PERSISTENT[name]) if persistent else _together(_anywhere(panels, gpcs), LATER[name])
    return max(LEAST, (later + (first - later) / waves) / operand.users)


def _together(clusters: float, surely: float) -> float:
    """Answers for each request of so many clusters of a GPC."""
    return 1 / (1 + surely * (clusters - 1))


def _on_a_gpc(panels: Sequence[int], gpcs: int) -> float:
    """Clusters of a GPC that need the same panel, as an average cluster sees them, with itself."""
    same = Counter((number % gpcs, panel) for number, panel in enumerate(panels))
    return sum(count * count for count in same.values()) / len(panels)


def _anywhere(panels: Sequence[int], gpcs: int) -> float:
    """The same if clusters are dealt to the GPCs at random."""
    others = sum(count * count for count in Counter(panels).values()) / len(panels) - 1
    return 1 + others * max(0.0, len(panels) / gpcs - 1) / max(1, len(panels) - 1)
