"""The table of a configuration's options, and all that follows from it."""

from __future__ import annotations

from dataclasses import fields

import click
import pytest

from emugpu.errors import UsageProblem
from harness.cli.main import main
from harness.cli.options import read_settings
from harness.compile.config import KernelConfig, make_config
from harness.compile.options import OPTIONS, TUNABLE, parse_settings
from harness.experiments.sweep_spec import make_sweep
from harness.model.constants import find_gpu
from harness.model.what_if import parse_changes

SAMPLE = {"arch": "sm_90a", "dtype": "fp16", "multicast": False, "ping_pong": False}
"""A value of each option for which nothing is offered, and the odd one of a switch."""
VALUES = {name: SAMPLE.get(name, option.offered[0] if option.offered else None) for name, option in OPTIONS.items()}


def test_a_configuration_has_the_options_its_kernel_and_whether_there_are_groups():
    assert [field.name for field in fields(KernelConfig)] == ["kernel", *OPTIONS, "grouped", "masked", "sources"]


@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_is_read_as_it_is_written(name):
    option, value = OPTIONS[name], VALUES[name]
    assert option.parse(option.show(value)) == value
    assert option.read(option.write(value)) == value
    assert parse_settings([f"{name}={option.show(value)}"]) == {name: value}


@pytest.mark.parametrize("name", TUNABLE)
def test_a_sweep_and_a_what_if_read_it_in_the_same_way(name):
    text = OPTIONS[name].show(VALUES[name])
    swept = make_sweep("x", kernels=["kernel8"], shapes=["512"], options={name: text})
    [change] = parse_changes((f"{name}={text}",), find_gpu("h200"))
    assert list(swept.options[name]) == [change.options[name]] == [VALUES[name]]


@pytest.mark.parametrize("name", OPTIONS)
def test_a_command_takes_each_by_its_name_in_one_option(name):
    setting = OPTIONS[name].setting(VALUES[name])
    for command in ("run", "verify", "compare", "debug", "build", "explain", "predict", "timeline", "sweep", "tune"):
        found = main.get_command(click.Context(main), command)
        flags = {flag for parameter in found.params for flag in parameter.opts}
        assert {"-c", "--config", "--dtype"} <= flags and f"--{name.replace('_', '-')}" not in flags - {"--dtype"}
    assert read_settings([setting]) == {name: OPTIONS[name].show(VALUES[name])}


@pytest.mark.parametrize("words", [["stages"], ["stage=3"], ["ping_pong=of"], ["stages=-1"], ["cluster=2y1"]])
def test_what_is_no_setting_is_refused(words):
    with pytest.raises(UsageProblem):
        parse_settings(words)


def test_an_unknown_option_of_a_configuration_is_a_mistake_of_the_caller():
    with pytest.raises(TypeError, match="a configuration has no stage; it has arch, dtype"):
        make_config("kernel6", stage=3)
