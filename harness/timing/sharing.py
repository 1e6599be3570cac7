"""How often L2 answers CTAs that ask for the same rows of A or B.

On their way to L2 the requests of a GPC's SMs for the same line are answered together if they come at the same time;
those of two GPCs never are. (NVIDIA's counters call this the L2 request coalescer.) What is multicast is asked for
once, and is not answered together with anything else.

The first clusters of a launch are dealt to the GPCs one after the other (H200: %smid of each CTA). So clusters whose
numbers differ by a multiple of the GPCs share one, and which rows these have in common follows from the order of tiles.
That a GPC may be full before the others is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.timing.boxes import LINE
from harness.timing.cache import Place

TOGETHER = {"A": 0.45, "B": 0.8}
"""How surely two clusters of a GPC that need the same rows ask at the same time. Those that need the same rows of B lie
above one another, and start together."""
ROUNDS_OUT_OF_STEP = 3
"""With so many rounds of tiles those that need the same rows of A have lost step."""
LEAST = 0.5
"""Of the bytes asked for, what L2 gives out however many ask: 0.42 if they do nothing else, half in kernels. These four
are fitted to the counters of an H200: bytes that L2 gave to SMs, not cycles."""
SPLIT = {LINE: 1.0, 64: 0.43, 32: 0.3, 16: 0.0}
"""Of that gain, by what the rows begin with, what is left where rows lie in two lines each: two SMs side by side get
1.26, 1.14 to 1.19 and 0.99 times as much as two that do not share, so a half that is saved is worth 1 - 1/1.26
(H200: micro-benchmark `shared_loads`)."""


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
        """Rows that a CTA asks for itself."""
        return self.rows / self.users if self.cast else self.rows


def coalesced(operands: Sequence[Operand], places: Sequence[Place], rounds: float, gpcs: int) -> Mapping[int, float]:
    """Bytes that L2 gives out for each byte that is asked for, by what the rows begin with. ``places``: the tiles of
    the clusters that start at once, in their order; ``rounds``: of such clusters.
    """
    asked = sum(operand.asked for operand in operands)
    answered = sum(operand.asked * _answers(operand, places, rounds, gpcs) for operand in operands)
    return {aligned: 1 - left * (1 - answered / asked) for aligned, left in SPLIT.items()}


def _answers(operand: Operand, places: Sequence[Place], rounds: float, gpcs: int) -> float:
    """Answers for each request."""
    if operand.cast:
        return 1.0
    in_step = operand.name == "B" or rounds < ROUNDS_OUT_OF_STEP
    surely = TOGETHER[operand.name] if in_step else 0.0
    asking = _on_a_gpc([row if operand.name == "A" else column for row, column in places], gpcs)
    return max(LEAST, 1 / (1 + surely * (asking - 1)) / operand.users)


def _on_a_gpc(panels: Sequence[int], gpcs: int) -> float:
    """Clusters of a GPC that need the same panel, as an average cluster sees them, with itself."""
    same = Counter((number % gpcs, panel) for number, panel in enumerate(panels))
    return sum(count * count for count in same.values()) / len(panels)
