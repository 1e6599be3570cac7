"""Reads published figures (``published.toml``), which are shown with their source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

PLACE = Path(__file__).with_name("published.toml")


@dataclass(frozen=True)
class PublishedFigure:
    """A published result. ``vendor_tflops`` is cuBLAS according to the same source, or None."""

    author: str
    name: str
    tflops: float
    gpu: str
    shape: str
    dtype: str
    source: str
    link: str | None = None
    vendor_tflops: float | None = None


def published_figures() -> list[PublishedFigure]:
    """Reads all published figures, series by series."""
    with PLACE.open("rb") as file:
        series = tomllib.load(file)["series"]
    return [
        PublishedFigure(**{key: value for key, value in one.items() if key != "results"}, **result)
        for one in series
        for result in one["results"]
    ]
