"""Clusters that go ahead of others along K, so that these find in L2 what has come from DRAM for the first.

Where the last rows of C fill no more than some of a CTA's warpgroups, the others have nothing to multiply, and a K step
takes less; least for a CTA that lies below C, and only loads what it does not share. Such a one comes first to each
slice of the columns of B that those above it need, too. It waits for DRAM; they wait only for as long as that takes
longer than what the leader gains by each step.

On an H200, with events, leaders of kernel 5 wait 1700 cycles a K step for their loads and need 760 for the rest, the
others 1230 and 1430. With more than one stage who has half to multiply gains nothing, who has nothing leads: those of
kernel 7 with two stages at 1392x696 wait 1770 cycles, the others 1090 to 1360.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.timing.cache import Panel
from harness.timing.gemm import Gemm


def gained(gemm: Gemm, resident: int) -> list[Mapping[Panel, float]]:
    """By the round of tiles, cycles of a K step that the leader of a panel's clusters gains, of panels that have one.
    ``resident``: clusters at once."""
    down, _ = gemm.extent
    cycles = _parts_less(gemm) * gemm.part_cycles
    rounds: list[dict[Panel, float]] = [{} for _ in set(gemm.rounds(resident).values())]
    for number, turn in gemm.rounds(resident).items():
        row, column = gemm.place(number)
        if cycles and row == down - 1:
            rounds[turn]["B", column] = cycles
    return list(rounds)


def _parts_less(gemm: Gemm) -> int:
    """Of a warpgroup, that a CTA of the last clusters multiplies less than others: of those that share what they load
    the one that has most to do, as they keep step; otherwise the one that has least. None where CTAs share an SM, whose
    tensor core has enough to do."""
    if gemm.ctas_per_sm > 1:
        return 0
    down, _ = gemm.extent
    config, full, parts = gemm.plan.config, max(gemm.parts_of_ctas(0)), gemm.parts_of_ctas(down - 1)
    left = max(parts) if config["multicast"] else min(parts)
    return full - left if config["stages"] == 1 or not left else 0
