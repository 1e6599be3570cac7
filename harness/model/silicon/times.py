"""Predicts the rows of published tables with the timing model, and compares both.

It has no constants of its own: it uses those of `harness/model/gpus`, as `harness predict` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

from harness.model.constants import GpuConstants, find_gpu
from harness.model.silicon.copies import Copies, cycles_of_box, latency_of_first
from harness.model.silicon.mainloop import Mainloop, cycles_of_step
from harness.model.silicon.tables import SHIPPED, PublishedTable, Row, find_tables, gpus_with_tables, read_table
from harness.model.tcgen05 import MmaForm, MmaTimes

LATENCY = "mma_intervals latency"
"""The name of the second column of mma_intervals."""
MOST_IN_FLIGHT = 4
"""Buffers of a cluster in the publisher's multicast programs, according to their shared memory."""
PER_CTA = 2
"""Most of these that a CTA has in flight, according to the cycles of small boxes."""


@dataclass(frozen=True)
class Compared:
    """One row. ``what`` describes it. ``predicted`` is None if the model has no result, and ``refused`` says why."""

    what: str
    published: float
    predicted: float | None
    refused: str = ""

    @property
    def error(self) -> float:
        """Returns the prediction over the published value, minus one, or 0 for a refused row."""
        return 0.0 if self.predicted is None else self.predicted / self.published - 1


@dataclass(frozen=True)
class Confrontation:
    """A table, or one column of it: all its ``rows``, and the ``unit`` of its values."""

    name: str
    unit: str
    rows: tuple[Compared, ...]

    @property
    def answered(self) -> list[Compared]:
        return [row for row in self.rows if row.predicted is not None]

    @property
    def worst(self) -> Compared | None:
        """Returns the row with the largest error."""
        return max(self.answered, key=lambda row: abs(row.error), default=None)

    @property
    def mean_error(self) -> float | None:
        """Returns the mean of the errors of all predicted rows, as a fraction."""
        return fmean(abs(row.error) for row in self.answered) if self.answered else None

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        mean, worst = self.mean_error, self.worst
        return {
            "name": self.name,
            "rows": len(self.rows),
            "mean_error_percent": None if mean is None else round(100 * mean, 2),
            "largest_error_percent": None if worst is None else round(100 * abs(worst.error), 2),
            "refused": len(self.rows) - len(self.answered),
        }


Progress = Callable[[int], None]


def confront(table: PublishedTable, gpu: GpuConstants, progress: Progress = lambda ready: None) -> list[Confrontation]:
    """Predicts all rows of a table at the GPU's highest clock. Calls ``progress`` with the number of rows done."""
    unit, compare = COMPARE[table.name]
    found = []
    for number, row in enumerate(table.rows, 1):
        found.append(compare(row, gpu))
        progress(number)
    names = (table.name, LATENCY)
    return [Confrontation(name, unit, column) for name, column in zip(names, zip(*found, strict=True), strict=False)]


@cache
def confront_shipped() -> dict[str, list[Confrontation]]:
    """Returns the comparisons of the shipped tables, by GPU."""
    found: dict[str, list[Confrontation]] = {}
    for name in gpus_with_tables():
        gpu = find_gpu(name)
        _, tables = find_tables(SHIPPED / name)
        found[name] = [one for path in tables for one in confront(read_table(path), gpu)]
    return found


def _compared(what: str, published: float, refused: str, predict: Callable[[], float]) -> tuple[Compared, ...]:
    """Compares a row with one value. ``predict`` is called unless the model has no result."""
    return (Compared(what, published, None if refused else predict(), refused),)


def _form(row: Row) -> MmaForm | str:
    """Returns the properties that decide the time of an instruction, or why there is no such instruction."""
    scaled = str(row["format"]).startswith(("MX", "NV"))
    form = MmaForm(int(row["m"]), int(row["n"]), int(row["cta_group"]), row["a_in"] == "tmem", scaled)
    rows = (64, 128) if form.group == 1 else (128, 256)
    if form.m not in rows or form.n > 256 or form.n % 8:
        return f"{form.m}x{form.n} with cta_group::{form.group}: no shape of tcgen05.mma"
    return form


def _name(row: Row) -> str:
    return f"{row['format']} {row['m']}x{row['n']}, A in {row['a_in']}, cta_group::{row['cta_group']}"


def seen(gpu: GpuConstants) -> float:
    """Returns the cycles from the end of an instruction until a waiting thread continues: commit, wake, a last poll."""
    return gpu["tensor.commit"] + gpu["barrier.wake"] + gpu["barrier.try_wait"] + gpu["issue.branch"]


