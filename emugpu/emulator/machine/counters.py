"""Exact counts of what a launch did."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields


@dataclass
class Counters:
    """Exact counters of one launch, summed over all CTAs.

    Instructions are warp instructions: one for each fragment of a warp that completes the instruction. Bytes read from
    global memory exclude out-of-bounds elements. Bytes written to shared memory include the zero fill and count once
    for each destination CTA, so multicast makes the second number larger than the first.
    """

    instructions: dict[str, int] = field(default_factory=dict)
    """Warp instructions by family: alu, branch, barrier, tma, mma, tmem, matrix, memory, fence, other."""
    clusters: int = 0
    """The clusters of the grid: those launched, and those granted by cluster launch control."""
    clusters_launched: int = 0
    clusters_granted: int = 0
    ctas: int = 0
    mma_instructions: int = 0
    """MMA instructions issued: one for each CTA pair under cta_group::2, one for each warpgroup for wgmma.mma_async."""
    mma_flops: int = 0
    """2 * M * N * K, summed over the MMA instructions."""
    tma_loads: int = 0
    tma_global_bytes_read: int = 0
    tma_global_bytes_read_by_tensor: dict[str, int] = field(default_factory=dict)
    """The same for each tensor, named by the position of its launch argument ("argument 0")."""
    tma_box_bytes: int = 0
    """Bytes of the loaded boxes, with zero fill, each load counted once. Bytes written divided by these is the factor
    of multicast.
    """
    tma_shared_bytes_written: int = 0
    tma_stores: int = 0
    tma_shared_bytes_read: int = 0
    tma_global_bytes_written: int = 0
    max_stores_in_flight: int = 0
    """The most committed bulk groups of one thread whose shared memory was still unread, at any time."""
    mbarrier_waits: int = 0
    """Waits on an mbarrier that completed."""
    mbarrier_stalls: int = 0
    """How often a wait found its phase incomplete, so that the warp was suspended."""
    mbarrier_arrivals: int = 0
    commits: int = 0
    """tcgen05.commit instructions. With multicast, each signals several barriers."""
    commit_arrivals: int = 0
    tmem_columns: int = 0
    """The most tensor-memory columns allocated in any CTA at one time."""
    warps_finished: int = 0

    def as_dict(self) -> dict[str, object]:
        """Returns plain data for JSON."""
        return asdict(self)

    def total_instructions(self) -> int:
        return sum(self.instructions.values())


def add_instructions(total: Counter[str], histogram: Counter[str], times: int) -> None:
    """Adds a block's instructions, executed ``times`` times."""
    for name, count in histogram.items():
        total[name] += count * times


def merge(counters: Counters, other: Counters) -> None:
    """Adds the counts of another process of the same launch. For a maximum, the larger value is kept."""
    for item in fields(Counters):
        mine, theirs = getattr(counters, item.name), getattr(other, item.name)
        if isinstance(mine, dict):
            setattr(counters, item.name, {k: mine.get(k, 0) + theirs.get(k, 0) for k in sorted({*mine, *theirs})})
        elif item.name in MAXIMA:
            setattr(counters, item.name, max(mine, theirs))
        else:
            setattr(counters, item.name, mine + theirs)


MAXIMA = {"max_stores_in_flight", "tmem_columns"}
