"""A figure of the report: a drawing with its description and its numbers, and its colours in light and dark mode. This
module works without matplotlib.

A figure is drawn once, in light colours. Inside the page each colour becomes a CSS variable, so that the same drawing
follows the reader's light or dark mode.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

LIGHT = {
    "paper": "#fcfcfa",
    "ink": "#1c1e21",
    "muted": "#595f69",
    "grid": "#e2e3e0",
    "kernel5": "#b4540a",
    "kernel6": "#0d6e8f",
    "kernel7": "#6b3fa0",
    "kernel8": "#a3254f",
    "vendor": "#3d7a1e",
    "other": "#8a8f98",
}
DARK = {
    "paper": "#15171a",
    "ink": "#eceef0",
    "muted": "#a7aeb8",
    "grid": "#31353b",
    "kernel5": "#f2a35e",
    "kernel6": "#5cc3e8",
    "kernel7": "#c3a0f5",
    "kernel8": "#f58ab0",
    "vendor": "#8fd066",
    "other": "#7f858f",
}
FIGURE = ("kernel5", "kernel6", "kernel7", "kernel8", "vendor", "other")
"""Colours of bars and lines; the others are text and paper."""

SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "blackwell-matmul-lab",
    "font.family": "sans-serif",
    "font.size": 10,
    "figure.facecolor": LIGHT["paper"],
    "axes.facecolor": LIGHT["paper"],
    "savefig.facecolor": LIGHT["paper"],
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["muted"],
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": LIGHT["grid"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "legend.frameon": False,
    "hatch.linewidth": 1.0,
    "figure.dpi": 100,
    "savefig.dpi": 160,
}


def color(name: str) -> str:
    """Returns the colour of a kernel or of a part of a figure. Kernels outside the series have the colour of ink."""
    return LIGHT.get(name, LIGHT["ink"])


def css_variables(colors: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colors.items())


def for_page(svg: str, name: str, title: str, description: str) -> str:
    """Makes an SVG file a part of the page: CSS colours, unique ids, and a description for screen readers."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(title|metadata)>.*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    names = {value: key for key, value in LIGHT.items()}
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{names[m[0]]})" if m[0] in names else m[0], svg)
    head, rest = svg.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    words = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    return f'{head} role="img" aria-labelledby="{name}-title {name}-desc">{words}{rest}'


VENDORS = {"cublas": "cuBLAS", "best_of_cublaslt": "cuBLASLt's best", "max": "MAX"}
"""The vendors' GEMMs by their names in records."""


@dataclass(frozen=True)
class Figure:
    """A figure. ``name``: of the files. ``description``: the content in words. ``canvas``: a matplotlib Figure.
    ``rows``: the numbers, under ``columns``. ``status``: measured (here, on a GPU), counted (by the emulator),
    predicted (by a model), published (by others), or two of these.
    """

    name: str
    title: str
    description: str
    canvas: Any
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    status: str

    @property
    def by_others(self) -> bool:
        return self.status == "published"

    def save(self, folder: Path) -> list[Path]:
        """Writes NAME.svg and NAME.png."""
        import matplotlib

        svg, png = folder / f"{self.name}.svg", folder / f"{self.name}.png"
        svg.write_text(self.svg, encoding="utf-8")
        with matplotlib.rc_context(SETTINGS):
            self.canvas.savefig(png, metadata={"Title": self.title, "Description": self.description})
        return [svg, png]

    @cached_property
    def svg(self) -> str:
        """Draws the figure once, for the file and the page. The layout then stays for the PNG."""
        import matplotlib

        text = io.StringIO()
        with matplotlib.rc_context(SETTINGS):
            self.canvas.savefig(text, format="svg", metadata={"Date": None, "Title": self.title})
        self.canvas.set_layout_engine("none")
        return text.getvalue()
