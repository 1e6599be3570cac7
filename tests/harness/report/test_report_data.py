"""What the report shows is what the history says."""

from __future__ import annotations

import pytest
from bench_support import H200, bench_record, series_records

from emugpu.record import new_record
from harness.experiments.facts import static_facts
from harness.problem import Shape
from harness.report import data
from harness.report.state import state_of
from harness.run import records
from harness.run.case import Request
from harness.run.runner import run


@pytest.fixture
def results(results_dir):
    for record in series_records():
        records.append(records.record_file(record["device"]["kind"]), record)
    with records.record_file("nvidia-h200").open("a") as file:
        file.write("damaged\n")
    records.append(
        records.record_file("nvidia-h200"), bench_record("3", passed=False, device={"kind": "x", "name": "x"})
    )
    records.append(records.record_file("baselines"), new_record(baseline="x"))
    return data.load_results(results_dir)


def test_gpus_come_first_and_wrong_results_not_at_all(results):
    assert [device.kind for device in results.devices] == ["nvidia-h200", "emulated-sm_100a"]
    gpu, emulated = results.devices
    assert (len(gpu.records), len(gpu.newest), emulated.emulated) == (6, 3, True)
    assert gpu.kernels == ["kernel5", "kernel6", "kernel7"]
    assert [line.reason.split()[0] for line in results.damaged] == ["not"]


def test_the_newest_record_of_a_case_counts(results):
    emulated = results.devices[1]
    record = emulated.newest["kernel5 bf16 2x1 1024x1024x512 index"]
    assert record["git"]["commit"] == "b" * 40
    assert data.executed(record) == 1040


def test_the_main_case_is_one_that_all_kernels_have(results):
    emulated = results.devices[1]
    many = [bench_record(str(n), "kernel6 bf16 1x1 alone") for n in range(9)]
    device = data.DeviceRecords(emulated.kind, [*many, *emulated.records])
    assert data.main_cases(device) == {
        kernel: f"{kernel} bf16 2x1 1024x1024x512 index" for kernel in ("kernel5", "kernel6", "kernel7")
    }


@pytest.mark.parametrize("cluster", [(2, 1), (2, 2), (4, 2), (4, 4)])
def test_reads_follow_from_the_configuration(artifacts, cluster):
    """The formula for runs without counters, against what the emulator counts."""
    shape = Shape(1024, 1024, 128)
    outcome = run(Request(artifacts[cluster].config, shape, "index"), artifacts[cluster])
    record = outcome.record
    assert (
        data.global_reads(record["config"], record["problem"]) == record["counters"]["tma_global_bytes_read_by_tensor"]
    )
    assert static_facts(artifacts[cluster], outcome.plan)["stages"] == artifacts[cluster].config.stages


@pytest.mark.parametrize("counters", [{}, {"tma_global_bytes_read": 1 << 40, "tma_global_bytes_written": 1 << 30}])
def test_a_kernel_that_is_as_fast_as_dram_lies_on_the_roof(counters):
    """16 rows of A: almost all bytes are those of B, which comes once, however often TMA asks L2 for it."""
    problem = {"m": 16, "n": 8192, "k": 8192}
    nbytes = 2 * (16 * 8192 + 8192 * 8192 + 16 * 8192)
    record = bench_record(problem=problem, device=H200, counters=counters)
    tflops = 2 * 16 * 8192 * 8192 / (nbytes / 4.8e12) / 1e12
    assert data.gpu_of(record).roof(data.intensity(record)) == pytest.approx(tflops) == pytest.approx(76.5, rel=1e-2)


def test_savings(results):
    which, rows = data.savings(results.devices[1])
    assert which.startswith("kernel7, bf16, 256x256 MMA by a pair of CTAs, 1024x1024x512")
    assert [(row.cluster, row.saved("A"), row.saved("B")) for row in rows] == [
        ("2x1", 0, 0),
        ("2x2", 0.5, 0),
        ("4x4", 0.75, 0.5),
    ]


