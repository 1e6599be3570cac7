"""Draws the figures with matplotlib. Each comes with a description and its numbers as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from emugpu.gpus import facts
from harness.experiments.history import case_of
from harness.model.silicon.times import Confrontation
from harness.report import data
from harness.report.data import DeviceRecords, Record, Saving
from harness.report.figure import SETTINGS, VENDORS, Figure, color
from harness.report.published import PublishedFigure

WIDTH = 9.0
SHARED_CLOCK = (
    "Batches of both share a clock, which falls with the power that either takes: the vendor's figure differs by its "
    "neighbour, and no ratio is one of each alone."
)
"""A remark for readers of ratios."""


def draw_all(
    devices: Sequence[DeviceRecords],
    published: Sequence[PublishedFigure],
    confrontations: Mapping[str, Sequence[Confrontation]],
) -> list[Figure]:
    """Draws every figure for which there are numbers. Each GPU has its own, because their times share no axis.
    ``confrontations`` are comparisons with published tables, by GPU.
    """
    with matplotlib.rc_context(SETTINGS):
        found: list[Figure | None] = []
        for device in devices:
            found += [measured(device), steps(device), multicast(device), history(device), roofline(device)]
        for gpu in dict.fromkeys(one.gpu for one in published):
            found.append(by_others(gpu, [one for one in published if one.gpu == gpu]))
        found += [confronted(gpu, each) for gpu, each in confrontations.items()]
    return [figure for figure in found if figure]


def measured(device: DeviceRecords) -> Figure | None:
    """Draws TFLOPS measured here, by problem, each beside the vendor's that was measured in turn with it."""
    groups: dict[str, list[Record]] = {}
    for record in device.newest.values():
        if not device.emulated and data.tflops(record):
            rest = case_of(record).removeprefix(record["kernel"]).strip()
            groups.setdefault(data.compact(rest), []).append(record)
    if not groups:
        return None
    ours = [(name, records) for name, records in groups.items() if len(records) > 1] or list(groups.items())
    canvas, axes = _panels([len(records) for _, records in ours])
    rows: list[tuple[str, ...]] = []
    for axis, (name, records) in zip(axes, ours, strict=True):
        records = sorted(records, key=lambda record: record["kernel"])
        _bars(axis, name, [(r["kernel"], data.tflops(r) or 0, color(r["kernel"])) for r in records])
        _mark_vendors(axis, [data.vendor_tflops(r) for r in records])
        for r in records:
            beside = [f"{VENDORS.get(vendor, vendor)} {value:.1f}" for vendor, value in data.vendor_tflops(r).items()]
            rows.append((name, r["kernel"], f"{data.tflops(r):.1f}", ", ".join(beside)))
    return Figure(
        f"measured-{device.kind}",
        f"Measured: TFLOPS on {device.name}",
        "Bars of TFLOPS by problem, the newest record of each case. The mark on a bar is the vendor's GEMM as it was "
        f"measured in turn with that kernel, in its processes. {SHARED_CLOCK}",
        canvas,
        ("problem", "kernel", "TFLOPS", "the vendor's in turn with it"),
        rows,
        "measured",
    )


def by_others(gpu: str, published: Sequence[PublishedFigure]) -> Figure:
    """Draws published TFLOPS for one GPU."""
    groups: dict[str, list[PublishedFigure]] = {}
    for one in published:
        groups.setdefault(f"by others: {one.author}, {one.dtype} {data.compact(one.shape)}", []).append(one)
    canvas, axes = _panels([len(found) for found in groups.values()])
    rows: list[tuple[str, ...]] = []
    for axis, (name, found) in zip(axes, groups.items(), strict=True):
        vendor = {"cuBLAS": found[0].vendor_tflops} if found[0].vendor_tflops else {}
        _bars(axis, name, [(f.name, f.tflops, color("other")) for f in found], vendor, "//")
        rows += [(f"published {name}", f.name, f"{f.tflops:g}") for f in found]
        rows += [(f"published {name}", n, f"{v:g}") for n, v in vendor.items()]
    return Figure(
        f"published-{'-'.join(gpu.lower().split())}",
        f"Published by others for {gpu}",
        "Hatched grey bars are figures that others have published, on their machines; the line is cuBLAS according to "
        "the same source.",
        canvas,
        ("whose", "kernel", "TFLOPS"),
        rows,
        "published",
    )


