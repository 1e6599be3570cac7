"""A figure of the report: a drawing with its words and its numbers. It can be handled without matplotlib."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.report.style import SETTINGS

VENDORS = {"cublas": "cuBLAS", "max": "MAX"}
"""The vendors' GEMMs by their names in records."""


@dataclass(frozen=True)
class Figure:
    """name: of the files. description: what is to be seen, in words. canvas: a matplotlib Figure. rows: the numbers,
    under columns. status: measured (here, on a GPU), counted (by the emulator), predicted (by a model), published (by
    others, as theirs), or two of these.
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

    def svg(self) -> str:
        return self._svg

    def save(self, folder: Path) -> list[Path]:
        """Writes NAME.svg and NAME.png."""
        import matplotlib

        svg, png = folder / f"{self.name}.svg", folder / f"{self.name}.png"
        svg.write_text(self.svg(), encoding="utf-8")
        with matplotlib.rc_context(SETTINGS):
            self.canvas.savefig(png, metadata={"Title": self.title, "Description": self.description})
        return [svg, png]

    @cached_property
    def _svg(self) -> str:
        """Draws once: the file and the page have the same. What the layout has found then stays for the PNG."""
        import matplotlib

        text = io.StringIO()
        with matplotlib.rc_context(SETTINGS):
            self.canvas.savefig(text, format="svg", metadata={"Date": None, "Title": self.title})
        self.canvas.set_layout_engine("none")
        return text.getvalue()
