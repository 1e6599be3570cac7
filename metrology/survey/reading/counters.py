"""Hardware counters as Nsight Compute prints them: comma-separated, units in the first row."""

from __future__ import annotations

import csv
import io

NAMES = {
    "sm__cycles_elapsed.max": "cycles",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor_percent",
    "lts__t_bytes.sum": "l2_bytes",
    "dram__bytes_read.sum": "dram_bytes_read",
    "dram__bytes_write.sum": "dram_bytes_written",
    "gpu__time_duration.sum": "nanoseconds",
    "lts__cycles_elapsed.max": "l2_cycles",
    "lts__t_sectors_srcunit_tex.sum": "l2_sectors",
    "lts__t_requests_srcunit_tex.sum": "l2_requests",
    "l1tex__m_xbar2l1tex_read_bytes.sum": "sm_bytes",
}
"""What a survey counts: ours, by theirs. An H200 has them all. l2_sectors, l2_requests: of SMs alone; sm_bytes: that
come to SMs, each copy of what is multicast or answered for several of them counted by itself."""


def read_counters(text: str) -> list[tuple[str, dict[str, float]]]:
    """The kernel's name and the counters of each launch, in order. What is no table, such as warnings, is left."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    found = []
    for row in rows:
        if not row.get("ID"):
            continue  # the units
        values = {ours: _number(row[theirs]) for theirs, ours in NAMES.items() if row.get(theirs)}
        found.append((row["Kernel Name"], values))
    return found


def _number(text: str) -> float:
    return float(text.replace(",", ""))
