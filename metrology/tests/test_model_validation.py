"""The timing model against what an H200 took."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest
from click.testing import CliRunner

from harness.build.config import KernelConfig
from harness.problem import Shape
from metrology import validation
from metrology.bench_vs_cublas import parse_kernel
from metrology.survey.runs import Run, runs
from metrology.validation import Measured, Row, read_recording, verdicts


def row(name: str, use: str, measured: float, predicted: float) -> Row:
    return Row(Measured(name, use, measured, 1.8e9), predicted)


def test_each_use_has_a_verdict_of_its_own():
    rows = [row("a", "judge", 1000, 1100), row("b", "judge", 2000, 1600), row("c", "fit", 1, 1), row("d", "fit", 1, 1)]
    assert verdicts([*rows, row("e", "alone", 1, 9)]) == [
        "judge: 2 runs, mean absolute error 15.0 %, largest 20.0 %, 1 within 12 %",
        "fit: 2 runs, mean absolute error 0.0 %, largest 0.0 %, 2 within 12 %",
    ]


def test_the_recording_has_the_runs_of_the_last_draw():
    uses = [run.use for run in read_recording()]
    assert (uses.count("judge"), uses.count("judge-far"), len(uses)) == (60, 60, 387)


def test_each_run_and_a_verdict_are_printed():
    done = CliRunner().invoke(validation.main, ["--match", "kernel7 at 512x512x512"])
    assert done.exit_code == 0 and done.stdout.startswith("[  1/1] seen"), done.output


@pytest.mark.parametrize(
    ("words", "said"), [(["--match", "kernel9"], "no run has that in its use or name"), (["--jobs", "0"], "x>=1")]
)
def test_bad_requests_get_one_line(words, said):
    done = CliRunner().invoke(validation.main, words)
    assert (done.exit_code, done.stdout) == (2, "") and said in done.stderr and done.stderr.count("\n") == 1


def test_names_lead_back_to_configurations():
    config, shape = validation.parse_run("kernel8 mma_shape=128x256 cluster=2x1 ping_pong=False at 8192x4096x640")
    assert (config.kernel, config.cluster, config.ping_pong) == ("kernel8", (2, 1), False)
    assert shape == Shape(8192, 4096, 640)


def test_every_name_of_the_recording_leads_back_to_the_configuration_that_was_measured():
    """The runs that a survey still makes, and the options that the names of the others have."""
    known = {run.name: (run.config("sm_90a"), run.shape) for run in runs("sm_90a")}
    seen = 0
    for run in read_recording():
        config, shape = validation.parse_run(run.name)
        assert Run(config.kernel, options_named(run.name, config), shape, run.use).name == run.name
        if run.name in known:
            assert (config, shape) == known[run.name]
            seen += 1
    assert seen == len(known)


def options_named(name: str, config: KernelConfig) -> tuple[tuple[str, Any], ...]:
    return tuple((option, getattr(config, option)) for option in re.findall(r" (\w+)=", name))


def test_an_option_that_is_off_is_off():
    assert parse_kernel("kernel8 ping_pong=false stages=3") == ("kernel8", (("ping_pong", False), ("stages", 3)))
    with pytest.raises(click.UsageError, match="'pingpong=true' is no option"):
        parse_kernel("kernel8 pingpong=true")
