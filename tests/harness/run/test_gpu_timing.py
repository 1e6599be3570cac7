"""What a contestant alone takes, with a clock, events and a GPU that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from emugpu.errors import CannotRun

torch = pytest.importorskip("torch")
from harness.run import gpu_timing, worker  # noqa: E402

WATTS = 700.0


class MadeUpGpu:
    """A graph takes ``seconds``. The counter of energy advances ten times a second. It cools by a degree a second."""

    def __init__(self, monkeypatch, seconds: float) -> None:
        self.now = 0.0
        self.hot = 61.0

        def replay() -> None:
            self.now += seconds

        def sleep(pause: float) -> None:
            self.now += pause
            self.hot -= pause

        class Event:
            def __init__(event, enable_timing: bool) -> None:
                assert enable_timing

            def record(event) -> None:
                event.at = self.now

            def synchronize(event) -> None:
                pass

            def elapsed_time(event, other) -> float:
                return 1000 * (other.at - event.at)

        monkeypatch.setattr(gpu_timing, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=sleep))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        self.batch = SimpleNamespace(count=10, graph=SimpleNamespace(replay=replay))

    def joules(self) -> float:
        return WATTS * int(self.now * 10 + 1e-9) / 10

    def megahertz(self) -> float:
        return 1500

    def watts(self) -> float:
        return WATTS

    def celsius(self) -> float:
        return self.hot


@pytest.mark.parametrize("seconds", [0.02, 0.3, 6.0])
def test_each_launch_has_its_part_of_the_time_and_of_the_energy(monkeypatch, seconds):
    """However long a graph takes."""
    gpu = MadeUpGpu(monkeypatch, seconds)
    found = gpu_timing._steady(gpu.batch, gpu)
    assert found["seconds"] == pytest.approx(seconds / 10) and found["sm_clock_mhz"] == 1500
    if seconds < 6:  # then the counter is seen to advance more than once
        assert found["joules"] == pytest.approx(WATTS * seconds / 10, rel=0.02)


def test_the_gpu_cools_before_the_next_one(monkeypatch):
    gpu, reports = MadeUpGpu(monkeypatch, 0.5), []
    steady = gpu_timing._steady

    def heating(batch, gpu):
        assert gpu.hot <= 61
        found = steady(batch, gpu)
        gpu.hot = 62.5
        return found

    monkeypatch.setattr(gpu_timing, "_steady", heating)
    gpu_timing.each_alone(dict.fromkeys(("kernel", "cublas"), gpu.batch), gpu, lambda: reports.append(gpu.now))
    assert len(reports) == 2 and reports[1] - reports[0] == pytest.approx(4 + 1.5, abs=0.2)


def test_a_gpu_that_tells_nothing_is_timed_in_turns(monkeypatch):
    def refuse(uuid):
        raise CannotRun("no NVML")

    told, samples = [], {"kernel": [1e-5, 1e-5]}
    monkeypatch.setattr(worker.telemetry, "Sensors", refuse)
    monkeypatch.setattr(worker, "note", told.append)
    monkeypatch.setattr(worker.statistics, "sample_pairs", lambda *_: samples)
    monkeypatch.setattr(worker, "_host_time", lambda *_: {"kernel": 8.0})
    for alone, more, said in ((False, {}, ""), (True, {"host_us": {"kernel": 8.0}}, ", and nothing is timed alone")):
        found = worker._time(SimpleNamespace(alone=alone, cap_seconds=1), None, {}, "uuid")
        assert found == {"before": {}, "samples": samples, "after": {}, **more}
        assert told.pop() == f"no clock or power{said}: no NVML"
