"""The figures, drawn with matplotlib. Each comes with its words and its numbers as a table."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter

from harness.bench.history import case_of
from harness.report import data
from harness.report.data import PEAKS, Device, Record, Saving
from harness.report.published import PublishedFigure
from harness.report.style import SETTINGS, color

WIDTH = 9.0


@dataclass(frozen=True)
class Figure:
    """name: of the files. description: what is to be seen, in words. rows: the numbers, under columns."""

    name: str
    title: str
    description: str
    canvas: Canvas
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def svg(self) -> str:
        text = io.StringIO()
        with matplotlib.rc_context(SETTINGS):
            self.canvas.savefig(text, format="svg", metadata={"Date": None, "Title": self.title})
        return text.getvalue()

    def save(self, folder: Path) -> list[Path]:
        """Writes NAME.svg and NAME.png."""
        svg, png = folder / f"{self.name}.svg", folder / f"{self.name}.png"
        svg.write_text(self.svg())
        with matplotlib.rc_context(SETTINGS):
            self.canvas.savefig(png, metadata={"Title": self.title, "Description": self.description})
        return [svg, png]


def draw_all(devices: Sequence[Device], published: Sequence[PublishedFigure]) -> list[Figure]:
    """Every figure that there are numbers for."""
    with matplotlib.rc_context(SETTINGS):
        found: list[Figure | None] = [series(devices, published)]
        for device in devices:
            found += [steps(device), history(device), multicast(device)]
        found.append(roofline(devices))
    return [figure for figure in found if figure]


def series(devices: Sequence[Device], published: Sequence[PublishedFigure]) -> Figure:
    """TFLOPS: what was measured here, by GPU and shape, beside what others have published."""
    measured = [
        (device, record)
        for device in devices
        if not device.emulated
        for record in device.newest.values()
        if data.tflops(record)
    ]
    groups: dict[str, list[Record]] = {}
    for device, record in measured:
        rest = case_of(record).removeprefix(record["kernel"]).strip()
        groups.setdefault(f"{device.name}, {data.compact(rest)}", []).append(record)
    ours = [(name, records) for name, records in groups.items() if len(records) > 1] or list(groups.items())
    others: dict[str, list[PublishedFigure]] = {}
    for one in published:
        where = f"{one.gpu}, {one.dtype} {data.compact(one.shape)}"
        others.setdefault(f"{one.author}, {where}", []).append(one)
    panels = max(len(ours), 1) + len(others)
    bars = [max(len(records), 2) for _, records in ours] or [1]
    bars += [len(found) for found in others.values()]
    canvas = Canvas(figsize=(WIDTH, 0.62 * panels + 0.34 * sum(bars) + 0.4), layout="constrained")
    axes = canvas.subplots(panels, 1, squeeze=False, sharex=True, height_ratios=[n + 0.8 for n in bars])[:, 0]
    rows: list[tuple[str, ...]] = []
    if not ours:
        axes[0].set_title("this project")
        axes[0].text(
            0.0,
            0.7,
            "not measured: no record of a GPU in the history",
            transform=axes[0].transAxes,
            color=color("muted"),
        )
        axes[0].axis("off")
    for axis, (name, records) in zip(axes, ours, strict=False):
        records = sorted(records, key=lambda record: record["kernel"])
        vendors = _median_vendors(records)
        _bars(
            axis,
            f"this project, {name}",
            [(r["kernel"], data.tflops(r) or 0, color(r["kernel"])) for r in records],
            vendors,
        )
        rows += [("this project", name, r["kernel"], f"{data.tflops(r):.1f}") for r in records]
        rows += [("vendor, measured here", name, vendor, f"{value:.1f}") for vendor, value in vendors.items()]
    for axis, (name, found) in zip(axes[max(len(ours), 1) :], others.items(), strict=True):
        vendor = {"cuBLAS": found[0].vendor_tflops} if found[0].vendor_tflops else {}
        _bars(axis, f"by others: {name}", [(f.name, f.tflops, color("other")) for f in found], vendor, "//")
        rows += [(f"published by {f.author}", name, f.name, f"{f.tflops:g}") for f in found]
        rows += [(f"published by {found[0].author}", name, *(n, f"{v:g}")) for n, v in vendor.items()]
    axes[-1].set_xlabel("TFLOPS")
    return Figure(
        "series",
        "The series of kernels in TFLOPS",
        f"Bars of TFLOPS. Measured by this project: {len(measured)} cases on GPUs. "
        "Hatched grey bars are figures that others have published, on their machines. The line is the vendor's "
        "GEMM: measured in turn with the kernels, or from the same source as the bars.",
        canvas,
        ("whose", "where", "kernel", "TFLOPS"),
        rows,
    )


VENDORS = {"cublas": "cuBLAS", "max": "MAX"}


def _median_vendors(records: Sequence[Record]) -> dict[str, float]:
    names = dict.fromkeys(name for record in records for name in data.vendor_tflops(record))
    return {
        VENDORS.get(name, name): float(
            np.median([data.vendor_tflops(r)[name] for r in records if name in data.vendor_tflops(r)])
        )
        for name in names
    }


def _bars(
    axis: Any, title: str, bars: list[tuple[str, float, str]], vendors: dict[str, float], hatch: str = ""
) -> None:
    """Horizontal bars with their values, and the vendor's GEMM as a line."""
    axis.set_title(title)
    names = [name for name, _, _ in bars]
    colors = [shade for _, _, shade in bars]
    style: dict[str, Any] = (
        {"facecolor": color("paper"), "edgecolor": colors, "hatch": hatch} if hatch else {"color": colors}
    )
    drawn = axis.barh(names, [value for _, value, _ in bars], height=0.62, **style)
    behind = {"facecolor": color("paper"), "edgecolor": "none", "pad": 1}
    axis.bar_label(drawn, fmt="%.4g", padding=5, color=color("ink"), bbox=behind, zorder=4)
    axis.set_ylim(len(bars) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0, labelcolor=color("ink"))
    for number, (name, value) in enumerate(vendors.items()):
        style = {"color": color("vendor"), "linewidth": 2, "linestyle": ("--", ":")[number % 2]}
        axis.axvline(value, label=f"{name} {value:.4g}", **style)
    if vendors and hatch:
        # Published bars reach far to the right; above them there is room.
        axis.legend(loc="lower right", bbox_to_anchor=(1, 0.97), borderaxespad=0, borderpad=0.2)
    elif vendors:
        axis.legend(loc="center right")
    axis.margins(x=0.12)


