"""Answers of the probes of TMA: barriers of a pair, rows gathered and scattered, packed types."""

from __future__ import annotations

import numpy as np
import pytest
from blackwell_answers import ONE_WORKER, answer

from conformance.blackwell import tma
from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER


@pytest.mark.parametrize("name", ["tma_pair_barriers", "tma_group_1_barriers"])
def test_whose_barrier_a_load_signals(name):
    for case, found in BLACKWELL[name].read(answer(name)).items():
        words = case.replace(",", "").split()
        issuer, mask = int(words[1]), int(words[4], 2) if "mask" in case else 0
        named = issuer & ~1 if "cleared" in case else issuer | 1 if "set" in case else issuer
        targets = [rank for rank in range(4) if mask >> rank & 1] or [issuer]
        signalled = [0] * 4
        for rank in targets:
            signalled[named if not mask else rank if "group_1" in name else rank & ~1 | named & 1] += 1
        assert found == {"data in ranks": targets, "boxes signalled by rank": signalled}


def test_four_rows_are_gathered_and_scattered():
    tensor = np.arange(tma.ROWS * tma.COLUMNS).reshape(tma.ROWS, tma.COLUMNS) + 0x1000
    for case in BLACKWELL["tma_four_rows"].cases:
        column, *chosen = case.buffers["corner"][:5].tolist()
        width, fill = case.arguments[0].box[1], 0x7FF7 if "NaN" in case.name else 0
        found = answer("tma_four_rows")[case.name]
        assert found["flags"].tolist() == [1]
        memory = found["memory"].view(np.uint16)
        pitch = max(width, {"none": 0, "32B": 16, "64B": 32, "128B": 64}[case.arguments[0].swizzle])
        mask = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[case.arguments[0].swizzle]
        copy = np.full((tma.ROWS, tma.COLUMNS), tma.UNSTORED)
        for n, row in enumerate(chosen):
            for w in range(width):
                at = 2 * (n * pitch + w)
                at ^= (at >> 7 & mask) << 4
                inside = 0 <= row < tma.ROWS and 0 <= column + w < tma.COLUMNS
                assert memory[at // 2] == (tensor[row, column + w] if inside else fill), case.name
                if inside and min(chosen) >= 0 and column >= 0:
                    copy[row, column + w] = tensor[row, column + w]
        assert (found["copy"].reshape(copy.shape) == copy).all(), case.name


def test_packed_types_signal_the_bytes_of_global_memory():
    for case, found in answer("tma_packed_types").items():
        assert found["flags"].tolist() == [int("payload" in case)]
        size = 8 if case.startswith("b4") else 12
        memory = found["memory"].view(np.uint8)[: 8 * 128].reshape(8, 8, 16)
        swizzled = "128B" in case
        for row in range(8):
            for chunk in range(8):
                first = (8 * row + chunk) * size // 2
                wanted = np.arange(first, first + size // 2, dtype=np.uint16).view(np.uint8)
                assert (memory[row, chunk ^ row if swizzled else chunk, :size] == wanted).all()
