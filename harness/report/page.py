"""Writes the report as one self-contained HTML page: no network, no fonts, and a small script that sorts tables."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from emugpu.gpus import facts, names
from harness.experiments.history import case_of, platform_of
from harness.report import data
from harness.report.data import DeviceRecords, Record, Results
from harness.report.figure import DARK, LIGHT, VENDORS, Figure, css_variables, for_page
from harness.report.published import PublishedFigure
from harness.report.state import state_of
from harness.run.compare import multicast_factor


@dataclass(frozen=True)
class PlanPicture:
    """The picture of a kernel by `harness explain`. ``title`` names the kernel and the problem."""

    kernel: str
    title: str
    svg: str


@dataclass(frozen=True)
class Table:
    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class KernelSection:
    """The section about one kernel. ``plans`` are titles with pictures as base64."""

    name: str
    tables: list[Table]
    plans: Sequence[Mapping[str, str]]


def page(
    results: Results,
    figures: Sequence[Figure],
    published: Sequence[PublishedFigure],
    pictures: Sequence[PlanPicture],
) -> str:
    """Renders the whole page. ``figures`` were drawn from these results; ``pictures`` show launch plans."""
    environment = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "for_page": _drawing,
        "is_words": _is_words,
    }
    kernels = sorted({kernel for device in results.devices for kernel in device.kernels})
    states = [state_of(device) for device in results.devices]
    changes = [astuple(change) for state in states for change in state.changes]
    links = {
        **({"changes": "What changed"} if changes else {}),
        "figures": "Figures",
        "model": "How wrong the model is",
        **{kernel: kernel for kernel in kernels},
        "others": "Published by others",
    }
    return environment.get_template("page.html.j2").render(
        light=css_variables(LIGHT),
        dark=css_variables(DARK),
        states=states,
        changes=changes,
        links=links,
        figures=figures,
        kernels=[_kernel(kernel, results.devices, pictures) for kernel in kernels],
        published=published,
        damaged=[str(line) for line in results.damaged],
        peaks="; ".join(f"{gpu.title}: {gpu.source}" for gpu in map(facts, names())),
    )


_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("TFLOPS", lambda r: data.tflops(r) and f"{data.tflops(r):.1f}"),
    ("of vendor", lambda r: _ratio(r)),
    ("stages", lambda r: (r.get("facts") or r["config"]).get("stages")),
    ("PTX instr.", data.ptx_instructions),
    ("registers", lambda r: ((r.get("ptx") or {}).get("ptxas") or {}).get("registers")),
    ("shared memory", lambda r: (r.get("facts") or {}).get("dynamic_shared_bytes")),
    ("executed", data.executed),
    ("bytes read", lambda r: (r.get("counters") or {}).get("tma_global_bytes_read")),
    ("multicast", lambda r: _factor(r)),
    ("barrier waits", lambda r: (r.get("counters") or {}).get("mbarrier_waits")),
    ("version", data.version_label),
)


def _kernel(kernel: str, devices: Sequence[DeviceRecords], pictures: Sequence[PlanPicture]) -> KernelSection:
    tables = []
    for device in devices:
        records = [record for record in device.newest.values() if record["kernel"] == kernel]
        rows = [
            (
                data.compact(case_of(record).removeprefix(f"{kernel} ")),
                *(_cell(read(record)) for _, read in _COLUMNS),
            )
            for record in records
        ]
        used = [0] + [i for i in range(1, len(_COLUMNS) + 1) if any(row[i] != "" for row in rows)]
        names = ("case", *(name for name, _ in _COLUMNS))
        if rows:
            caption = f"{kernel} on {platform_of(records[0])}"
            columns = tuple(names[i] for i in used)
            tables.append(Table(caption, columns, [tuple(row[i] for i in used) for row in rows]))
    plans = [
        {"title": picture.title, "svg": base64.b64encode(picture.svg.encode()).decode()}
        for picture in pictures
        if picture.kernel == kernel
    ]
    return KernelSection(kernel, tables, plans)


def _drawing(figure: Figure) -> Markup:
    return Markup(for_page(figure.svg, figure.name, figure.title, figure.description))


def _is_words(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether a table ends in text, which is aligned to the left."""
    return all(not any(ch.isdigit() for ch in row[-1]) for row in rows)


def _ratio(record: Record) -> str | None:
    vendors: Mapping[str, Any] = (record.get("timing") or {}).get("vendor") or {}
    ratios = [
        f"{vendor['ratio']:.3f} {VENDORS.get(name, name)}" for name, vendor in vendors.items() if "ratio" in vendor
    ]
    return ", ".join(ratios) or None


def _factor(record: Record) -> str | None:
    factor = multicast_factor(record.get("counters") or {})
    return f"{factor:.2f}x" if factor else None


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
