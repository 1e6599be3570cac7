"""Maps of sweeps: for each shape the best configuration, and how much slower the default is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from emugpu.errors import UsageProblem
from harness.compile.config import KernelConfig, try_config
from harness.experiments.journal import read
from harness.problem import Shape
from harness.report.figure import SETTINGS, Figure, color

Record = Mapping[str, Any]
WORDS = {
    "measured": "time on the GPU",
    "predicted": "predicted time",
    "counted": "bytes from and to global memory, counted by the emulator",
}
LARGEST = 16
"""Maps with at most this many rows or columns have words in their cells; larger ones have numbers."""
WIDTH = 9.0
"""Least width in inches. All figures have the same width on the page, so a narrow one would have large letters."""
DARKEST = 0.25
"""The loss with the darkest shade."""
_LEFT_OUT = ("kernel", "arch", "dtype", "out_dtype", "mma_shape", "cluster", "stages", "sms", "clc_depth")


@dataclass(frozen=True)
class Cell:
    """One shape: the best configuration of those that were tried (the default, if none is better), its figure, how many
    have the same, and the ratio of the default's figure to it, if it was tried.
    """

    shape: Shape
    best: Mapping[str, Any]
    figure: float
    tried: int
    as_good: int
    loss: float | None


@dataclass(frozen=True)
class ComparisonMap:
    """Cells of one kernel and type on one kind of device. ``figures`` names what they compare (`WORDS`)."""

    kernel: str
    dtype: str
    device: str
    figures: str
    cells: tuple[Cell, ...]

    @property
    def arch(self) -> str:
        return str(self.cells[0].best["arch"])


def load_maps(folder: Path) -> list[ComparisonMap]:
    """Reads all sweeps below a folder of results that tried several configurations on several shapes. The newest record
    of a job counts, even if kernels changed after the others.
    """
    found = (record for path in sorted((folder / "sweeps").glob("*.jsonl")) for record in read(path))
    newest = {_asked(record): record for record in sorted(found, key=lambda record: record["time"])}
    return maps(newest.values())


def maps(records: Iterable[Record]) -> list[ComparisonMap]:
    """Makes a map for each kernel, type, device and kind of figure."""
    rows = [(found, record) for record in records if (found := _figure(record))]
    made = []
    for (kernel, dtype, device, figures), those in groupby(sorted(rows, key=_group), key=_group):
        by_shape: dict[Shape, dict[str, tuple[float, Record]]] = {}
        for (_, value), record in those:
            best = by_shape.setdefault(Shape.from_dict(record["problem"]), {})
            name = str(sorted(_choices(record["config"]).items()))
            if name not in best or value < best[name][0]:
                best[name] = (value, record)
        cells = [_cell(shape, list(found.values())) for shape, found in by_shape.items() if len(found) > 1]
        if len(cells) > 1:
            cells.sort(key=lambda cell: (cell.shape.n, cell.shape.k, cell.shape.m))
            made.append(ComparisonMap(kernel, dtype, device, figures, tuple(cells)))
    return made


def draw(drawn: ComparisonMap) -> Figure:
    """Draws a map: rows are M, columns N and K."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.patches import Rectangle

    heights = sorted({cell.shape.m for cell in drawn.cells})
    widths = sorted({(cell.shape.n, cell.shape.k) for cell in drawn.cells})
    large = max(len(widths), len(heights)) > LARGEST
    numbers = {best: str(n) for n, best in enumerate(dict.fromkeys(_short(cell.best) for cell in drawn.cells), 1)}
    with matplotlib.rc_context(SETTINGS):
        size = (min(16.0, max(WIDTH, 2.0 + 1.5 * len(widths))), min(14.0, 1.4 + 0.55 * len(heights)))
        canvas = Canvas(figsize=size, layout="constrained")
        axis = canvas.subplots()
        for cell in drawn.cells:
            x, y = widths.index((cell.shape.n, cell.shape.k)), heights.index(cell.shape.m)
            if cell.loss:
                shade: dict[str, Any] = {"facecolor": color("kernel8"), "alpha": 0.6 * min(1.0, cell.loss / DARKEST)}
                axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **shade))
            words = numbers[_short(cell.best)] if large else f"{_short(cell.best)}\n{_loss(cell)}"
            axis.text(x, y, words, ha="center", va="center", fontsize=8)
        lines: dict[str, Any] = {"color": color("grid"), "linewidth": 0.8, "zorder": 0.5}
        axis.vlines([x + 0.5 for x in range(len(widths))], -0.5, len(heights) - 0.5, **lines)
        axis.hlines([y + 0.5 for y in range(len(heights))], -0.5, len(widths) - 0.5, **lines)
        axis.set_xlim(-0.5, len(widths) - 0.5)
        axis.set_ylim(-0.5, len(heights) - 0.5)
        axis.set_xticks(range(len(widths)), [f"{n}, {k}" for n, k in widths], rotation=90 if large else 0)
        axis.set_yticks(range(len(heights)), [str(m) for m in heights])
        axis.set_xlabel("N, K")
        axis.set_ylabel("M")
        axis.grid(False)
    tried = max(cell.tried for cell in drawn.cells)
    inside = "the best tile, cluster and depth (s), and below how much more the default takes: the darker, the more"
    if large:
        meanings = ", ".join(f"{number} is {best}" for best, number in numbers.items())
        inside = (
            f"the best tile, cluster and depth (s), as a number: {meanings}; the darker, the more the default takes"
        )
    if drawn.figures == "predicted":
        inside += ". Differences of a few per cent are less than the model's own error"
    return Figure(
        f"map-{drawn.kernel}-{drawn.dtype}-{drawn.device}-{drawn.figures}",
        f"The best configuration of {drawn.kernel} by shape, {drawn.dtype} on {drawn.device}",
        f"By {WORDS[drawn.figures]}; of up to {tried} configurations of sweeps. In each cell {inside}.",
        canvas,
        ("M", "N", "K", "best", "its figure", "tried", "as good", "the default takes"),
        [
            (
                *(str(size) for size in (c.shape.m, c.shape.n, c.shape.k)),
                _long(c.best),
                f"{c.figure:.4g}",
                str(c.tried),
                str(c.as_good),
                _loss(c),
            )
            for c in drawn.cells
        ],
        drawn.figures,
    )


