"""Answers of the probes of where D lies, and of a whole tile."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from blackwell_answers import BLANK, ONE_WORKER, answer, given, image
from blackwell_layouts import place, where

from conformance.blackwell import layouts
from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER

LAYOUTS = [probe.name for probe in layouts.PROBES]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_d(name):
    group = 2 if "pair" in name else 1
    for case in BLACKWELL[name].cases:
        words = case.name.replace(",", "").split()
        options = dict(zip(words[::2], (int(w) for w in words[1::2]), strict=True))
        m, n = options["M"], options["N"]
        found = image(name, case.name)
        wanted = np.full_like(found, BLANK)
        cta, lane, column = where(m, n, group, "ws" in name, options.get("lane", 0))
        r, c = np.mgrid[:m, :n]
        wanted[cta, lane, column + options.get("column", 0)] = (256 * r + c).astype(np.float32).view(np.uint32)
        assert (found == wanted).all(), case.name


@pytest.mark.parametrize("name", ["mma_tile", "mma_tile_pair"])
def test_a_whole_tile(name):
    """Four registers of a load 16x256b are 8 columns; 16 of them, and two halves of a warp's lanes, 32 columns."""
    buffers, outputs = given(name, "integers"), answer(name)["integers"]
    a, b = (buffers[operand].view(ml_dtypes.bfloat16).astype(np.float32) for operand in "ab")
    exact = a @ b.T
    assert (outputs["done"] == 1).all() and np.unique(exact).size > 100
    for cta, registers in enumerate(outputs["found"].view(np.float32).reshape(-1, 4, 2, 16, 128)):
        for chunk, half, i, thread in np.ndindex(registers.shape):
            lane, column = place("16x256b", thread % 32, i, 0)
            row = 128 * cta + thread // 32 * 32 + 16 * half + lane
            assert registers[chunk, half, i, thread] == exact[row, 32 * chunk + column]
    assert BLACKWELL[name].read(answer(name)) == {"exact": True}
