"""The benchmark of the emulated GPU: a row for each work, on both engines; bad input gets one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from emugpu import benchmark
from emugpu.emulator.native.library import library_for

LAUNCH_FILE = Path(__file__).parents[1] / "data" / "launches" / "nvcc_sgemm.toml"


@pytest.mark.skipif(library_for("native") is None, reason="no Mojo compiler")
def test_it_times_each_work_on_both_engines(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(benchmark, "_run_loop", lambda body, ctas, count, engine: ran.append(engine))
    monkeypatch.setattr(benchmark, "MATMUL", 64)
    path = tmp_path / "times.json"
    done = CliRunner().invoke(benchmark.main, [str(LAUNCH_FILE), "-o", str(path)])
    assert done.exit_code == 0, done.stderr
    numpy, *rows = json.loads(path.read_text())
    assert numpy["work"] == "numpy 64^3" and numpy["numpy"] >= 0
    assert [row["work"] for row in rows] == ["addresses", "divergent", "nvcc_sgemm"]
    assert rows[2]["python"] > rows[2]["native"] > 0
    assert ran == ["python", "native"] * 2 * (1 + benchmark.ROUNDS)
    shown = [line.split()[0] for line in done.stderr.splitlines()]
    assert shown == ["CPU", "numpy", "addresses", "divergent", "nvcc_sgemm"]


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
