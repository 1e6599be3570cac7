"""The path of a GPU run through the harness, with the GPU process replaced by canned answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli.main import main
from harness.compiler.toolchain import Gpu
from harness.gpu.supervisor import Outcome
from harness.problem.validation import Mismatch, Validation, WrongTile

B200 = Gpu("NVIDIA B200", "10.0", "180 GiB", "580.1")
RIGHT = Validation(True, False, 65536, 0, 0, 0.25, 1e-3, "some", (128, 256), 2)
WRONG = Validation(
    False, False, 65536, 3, 1, 9.0, 0.5, "some", (128, 256), 2, [WrongTile(1, 0, 3, 32768)],
    [Mismatch(128, 5, float("nan"), 1.0, 0.1)],
)  # fmt: skip
SAMPLES = {"kernel": [1e-5, 1.1e-5, 0.9e-5] * 4, "cublas": [0.8e-5, 0.88e-5, 0.72e-5] * 4}


def answer(validation: Validation | None, samples=None, failure=None) -> Outcome:
    events = {"started": {"name": "NVIDIA B200", "multiprocessors": 148, "torch": "2.13"}}
    if validation:
        events["checked"] = {"validation": json.loads(json.dumps(asdict(validation)))}
    if samples:
        events["sampled"] = {"samples": samples}
        if failure is None:
            events["finished"] = {"timing": {"samples": samples, "input_sets": 2, "before": {}, "after": {}}}
    return Outcome(events, failure)


@pytest.fixture
def gpu_run(artifacts, monkeypatch, tmp_path):
    """Runs `harness run kernel6` on a made-up B200 whose process answers so; gives result, record and request."""

    def run(outcome: Outcome):
        requests = []
        monkeypatch.setattr("harness.run.device.find_gpus", lambda: [B200])
        monkeypatch.setattr("harness.run.device.package_version", lambda name: "2.13")
        monkeypatch.setattr("harness.gpu.measure.compile_artifact", lambda config: (Path("model.mef"), True))
        monkeypatch.setattr(
            "harness.gpu.measure.supervise", lambda request, timeout: requests.append(request) or outcome
        )
        record = tmp_path / "record.json"
        arguments = ["run", "kernel6", "--shape", "256", "--cluster", "2x1", "--json", str(record)]
        result = CliRunner().invoke(main, arguments)
        return result, json.loads(record.read_text()) if record.exists() else None, requests

    return run


def test_measured_time_beside_the_vendors(gpu_run):
    result, record, [request] = gpu_run(answer(RIGHT, SAMPLES))
    assert result.exit_code == 0, result.output
    assert request["inputs"] == "normal" and request["shape"] == [256, 256, 256]
    timing = record["timing"]
    assert timing["seconds"] == pytest.approx(1e-5) and timing["tflops"] == pytest.approx(2 * 256**3 / 1e-5 / 1e12)
    assert timing["vendor"]["cublas"]["ratio"] == pytest.approx(0.8)
    assert record["device"]["kind"] == "nvidia-b200" and record["device"]["multiprocessors"] == 148
    assert "3.4" in result.stdout and "the kernel has 0.800 of it" in result.stdout


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
