"""A figure of the report: a drawing with its words and its numbers. It can be handled without matplotlib."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.report.style import SETTINGS

VENDORS = {"cublas": "cuBLAS", "max": "MAX"}
"""The vendors' GEMMs by their names in records."""


@dataclass(frozen=True)
class Figure:
    """name: of the files. description: what is to be seen, in words. canvas: a matplotlib Figure. rows: the numbers,
    under columns. by_others: what is shown was measured by others.
    """

    name: str
    title: str
    description: str
    canvas: Any
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    by_others: bool = False

    def svg(self) -> str:
        import matplotlib

        text = io.StringIO()
        with matplotlib.rc_context(SETTINGS):
            self.canvas.savefig(text, format="svg", metadata={"Date": None, "Title": self.title})
        return text.getvalue()

    def save(self, folder: Path) -> list[Path]:
        """Writes NAME.svg and NAME.png."""
        import matplotlib

        svg, png = folder / f"{self.name}.svg", folder / f"{self.name}.png"
        svg.write_text(self.svg(), encoding="utf-8")
        with matplotlib.rc_context(SETTINGS):
            self.canvas.savefig(png, metadata={"Title": self.title, "Description": self.description})
        return [svg, png]
