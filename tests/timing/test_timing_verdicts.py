"""The model beside what an H200 took: what the comparison says, and that it is of like with like."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from harness.problem.shape import Shape
from harness.timing.constants import find_gpu
from metrology.survey.runs import runs
from metrology.survey.uses import FIT, JUDGE, JUDGE_FAR, SEEN, TIMED
from metrology.validation import validate
from metrology.validation.validation import Measured, Row, compare, judge, parse_name, read_recording
from metrology.validation.validation_report import counters, markdown, put_between, scatter, seconds_markdown
from metrology.validation.validation_seconds import MeasuredSeconds, SecondsRow, read_seconds

NCU = {"cycles": 2000.0, "tensor_percent": 40.0, "l2_bytes": 100.0, "dram_bytes_read": 10.0}


def row(name: str, use: str, measured: float, predicted: float) -> Row:
    return Row(Measured(name, use, measured, 1.8e9, NCU), predicted, 820.0, 11.0, 90.0)


ROWS = [
    row("kernel7 at 512x512x512", JUDGE, 1000.0, 1100.0),
    row("kernel8 at 512x512x512", JUDGE, 2000.0, 1600.0),
    row("kernel7 at 512x520x512", JUDGE_FAR, 1000.0, 1200.0),
    row("kernel8 at 512x520x512", JUDGE_FAR, 2000.0, 1400.0),
    row("kernel6 at 512x512x512", SEEN, 3000.0, 3030.0),
    row("kernel6 at 1024x1024x1024", SEEN, 4000.0, 4040.0),
    row("kernel5 at 512x512x512", FIT, 4000.0, 4000.0),
    row("kernel5 at 1024x1024x1024", FIT, 5000.0, 5000.0),
]
SECONDS = [
    SecondsRow(MeasuredSeconds("kernel7", Shape(4096, 4096, 4096), "normal", 1e-3), 3e-3, 1e9),
    SecondsRow(MeasuredSeconds("kernel8", Shape(2048, 2048, 2048), "integer", 1e-3), 1.05e-3, 1.5e9),
]


def test_each_use_has_a_verdict_of_its_own():
    page = markdown(ROWS)
    assert "| only judged, near the defaults | 2 | 15.0 % | 20.0 % | 1 | 1.000 |" in page
    assert "| only judged, anything allowed | 2 | 25.0 % | 30.0 % | 0 | 1.000 |" in page
    assert "| seen while the model got its form | 2 | 1.0 % | 1.0 % | 2 |" in page
    assert page.index("kernel8 at 512x512x512 | 2,000") < page.index("kernel7 at 512x512x512 | 1,000")
    seconds = seconds_markdown(SECONDS)
    assert "Of 1 kernels" in seconds and "seconds 5.0 %, largest 5.0 %" in seconds, "what it is made from is no test"
    assert put_between(f"before\n{put_between('', 'old')}after", "new").count("new") == 1
    assert scatter(ROWS).count("<circle") == len(ROWS) + len(TIMED)


@pytest.mark.parametrize("error", [0.12, -0.12])
def test_the_lines_of_the_picture_are_where_the_verdict_changes(error):
    picture = scatter([row("kernel7", JUDGE, 10_000, 10_000 * (1 + error)), row("kernel8", JUDGE, 1_000, 1_000)])
    x, y = map(float, re.findall(r'<circle cx="(.*?)" cy="(.*?)"', picture)[0])
    dashed = [line for line in re.findall("<line .*", picture) if "dasharray" in line]
    (x1, y1) = map(float, re.findall(r'x1="(.*?)" y1="(.*?)"', dashed[error < 0])[0])
    assert x + y == pytest.approx(x1 + y1, abs=0.2), "upwards as much as to the right"


def test_tensor_cores_are_compared_by_their_cycles_and_not_by_their_share():
    """40 % of 2000 cycles of a cold launch; 820 were predicted, of a launch in a row that takes half as long."""
    assert ROWS[0].counted_tensor == 800.0
    assert "busy, median error 2.5 %" in counters(ROWS)


def test_ranks_of_equal_values_are_shared():
    assert judge([row("a", FIT, 1, 1), row("b", FIT, 2, 1), row("c", FIT, 3, 9)]).rank == pytest.approx(0.866, abs=1e-3)


@pytest.mark.parametrize("name", ["kernel7 at 2056x4104x192", "kernel8 at 4096x4096x192"])
def test_tensor_cores_work_as_long_as_the_problem_takes_them(name):
    """However few clusters are simulated: all 64 rows of which one lies in C, at N / 2 cycles and a little for 16 of K
    and 64 of M. So not in the columns of tiles outside of C that kernel 7 has, nor in half of a last row."""
    gpu = find_gpu("h200")
    config, shape = parse_name(name)
    _, columns = config.mma_shape
    parts = -(-shape.m // 64) * -(-shape.n // columns)
    work = parts * (shape.k // 16) * (columns / 2 + gpu["tensor.per_instruction"]) / gpu.sms
    for detail in (1, 60):
        [found] = compare([Measured(name, FIT, 1.0, 1.8e9, {})], gpu, detail)
        assert found.tensor == pytest.approx(work, rel=1e-3)


def test_every_run_that_was_recorded_can_be_predicted():
    """Names lead back to the configurations that were measured."""
    known = {run.name: run for run in runs("sm_90a")}
    for run in read_recording():
        config, shape = parse_name(run.name)
        assert (config, shape) == (known[run.name].config("sm_90a"), known[run.name].shape)


def test_seconds_are_of_each_kernel_problem_and_kind_of_inputs_once():
    found = read_seconds()
    assert len({run.name for run in found}) == len(found) == 24 and sum(run.fitted for run in found) == 2
    [one] = [run for run in found if run.name == "kernel8 at 8192x8192x8192, normal"]
    assert 1.5e-3 < one.seconds < 1.7e-3


def test_validate_says_what_it_cannot_do():
    run = CliRunner().invoke(validate.main, ["--match", "kernel9"])
    assert run.exit_code == 2 and "no run has that in its name" in run.output
    run = CliRunner().invoke(validate.main, ["--write", "--use", "fit"])
    assert run.exit_code == 2 and "leave the other options out" in run.output


def test_validate_tells_each_run_and_a_verdict(monkeypatch):
    monkeypatch.setattr(validate, "compare", lambda runs, gpu, detail, jobs: iter(ROWS))
    monkeypatch.setattr(validate, "compare_seconds", lambda runs, gpu, jobs: iter(SECONDS))
    run = CliRunner().invoke(validate.main, ["--jobs", "2"])
    assert run.exit_code == 0
    assert "judge: 2 runs, mean absolute error 15.0 %, largest 20.0 %" in run.output
    assert "seconds: 1 that the power model was not made from" in run.output