def confronted(gpu: str, found: Sequence[Confrontation]) -> Figure | None:
    """Draws published values of a GPU against the model's predictions: a panel for each table, a dot for each row. On
    the line both are equal.
    """
    found = [one for one in found if one.answered]
    if not found:
        return None
    across = 3
    down = -(-len(found) // across)
    canvas = Canvas(figsize=(WIDTH, 2.9 * down + 0.3), layout=ConstrainedLayoutEngine(hspace=0.1))
    rows: list[tuple[str, ...]] = []
    panels = list(canvas.subplots(down, across, squeeze=False).flat)
    for axis, one in zip(panels, found, strict=False):
        pairs = [(row.published, row.predicted or 0) for row in one.answered]
        ends = [min(min(pair) for pair in pairs) * 0.9, max(max(pair) for pair in pairs) * 1.1]
        axis.plot(ends, ends, color=color("muted"), linewidth=1)
        axis.scatter(*zip(*pairs, strict=True), s=9, color=color("vendor"), edgecolors="none", zorder=3)
        axis.set(xscale="log", yscale="log", xlabel=f"published, {one.unit}", ylabel="predicted", title=one.name)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(LogLocator(subs=(1, 2, 5) if ends[1] / ends[0] < 15 else (1,)))
            side.set_major_formatter(EngFormatter(sep=""))
            side.set_minor_formatter(NullFormatter())
        worst = one.worst
        assert worst is not None and one.mean_error is not None
        shown = f"{100 * one.mean_error:.1f} %", f"{100 * worst.error:+.1f} %"
        rows.append((one.name, f"{len(one.answered):,}", *shown, worst.what))
    for axis in panels[len(found) :]:
        axis.set_axis_off()
    return Figure(
        f"confronted-{gpu}",
        f"Published of an {facts(gpu).title} by others, against the model",
        "Panels of dots, one for each row of a published table: what was published across, what the model predicts "
        "upward, on logarithmic axes. Nothing here was measured by us; `harness confront` has the sources.",
        canvas,
        ("table", "rows", "mean error", "largest", "the row with the largest"),
        rows,
        "published, predicted",
    )


def _panels(bars: Sequence[int]) -> tuple[Canvas, Any]:
    """Makes panels one below the other, with room for this many bars each."""
    canvas = Canvas(figsize=(WIDTH, 0.62 * len(bars) + 0.34 * sum(bars) + 0.6), layout="constrained")
    axes = canvas.subplots(len(bars), 1, squeeze=False, sharex=True, height_ratios=[n + 0.8 for n in bars])[:, 0]
    axes[-1].set_xlabel("TFLOPS")
    return canvas, axes


def _mark_vendors(axis: Any, vendors: Sequence[dict[str, float]]) -> None:
    """Marks each vendor's GEMM, measured in turn, on each bar."""
    names = list(dict.fromkeys(name for one in vendors for name in one))
    for number, name in enumerate(names):
        places = [(one[name], row) for row, one in enumerate(vendors) if name in one]
        style: dict[str, Any] = {"color": color("vendor"), "linestyle": "none", "marker": "|d"[number % 2], "zorder": 5}
        style |= {"markersize": (20, 7)[number % 2], "markeredgewidth": 2, "label": VENDORS.get(name, name)}
        style |= {"path_effects": [withStroke(linewidth=4, foreground=color("paper"))]}
        axis.plot([place for place, _ in places], [row for _, row in places], **style)
    if names:
        _legend_beside_title(axis, len(names))


def _legend_beside_title(axis: Any, count: int) -> None:
    """Puts the legend where no bar reaches."""
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, borderpad=0.2, ncols=count, markerscale=0.6)


