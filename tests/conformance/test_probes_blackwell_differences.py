"""What is said where a GPU answers otherwise: in the terms of the question."""

from __future__ import annotations

import json

import numpy as np
import pytest
from blackwell_answers import ONE_WORKER, emulated

from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER

SAID = {
    "mma_layout_pair_128": (
        "after",
        (1, 65, 3),
        "CTA rank 1, lane 65, column 3 holds D(0, 9); the emulator has D(65, 19) there",
    ),
    "mma_negate_f16": ("done", (3,), "the commit of CTA 3 arrived: False; on the emulator: True"),
    "tmem_load_shapes": ("found", (3, 33), "lane 0, column 0"),
    "tmem_copy_shapes": ("after", (0, 5, 0), "of shared memory"),
    "commit_own": ("found", (2,), "the mbarrier of rank 2 receives 7 arrivals; on the emulator 0"),
    "tmem_alloc_addresses": (
        "found",
        (0, 1),
        "tcgen05.alloc of 64 columns in CTA 0: column 7; the emulator: column 128",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_a_difference_is_told_in_terms_of_the_question(name):
    buffer, at, said = SAID[name]
    ours = emulated(name)
    case = next(iter(ours))
    changed = ours[case][buffer].copy()
    changed[at] = {"mma_layout_pair_128": np.float32(9).view(np.uint32), "tmem_load_shapes": 0}.get(name, 7)
    [line] = BLACKWELL[name].explain(ours, {**ours, case: {**ours[case], buffer: changed}})
    assert line.startswith(f"{case}: ") and said in line and "(1 of " in line
    assert BLACKWELL[name].explain(ours, ours) == []


WORDS = (0x7FC00000, 0x7F800000, 0xFFFFFFFF)
"""NaN, an infinity, and -1: what nobody expects."""


@pytest.mark.parametrize("word", WORDS, ids=hex)
def test_whatever_a_gpu_answers_can_be_told_and_read(word):
    """A word of each buffer of each probe, at a place that nobody has chosen."""
    rng = np.random.default_rng(word)
    for name, probe in BLACKWELL.items():
        if not probe.modelled:
            continue
        case, buffers = next(iter(emulated(name).items()))
        for buffer, ours in buffers.items():
            theirs = ours.copy()
            words = theirs.reshape(-1).view(f"u{theirs.itemsize}")
            words[rng.integers(words.size)] = word & (1 << 8 * theirs.itemsize) - 1
            changed = {**emulated(name), case: {**buffers, buffer: theirs}}
            assert all(isinstance(line, str) for line in probe.explain(emulated(name), changed)), name
            json.dumps(probe.read(changed))


def test_sums_that_differ_are_counted_in_units():
    ours = emulated("mma_sums_f32_bf16_bf16")
    changed = ours["all"]["after"].copy()
    changed[0, 2, 1] += 3
    [line] = BLACKWELL["mma_sums_f32_bf16_bf16"].explain(ours, {"all": {**ours["all"], "after": changed}})
    assert (
        line.startswith("numbers that are normal: 1 of 2048 sums have other bits, at most 3 units")
        and "D(2, 1)" in line
    )
