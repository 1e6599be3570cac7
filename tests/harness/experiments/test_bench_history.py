"""The history and the baselines: nothing is lost, and nothing compared that must not be."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from bench_support import CASE, EMULATED, H200, bench_record

from emugpu.errors import UsageProblem
from harness.experiments import history
from harness.experiments.history import History, NamedBaseline, Platform, check_name, platform_of, resolve
from harness.paths import find_commit
from harness.run import records

HERE = Platform("emulated sm_100a", None)


def test_only_records_of_the_benchmark_are_read(results_dir):
    path = records.record_file("emulated-sm_100a")
    plain = {name: value for name, value in bench_record().items() if name not in ("bench", "facts")}
    for record in (plain, bench_record("2")):
        records.append(path, record)
    found = history.load(path)
    assert [record["bench"]["run"] for record in found.records] == ["2"]
    assert found.damaged == []


def test_damaged_lines_are_reported_and_skipped(results_dir):
    path = records.record_file("emulated-sm_100a")
    records.append(path, bench_record("1"))
    with path.open("a") as file:
        file.write('{"schema": 1, "bench": {"run"\n')
        file.write(json.dumps({"schema": 1, "bench": {"run": "2"}}) + "\n")
        file.write('{"schema": 1}\n')
        file.write(json.dumps(bench_record("2", soundness={"errors": 1})) + "\n")
    records.append(path, bench_record("3"))
    found = history.load(path)
    assert [record["bench"]["run"] for record in found.records] == ["1", "3"]
    assert [line.number for line in found.damaged] == [2, 3, 4, 5]
    assert "without bench.case" in found.damaged[1].reason
    assert str(found.damaged[2]) == f"{path}:4: skipped: a record without device"
    assert "without soundness.findings" in found.damaged[3].reason


def test_damaged_baselines_are_reported_and_skipped(results_dir):
    history.append_baseline("good", "nvidia-h200", "7")
    path = history.baselines_file()
    records.append(path, {"schema": 1})
    records.append(path, {"schema": 1, "baseline": "x", "device": "nvidia-h200", "run": 3})
    named, damaged = history.load_baselines("nvidia-h200")
    assert named == [NamedBaseline("good", "nvidia-h200", "7")]
    assert [line.reason for line in damaged] == ["a baseline without baseline", "a baseline without run"]


def append_many(path, run: int) -> None:
    for number in range(25):
        records.append(path, bench_record(str(run), f"kernel6 case {number}"))


@pytest.mark.slow
def test_runs_at_the_same_time(results_dir):
    path = records.record_file("emulated-sm_100a")
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        list(pool.map(append_many, [path] * 4, range(4)))
    found = history.load(path)
    assert found.damaged == []
    for run in range(4):
        cases = [record["bench"]["case"] for record in found.of_run(str(run))]
        assert cases == [f"kernel6 case {number}" for number in range(25)]


def found_run(baseline: str, past: list[dict], named=(), platform: Platform = HERE, current: str = "9"):
    record, reason = resolve(baseline, History(past), list(named)).find(History(past), CASE, platform, current)
    return record["bench"]["run"] if record else reason


def test_last_is_the_newest_other_run():
    past = [bench_record("1"), bench_record("2"), bench_record("9")]
    assert found_run("last", past) == "2"
    assert found_run("last", [bench_record("9")]) == "no earlier run"


def test_a_wrong_result_is_no_baseline():
    assert found_run("last", [bench_record("1"), bench_record("2", passed=False)]) == "1"
    assert "wrong result" in found_run("last", [bench_record("2", passed=False)])


@pytest.mark.parametrize("device", [{**H200, "name": "NVIDIA B200"}, {**H200, "driver": "580.2"}])
def test_other_hardware_is_never_compared(device):
    reason = found_run("last", [bench_record("1", device=device)], platform=platform_of({"device": H200}))
    assert reason.startswith("baseline last is of other hardware: NVIDIA ")


def test_a_name_points_at_a_run():
    past = [bench_record("1"), bench_record("2"), bench_record("3")]
    named = [NamedBaseline("main", "emulated-sm_100a", "1"), NamedBaseline("other", "emulated-sm_100a", "3")]
    assert found_run("main", past, named) == "1"
    moved = [*named, NamedBaseline("main", "emulated-sm_100a", "2")]
    assert found_run("main", past, moved) == "2"
    # A newer run that lacks the case leaves the older one valid for it.
    part = [*named, NamedBaseline("main", "emulated-sm_100a", "7")]
    assert found_run("main", [*past, bench_record("7", "kernel6 another case")], part) == "1"


def test_named_baselines_are_kept_by_device(results_dir):
    history.append_baseline("main", "emulated-sm_100a", "1")
    history.append_baseline("main", "nvidia-h200", "2")
    with history.baselines_file().open("a") as file:
        file.write("broken\n")
    named, damaged = history.load_baselines("nvidia-h200")
    assert named == [NamedBaseline("main", "nvidia-h200", "2")]
    assert [line.number for line in damaged] == [3]


def test_a_commit(monkeypatch):
    past = [bench_record("1", commit="abcd" + "0" * 36), bench_record("2", commit="b" * 40)]
    assert found_run("abcd", past) == "1"
    dirty = [bench_record("3", commit="c" * 40, dirty=True)]
    with pytest.raises(UsageProblem, match="only with uncommitted changes"):
        found_run("cccc", [*past, *dirty])
    assert resolve("HEAD", History(past), []).commit == find_commit("HEAD")  # it can be built
    monkeypatch.setattr("harness.experiments.history.can_build", lambda commit: False)
    with pytest.raises(UsageProblem, match="was not measured on this kind of device, and there is no harness in it"):
        found_run("HEAD", past)


def test_an_unknown_baseline_names_those_there_are():
    with pytest.raises(UsageProblem, match="'mian' is not last, a saved name or a commit; saved are main"):
        found_run("mian", [bench_record()], [NamedBaseline("main", EMULATED["kind"], "1")])


@pytest.mark.parametrize("name", ["last", "", "-x", "a b", "a/b", "x" * 65])
def test_names_that_cannot_be_saved(name):
    with pytest.raises(UsageProblem, match="baseline name"):
        check_name(name)
