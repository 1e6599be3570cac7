"""Compares kernels on one problem: exact figures show what each step of the series changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.compile.config import KernelConfig
from harness.run.runner import Outcome

Value = int | float | str | None
SCHEMA = 1


@dataclass(frozen=True)
class ComparedKernel:
    """One kernel of a comparison: its outcome, or why there is none.

    ``edited`` is the file of PTX that replaces its own. ``setting`` is the part of its configuration that differs from
    others of the same kernel.
    """

    config: KernelConfig
    outcome: Outcome | None
    failure: str | None = None
    edited: Path | None = None
    setting: str = ""

    @property
    def name(self) -> str:
        """Returns the name of a kernel, or of the PTX that replaces it, for tables."""
        setting = f" {self.setting}" if self.setting else ""
        return f"{self.config.kernel}{setting}{f' ({self.edited.name})' if self.edited else ''}"


@dataclass(frozen=True)
class Step:
    """A difference between one kernel and the next: (figure, before, after)."""

    before: str
    after: str
    changes: list[tuple[str, Value, Value]] = field(default_factory=list)


def _counter(name: str) -> Callable[[Outcome], Value]:
    return lambda outcome: (outcome.record["counters"] or {}).get(name)


def _bytes_read(tensor: str) -> Callable[[Outcome], Value]:
    return lambda outcome: (outcome.record["counters"] or {}).get("tma_global_bytes_read_by_tensor", {}).get(tensor)


def multicast_factor(counters: Mapping[str, Any]) -> float | None:
    """Returns the number of CTAs to which TMA delivers each byte. Boxes count whole, including parts beyond the edge of
    a matrix.

    Returns None if it is unknown: for a run on a GPU, and for a record older than the counter if the fill cannot be
    told from the data.
    """
    boxes, written = (counters.get(name) for name in ("tma_box_bytes", "tma_shared_bytes_written"))
    return round(written / boxes, 3) if boxes and written else None


def _instructions(outcome: Outcome) -> Value:
    counters = outcome.record["counters"] or {}
    return sum(counters["instructions"].values()) if "instructions" in counters else None


def _ptxas(*names: str) -> Callable[[Outcome], Value]:
    def total(outcome: Outcome) -> Value:
        statistics = outcome.record["ptx"]["ptxas"]
        return None if "error" in statistics else sum(statistics[name] for name in names)

    return total


def _output_bytes(outcome: Outcome) -> Value:
    return next((part.bytes for part in outcome.plan.shared_memory if part.name == "C tile"), 0)


def _launched(of_each: Callable[[Outcome], int]) -> Callable[[Outcome], Value]:
    """Returns a figure that counts what every started CTA does once, over all CTAs."""

    def total(outcome: Outcome) -> Value:
        started = (outcome.record["counters"] or {}).get("ctas")
        return None if started is None else started * of_each(outcome)

    return total


def _scheduler(outcome: Outcome) -> Value:
    config = outcome.request.config
    return config.scheduler if outcome.plan.tiles else "the grid"


def _mma(outcome: Outcome) -> Value:
    config = outcome.request.config
    rows, columns = config.mma_shape
    return f"{rows}x{columns}, {'pair' if config.cta_group == 2 else '1 CTA'}"


def _cluster(outcome: Outcome) -> Value:
    cm, cn = outcome.request.config.cluster
    return f"{cm}x{cn}{'' if outcome.request.config.multicast else ', no multicast'}"


FIGURES: dict[str, Callable[[Outcome], Value]] = {
    "dtype": lambda outcome: outcome.request.config.dtype,
    "MMA": _mma,
    "cluster": _cluster,
    "stages": lambda outcome: outcome.request.config.stages,
    "tiles come from": _scheduler,
    "accumulators": lambda outcome: outcome.request.config.accumulators,
    "CTAs started": _counter("ctas"),
    "barriers initialised": _launched(lambda outcome: sum(b.count for b in outcome.plan.barriers)),
    "TMEM allocations": _launched(lambda outcome: int(outcome.plan.tmem_columns > 0)),
    "warps": lambda outcome: outcome.plan.block[0] // 32,
    "shared memory, bytes": lambda outcome: outcome.plan.dynamic_smem,
    "of it for C": _output_bytes,
    "TMEM columns": lambda outcome: outcome.plan.tmem_columns,
    "registers a thread": _ptxas("registers"),
    "spilled bytes": _ptxas("spill_store_bytes", "spill_load_bytes"),
    "global bytes read": _counter("tma_global_bytes_read"),
    "of A": _bytes_read("A"),
    "of B": _bytes_read("B"),
    "shared bytes written": _counter("tma_shared_bytes_written"),
    "multicast factor": lambda outcome: multicast_factor(outcome.record["counters"] or {}),
    "MMA instructions": _counter("mma_instructions"),
    "barrier waits": _counter("mbarrier_waits"),
    "of them suspended": _counter("mbarrier_stalls"),
    "TMA stores": _counter("tma_stores"),
    "stores in flight": _counter("max_stores_in_flight"),
    "warp instructions": _instructions,
}
"""The rows of the table. A figure is None if it is unknown."""


def verdict(entry: ComparedKernel) -> str:
    """Returns whether the result is right, in a word or two."""
    if entry.outcome is None:
        return "could not run"
    validation = entry.outcome.validation
    if not validation.passed:
        return f"WRONG: {validation.mismatches:,}"
    return "exact" if validation.exact else "within tolerance"


def performance(entry: ComparedKernel) -> list[tuple[str, str]]:
    """Returns the TFLOPS of a GPU run, and the ratio to each vendor's GEMM that was timed with the kernel."""
    timing: dict[str, Any] = entry.outcome.record["timing"] if entry.outcome else {}
    tflops = timing.get("tflops")
    rows = [("TFLOPS", "not measured" if tflops is None else f"{tflops:.1f}")]
    for vendor, measured in timing.get("vendor", {}).items():
        rows.append((f"ratio to {vendor}", f"{measured['ratio']:.3f}"))
    return rows


def figures(entry: ComparedKernel) -> dict[str, Value]:
    """Returns the rows of one kernel's column."""
    return {name: value(entry.outcome) if entry.outcome else None for name, value in FIGURES.items()}


def steps(entries: Sequence[ComparedKernel]) -> list[Step]:
    """Returns what changes from each kernel to the next, among those that ran."""
    ran = [entry for entry in entries if entry.outcome]
    found = []
    for one, other in pairwise(ran):
        before, after = figures(one), figures(other)
        changes = [(name, before[name], after[name]) for name in before if before[name] != after[name]]
        found.append(Step(one.name, other.name, changes))
    return found


def as_dict(entries: Sequence[ComparedKernel]) -> dict[str, Any]:
    """Returns plain data for JSON."""
    return {
        "schema": SCHEMA,
        "kernels": [
            {
                "kernel": entry.config.kernel,
                "edited": str(entry.edited) if entry.edited else None,
                "label": entry.config.label,
                "verdict": verdict(entry),
                "failure": entry.failure,
                "performance": dict(performance(entry)),
                "figures": figures(entry),
                "record": entry.outcome.record if entry.outcome else None,
            }
            for entry in entries
        ],
        "steps": [
            {
                "from": step.before,
                "to": step.after,
                "changes": [{"figure": name, "from": a, "to": b} for name, a, b in step.changes],
            }
            for step in steps(entries)
        ],
    }
