"""A round of `harness tune`: several builds in one GPU process, which is replaced by canned answers here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from emugpu.errors import CannotRun
from harness.compile.compiler import Gpu
from harness.problem import Shape
from harness.run import round as rounds
from harness.run.measure import ProcessReport
from harness.run.round import time_each

B200 = Gpu("NVIDIA B200", "10.0", "180 GiB", "580.1")
SHAPE = Shape(256, 256, 256)


@pytest.fixture
def round_of(monkeypatch, artifacts, tmp_path):
    """Times builds whose processes answer so. Returns the results, and how many builds each process was asked for."""

    def run(builds, *answers, gpu=B200):
        asked, left = [], list(answers)
        monkeypatch.setattr(
            "harness.run.round.supervise", lambda requests, silent, serve: asked.append(len(requests)) or left.pop(0)
        )
        return time_each([artifacts[2, 1]] * builds, SHAPE, "integer", 0, gpu, tmp_path), asked

    return run


def answer(results=(), failure=None, name="NVIDIA B200", started=True):
    events = {"started": {"name": name}} | ({"next": {"number": len(results)}} if started else {})
    return ProcessReport(events | ({"timed": {"results": list(results)}} if results else {}), failure)


def test_one_process_times_all(round_of):
    assert round_of(3, answer([1e-5, "the result is wrong", 3e-5])) == ([1e-5, "the result is wrong", 3e-5], [3])


def test_a_launch_that_fails_costs_its_own_result_only(round_of):
    results, asked = round_of(4, answer([1e-5], "a deadlock"), answer([3e-5, 4e-5]))
    assert results == [1e-5, "a deadlock", 3e-5, 4e-5] and asked == [4, 2]
    assert round_of(2, answer([1e-5], "a crash")) == ([1e-5, "a crash"], [2])
    assert round_of(2, answer([1e-5, 2e-5], "a crash at its end")) == ([1e-5, 2e-5], [2])


def test_without_a_first_launch_there_is_no_result(round_of):
    with pytest.raises(CannotRun, match="no torch"):
        round_of(2, answer(failure="no torch", started=False))
    with pytest.raises(CannotRun, match="it ran on NVIDIA H100, but the driver lists NVIDIA B200 first"):
        round_of(2, answer([1e-5, 2e-5], name="NVIDIA H100"))
    with pytest.raises(CannotRun, match="sm_100a"):
        round_of(1, gpu=Gpu("NVIDIA H200", "9.0", "141 GiB", "580.1"))


@pytest.mark.parametrize("wrong_at", [None, "first", "timed"])
def test_a_result_is_wrong_if_the_first_or_a_timed_launch_is(monkeypatch, wrong_at):
    """A build may be right when it runs alone, and wrong when its launches follow each other."""
    told, verdicts = [], {"first": {"passed": wrong_at != "first"}, "timed": {"passed": wrong_at != "timed"}}
    c = SimpleNamespace(fill_=lambda value: told.append(("filled", value)))
    launched = SimpleNamespace(sets=[SimpleNamespace(c=c)], launches=[], validation=verdicts["first"])
    monkeypatch.setattr(rounds.worker, "start_gpu", lambda: "uuid")
    monkeypatch.setattr(rounds.worker, "draw_inputs", lambda request: None)
    monkeypatch.setattr(rounds.worker, "launch_once", lambda request, inputs: launched)
    monkeypatch.setattr(rounds.worker, "validate_all", lambda request, inputs, outputs: verdicts["timed"])
    monkeypatch.setattr(rounds.worker, "emit", lambda event, **fields: told.append((event, fields)))
    monkeypatch.setattr(rounds, "Batch", list)
    monkeypatch.setattr(rounds, "seconds_alone", lambda batch: told.append(("timing", batch)) or 1e-5)
    rounds._serve([None])
    assert told[-1] == ("timed", {"results": [1e-5 if wrong_at is None else "the result is wrong"]})
    expected = ["next", "checked", *([] if wrong_at == "first" else ["filled", "timing"]), "timed"]
    assert [what for what, _ in told] == expected
