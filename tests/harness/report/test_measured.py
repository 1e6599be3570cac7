"""The page of what was measured has the ratios that follow from the samples beside it."""

from __future__ import annotations

import json
import statistics

import pytest

from harness.paths import ROOT


@pytest.mark.parametrize(("results", "count"), [("nvidia-h200-alone.json", 43), ("nvidia-h200-fp8.json", 14)])
def test_the_page_has_the_ratios_that_were_measured_alone(results, count):
    page = (ROOT / "results" / "measured.md").read_text(encoding="utf-8")
    runs = json.loads((ROOT / "results" / results).read_text(encoding="utf-8"))["runs"]
    found = [
        [cublas["seconds"] / one["seconds"] for cublas, one in zip(run["alone"]["cublas"], rounds, strict=True)]
        for run in runs
        for name, rounds in run.get("alone", {}).items()
        if name.startswith("kernel")
    ]
    assert len(found) == count
    assert [ratio for ratio in map(statistics.median, found) if f"{ratio:.3f}" not in page] == []
