"""``--schedules``: a result has to be right under each, and what fails can be repeated by the command that is given."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace

import click
import pytest
from click.testing import CliRunner
from kernel_faults import substitute

import harness.cli.main
import harness.cli.running
import harness.compile.artifacts
from emugpu.cli.emulation import Emulation
from emugpu.errors import CannotRun
from emugpu.launch import launching
from emugpu.launch.launching import EmulationOptions, ScheduleOutcome, run, under_schedules
from harness.cli.options import ConfigOptions, Problem, config_options, problem_options, run_options
from harness.cli.repeat import command_of
from harness.compile.config import make_config
from harness.problem import Shape
from harness.run.case import Request

# A kernel whose stages are released twice: right in the order of issue, while a random one (here of seed 1) hangs.
RELEASED_TWICE = substitute(r"(\t(?:@\S+ )?tcgen05\.commit[^;]*;\n)", r"\1\1")
SIZE = ["--shape", "256,512,128", "-c", "cluster=2x1"]


def harness_command(*arguments: object):
    return CliRunner().invoke(harness.cli.main.main, [str(a) for a in arguments])


@pytest.fixture
def released_twice(artifacts, monkeypatch, tmp_path):
    """From now on the command line runs this kernel6."""
    good = artifacts[2, 1]
    (tmp_path / "kernel.ptx").write_text(RELEASED_TWICE(good.ptx))
    shutil.copy(good.folder / "artifact.json", tmp_path)
    bad = replace(good, folder=tmp_path)
    monkeypatch.setattr(harness.cli.running, "build_with_notice", lambda configs: [bad for _ in configs])
    monkeypatch.setattr(harness.compile.artifacts, "build", lambda configs: [bad for _ in configs])


def test_one_schedule_is_that_which_is_asked_for():
    options = EmulationOptions(schedule="random", seed=7, jobs=2)
    assert under_schedules(options, 1) == [options]


def test_of_several_one_is_fifo_and_the_seeds_follow():
    each = under_schedules(EmulationOptions(seed=7), 4)
    assert [(one.schedule, one.seed) for one in each] == [("fifo", 7), ("random", 7), ("random", 8), ("random", 9)]


@pytest.mark.parametrize(
    ("count", "jobs", "of_each", "processes"), [(1, 2, 2, []), (3, 1, 1, []), (3, 2, 1, [2]), (3, 8, 1, [3])]
)
def test_processes_share_the_schedules_and_not_the_clusters_of_one(monkeypatch, count, jobs, of_each, processes):
    started = []

    def in_order(work, each, jobs):
        started.append(jobs)
        return map(work, each)

    monkeypatch.setattr(launching, "in_order", in_order)
    monkeypatch.setattr(launching, "_try", lambda what, keep, options, progress=None: ScheduleOutcome(options, None))
    ran = [one.options for one in launching.run_schedules(None, EmulationOptions(seed=7, jobs=jobs), count)]
    assert [one.jobs for one in ran] == [of_each] * count and started == processes
    assert [(one.schedule, one.seed) for one in ran] == [("fifo", 7), ("random", 7), ("random", 8)][:count]


@pytest.mark.parametrize("command", ["run", "compare"])
def test_what_fifo_does_not_see(released_twice, results_dir, command):
    assert harness_command(command, "kernel6", *SIZE, "--no-save").exit_code == 0
    result = harness_command(command, "kernel6", *SIZE, "--schedules", 3)
    assert result.exit_code == 3
    assert "under the random schedule of seed 1: Deadlock" in result.stderr
    again = result.stderr.splitlines()[-1].removeprefix("to repeat: ")
    assert again.endswith("--schedules random:1")
    assert not list(results_dir.glob("*.jsonl"))
    repeated = harness_command(*shlex.split(again)[1:], "--no-save")
    assert repeated.exit_code == 3 and "Deadlock" in repeated.stderr


def test_the_bench_sees_it_by_default(released_twice, tmp_path):
    suite = tmp_path / "one.toml"
    suite.write_text(
        'schema = 1\nkernels = "kernel6"\nclusters = "2x1"\nshapes = "256,512,128"\ndtypes = "bf16"\n'
        'inputs = "index"\n[[cases]]\n'
    )
    assert harness_command("bench", "--suite", suite, "--schedules", 1).exit_code == 0
    result = harness_command("bench", "--suite", suite, "--json", "-")
    assert result.exit_code == 3
    [case] = json.loads(result.stdout)["cases"]
    assert case["verdict"] == "NOT MEASURED" and "schedule of seed 1: Deadlock" in case["reason"]
    [note] = case["notes"]
    repeated = harness_command(*shlex.split(note.removeprefix("to repeat: "))[1:], "--no-save")
    assert repeated.exit_code == 3 and "Deadlock" in repeated.stderr


def test_a_wrong_result_under_one_schedule(artifacts, monkeypatch, results_dir):
    def wrong_for_seed_5(what, options, *more, **named):
        outcome = run(what, options, *more, **named)
        if options.seed != 5:
            return outcome
        output = 0 * outcome.contents["C"]
        return replace(outcome, contents={"C": output}, verdicts=(what.expectations[0].judge(output, {}),))

    monkeypatch.setattr("emugpu.launch.launching.run", wrong_for_seed_5)
    result = harness_command("run", "kernel6", *SIZE, "--schedules", "4@4", "--problem", "seed=3")
    assert result.exit_code == 4
    assert "--problem seed=3 --schedules random:5" in result.stdout
    [line] = (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert not record["validation"]["passed"] and record["inputs"]["seed"] == 3
    device = record["device"]
    assert (device["schedule"], device["schedule_seed"], device["schedules"]) == ("random", 5, 1)


def test_the_schedules_and_their_seeds_are_shown(artifacts):
    words = ("run", "kernel6", *SIZE, "--no-save")
    shown = harness_command(*words, "--schedules", "4@3").stdout
    assert "4 schedules: fifo, and random ones of seeds 3 to 5\n" in shown and "PASSED" in shown
    assert "random schedule, seed 7\n" in harness_command(*words, "--schedules", "random:7").stdout


def test_several_schedules_change_no_figure(artifacts):
    one, three = (
        json.loads(harness_command("run", "kernel6", *SIZE, "--no-save", "--json", "-", "--schedules", count).stdout)
        for count in (1, 3)
    )
    assert one["counters"] == three["counters"]
    assert (one["device"]["schedules"], three["device"]["schedules"]) == (1, 3)


def test_schedules_are_not_for_a_gpu(tmp_path):
    suite = tmp_path / "gpu.toml"
    suite.write_text(
        'schema=1\ndevice="gpu"\nkernels="kernel6"\nclusters="2x1"\nshapes="8"\ndtypes="bf16"\ninputs="index"\n[[cases]]\n'
    )
    result = harness_command("bench", "--suite", suite, "--schedules", 4)
    assert result.exit_code == 2 and "runs on a GPU, which has no schedules" in result.stderr


CONFIGS = [
    make_config("kernel6"),
    make_config("kernel7", arch="sm_90a", multicast=False, stages=2, dtype="fp16"),
    make_config("kernel8", scheduler="static", sms=16, raster_group=4, accumulators=1),
    make_config("kernel8", clc_depth=3, cta_group=1, cluster=(1, 2)),
    make_config("kernel8", arch="sm_90a", mma_shape=(128, 128), cluster=(2, 1), ping_pong=True),
    make_config("kernel8", arch="sm_90a", mma_shape=(128, 128), cluster=(2, 1), ping_pong=False, scheduler="dynamic"),
]
OPTIONS = EmulationOptions(
    "tensor_core",
    "random",
    9,
    jobs=2,
    resident_clusters=3,
    max_steps=10**7,
    timeout=0.5 + 10,
    strict=False,
    allow=("exit-pending", "peer-exited"),
)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
@pytest.mark.parametrize(
    ("emulation", "schedules"), [(OPTIONS, 1), (EmulationOptions(seed=2), 5), (EmulationOptions(), 1)]
)
@pytest.mark.parametrize("ptxas", [True, False])
def test_the_command_to_repeat_asks_for_the_same(config, emulation, schedules, ptxas):
    seen = []

    @click.command()
    @click.argument("kernel")
    @problem_options("inputs", "seed")
    @config_options
    @run_options
    def read(kernel: str, problem: Problem, config: ConfigOptions, device: str, emulation: Emulation) -> None:
        seen.append((config.configure(kernel, problem.shape), problem))
        seen.append((emulation.options, emulation.schedules, emulation.ptxas))

    shape = Shape(504, 296, 584)
    request = Request(config, shape, "index", 11, emulation, schedules=schedules, ptxas=ptxas)
    words = shlex.split(command_of(request))
    assert words[:2] == ["harness", "run"]
    read.main(words[2:], standalone_mode=False)
    assert seen[0] == (config, Problem(shape, "index", 11))
    assert seen[1] == (replace(emulation, jobs=1), schedules, ptxas), "worker processes change nothing"


def test_the_command_to_repeat_says_what_differs_from_the_defaults():
    request = Request(make_config("kernel7", shape=Shape(512, 512, 512)), Shape(512, 512, 512))
    assert command_of(request) == "harness run kernel7 --shape 512,512,512"
    staged = replace(request, config=make_config("kernel7", stages=3), seed=4)
    assert command_of(staged) == "harness run kernel7 -c stages=3 --shape 512,512,512 --problem seed=4"
    verified = replace(staged, schedules=4, emulation=EmulationOptions(seed=1, strict=False))
    assert command_of(replace(verified, inputs="index"), "verify") == command_of(staged).replace(" run ", " verify ")


def test_run_takes_several_kernels(series, results_dir, tmp_path):
    path = tmp_path / "records.json"
    result = harness_command("run", "kernel7", "kernel6", "kernel7", *SIZE, "--json", path)
    assert result.exit_code == 0, result.output
    verdicts = [line for line in result.stdout.splitlines() if line.endswith("PASSED")]
    assert verdicts == [f"{kernel} on emulated sm_100a: PASSED" for kernel in ("kernel7", "kernel6")]
    lines = (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == json.loads(path.read_text())
    assert [json.loads(line)["kernel"] for line in lines] == ["kernel7", "kernel6"]


def test_one_kernel_that_cannot_run_does_not_cost_the_others(series, monkeypatch):
    run = harness.cli.running.run_request

    def fails_for_kernel6(request, artifact, progress):
        if request.config.kernel == "kernel6":
            raise CannotRun("Deadlock: for the test")
        return run(request, artifact, progress)

    monkeypatch.setattr("harness.cli.running.run_request", fails_for_kernel6)
    result = harness_command("run", "all", *SIZE, "--no-save")
    assert result.exit_code == 3
    assert result.stderr == "harness: error: kernel6: Deadlock: for the test\n"
    assert result.stdout.count("PASSED") == 3


def test_the_version():
    result = harness_command("--version")
    assert (result.exit_code, result.stdout) == (0, f"harness {harness.__version__}\n")


@pytest.mark.slow
def test_processes_that_share_kernels_and_schedules_give_the_same(results_dir):
    """What each kernel counts, and one record each, in the order in which they are named."""
    found = []
    for jobs in (1, 2):
        result = harness_command(
            "compare", "kernel5", "kernel6", *SIZE, "--schedules", 2, "--jobs", jobs, "--json", "-"
        )
        assert result.exit_code == 0, result.output
        found.append([entry["figures"] for entry in json.loads(result.stdout)["kernels"]])
    assert found[0] == found[1] and len(found[0]) == 2
    assert len((results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_processes_say_which_schedule_failed(released_twice):
    result = harness_command("run", "kernel6", *SIZE, "--schedules", 3, "--jobs", 2, "--no-save")
    assert result.exit_code == 3
    assert "under the random schedule of seed 1: Deadlock" in result.stderr and "--schedules random:1" in result.stderr
