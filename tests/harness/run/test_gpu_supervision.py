"""The supervisor of the GPU process and the sampling rules, without a GPU: processes pretend, clocks are made up."""

from __future__ import annotations

import importlib.util
import random
import statistics as standard
from pathlib import Path

import pytest
import work

from harness.compile.artifacts import Artifact
from harness.compile.config import make_config
from harness.problem import Shape
from harness.run import statistics
from harness.run.measure import supervise
from harness.run.worker import MeasurementRequest


def serve(then: str, timeout: float = 30):
    return supervise({"name": "x", "then": then}, timeout, work.gpu_process)


def test_events_of_a_process_that_finishes():
    outcome = serve("finishes")
    assert outcome.failure is None and outcome.notes == ["hm"]
    assert outcome.events == {"started": {"name": "x"}, "finished": {"timing": None}}


def test_a_process_that_hangs_is_ended_and_what_it_said_is_kept():
    outcome = serve("hangs", timeout=1.0)
    assert outcome.failure == "no sign of life for 1 s while warming up; the GPU process was ended"
    assert outcome.events["checked"] == {"validation": {"passed": True}}
    assert outcome.seconds < 20


def test_a_process_that_crashes_is_reported_with_its_last_words():
    assert serve("crashes").failure == (
        "the GPU process ended with code 9 while loading the kernel: CUDA error: an illegal memory access"
    )


def test_a_failure_that_the_process_explains_itself():
    assert serve("explains").failure == "needs sm_90a"


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is here")
def test_an_unexpected_failure_is_one_line_of_plain_words():
    """An exception of torch itself could not be read by a parent that does not load torch."""
    artifact = Artifact(make_config("kernel6"), Path(), False)
    request = MeasurementRequest(artifact, Shape(128, 128, 64), "normal", 0, Path(), 1.0, [], False, False)
    outcome = supervise(request, 30)
    assert outcome.failure == "ModuleNotFoundError: No module named 'torch'"


class Machine:
    """Contestants with known medians on a made-up clock; each batch takes its own time."""

    def __init__(self, noise: float, drift: float = 0.0):
        self.now = 0.0
        self.random = random.Random(5)
        self.noise, self.drift = noise, drift

    def contestant(self, seconds: float):
        def run() -> float:
            self.now += 0.004
            return seconds * (1 + self.random.gauss(0, self.noise)) * (1 + self.drift * self.now)

        return run


def test_sampling_stops_when_the_medians_are_known():
    machine = Machine(noise=0.01)
    samples = statistics.sample_pairs(
        {"a": machine.contestant(1e-3), "b": machine.contestant(2e-3)}, lambda: machine.now, cap_seconds=60
    )
    assert len(samples["a"]) == len(samples["b"]) >= statistics.MIN_SAMPLES
    assert all(statistics.enough(times) for times in samples.values())
    assert standard.median(statistics.ratios(samples["b"], samples["a"])) == pytest.approx(2, rel=0.02)
    assert machine.now < 5


def test_sampling_gives_up_at_the_cap():
    machine = Machine(noise=0.5)
    samples = statistics.sample_pairs({"a": machine.contestant(1e-3)}, lambda: machine.now, cap_seconds=1.0)
    assert not statistics.enough(samples["a"])
    assert 1.0 < machine.now < 1.5 and len(samples["a"]) > statistics.MIN_SAMPLES


def test_drifts_cancel_in_pairwise_ratios():
    machine = Machine(noise=0.001, drift=0.5)
    samples = statistics.sample_pairs(
        {"a": machine.contestant(1e-3), "b": machine.contestant(1.1e-3)}, lambda: machine.now, cap_seconds=1.0
    )
    assert standard.median(statistics.ratios(samples["b"], samples["a"])) == pytest.approx(1.1, rel=0.005)


def test_the_error_of_the_median_is_about_right():
    generator = random.Random(1)
    medians = [standard.median(generator.gauss(1, 0.1) for _ in range(50)) for _ in range(400)]
    estimates = [statistics.median_error([generator.gauss(1, 0.1) for _ in range(50)]) for _ in range(400)]
    assert standard.mean(estimates) == pytest.approx(standard.stdev(medians), rel=0.15)


def test_a_summary_needs_two_samples():
    with pytest.raises(ValueError, match="1 samples: at least 2"):
        statistics.summarize([1.0])
    summary = statistics.summarize([3.0, 1.0, 2.0, 4.0, 5.0])
    assert (summary.median, summary.fastest, summary.slowest, summary.samples) == (3.0, 1.0, 5.0, 5)
    assert (summary.lower_quartile, summary.upper_quartile) == (2.0, 4.0)