def _asked(record: Record) -> str:
    """Returns what the job was, without the versions that executed it."""
    job = {name: value for name, value in record["job"].items() if name not in ("key", "gpu")}
    return json.dumps(
        [record["kernel"], _choices(record["config"]), record["problem"], record["inputs"], job], sort_keys=True
    )


def _figure(record: Record) -> tuple[str, float] | None:
    """Returns (measured, predicted or counted; the figure, smaller is better) of a right result."""
    if "failure" in record or (record.get("validation") or {}).get("passed") is False:
        return None
    if (record.get("timing") or {}).get("seconds"):
        return "measured", record["timing"]["seconds"]
    if record.get("predicted"):
        return "predicted", record["predicted"]["seconds"]
    counters = record.get("counters") or {}
    if "tma_global_bytes_read" in counters:
        return "counted", counters["tma_global_bytes_read"] + counters["tma_global_bytes_written"]
    return None


def _group(row: tuple[tuple[str, float], Record]) -> tuple[str, str, str, str]:
    (figures, _), record = row
    return record["kernel"], record["config"]["dtype"], record["device"]["kind"], figures


def _cell(shape: Shape, found: Sequence[tuple[float, Record]]) -> Cell:
    value = min(figure for figure, _ in found)
    best = [_choices(record["config"]) for figure, record in found if figure == value]
    default = _default(found[0][1], shape)
    of_default = next((figure for figure, record in found if _choices(record["config"]) == default), None)
    loss = of_default / value - 1 if of_default else None
    return Cell(shape, default if default in best else best[0], value, len(found), len(best), loss)


def _default(record: Record, shape: Shape) -> dict[str, Any] | None:
    config = record["config"]
    try:
        return _choices(try_config(record["kernel"], arch=config["arch"], dtype=config["dtype"], shape=shape).as_dict())
    except UsageProblem:
        return None


def _choices(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the requested fields of a configuration. A launch plan adds others, and adds K to the tile."""
    found = {name: config[name] for name in KernelConfig.__dataclass_fields__ if name in config and name != "kernel"}
    usual = {"out_dtype": config["dtype"]}  # for records without these fields
    return {**usual, **found, "mma_shape": list(config["mma_shape"])[:2]}


def _short(config: Mapping[str, Any]) -> str:
    tile, cluster = ("x".join(map(str, config[name])) for name in ("mma_shape", "cluster"))
    return f"{tile} {cluster} s{config['stages']}"


def _long(config: Mapping[str, Any]) -> str:
    rest = [f"{name.replace('_', ' ')} {value}" for name, value in config.items() if name not in _LEFT_OUT]
    return ", ".join([_short(config), *rest])


def _loss(cell: Cell) -> str:
    if cell.loss is None:
        return "default not tried"
    return "the default" if cell.loss == 0 else f"+{100 * cell.loss:.1f} %"
