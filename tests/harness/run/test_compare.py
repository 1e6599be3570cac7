"""``harness compare``: one table, what each step changes, other people's figures apart, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import harness.cli.running
import harness.run.runner
from conftest import BF16_KERNELS
from emugpu.cli.emulation import Emulation
from emugpu.errors import CannotRun
from emugpu.launch.memory import LaunchMemory
from harness.cli.main import main
from harness.cli.options import Problem, several_configs
from harness.cli.running import RunOptions, exit_code, prepare
from harness.problem import Shape
from harness.run import compare

SMALL = ["--shape", "256,512,448", "-c", "cluster=2x1"]


@pytest.fixture
def command(series):
    """Runs ``harness compare`` with the kernels of `series` built."""
    return lambda *arguments: CliRunner().invoke(main, ["compare", *arguments])


@pytest.mark.slow
def test_all_kernels_side_by_side(command, results_dir):
    result = command("all", *SMALL, "--json", "-")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert [entry["kernel"] for entry in data["kernels"]] == list(BF16_KERNELS)
    five, six, seven, eight = (entry["figures"] for entry in data["kernels"])
    assert {entry["verdict"] for entry in data["kernels"]} == {"exact"}
    assert {entry["performance"]["TFLOPS"] for entry in data["kernels"]} == {"not measured"}
    # The series: the same work and traffic, then a pipeline, then less memory for C and two stores in flight.
    for name in ("global bytes read", "shared bytes written", "MMA instructions", "multicast factor"):
        assert five[name] == six[name] == seven[name] is not None
    assert (five["stages"], six["stages"], seven["stages"]) == (1, 5, 6)
    assert (six["of it for C"], seven["of it for C"]) == (65536, 16384)
    assert (five["stores in flight"], six["stores in flight"], seven["stores in flight"]) == (1, 1, 2)
    assert six["global bytes read"] == six["of A"] + six["of B"]
    changed = [{change["figure"] for change in step["changes"]} for step in data["steps"]]
    assert {"stages", "warps", "shared memory, bytes"} <= changed[0] and "of it for C" not in changed[0]
    assert {"stages", "of it for C", "stores in flight", "TMA stores"} <= changed[1]
    assert "warps" not in changed[1]
    assert {"tiles come from", "accumulators", "TMEM columns"} <= changed[2] and "stores in flight" not in changed[2]
    assert (seven["tiles come from"], seven["accumulators"], eight["accumulators"]) == ("the grid", 1, 2)
    lines = (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [entry["record"] for entry in data["kernels"]]


@pytest.mark.parametrize("shape", ["512,512,128", "500,296,584", "8"])
def test_the_multicast_factor_counts_receivers_for_any_shape(command, artifacts, shape):
    """A cluster of 4x2 CTAs in pairs: two share each slice of A, and two each slice of B."""
    options = ["-c", "cluster=4x2", "--shape", shape, "--no-save", "--json", "-"]
    figures = json.loads(command("kernel6", *options).stdout)["kernels"][0]["figures"]
    assert figures["multicast factor"] == 2


def test_what_a_cta_that_stays_saves(command):
    """12 cluster tiles for 2 clusters: a sixth of the starts."""
    options = ["--shape", "1536,512,64", "-c", "cluster=2x1", "--no-save", "--json", "-"]
    seven = json.loads(command("kernel7", *options).stdout)["kernels"][0]["figures"]
    stays = ["-c", "scheduler=static", "-c", "sms=4"]
    eight = json.loads(command("kernel8", *options, *stays).stdout)["kernels"][0]["figures"]
    for name in ("CTAs started", "TMEM allocations"):
        assert (seven[name], eight[name]) == (24, 4)
    assert seven["barriers initialised"] == 24 * 13 and eight["barriers initialised"] == 4 * 16
    for name in ("global bytes read", "MMA instructions", "TMA stores"):
        assert seven[name] == eight[name]


def test_the_report(command):
    result = command("kernel7", "kernel6", "kernel7", *SMALL, "--no-save")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "C[256,512], K=448 on emulated sm_100a"
    assert lines[1].split() == ["kernel7", "kernel6"]
    assert lines[3].split() == ["TFLOPS", "not", "measured", "not", "measured"]
    assert "what changes from kernel7 to kernel6" in lines
    theirs = lines.index("published by others on their hardware, not measured here")
    for text in ("360.2", "1429", "1493", "1323", "1400", "1396", "1610.2", "NVIDIA B200", "Modular"):
        assert any(text in line for line in lines[theirs:])
        assert not any(text in line for line in lines[:theirs])


@pytest.mark.slow
def test_a_preset_for_all(command):
    result = command("all", "-c", "preset=2cta", "--shape", "256", "-c", "stages=1", "--json", "-", "--no-save")
    assert result.exit_code == 0, result.output
    configs = [entry["record"]["config"] for entry in json.loads(result.stdout)["kernels"]]
    assert all(not config["multicast"] and config["stages"] == 1 for config in configs)


@pytest.fixture
def answers(monkeypatch):
    """Alters what one kernel leaves in C."""
    download = LaunchMemory.download

    def alter(kernel, change):
        def altered(memory, name):
            values = download(memory, name)
            return change(values) if memory.what.about["kernel"] == kernel and name == "C" else values

        monkeypatch.setattr(LaunchMemory, "download", altered)

    return alter


def wrong(output):
    output = np.array(output)
    output[0, 0] += 1000
    return output


def stuck(output):
    raise CannotRun("Deadlock: nobody can run")


@pytest.mark.slow
def test_a_wrong_result_exits_with_4_and_is_shown(command, answers):
    answers("kernel6", wrong)
    result = command("all", *SMALL, "--no-save")
    assert result.exit_code == 4
    assert "WRONG: 1" in result.stdout and "wrong tiles: 1 of 4" in result.stdout
    assert "kernel6" in result.stdout.split("WRONG RESULT")[0].splitlines()[-1]


def test_a_kernel_that_cannot_run_does_not_stop_the_others(command, answers, results_dir):
    answers("kernel6", stuck)
    result = command("all", *SMALL, "--json", "-")
    assert result.exit_code == 3
    assert "harness: error: kernel6: Deadlock: nobody can run" in result.stderr
    data = json.loads(result.stdout)
    assert [entry["verdict"] for entry in data["kernels"]] == ["exact", "could not run", "exact", "exact"]
    assert data["kernels"][1]["failure"] == "Deadlock: nobody can run"
    assert [(step["from"], step["to"]) for step in data["steps"]] == [("kernel5", "kernel7"), ("kernel7", "kernel8")]
    assert len((results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()) == 3


def test_a_wrong_result_outweighs_one_that_is_missing(series, answers):
    outcome = harness.run.runner.run(harness.run.runner.Request(series["kernel6"].config, shape()))
    bad = replace(outcome, validation=replace(outcome.validation, passed=False))
    missing = compare.ComparedKernel(outcome.request.config, None, "stuck")
    assert exit_code([missing, compare.ComparedKernel(outcome.request.config, bad)]) == 4
    assert exit_code([missing, compare.ComparedKernel(outcome.request.config, outcome)]) == 3


def shape():
    return harness.problem.Shape(256, 256, 64)


def test_a_time_on_a_gpu_is_shown_with_the_ratio_to_the_vendor(series):
    outcome = harness.run.runner.run(harness.run.runner.Request(series["kernel7"].config, shape()))
    timing = {"seconds": 1e-4, "tflops": 1374.4, "vendor": {"cublas": {"ratio": 0.9123}}}
    measured = replace(outcome, record={**outcome.record, "timing": timing, "counters": {}})
    entry = compare.ComparedKernel(outcome.request.config, measured)
    assert compare.performance(entry) == [("TFLOPS", "1374.4"), ("ratio to cublas", "0.912")]
    assert compare.figures(entry)["global bytes read"] is None
    assert compare.figures(entry)["stages"] == outcome.request.config.stages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'KERNEL...|all'"),
        (["kernel6", "kernel99"], "there is no kernel 'kernel99'"),
        (["all", "-c", "stages=4"], "kernel5 has no pipeline, its only depth is 1"),
        (["all", "--json", "/no/such/folder/x"], "is not a file in an existing folder"),
    ],
)
def test_bad_requests_are_one_line(command, arguments, message):
    result = command(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_what_is_left_to_the_kernel_may_be_said():
    """As to the commands that take one configuration."""
    [config] = several_configs(["stages=auto", "cluster=2x1"], None)
    assert config.asked == {"cluster": (2, 1)}


def test_two_configurations_of_one_kernel_are_two_columns(monkeypatch):
    monkeypatch.setattr(harness.cli.running, "build_with_notice", lambda configs: [None for _ in configs])
    configs = several_configs(["stages=3,4", "cluster=2x1"], "fp16")
    problem, how = Problem(Shape(256, 512, 64)), RunOptions("emulator", Emulation(), no_save=True)
    several = prepare(["kernel7", "kernel6"], problem, configs, how)
    assert [one.entry(None).name for one in several] == [
        "kernel7 stages=3", "kernel7 stages=4", "kernel6 stages=3", "kernel6 stages=4"
    ]  # fmt: skip
    made = [one.request.config for one in several]
    assert [config.stages for config in made] == [3, 4, 3, 4]
    assert {(config.cluster, config.dtype) for config in made} == {((2, 1), "fp16")}
