"""The report as one HTML page that needs nothing else: no network, no scripts, no fonts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from harness.bench.history import case_of, machine_of
from harness.report import data
from harness.report.data import PEAKS, Device, Record, Results
from harness.report.figures import VENDORS, Figure
from harness.report.published import PublishedFigure
from harness.report.style import DARK, LIGHT, css_variables, for_page

_STYLE = """
:root{color-scheme:light dark;%(light)s}
@media (prefers-color-scheme:dark){:root{%(dark)s}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main,header,footer{max-width:72rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.5rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .4rem}
h2{font-size:1.35rem;margin:3rem 0 .5rem;padding-top:.9rem;border-top:1px solid var(--grid)}
h3{font-size:1.05rem;margin:2rem 0 .3rem}
p{max-width:46rem;margin:.4rem 0 1rem}
.muted,figcaption,caption{color:var(--muted)}
a{color:var(--kernel6)}
nav ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:1rem 0}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(13rem,1fr));gap:1rem;margin:1.5rem 0}
dl div{border:1px solid var(--grid);border-radius:.5rem;padding:.7rem .9rem}
dt{color:var(--muted);font-size:.85rem}
dd{margin:.1rem 0 0;font-weight:600;overflow-wrap:anywhere}
figure{margin:1.2rem 0 2rem}
figure svg{width:100%%;height:auto;display:block}
figure svg text{font-family:system-ui,sans-serif !important}
figcaption{font-size:.92rem;margin-top:.5rem;max-width:46rem}
.wide{overflow-x:auto;margin:.6rem 0 1.4rem}
.wide:focus-visible,summary:focus-visible,a:focus-visible{outline:3px solid var(--kernel6);outline-offset:2px}
table{border-collapse:collapse;width:100%%;font-size:.84rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:.3rem 0}
th,td{padding:.35rem .55rem;border-bottom:1px solid var(--grid);text-align:right;white-space:nowrap}
th:first-child,td:first-child,.words td,.words th{text-align:left}
thead th{color:var(--muted);font-weight:600;border-bottom:2px solid var(--muted)}
tbody th{font-weight:500}
summary{cursor:pointer;color:var(--muted)}
footer{margin-top:3rem;padding-bottom:3rem;font-size:.9rem}
@media (max-width:40rem){.wide figure svg,.drawing svg{min-width:36rem}.drawing{overflow-x:auto}}
"""


def page(results: Results, figures: Sequence[Figure], published: Sequence[PublishedFigure]) -> str:
    """The whole page. figures: those drawn from these results."""
    style = _STYLE % {"light": css_variables(LIGHT), "dark": css_variables(DARK)}
    kernels = sorted({kernel for device in results.devices for kernel in device.kernels})
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>Blackwell matmul lab: report</title>",
        f"<style>{style}</style></head><body>",
        _header(results, kernels),
        "<main>",
        '<h2 id="figures">Figures</h2>',
        *(_figure(figure) for figure in figures),
        '<h2 id="kernels">Kernels</h2>',
        "<p>The newest record of every case. Counters are exact; a time is shown only if it was measured.</p>",
        *(_kernel(kernel, results.devices) for kernel in kernels),
        _others(published),
        "</main>",
        _footer(results),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _header(results: Results, kernels: Sequence[str]) -> str:
    links = {"figures": "Figures", **{kernel: kernel for kernel in kernels}, "others": "Published by others"}
    nav = "".join(f'<li><a href="#{target}">{escape(text)}</a></li>' for target, text in links.items())
    cards = "".join(_card(device) for device in results.devices)
    return (
        "<header><h1>Blackwell matmul lab</h1>"
        '<p class="muted">Matmul kernels in Mojo: what each step of the series changes, in exact figures from an '
        "emulated GPU and in times where a GPU was there.</p>"
        f'<nav aria-label="On this page"><ul>{nav}</ul></nav><dl>{cards}</dl></header>'
    )


def _card(device: Device) -> str:
    last = device.records[-1]
    timed = sum(data.tflops(record) is not None for record in device.newest.values())
    times = f"{timed} with times" if timed else "no times"
    facts = f"{len(device.newest)} cases, {times}; last {last['time'][:10]} at {data.commit_label(last)}"
    return f"<div><dt>{escape(str(machine_of(last)))}</dt><dd>{escape(facts)}</dd></div>"


def _figure(figure: Figure) -> str:
    svg = for_page(figure.svg(), figure.name, figure.title, figure.description)
    table = _table(f"Numbers of the figure: {figure.title}", figure.columns, figure.rows)
    return (
        f'<h3>{escape(figure.title)}</h3><figure><div class="drawing">{svg}</div>'
        f"<figcaption>{escape(figure.description)}</figcaption></figure>"
        f"<details><summary>The numbers of this figure</summary>{table}</details>"
    )


_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("TFLOPS", lambda r: data.tflops(r) and f"{data.tflops(r):.1f}"),
    ("of vendor", lambda r: _ratio(r)),
    ("stages", lambda r: r["facts"].get("stages")),
    ("PTX instr.", data.ptx_instructions),
    ("registers", lambda r: ((r.get("ptx") or {}).get("ptxas") or {}).get("registers")),
    ("shared memory", lambda r: r["facts"].get("dynamic_shared_bytes")),
    ("executed", data.executed),
    ("bytes read", lambda r: (r.get("counters") or {}).get("tma_global_bytes_read")),
    ("multicast", lambda r: _factor(r)),
    ("barrier waits", lambda r: (r.get("counters") or {}).get("mbarrier_waits")),
    ("commit", data.commit_label),
)


def _kernel(kernel: str, devices: Sequence[Device]) -> str:
    parts = [f'<h3 id="{escape(kernel)}">{escape(kernel)}</h3>']
    for device in devices:
        records = [record for record in device.newest.values() if record["kernel"] == kernel]
        rows = [
            (case_of(record).removeprefix(f"{kernel} "), *(_cell(read(record)) for _, read in _COLUMNS))
            for record in records
        ]
        used = [0] + [i for i in range(1, len(_COLUMNS) + 1) if any(row[i] != "" for row in rows)]
        names = ("case", *(name for name, _ in _COLUMNS))
        caption = f"{kernel} on {machine_of(records[0])}" if records else ""
        if rows:
            parts.append(_table(caption, [names[i] for i in used], [tuple(row[i] for i in used) for row in rows]))
    return "\n".join(parts)


def _others(published: Sequence[PublishedFigure]) -> str:
    rows = [
        (
            one.author,
            one.name,
            f"{one.tflops:g}",
            f"{one.vendor_tflops:g}" if one.vendor_tflops else "",
            f"{one.gpu}, {one.shape}, {one.dtype}",
            one.source,
        )
        for one in published
    ]
    columns = ("author", "kernel", "TFLOPS", "cuBLAS, same source", "on", "source")
    table = _table("Results of other people on their machines; none is this project's.", columns, rows)
    return f'<h2 id="others">Published by others</h2>{table}'


def _footer(results: Results) -> str:
    peaks = "; ".join(f"{peak.gpu}: {peak.source}" for peak in PEAKS)
    damaged = "".join(f"<li>{escape(str(line))}</li>" for line in results.damaged)
    skipped = f"<p>Lines of the history that could not be read:</p><ul>{damaged}</ul>" if damaged else ""
    return (
        f'<footer class="muted">{skipped}<p>Roofs: {escape(peaks)}. Drawn by <code>harness report</code> from the '
        "records in results/.</p></footer>"
    )


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    words = all(not any(ch.isdigit() for ch in row[-1]) for row in rows) and len(columns) > 1
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    kind = ' class="words"' if words else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table{kind}>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _ratio(record: Record) -> str | None:
    vendors: Mapping[str, Any] = (record.get("timing") or {}).get("vendor") or {}
    ratios = [
        f"{vendor['ratio']:.3f} {VENDORS.get(name, name)}" for name, vendor in vendors.items() if "ratio" in vendor
    ]
    return ", ".join(ratios) or None


def _factor(record: Record) -> str | None:
    counters = record.get("counters") or {}
    read = counters.get("tma_global_bytes_read")
    return f"{counters['tma_shared_bytes_written'] / read:.2f}x" if read else None


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