def _interval(row: Row, gpu: GpuConstants) -> tuple[Compared, ...]:
    form, what = _form(row), _name(row)
    columns = float(row["interval_cycles"]), float(row["latency_cycles"])
    if isinstance(form, str):
        return tuple(Compared(what, published, None, form) for published in columns)
    times = MmaTimes(gpu)
    predicted = times.interval(form), times.latency(form) + seen(gpu)
    return tuple(Compared(what, *pair) for pair in zip(columns, predicted, strict=True))


def _depth(row: Row, gpu: GpuConstants) -> tuple[Compared, ...]:
    """Compares a loop that issues a number of instructions, then waits for them; a branch and two dependent
    instructions lie between.
    """
    form, count = _form(row), int(row["in_flight"])
    what, published = f"{_name(row)}, {count} in flight", float(row["cycles_per_mma"])
    if isinstance(form, str):
        return (Compared(what, published, None, form),)
    times = MmaTimes(gpu)
    again = gpu["issue.branch"] + 2 * gpu["issue.alu_latency"]
    cycles = (count - 1) * times.interval(form) + times.latency(form) + seen(gpu) + again
    return (Compared(what, published, cycles / count),)


def _mainloop(row: Row, gpu: GpuConstants) -> tuple[Compared, ...]:
    sizes = [int(row[name]) for name in ("tile_m", "tile_n", "tile_k", "stages")]
    loop, k, clock = Mainloop(str(row["format"]), *sizes), int(row["k"]), gpu["clock.max"]
    what = f"{loop.dtype} {loop.m}x{loop.n}x{loop.tile_k}, {loop.stages} stages, K = {k}"
    return _compared(
        what,
        float(row["microseconds"]),
        loop.why_not(),
        lambda: 1e6 * cycles_of_step(loop, gpu, clock, k) * k / loop.tile_k / clock,
    )


def _box(row: Row) -> str:
    return f"box of {row['box_rows']} rows of {row['box_elements_wide']}"


def _refusal(row: Row) -> str:
    """Returns why a box cannot be copied so, or nothing."""
    if max(int(row["box_elements_wide"]), int(row["box_rows"])) > 256:
        return f"{_box(row)}: a box has at most 256 elements each way"
    return "" if int(row.get("ctas_per_sm", 1)) == 1 else f"{row['ctas_per_sm']} CTAs on an SM: only one is predicted"


def _multicast(row: Row, gpu: GpuConstants) -> tuple[Compared, ...]:
    """Compares the same copy by either way: L2 answers the SMs of a cluster together."""
    cluster = int(row["cluster"])
    what, published = f"{row['mode']}, cluster of {cluster}, {_box(row)}", float(row["sm_cycles"])
    refused = _refusal(row) or ("" if cluster in (1, 2, 4) else f"cluster of {cluster}: buffers are known of 1, 2, 4")
    in_flight = min(PER_CTA, MOST_IN_FLIGHT // cluster)
    copies = Copies(int(row["box_elements_wide"]), int(row["box_rows"]), in_flight, cluster)
    boxes = int(row["tma_instructions"]) / gpu.sms
    return _compared(what, published, refused, lambda: boxes * cycles_of_box(copies, gpu, gpu["clock.max"]))


def _latency(row: Row, gpu: GpuConstants) -> tuple[Compared, ...]:
    copies = Copies(int(row["box_elements_wide"]), int(row["box_rows"]))
    published = float(row["latency_cycles_median"])
    return _compared(_box(row), published, _refusal(row), lambda: latency_of_first(copies, gpu, gpu["clock.max"]))


def _throughput(row: Row, gpu: GpuConstants) -> tuple[Compared, ...]:
    what, published = f"{_box(row)}, {row['boxes_in_flight']} in flight", float(row["sm_cycles"])
    copies = Copies(int(row["box_elements_wide"]), int(row["box_rows"]), int(row["boxes_in_flight"]))
    boxes = float(row["boxes_per_sm"])
    return _compared(what, published, _refusal(row), lambda: boxes * cycles_of_box(copies, gpu, gpu["clock.max"]))


COMPARE: dict[str, tuple[str, Callable[[Row, GpuConstants], tuple[Compared, ...]]]] = {
    "mma_intervals": ("cycles", _interval),
    "mma_depth": ("cycles", _depth),
    "mainloops": ("us", _mainloop),
    "multicast": ("cycles", _multicast),
    "tma_latency_all_sms": ("cycles", _latency),
    "tma_throughput_dram": ("cycles", _throughput),
}
"""The unit of the values, and the function that compares a row, by the name of a table."""