def _bars(
    axis: Any, title: str, bars: list[tuple[str, float, str]], vendors: dict[str, float] | None = None, hatch: str = ""
) -> None:
    """Draws horizontal bars with their values, and lines for GEMMs to which all bars are compared."""
    axis.set_title(title)
    names = [name for name, _, _ in bars]
    colors = [shade for _, _, shade in bars]
    style: dict[str, Any] = (
        {"facecolor": color("paper"), "edgecolor": colors, "hatch": hatch} if hatch else {"color": colors}
    )
    drawn = axis.barh(names, [value for _, value, _ in bars], height=0.62, **style)
    if hatch:
        behind = {"facecolor": color("paper"), "edgecolor": "none", "pad": 1}
        axis.bar_label(drawn, fmt="%.4g", padding=5, color=color("ink"), bbox=behind, zorder=4)
    else:  # where no vendor's mark is
        for row, (_, value, _) in enumerate(bars):
            axis.annotate(
                f"{value:.4g}", (0, row), (6, 0), textcoords="offset points", va="center", color=color("paper")
            )
    axis.set_ylim(len(bars) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0, labelcolor=color("ink"))
    for number, (name, value) in enumerate((vendors or {}).items()):
        style = {"color": color("vendor"), "linewidth": 2, "linestyle": ("--", ":")[number % 2]}
        axis.axvline(value, label=f"{name} {value:.4g}", **style)
    if vendors:
        _legend_beside_title(axis, len(vendors))
    axis.margins(x=0.12)


STEPS = (
    ("stages", lambda r: r["config"].get("stages") or r["facts"]["stages"]),
    ("shared memory for C, KiB", lambda r: _part(r, "C") / 1024),
    ("instructions executed", data.executed),
    ("waits on a barrier", lambda r: r["counters"].get("mbarrier_waits")),
    ("waits that stalled", lambda r: r["counters"].get("mbarrier_stalls")),
    ("TMA stores in flight at most", lambda r: r["counters"].get("max_stores_in_flight")),
)


def steps(device: DeviceRecords) -> Figure | None:
    """Draws what each kernel of the series changes, in exact figures of the same problem."""
    newest = device.newest
    cases = {kernel: newest[case] for kernel, case in data.main_cases(device).items() if case in newest}
    if not device.emulated or len(cases) < 2:
        return None
    canvas = Canvas(figsize=(WIDTH, 4.4), layout=ConstrainedLayoutEngine(hspace=0.12))
    rows: list[tuple[str, ...]] = []
    for axis, (name, value) in zip(canvas.subplots(2, 3).flat, STEPS, strict=True):
        values = [float(value(record) or 0) for record in cases.values()]
        drawn = axis.bar(list(cases), values, color=[color(kernel) for kernel in cases], width=0.62)
        axis.bar_label(drawn, labels=[f"{one:,.0f}" for one in values], padding=2, color=color("ink"))
        axis.set_title(name)
        axis.grid(axis="x", visible=False)
        axis.tick_params(axis="x", length=0, labelcolor=color("ink"))
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.yaxis.set_major_formatter(FuncFormatter(_short))
        axis.margins(y=0.15)
        rows.append((name, *(f"{one:,.0f}" for one in values)))
    case = next(iter(data.main_cases(device).values())).split(" ", 1)[1]
    return Figure(
        f"steps-{device.kind}",
        f"What each step changes: {case}, {device.name}",
        f"Six small bar charts of exact figures for {', '.join(cases)}. Counted, not timed.",
        canvas,
        ("figure", *cases),
        rows,
        "counted",
    )


def _part(record: Record, start: str) -> int:
    parts = (record.get("facts") or {}).get("shared_memory") or {}
    return sum(size for name, size in parts.items() if name.startswith(start))