@pytest.mark.parametrize(
    ("words", "shown"),
    [("bf16 4096x4096x4096", "bf16 4096\u00b3"), ("4x4 512x512x128", "4x4 512x512x128"), ("2x2x22", "2x2x22")],
)
def test_cubes_are_written_short(words, shown):
    assert data.compact(words) == shown


def test_commit_labels():
    assert data.commit_label(bench_record(commit="0123456789" * 4)) == "0123456"
    assert data.commit_label(bench_record(commit="0123456789" * 4, dirty=True)) == "0123456+"
    assert data.commit_label({**bench_record("1"), "git": None}) == "no commit"
    assert data.version_label(bench_record("1")) == "aaaaaaa, 2026-01-01"


def test_no_two_runs_have_the_same_label():
    morning = bench_record("1")
    evening = {**morning, "time": "2026-01-01T18:30:00+00:00"}
    other = bench_record("2")
    labels = data.run_labels([morning, evening, other])
    assert labels == ["aaaaaaa, 2026-01-01 00:00", "aaaaaaa, 2026-01-01 18:30", "aaaaaaa, 2026-01-02"]


def test_the_state_of_what_is_right_and_unchanged(results):
    gpu, emulated = (state_of(device) for device in results.devices)
    assert emulated.verdict == "9 cases are right, counted, not timed"
    assert emulated.changed == "Against the run before: 9 BETTER"
    assert emulated.when == "Last run: bbbbbbb, 2026-01-02"
    assert not emulated.attention
    assert {change.since for change in emulated.changes} == {"aaaaaaa, 2026-01-01"}
    assert "instructions executed" in emulated.changes[0].what
    # The wrong result is of another machine, but in the same file, and must not be overlooked.
    assert gpu.attention and gpu.verdict.startswith("1 of 4 cases are WRONG")


def test_a_wrong_newest_result_asks_for_attention():
    right, wrong = bench_record("1"), bench_record("2", passed=False)
    state = state_of(data.DeviceRecords("emulated-sm_100a", [right], [right, wrong]))
    assert state.attention and state.verdict == "1 of 1 cases are WRONG, counted, not timed"
    assert [(change.verdict, change.what) for change in state.changes] == [("WRONG", "7 of 262,144 elements are wrong")]
    fixed = bench_record("3")
    state = state_of(data.DeviceRecords("emulated-sm_100a", [right, fixed], [right, wrong, fixed]))
    assert not state.attention and state.changed == "Against the run before: 1 SAME"


def test_the_state_of_soundness_is_one_line_by_kernel():
    sound = {"schedules": 2, "errors": 0, "warnings": 1, "findings": [], "failure": None, "correct": True}
    race = {"rule": "race-shared", "severity": "error", "message": "two writes"}
    made = [bench_record("1", f"{kernel} bf16 2x1 512 index") for kernel in ("kernel5", "kernel6", "kernel7")]
    assert state_of(data.DeviceRecords("emulated-sm_100a", made)).soundness == "", "older records say nothing of it"
    made[0]["soundness"] = sound
    made[1]["soundness"] = {**sound, "errors": 1, "findings": [race]}
    state = state_of(data.DeviceRecords("emulated-sm_100a", made))
    assert state.soundness == "Synchronisation: kernel5 sound, kernel6 UNSOUND in 1 of 1 cases, kernel7 not checked"
    assert state.attention and state.verdict == "3 cases are right, counted, not timed"
    assert [(change.verdict, change.what) for change in state.changes] == [
        ("UNSOUND", "1 error of synchronisation: race-shared: two writes")
    ]
    fixed = bench_record("2", "kernel6 bf16 2x1 512 index", soundness=sound)
    state = state_of(data.DeviceRecords("emulated-sm_100a", [*made, fixed]))
    assert not state.attention and "kernel6 sound" in state.soundness
