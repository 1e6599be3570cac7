"""Kernels beside cuBLAS: what was measured, and what the pages say of it."""

from __future__ import annotations

import json
import re

import pytest
from metrology.bench_vs_cublas import table_alone

from harness import paths


def test_a_contestant_alone_has_medians_and_its_ratio_round_by_round():
    def rounds(*several):
        return [{"seconds": s, "joules": s * 700, "sm_clock_mhz": c, "watts": 690.0, "celsius": 61} for s, c in several]

    alone = {"cublas": rounds((2e-4, 1500), (3e-4, 1530)), "kernel8": rounds((1e-4, 1400), (2e-4, 1410))}
    cublas, kernel = table_alone({"shape": [4096, 2048, 1024], "inputs": "normal", "alone": alone})
    assert "1.0000 [1.0000, 1.0000] cublas" in cublas
    assert kernel == (
        "4096x2048x1024 normal    1405 MHz 690 W 61 C   105.00 mJ  114.5 TFLOPS 1.7500 [1.5000, 2.0000] kernel8"
    )


@pytest.mark.parametrize(("results", "count"), [("nvidia-h200-alone.json", 43), ("nvidia-h200-fp8.json", 14)])
def test_the_page_has_the_ratios_that_were_measured(results, count):
    page = (paths.ROOT / "docs" / "measured.md").read_text()
    runs = json.loads((paths.ROOT / "results" / results).read_text())["runs"]
    said = [line for run in runs if "alone" in run for line in table_alone(run) if "kernel" in line]
    assert len(said) == count
    for line in said:
        found = re.search(r" ([\d.]+) \[([\d.]+), ([\d.]+)\] kernel", line)
        assert found, line
        ratio, low, high = map(float, found.groups())
        assert low <= ratio <= high and f"{ratio:.3f}" in page, line
