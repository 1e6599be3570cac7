"""Verdicts on times: identical code gives no alarm, though its processes differ; a small slow-down is found."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from bench_support import noisy, timing

from harness.experiments.times import MIN_PROCESSES, compare_times, ratio_interval
from harness.paths import ROOT

CASES = 30


def verdicts(change: float, repetition: int, **options) -> list[str]:
    """The verdicts on a suite of 30 kernels of different speed, measured twice."""
    found = []
    for case in range(CASES):
        speed, seed = 1e-4 * (case + 1), 1000 * repetition + 2 * case
        old = timing(speed, seed, vendor=1.1 * speed, **options)
        new = timing(speed * change, seed + 1, vendor=1.1 * speed, **options)
        found.append(compare_times(old, new, cases=CASES).verdict)
    return found


@pytest.mark.parametrize("repetition", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in range(1, 5))])
@pytest.mark.parametrize("between", [0.002, 0.01])
def test_identical_code_gives_no_false_alarm_and_is_mostly_the_same(repetition, between):
    found = verdicts(1.0, repetition, between=between)
    assert set(found) <= {"SAME", "UNSURE"}
    assert found.count("SAME") > CASES * 3 / 4


@pytest.mark.parametrize(("change", "verdict"), [(1.04, "SLOWER"), (1 / 1.04, "FASTER")])
def test_four_per_cent_are_found(change, verdict):
    found = [one for repetition in range(3) for one in verdicts(change, repetition)]
    assert found.count(verdict) > 0.95 * len(found)
    assert set(found) <= {verdict, "UNSURE"}


def test_samples_of_one_process_are_no_evidence_about_processes():
    """Each process by itself is very sure of its median; that processes differ by 3 % shows only between them."""
    exact = [[seconds] * 30 for seconds in noisy(1.0, 3, count=5, spread=0.03)]
    old = {"processes": [{"seconds": samples[0], "vendor": {}} for samples in exact]}
    new = {"processes": [{"seconds": 1.025 * samples[0], "vendor": {}} for samples in reversed(exact)]}
    assert compare_times(old, new).verdict == "UNSURE"


def test_a_real_difference_that_does_not_matter_is_no_regression():
    old, new = timing(1.0, 1, between=1e-4), timing(1.01, 2, between=1e-4)
    found = compare_times(old, new)
    assert found.interval.low > 1
    assert found.verdict == "SAME"
    assert compare_times(old, new, threshold=0.005).verdict == "SLOWER"


def test_a_large_difference_that_may_be_chance_is_unsure():
    old, new = timing(1.0, 2, processes=3, between=0.2), timing(1.3, 4, processes=3, between=0.2)
    found = compare_times(old, new)
    assert found.interval.low < 1 < 1.1 < found.time
    assert found.verdict == "UNSURE"


def test_few_processes_say_nothing():
    found = compare_times(timing(1.0, processes=MIN_PROCESSES - 1), timing(2.0))
    assert (found.verdict, found.interval) == ("UNSURE", None)
    assert found.reason == "times of only 2 processes; 3 are needed"
    before = {"seconds": 1.0, "samples": [1.0] * 500, "vendor": {}}  # a record of a time before there were several
    assert compare_times(before, timing(2.0)).reason == "times of only 1 process; 3 are needed"


def test_more_cases_ask_for_more_confidence_before_an_alarm_but_not_before_same():
    old, new = timing(1.0, 1, between=0.01), timing(1.0, 2, between=0.01)
    alone, among_many = compare_times(old, new), compare_times(old, new, cases=100)
    assert among_many.interval.low < alone.interval.low < alone.interval.high < among_many.interval.high
    assert alone.equal == among_many.equal
    assert alone.interval.low < alone.equal.low < alone.equal.high < alone.interval.high


def test_welchs_interval_by_hand():
    """Logarithms 0, 2, 4 against 11, 12: means 2 and 11.5, squared errors 4/3 and 1/4, 2.6479 degrees of freedom;
    the 97.5 % point of Student's t for them lies between its table values for 2 (4.303) and 3 (3.182).
    """
    found = ratio_interval(np.exp([0, 2, 4]), np.exp([11, 12]), 0.95)
    assert np.log(found.ratio) == pytest.approx(9.5)
    half = np.log(found.high) - 9.5
    assert half == pytest.approx(9.5 - np.log(found.low))
    assert 3.182 < half / np.sqrt(4 / 3 + 1 / 4) < 4.303


def test_a_slower_machine_is_not_a_slower_kernel():
    """Both the kernel and the vendor's GEMM lost 5 %: the clocks did."""
    old = timing(1.0, 1, vendor=0.9)
    drifted = timing(1.05, 3, vendor=0.9 * 1.05)
    found = compare_times(old, drifted)
    assert (found.verdict, found.beside) == ("SAME", "cublas")
    assert found.time == pytest.approx(1.05, abs=0.01)
    assert compare_times(old, timing(1.05, 3, vendor=0.9)).verdict == "SLOWER"


def test_another_vendor_library_is_no_yardstick():
    old, new = timing(1.0, 1, vendor=0.9), timing(1.0, 3, vendor=0.8)
    assert compare_times(old, new).verdict == "SLOWER"
    found = compare_times(old, new, same_vendor=False)
    assert (found.verdict, found.beside) == ("SAME", None)


def measured(side: dict) -> dict:
    """The timing of a record, as far as the verdict needs it."""
    pairs = zip(side["microseconds"], side["cublas"], strict=True)
    return {"processes": [{"seconds": us / 1e6, "vendor": {"cublas": {"ratio": ratio}}} for us, ratio in pairs]}


def test_builds_that_took_turns_on_an_h200():
    """30 builds against themselves, and 6 against one that waits 9,000 cycles in each launch of about 270,000."""
    pairs = json.loads((ROOT / "results" / "nvidia-h200-same-build-twice.json").read_text())["pairs"]
    cases = Counter(pair["kind"] for pair in pairs)
    found = Counter(
        (pair["kind"], compare_times(measured(pair["old"]), measured(pair["new"]), cases=cases[pair["kind"]]).verdict)
        for pair in pairs
    )
    assert found == {("same", "SAME"): 30, ("planted", "SLOWER"): 6}