def history(device: DeviceRecords) -> Figure | None:
    """Draws one line per kernel over the commits: TFLOPS, or exact figures if nothing was timed."""
    cases = data.main_cases(device)
    measures: dict[str, Any] = {"TFLOPS": data.tflops}
    if device.emulated:
        measures = {"instructions executed": data.executed, "instructions in the PTX": data.ptx_instructions}
    runs = list(dict.fromkeys(r["bench"]["run"] for r in device.records if case_of(r) in cases.values()))[-30:]
    if not runs:
        return None
    first = {r["bench"]["run"]: r for r in reversed(device.records)}
    labels = dict(zip(runs, data.run_labels([first[run] for run in runs]), strict=True))
    canvas = Canvas(figsize=(WIDTH, 2.9 * len(measures) + 1.0), layout="constrained")
    axes = canvas.subplots(len(measures), 1, squeeze=False, sharex=True)[:, 0]
    rows: list[tuple[str, ...]] = []
    for axis, (name, value) in zip(axes, measures.items(), strict=True):
        axis.set_title(name)
        ends: list[tuple[int, float, str]] = []
        for number, (kernel, case) in enumerate(cases.items()):
            points = {r["bench"]["run"]: value(r) for r in device.records if case_of(r) == case}
            points = {run: one for run, one in points.items() if one is not None and run in runs}
            places = [runs.index(run) for run in points]
            marker = "os^Dv"[number % 5]
            axis.plot(places, list(points.values()), marker=marker, color=color(kernel), linewidth=2, label=kernel)
            if points:
                ends.append((places[-1], float(list(points.values())[-1]), kernel))
            rows += [(name, kernel, labels[run], f"{one:,.6g}") for run, one in points.items()]
        axis.yaxis.set_major_formatter(FuncFormatter(_short))
        axis.margins(y=0.25)
        axis.set_xlim(-0.4, max(len(runs) - 1, 1) * 1.28 + 0.2)
        _label_ends(axis, ends)
    ticks = [labels[run].replace(", ", "\n") for run in runs]
    crowded = len(runs) > 6
    axes[-1].set_xticks(range(len(runs)), ticks, rotation=60 if crowded else 0, ha="right" if crowded else "center")
    axes[-1].set_xlabel("commit (+: with uncommitted changes), oldest first")
    case = next(iter(cases.values())).split(" ", 1)[1]
    return Figure(
        f"history-{device.kind}",
        f"History: {case}, {device.name}",
        f"Over {len(runs)} runs, labelled with their commits: {' and '.join(measures)} of {', '.join(cases)}.",
        canvas,
        ("figure", "kernel", "commit", "value"),
        rows,
        "counted" if device.emulated else "measured",
    )


def _label_ends(axis: Any, ends: Sequence[tuple[int, float, str]]) -> None:
    """Writes name and last value of each line beside its end, and moves overlapping labels apart."""
    low, high = axis.get_ylim()
    step = 0.09 * (high - low)
    place = low - step
    for x, value, kernel in sorted(ends, key=lambda end: end[1]):
        place = max(value, place + step)
        axis.annotate(
            f"{kernel} {value:,.4g}" if value < 10_000 else f"{kernel} {value:,.0f}",
            (x, value),
            xytext=(x + 0.03 * (axis.get_xlim()[1] - axis.get_xlim()[0]), place),
            va="center",
            color=color(kernel),
        )


