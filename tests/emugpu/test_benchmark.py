"""The benchmark of the emulated GPU: a row for each work, in each mode; bad input gets one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from emugpu import benchmark
from emugpu.check.checker import Checker
from emugpu.emulator import Module
from emugpu.emulator.native.library import library_for
from emugpu.launch.launching import EmulationOptions

LAUNCH_FILE = Path(__file__).parents[1] / "data" / "launches" / "nvcc_sgemm.toml"


@pytest.mark.skipif(library_for("native") is None, reason="no Mojo compiler")
def test_it_measures_each_work_in_each_mode(tmp_path, monkeypatch):
    ran = []

    def run_loop(module: Module, options: EmulationOptions, rounds: int) -> int:
        ran.append((options.engine, options.schedule, len(options.sinks), rounds))
        return 7_000_000

    clock = iter(range(1000))
    monkeypatch.setattr(benchmark, "run_loop", run_loop)
    monkeypatch.setattr(benchmark, "_run_launches", lambda what, *arguments: run_loop(what, *arguments))
    monkeypatch.setattr(benchmark.time, "process_time", lambda: next(clock) / 4)
    monkeypatch.setattr(benchmark, "LOOPS", {"integer": "", "f32": ""})
    path = tmp_path / "speeds.json"
    done = CliRunner().invoke(benchmark.main, [str(LAUNCH_FILE), "-o", str(path)])
    assert done.exit_code == 0, done.stderr
    rows = json.loads(path.read_text())
    assert [row.pop("work") for row in rows] == ["integer", "f32", "nvcc_sgemm"]
    assert rows == [{mode: 28.0 for mode in ("plain", "checked", "random", "python")}] * 3
    kinds = [("native", "fifo", 0), ("native", "fifo", 1), ("native", "random", 0), ("python", "fifo", 0)]
    assert ran == [(*kind, rounds) for kind in kinds for rounds in (64, 1024, 1024, 1024)] * 3
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["million", "integer", "f32", "nvcc_sgemm"]


def test_a_run_that_takes_long_is_not_repeated(monkeypatch):
    clock = iter([0, 0.01, 1, 1.5])
    monkeypatch.setattr(benchmark.time, "process_time", lambda: next(clock))
    assert benchmark.speed_of(lambda options, rounds: 1000 * rounds, EmulationOptions) == 1_024_000 / 0.5 / 1e6


@pytest.mark.parametrize("name", benchmark.LOOPS)
def test_each_loop_runs_and_is_clean(name):
    checker = Checker()
    module = Module(benchmark.loop_text(benchmark.LOOPS[name]))
    once, twice = (benchmark.run_loop(module, EmulationOptions(sinks=(checker,)), rounds) for rounds in (1, 2))
    assert not checker.report().findings
    warps = benchmark.CTAS * benchmark.THREADS // 32
    assert (twice - once) % warps == 0 and twice - once >= warps * benchmark.LOOPS[name].count(";") - warps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "nowhere.toml"),
        ([str(LAUNCH_FILE), "-o", "times.csv"], "this command writes .json"),
        (["--sizes", "12"], "No such option"),
    ],
)
def test_it_refuses_bad_input_in_one_line(arguments, message):
    done = CliRunner().invoke(benchmark.main, arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1