STEPS = (
    ("stages", lambda r: r["facts"]["stages"]),
    ("shared memory for C, KiB", lambda r: _part(r, "C") / 1024),
    ("instructions executed", data.executed),
    ("waits on a barrier", lambda r: r["counters"].get("mbarrier_waits")),
    ("waits that stalled", lambda r: r["counters"].get("mbarrier_stalls")),
    ("TMA stores in flight at most", lambda r: r["counters"].get("max_stores_in_flight")),
)


def steps(device: Device) -> Figure | None:
    """What each kernel of the series changes, in exact figures of the same problem."""
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
    )


def _part(record: Record, start: str) -> int:
    parts = record["facts"].get("shared_memory") or {}
    return sum(size for name, size in parts.items() if name.startswith(start))


def history(device: Device) -> Figure | None:
    """One line per kernel over the commits: TFLOPS, or exact figures where nothing was timed."""
    cases = data.main_cases(device)
    measures: dict[str, Any] = {"TFLOPS": data.tflops}
    if device.emulated:
        measures = {"instructions executed": data.executed, "instructions in the PTX": data.ptx_instructions}
    runs = list(dict.fromkeys(r["bench"]["run"] for r in device.records if case_of(r) in cases.values()))[-30:]
    if not runs:
        return None
    labels = {r["bench"]["run"]: data.commit_label(r) for r in device.records}
    canvas = Canvas(figsize=(WIDTH, 2.9 * len(measures) + 0.3), layout="constrained")
    axes = canvas.subplots(len(measures), 1, squeeze=False, sharex=True)[:, 0]
    rows: list[tuple[str, ...]] = []
    for axis, (name, value) in zip(axes, measures.items(), strict=True):
        axis.set_title(name)
        for number, (kernel, case) in enumerate(cases.items()):
            points = {r["bench"]["run"]: value(r) for r in device.records if case_of(r) == case}
            points = {run: one for run, one in points.items() if one is not None and run in runs}
            places = [runs.index(run) for run in points]
            marker = "os^Dv"[number % 5]
            axis.plot(places, list(points.values()), marker=marker, color=color(kernel), linewidth=2, label=kernel)
            if points:
                last = list(points.values())[-1]
                axis.annotate(
                    f"{kernel} {last:,.4g}" if isinstance(last, float) else f"{kernel} {last:,}",
                    (places[-1], last),
                    xytext=(9, 0),
                    textcoords="offset points",
                    va="center",
                    color=color(kernel),
                )
            rows += [(name, kernel, labels[run], f"{one:,.6g}") for run, one in points.items()]
        axis.yaxis.set_major_formatter(FuncFormatter(_short))
        axis.margins(y=0.25)
        axis.set_xlim(-0.4, max(len(runs) - 1, 1) * 1.28 + 0.2)
    axes[-1].set_xticks(range(len(runs)), [labels[run] for run in runs], rotation=45, ha="right")
    axes[-1].set_xlabel("commit (+: with uncommitted changes), oldest first")
    case = next(iter(cases.values())).split(" ", 1)[1]
    return Figure(
        f"history-{device.kind}",
        f"History: {case}, {device.name}",
        f"Over {len(runs)} runs, labelled with their commits: {' and '.join(measures)} of {', '.join(cases)}.",
        canvas,
        ("figure", "kernel", "commit", "value"),
        rows,
    )