def multicast(device: DeviceRecords) -> Figure | None:
    """Draws bytes of A and B read from global memory by cluster, with multicast and without."""
    which, found = data.savings(device)
    if len(found) < 2:
        return None
    canvas = Canvas(figsize=(WIDTH, 3.4), layout="constrained")
    for axis, operand in zip(canvas.subplots(1, 2, sharey=True), "AB", strict=True):
        places = np.arange(len(found))
        alone = axis.bar(
            places,
            [one.alone[operand] / 2**20 for one in found],
            width=0.7,
            facecolor=color("paper"),
            edgecolor=color("other"),
            hatch="//",
            label="without multicast",
        )
        read = [one.read[operand] / 2**20 for one in found]
        axis.bar(places, read, width=0.7, color=color("kernel6"), label="with multicast")
        axis.bar_label(alone, labels=[_percent(one, operand) for one in found], padding=2, color=color("ink"))
        axis.set_xticks(places, [one.cluster for one in found])
        axis.set_title(f"operand {operand}")
        axis.set_xlabel("cluster (CTAs along M x along N)")
        axis.grid(axis="x", visible=False)
        axis.margins(y=0.15)
    canvas.axes[0].set_ylabel("MiB read from global memory")
    canvas.axes[1].legend(loc="upper right", bbox_to_anchor=(1, 1.16), ncols=2, borderaxespad=0)
    return Figure(
        f"multicast-{device.kind}",
        f"What multicast saves: {which}",
        "Bars of the bytes of A and of B that are read from global memory, for each cluster, in front of what "
        "would be read without multicast.",
        canvas,
        ("cluster", "A read", "A without", "A saved", "B read", "B without", "B saved"),
        [
            (
                one.cluster,
                *(
                    cell
                    for operand in "AB"
                    for cell in (f"{one.read[operand]:,}", f"{one.alone[operand]:,}", _percent(one, operand))
                ),
            )
            for one in found
        ],
        "counted",
    )


def roofline(device: DeviceRecords) -> Figure | None:
    """Draws TFLOPS against operations per byte of DRAM, under the roof of the GPU."""
    timed = [record for record in device.newest.values() if data.tflops(record)]
    if not timed or device.emulated:
        return None
    peak = data.gpu_of(device.records[-1])
    canvas = Canvas(figsize=(WIDTH, 4.0), layout="constrained")
    axis = canvas.subplots()
    places = [data.intensity(record) for record in timed]
    ridge = peak.tflops / peak.terabytes
    across = np.geomspace(min(*places, ridge) / 1.6, max(*places, ridge) * 1.6, 200)
    roof = [peak.roof(x) for x in across]
    label = f"{peak.title}: {peak.tflops:,} TFLOPS, {peak.terabytes:g} TB/s"
    axis.plot(across, roof, color=color("muted"), linewidth=1.8, label=label)
    for number, kernel in enumerate(sorted({record["kernel"] for record in timed})):
        found = [record for record in timed if record["kernel"] == kernel]
        style: dict[str, Any] = {"marker": "os^Dv"[number % 5], "markersize": 8, "linestyle": "none"}
        heights = [data.tflops(record) or 0 for record in found]
        axis.plot([data.intensity(r) for r in found], heights, color=color(kernel), label=kernel, **style)
    heights = [data.tflops(record) or 0 for record in timed] + roof
    axis.set_xscale("log")
    axis.set_ylim(0.8 * min(heights), 1.15 * max(heights))
    axis.set_xlabel("operations per byte that DRAM must move at least: A, B and C once")
    axis.set_ylabel("TFLOPS")
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_formatter(ScalarFormatter())
    axis.tick_params(axis="x", which="minor", labelsize=8)
    axis.legend(loc="lower left")
    rows: list[tuple[str, ...]] = [
        (case_of(r), f"{data.intensity(r):,.1f}", f"{data.tflops(r):,.1f}", f"{peak.roof(data.intensity(r)):,.0f}")
        for r in timed
    ]
    return Figure(
        f"roofline-{device.kind}",
        f"Roofline: {device.name}",
        "The roof is the maker's figures for memory and tensor cores. A mark lies where A, B and C are moved by DRAM "
        "once; what L2 does not hold comes again, so a kernel may be further to the left, and never to the right.",
        canvas,
        ("case", "operations per byte", "TFLOPS", "roof"),
        rows,
        "measured",
    )


def _percent(one: Saving, operand: str) -> str:
    saved = one.saved(operand)
    return f"\u2212{100 * saved:.0f} %" if saved else "0 %"


def _short(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"
