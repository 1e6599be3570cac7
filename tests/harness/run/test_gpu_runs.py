"""The path of a GPU run through the harness, with the GPU process replaced by canned answers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli.main import main
from harness.compile.artifacts import Artifact
from harness.compile.compiler import Gpu, find_gpus
from harness.compile.config import make_config
from harness.problem import Shape
from harness.run import measure as measuring
from harness.run.case import Request
from harness.run.measure import ProcessReport, measure
from harness.run.records import VENDORS
from harness.validation import Mismatch, Validation, WrongTile

B200 = Gpu("NVIDIA B200", "10.0", "180 GiB", "580.1")
H100 = Gpu("NVIDIA H100", "9.0", "80 GiB", "580.1")
RIGHT = Validation(True, False, 65536, 0, 0, 0.25, 1e-3, "some", (128, 256), 2)
WRONG = Validation(
    False, False, 65536, 3, 1, 9.0, 0.5, "some", (128, 256), 2, [WrongTile(1, 0, 3, 32768)],
    [Mismatch(128, 5, float("nan"), 1.0, 0.1)],
)  # fmt: skip
SAMPLES = {"kernel": [1e-5, 1.1e-5, 0.9e-5] * 4, "cublas": [0.8e-5, 0.88e-5, 0.72e-5] * 4}


def answer(validation: Validation | None, samples=None, failure=None) -> ProcessReport:
    events = {"started": {"name": "NVIDIA B200", "multiprocessors": 148, "torch": "2.13"}}
    if validation:
        events["checked"] = {"validation": json.loads(json.dumps(asdict(validation)))}
    if samples:
        events["sampled"] = {"samples": samples}
        if failure is None:
            events["finished"] = {"timing": {"samples": samples, "input_sets": 2, "before": {}, "after": {}}}
    return ProcessReport(events, failure)


@pytest.fixture
def gpu_run(artifacts, monkeypatch, tmp_path):
    """Runs `harness run kernel6` on a made-up B200 whose process answers so; gives result, record and request."""

    def run(outcome: ProcessReport):
        requests = []
        monkeypatch.setattr("harness.run.runner.find_gpus", lambda: [B200])
        monkeypatch.setattr("harness.run.runner.package_version", lambda name: "2.13")
        monkeypatch.setattr(
            "harness.run.measure.supervise", lambda request, timeout: requests.append(request) or outcome
        )
        record = tmp_path / "record.json"
        arguments = ["run", "kernel6", "--shape", "256", "-c", "cluster=2x1", "--json", str(record)]
        result = CliRunner().invoke(main, arguments)
        return result, json.loads(record.read_text()) if record.exists() else None, requests

    return run


def test_measured_time_beside_the_vendors(gpu_run):
    result, record, [request] = gpu_run(answer(RIGHT, SAMPLES))
    assert result.exit_code == 0, result.output
    assert request.inputs == "normal" and request.shape == Shape(256, 256, 256)
    timing = record["timing"]
    assert timing["seconds"] == pytest.approx(1e-5) and timing["tflops"] == pytest.approx(2 * 256**3 / 1e-5 / 1e12)
    assert timing["vendor"]["cublas"]["ratio"] == pytest.approx(0.8)
    assert record["device"]["kind"] == "nvidia-b200" and record["device"]["multiprocessors"] == 148
    assert "3.4" in result.stdout and "the kernel runs at 0.800x its speed" in result.stdout


def test_a_wrong_result_is_never_timed(gpu_run):
    result, record, _ = gpu_run(answer(WRONG))
    assert result.exit_code == 4
    assert record["timing"] == {"seconds": None, "reason": "not measured: wrong result"}
    assert "wrong tiles: 1 of 2" in result.stdout and "TFLOPS" not in result.stdout


def test_a_hang_before_any_result(gpu_run):
    result, record, _ = gpu_run(answer(None, failure="no sign of life for 60 s while loading the model"))
    assert result.exit_code == 3 and record is None
    assert "kernel6" in result.stderr and "on NVIDIA B200" in result.stderr and "no sign of life" in result.stderr


def test_a_hang_while_timing_keeps_what_was_measured(gpu_run):
    result, record, _ = gpu_run(answer(RIGHT, SAMPLES, failure="no sign of life for 60 s while being timed"))
    assert record["timing"]["summary"]["samples"] == 12
    assert record["timing"]["reason"] == "no sign of life for 60 s while being timed"
    assert "ended early" in result.stdout


def request_of(artifact, processes: int) -> Request:
    return Request(artifact.config, Shape(256, 256, 256), "normal", gpu=B200, processes=processes)


@pytest.fixture
def measured(artifacts, monkeypatch):
    """Measures with canned answers, one for each process."""

    def run(*answers: ProcessReport):
        waiting = list(answers)
        monkeypatch.setattr("harness.run.measure.supervise", lambda request, timeout: waiting.pop(0))
        [result] = measure([artifacts[2, 1]], request_of(artifacts[2, 1], processes=len(answers)))
        return result, len(answers) - len(waiting)

    return run


def test_builds_take_turns_and_one_that_fails_does_not_end_the_other(artifacts, monkeypatch):
    crash = answer(RIGHT, SAMPLES, failure="the GPU process ended with code 9 while being timed")
    waiting = {"old": [answer(RIGHT, scaled(2, 1))] * 3, "new": [answer(RIGHT, scaled(1, 1)), crash]}
    asked = []

    def supervise(request, timeout):
        asked.append(request.artifact.folder.name)
        return waiting[asked[-1]].pop(0)

    monkeypatch.setattr("harness.run.measure.supervise", supervise)
    builds = [replace(artifacts[2, 1], folder=Path(name)) for name in waiting]
    old, new = measure(builds, request_of(builds[0], processes=3))
    assert asked == ["old", "new", "old", "new", "old"]
    assert old.failure is None and len(old.timing["processes"]) == 3 and old.timing["seconds"] == pytest.approx(2e-5)
    assert "process 2 of 3" in new.failure and new.timing["seconds"] == pytest.approx(1e-5)


def scaled(kernel: float, cublas: float) -> dict[str, list[float]]:
    return {
        "kernel": [kernel * time for time in SAMPLES["kernel"]],
        "cublas": [cublas * time for time in SAMPLES["cublas"]],
    }


def test_several_processes_count_once_each(measured):
    """Medians 1, 3 and 2 times 10 us, and ratios 0.8, 0.8 / 3 and 0.8: however many samples, the middle one counts."""
    many = {name: 10 * times for name, times in scaled(1, 1).items()}
    result, _ = measured(answer(RIGHT, many), answer(RIGHT, scaled(3, 1)), answer(RIGHT, scaled(2, 2)))
    timing = result.timing
    assert result.failure is None
    assert timing["seconds"] == pytest.approx(2e-5)
    assert timing["vendor"]["cublas"]["ratio"] == pytest.approx(0.8)
    assert [one["seconds"] for one in timing["processes"]] == pytest.approx([1e-5, 3e-5, 2e-5])
    ratios = [one["vendor"]["cublas"]["ratio"] for one in timing["processes"]]
    assert ratios == pytest.approx([0.8, 0.8 / 3, 0.8])
    assert [one["samples"] for one in timing["processes"]] == [120, 12, 12] and len(timing["samples"]) == 144


def test_a_process_that_fails_ends_the_measurement_and_is_named(measured):
    crash = answer(RIGHT, SAMPLES, failure="the GPU process ended with code 9 while being timed")
    result, asked = measured(answer(RIGHT, SAMPLES), crash, answer(RIGHT, SAMPLES))
    assert asked == 2
    assert result.failure == "process 2 of 3: the GPU process ended with code 9 while being timed"
    assert len(result.timing["processes"]) == 2


def test_an_output_that_is_wrong_after_the_timing_is_wrong(measured):
    """The last verdict of a process counts; its times do not."""
    result, asked = measured(answer(RIGHT, SAMPLES), answer(WRONG, SAMPLES), answer(RIGHT, SAMPLES))
    assert asked == 2
    assert not result.validation["passed"]
    assert len(result.timing["processes"]) == 1


def test_another_gpu_than_the_one_on_record_is_a_failure(measured):
    other = answer(RIGHT, SAMPLES)
    other.events["started"]["name"] = "NVIDIA H100"
    result, _ = measured(other)
    assert result.failure == (
        "it ran on NVIDIA H100, but the driver lists NVIDIA B200 first; name one GPU in CUDA_VISIBLE_DEVICES"
    )


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["A", "B", "C"]),
        ("1", ["B"]),
        ("2,0", ["C", "A"]),
        ("GPU-bb, 0", ["B", "A"]),
        ("0,7,1", ["A"]),
        ("GPU-", []),
        ("", []),
        ("-1", []),
    ],
)
def test_the_gpus_that_a_program_sees(monkeypatch, tmp_path, visible, names):
    smi = tmp_path / "nvidia-smi"
    rows = "".join(f"GPU-{x * 2}11, {x.upper()}, 9.0, 141 GiB, 580.1\n" for x in "abc")
    smi.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.name for gpu in find_gpus()] == names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "bf16"}, []),
        ({"dtype": "e4m3"}, []),
        ({"epilogue": "bias"}, []),
        ({"layout": "nn"}, []),
        ({"out_dtype": "f32"}, ["cublas and best_of_cublaslt not timed: its C is bf16, not f32"]),
    ],
)
def test_a_vendor_that_is_left_out_is_noted(monkeypatch, options, said):
    asked = []
    monkeypatch.setattr(
        measuring, "supervise", lambda request, timeout: asked.append(request) or answer(RIGHT, SAMPLES)
    )
    artifact = Artifact(make_config("kernel8", arch="sm_90a", **options), Path(), False)
    [found] = measure([artifact], replace(request_of(artifact, 1), gpu=H100))
    assert found.notes == said and asked[0].vendors == (() if said else VENDORS)


def test_each_alone_and_the_host_are_medians_over_the_processes(measured):
    def alone(kernel: float, cublas: float) -> dict:
        return {"kernel": {"seconds": kernel, "joules": 0.1}, "cublas": {"seconds": cublas, "joules": 0.2}}

    answers = [answer(RIGHT, SAMPLES) for _ in range(3)]
    for one, (kernel, cublas, host) in zip(
        answers, [(1e-5, 2e-5, 9.0), (4e-5, 4e-5, 7.0), (2e-5, 6e-5, 8.0)], strict=True
    ):
        one.events["finished"]["timing"] |= {"alone": alone(kernel, cublas), "host_us": {"kernel": host}}
    result, _ = measured(*answers)
    found = result.timing["alone"]
    assert found["kernel"]["seconds"] == 2e-5 and found["kernel"]["joules"] == 0.1
    assert found["kernel"]["tflops"] == pytest.approx(2 * 256**3 / 2e-5 / 1e12) and "ratio" not in found["kernel"]
    assert found["cublas"]["seconds"] == 4e-5 and found["cublas"]["ratio"] == pytest.approx(2)
    assert result.timing["host_us"] == {"kernel": 8.0}
