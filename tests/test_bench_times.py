"""Verdicts on times: identical code gives no alarm, a small slow-down does."""

from __future__ import annotations

import numpy as np
import pytest
from bench_support import noisy, timing

from harness.bench.times import MIN_SAMPLES, compare_times, ratio_interval

CASES = 20


def verdicts(old_seconds, new_seconds, repetition: int, **options) -> list[str]:
    """The verdicts on a suite of 20 kernels of different speed, measured twice."""
    found = []
    for case in range(CASES):
        speed, seed = 1e-4 * (case + 1), 1000 * repetition + 2 * case
        old, new = (
            timing(noisy(seconds * speed, seed + which, **options))
            for which, seconds in ((0, old_seconds), (1, new_seconds))
        )
        found.append(compare_times(old, new, cases=CASES).verdict)
    return found


@pytest.mark.parametrize("repetition", range(20))
def test_identical_code_gives_no_false_alarm(repetition):
    found = verdicts(1.0, 1.0, repetition)
    assert set(found) <= {"SAME", "UNSURE"}
    assert found.count("SAME") > CASES * 3 / 4


@pytest.mark.parametrize(("change", "verdict"), [(1.03, "SLOWER"), (1 / 1.03, "FASTER")])
def test_three_per_cent_are_found(change, verdict):
    found = [one for repetition in range(5) for one in verdicts(1.0, change, repetition, spread=0.005)]
    assert found.count(verdict) > 0.95 * len(found)
    assert set(found) <= {verdict, "UNSURE"}


def test_a_real_difference_that_does_not_matter_is_no_regression():
    old, new = timing(noisy(1.0, 1, spread=1e-4)), timing(noisy(1.01, 2, spread=1e-4))
    found = compare_times(old, new)
    assert found.interval.low > 1
    assert found.verdict == "SAME"
    assert compare_times(old, new, threshold=0.005).verdict == "SLOWER"


def test_a_large_difference_that_may_be_chance_is_unsure():
    old, new = timing(noisy(1.0, 1, count=8, spread=0.3)), timing(noisy(1.1, 6, count=8, spread=0.3))
    found = compare_times(old, new)
    assert found.interval.low < 1 and found.interval.ratio > 1.3
    assert found.verdict == "UNSURE"


def test_few_samples_say_nothing():
    few = timing([1.0] * (MIN_SAMPLES - 1))
    found = compare_times(few, timing([2.0] * 30))
    assert (found.verdict, found.interval) == ("UNSURE", None)
    assert "only 4 samples" in found.reason


def test_more_cases_ask_for_more_confidence():
    old, new = noisy(1.0, 1), noisy(1.0, 2)
    alone, among_many = ratio_interval(old, new), ratio_interval(old, new, cases=100)
    assert among_many.low < alone.low < alone.high < among_many.high
    assert alone.ratio == among_many.ratio == np.median(new) / np.median(old)


def test_the_interval_is_repeatable():
    assert ratio_interval(noisy(1, 1), noisy(1, 2)) == ratio_interval(noisy(1, 1), noisy(1, 2))


def test_a_slower_machine_is_not_a_slower_kernel():
    """Both the kernel and the vendor's GEMM lost 5 %: the clocks did."""
    old = timing(noisy(1.0, 1), vendor=noisy(0.9, 2))
    drifted = timing(noisy(1.05, 3), vendor=noisy(0.9 * 1.05, 4))
    found = compare_times(old, drifted)
    assert found.verdict == "UNSURE"
    assert found.reason == "SLOWER by time, SAME beside cublas"
    slower = timing(noisy(1.05, 3), vendor=noisy(0.9, 4))
    assert compare_times(old, slower).verdict == "SLOWER"
