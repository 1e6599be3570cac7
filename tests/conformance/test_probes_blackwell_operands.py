"""Answers of the probes of where tcgen05.mma reads A and B."""

from __future__ import annotations

import numpy as np
import pytest
from blackwell_answers import ONE_WORKER, answer, image
from blackwell_layouts import where
from blackwell_operands import floats

from conformance.blackwell import operands
from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER


def address(layout: operands.OperandLayout, row: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Byte of element (row, k) of two bytes (PTX ISA 9.7.16.3.3, 5.5.7), from the 1024-byte boundary."""
    span = {"none": 16, "32B": 32, "64B": 64, "128B": 128}[layout.swizzle]
    if layout.major == "K":
        across = k * 2 // 16 * layout.leading + k * 2 % 16 if span == 16 else k * 2
        offset = row % 8 * span + row // 8 * layout.stride + across
    elif span == 16:
        offset = row * 2 % 16 + row // 8 * layout.stride + k % 8 * 16 + k // 8 * layout.leading
    else:
        offset = row * 2 % span + row * 2 // span * layout.leading + k % 8 * span + k // 8 * layout.stride
    at = layout.start + offset - 128 * layout.base
    return (at ^ ((at >> 7) % (span // 16)) << 4) + 128 * layout.base


@pytest.mark.parametrize("name", ["mma_a_addresses", "mma_b_addresses", "mma_a_offsets"])
def test_which_bytes_a_descriptor_names(name):
    probe, found = BLACKWELL[name], image(name, "all")
    operand = name[4].upper()
    asked = operands.OFFSETS if name == "mma_a_offsets" else operands.STARTS
    if operand == "B":
        asked = [a for a in asked if a.base != 6 and a.start in (0, 32, 256)]
    assert len(found) == len(asked) == len(probe.read(answer(name)))
    row, k = np.mgrid[:64, :16]
    for layout, words in zip(asked, found, strict=True):
        values = floats(words)
        if operand == "A":
            lanes = row % 16 + 32 * (row // 16)
            numbers_read = values[lanes, k] + 2048 * values[lanes, 16 + k]
        else:
            numbers_read = values[k, row] + 2048 * values[k, 64 + row]
        assert (2 * numbers_read == address(layout, row, k)).all(), layout.name


@pytest.mark.parametrize("name", [p.name for p in operands.PROBES if "tmem" in p.name])
def test_a_in_tensor_memory(name):
    pair = name.endswith("pair")
    depth = {"f16": 16, "pair": 16, "tf32": 8, "lanes": 32, "bytes": 32}[name.split("_")[-1]]
    for case in BLACKWELL[name].cases:
        m, n = (int(word) for word in case.name.replace(",", "").split()[1::2])
        found = image(name, case.name)
        cta, lane, column = where(m, n, 1 + pair, False, 0)
        _, c = np.mgrid[:m, :n]
        wanted = lane * depth + c % depth  # for each half of the columns of a pair with M = 128 those that hold it
        wanted = {"lanes": lane, "bytes": c % depth}.get(name.split("_")[-1], wanted)
        values = found[cta, lane, column]
        values = values.astype(np.int64) if "i8" in name else floats(values)
        assert (np.abs(values) == wanted).all() and (values[wanted > 0] < 0).sum() == (cta * (wanted > 0)).sum()
