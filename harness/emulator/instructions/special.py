"""Special registers (PTX ISA 10), as expressions."""

from __future__ import annotations

import numpy as np

from harness.emulator.instructions.table import Translator, Unsupported
from harness.emulator.instructions.values import lanewise
from harness.emulator.machine.lanes import ALL_LANES, Value
from harness.emulator.machine.state import Fragment
from harness.emulator.memory.address_space import RESERVED_SHARED

_LANES = ALL_LANES.astype(np.uint32)
_LANE_MASKS = {
    "eq": lambda lane: 1 << lane,
    "lt": lambda lane: (1 << lane) - 1,
    "le": lambda lane: (2 << lane) - 1,
    "gt": lambda lane: 0xFFFFFFFF & ~((2 << lane) - 1),
    "ge": lambda lane: 0xFFFFFFFF & ~((1 << lane) - 1),
}
_TICK = 32
"""By how much the clock advances when it is looked at; it is no measure of any time."""


def thread_index(f: Fragment, axis: int) -> Value:
    value = f.warp.tid[axis]
    return int(value[f.single]) if f.single >= 0 and not isinstance(value, int) else value


def lane_index(f: Fragment) -> Value:
    return f.single if f.single >= 0 else _LANES


def lane_mask(f: Fragment, which: str) -> Value:
    return lanewise(32, _LANE_MASKS[which], lane_index(f))


def clock(f: Fragment, shift: int, bits: int) -> int:
    """%clock and %globaltimer: they advance when they are read, and while everybody waits for them."""
    grid = f.grid
    grid.clock_reads += 1
    grid.clock += _TICK
    return grid.clock >> shift & ((1 << bits) - 1)


_CLOCKS = {
    "clock": (0, 32), "clock_hi": (32, 32), "clock64": (0, 64),
    "globaltimer": (0, 64), "globaltimer_lo": (0, 32), "globaltimer_hi": (32, 32),
}  # fmt: skip


def expression(name: str, w: Translator) -> str:
    """A special register's value, from ``f``, the fragment."""
    base, _, axis = name.removeprefix("%").partition(".")
    index = "xyz".find(axis) if axis else 0
    if base == "tid":
        return f"{w.use(thread_index)}(f, {index})"
    if base == "laneid":
        return f"{w.use(lane_index)}(f)"
    if base.startswith("lanemask_"):
        return f"{w.use(lane_mask)}(f, '{base[9:]}')"
    if base in _CLOCKS:
        shift, bits = _CLOCKS[base]
        return f"{w.use(clock)}(f, {shift}, {bits})"
    known = {
        "ntid": f"f.grid.launch.block[{index}]",
        "ctaid": f"f.cta.index[{index}]",
        "nctaid": f"f.grid.launch.grid[{index}]",
        "clusterid": f"f.cta.cluster.index[{index}]",
        "nclusterid": f"f.grid.launch.clusters[{index}]",
        "cluster_ctaid": f"(f.cta.index[{index}] % f.grid.launch.cluster[{index}])",
        "cluster_nctaid": f"f.grid.launch.cluster[{index}]",
        "cluster_ctarank": "f.cta.rank",
        "cluster_nctarank": "len(f.cta.cluster.ctas)",
        "warpid": "f.warp.index",
        "nwarpid": "len(f.cta.warps)",
        "is_explicit_cluster": "(len(f.cta.cluster.ctas) > 1)",
        "dynamic_smem_size": "f.grid.launch.dynamic_shared",
        "total_smem_size": "f.grid.shared_bytes",
        "smid": "f.cta.rank",
        "nsmid": "len(f.cta.cluster.ctas)",
        "gridid": "1",
        "aggr_smem_size": "f.grid.shared_bytes",
        "current_graph_exec": "0",
        "reserved_smem_offset_begin": "0",
        "reserved_smem_offset_end": str(RESERVED_SHARED),
        "reserved_smem_offset_cap": str(RESERVED_SHARED),
    }
    if base.startswith(("pm", "envreg", "reserved_smem_offset_")) and base not in known:
        # Performance counters stand still; what a driver puts into the others means nothing here.
        return "0"
    if base not in known:
        raise Unsupported
    return known[base]
