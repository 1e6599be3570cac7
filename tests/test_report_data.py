"""What the report shows is what the history says."""

from __future__ import annotations

import pytest
from bench_support import bench_record, series_records

from harness.bench.facts import static_facts
from harness.problem.shape import Shape
from harness.report import data
from harness.run import records
from harness.run.runner import Request, run


@pytest.fixture
def results(results_dir):
    for record in series_records():
        records.append(records.record_file(record["device"]["kind"]), record)
    with records.record_file("nvidia-h200").open("a") as file:
        file.write("damaged\n")
    records.append(
        records.record_file("nvidia-h200"), bench_record("3", passed=False, device={"kind": "x", "name": "x"})
    )
    records.append(records.record_file("baselines"), records.new_record(baseline="x"))
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
    device = data.Device(emulated.kind, [*many, *emulated.records])
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
    assert data.intensity(record) == pytest.approx(data.intensity({**record, "counters": {}}))
    assert static_facts(artifacts[cluster], outcome.plan)["stages"] == artifacts[cluster].config.stages


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
    assert data.commit_label({**bench_record("1"), "git": None}) == "2026-01-01"