def multicast(device: Device) -> Figure | None:
    """Bytes of A and B read from global memory by cluster, with multicast and without."""
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
    )


def roofline(devices: Sequence[Device]) -> Figure | None:
    """Operations per byte against TFLOPS, under the roofs of the GPUs. Emulated cases lie on a roof, hollow."""
    timed = [(device, record) for device in devices for record in device.newest.values() if data.tflops(record)]
    traffic = [(device, x, names) for device in devices if device.emulated for x, names in _intensities(device)]
    if not timed and not traffic:
        return None
    canvas = Canvas(figsize=(WIDTH, 4.4), layout="constrained")
    axis = canvas.subplots()
    across = np.logspace(1, 4, 200)
    for peak, line in zip(PEAKS, ("-", "--"), strict=True):
        label = f"{peak.gpu}: {peak.tflops:,} TFLOPS, {peak.terabytes:g} TB/s"
        axis.plot(
            across, [peak.roof(x) for x in across], color=color("muted"), linestyle=line, linewidth=1.8, label=label
        )
    rows: list[tuple[str, ...]] = []
    for number, kernel in enumerate(sorted({record["kernel"] for _, record in timed})):
        found = [record for _, record in timed if record["kernel"] == kernel]
        places = [data.intensity(record) for record in found]
        heights = [data.tflops(record) or 0 for record in found]
        style: dict[str, Any] = {"marker": "os^Dv"[number % 5], "markersize": 8, "linestyle": "none"}
        axis.plot(places, heights, color=color(kernel), label=f"{kernel}, measured", **style)
    for device, record in timed:
        x, roof = data.intensity(record), data.peak_of(record).roof(data.intensity(record))
        rows.append((device.name, case_of(record), f"{x:,.1f}", f"{data.tflops(record):,.1f}", f"{roof:,.0f}"))
    for index, (device, x, names) in enumerate(traffic):
        roof = data.peak_of(device.records[-1]).roof(x)
        legend = None if index else "emulated, by cluster: not timed"
        style = {"marker": "D", "markersize": 7, "linestyle": "none", "markerfacecolor": color("paper")}
        axis.plot(x, roof, color=color("ink"), label=legend, **style)
        axis.annotate(names, (x, roof), xytext=(-9, 2), textcoords="offset points", ha="right", color=color("ink"))
        rows.append((device.name, names, f"{x:,.1f}", "not measured", f"{roof:,.0f}"))
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("operations per byte that TMA moves from and to global memory")
    axis.set_ylabel("TFLOPS")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(ScalarFormatter())
    axis.legend(loc="lower right")
    return Figure(
        "roofline",
        "Roofline",
        "Both axes are logarithmic. Roofs are the makers' figures for memory and tensor cores, as if no byte that "
        "TMA moves were found in L2; hits lift a kernel above the slope. Filled marks are measured. Hollow marks "
        "were emulated, with clusters as they are named: their traffic is exact, they have no time, and stand on "
        "the roof.",
        canvas,
        ("device", "case", "operations per byte", "TFLOPS", "roof"),
        rows,
    )


def _intensities(device: Device) -> list[tuple[float, str]]:
    """Operations per byte of the main problem, with the clusters that have them; pairs and multicast only."""
    main = [device.newest[case] for case in data.main_cases(device).values()]
    found: dict[float, list[str]] = {}
    for record in device.newest.values():
        config = record["config"]
        alike = all(config[name] == main[0]["config"][name] for name in ("mma_shape", "cta_group"))
        if alike and config.get("multicast", True) and record["problem"] == main[0]["problem"]:
            clusters = found.setdefault(round(data.intensity(record), 1), [])
            clusters.append("x".join(map(str, config["cluster"])))
    return [(x, ", ".join(dict.fromkeys(clusters))) for x, clusters in sorted(found.items())]


def _percent(one: Saving, operand: str) -> str:
    saved = one.saved(operand)
    return f"\u2212{100 * saved:.0f} %" if saved else "0 %"


def _short(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"
