"""Exact counts of what a launch did."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields


@dataclass
class Counters:
    """Exact counters of one launch, summed over all CTAs.

    Instructions are warp instructions: one per fragment of a warp that completes the instruction. Bytes read from
    global memory leave out-of-bounds elements away; bytes written to shared memory include their zero fill and count
    once per destination CTA, so multicast makes the second number larger than the first.
    """

    instructions: dict[str, int] = field(default_factory=dict)
    """Warp instructions by family: alu, branch, barrier, tma, mma, tmem, matrix, memory, fence, other."""
    clusters: int = 0
    """The clusters of the grid: those launched and those granted by cluster launch control."""
    clusters_launched: int = 0
    clusters_granted: int = 0
    ctas: int = 0
    mma_instructions: int = 0
    """MMA instructions issued: one per CTA pair under cta_group::2, one per warpgroup for wgmma.mma_async."""
    mma_flops: int = 0
    """2 * M * N * K summed over MMA instructions."""
    tma_loads: int = 0
    tma_global_bytes_read: int = 0
    tma_global_bytes_read_by_tensor: dict[str, int] = field(default_factory=dict)
    """The same by tensor, named by the launch argument's position ("argument 0")."""
    tma_box_bytes: int = 0
    """The bytes of the boxes loaded, zero fill included, each load once: bytes written over these is what multicast
    multiplies."""
    tma_shared_bytes_written: int = 0
    tma_stores: int = 0
    tma_shared_bytes_read: int = 0
    tma_global_bytes_written: int = 0
    max_stores_in_flight: int = 0
    """Most bulk groups of one thread that were committed and whose shared memory was still unread, at any time."""
    mbarrier_waits: int = 0
    """Waits on an mbarrier that completed."""
    mbarrier_stalls: int = 0
    """Times a wait found its phase incomplete and the warp was suspended."""
    mbarrier_arrivals: int = 0
    commits: int = 0
    """tcgen05.commit instructions; with multicast each signals several barriers."""
    commit_arrivals: int = 0
    tmem_columns: int = 0
    """Most tensor-memory columns allocated in any CTA at one time."""
    warps_finished: int = 0

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return asdict(self)

    def total_instructions(self) -> int:
        return sum(self.instructions.values())


def add_instructions(total: Counter[str], histogram: Counter[str], times: int) -> None:
    """Add a block's instructions, executed ``times`` times."""
    for name, count in histogram.items():
        total[name] += count * times


def merge(counters: Counters, other: Counters) -> None:
    """Add another process's counts of the same launch; what is a maximum stays one."""
    for item in fields(Counters):
        mine, theirs = getattr(counters, item.name), getattr(other, item.name)
        if isinstance(mine, dict):
            setattr(counters, item.name, {k: mine.get(k, 0) + theirs.get(k, 0) for k in sorted({*mine, *theirs})})
        elif item.name in MAXIMA:
            setattr(counters, item.name, max(mine, theirs))
        else:
            setattr(counters, item.name, mine + theirs)


MAXIMA = {"max_stores_in_flight", "tmem_columns"}
