"""The words that mean the same in every command: how they are read, refused, written again, and how many there are."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from emugpu.cli.emulation import (
    SETTINGS,
    Emulation,
    Schedules,
    emulation_options,
    emulation_words,
    parse_schedules,
    parse_setting,
)
from emugpu.cli.main import main
from emugpu.cli.outputs import Outputs, output_option, parse_output
from emugpu.cli.program import ClearErrors
from emugpu.errors import EXIT_CODES, UsageProblem
from emugpu.launch.launching import EmulationOptions

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "reverse.toml"
MOST_OPTIONS = 42


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fifo", Schedules(1, "fifo")),
        ("declining", Schedules(1, "declining")),
        ("reversed", Schedules(1, "reversed")),
        ("random:7", Schedules(1, "random", 7)),
        ("1", Schedules(1, "fifo")),
        ("10", Schedules(10)),
        ("10@7", Schedules(10, seed=7)),
        ("10000@0", Schedules(10000, seed=0)),
    ],
)
def test_schedules_are_read(text, found):
    assert parse_schedules(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "10001",
        "1.5",
        "ten",
        "fifo:1",
        "random",
        "random:",
        "random:x",
        "random@7",
        "10@",
        "10:7",
        "10@-1",
    ],
)
def test_what_is_no_schedule_is_refused_in_one_line(text):
    with pytest.raises(UsageProblem, match=r"^--schedules [^\n]*$"):
        parse_schedules(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("accumulation=tensor_core", ("accumulation", "tensor_core")),
        ("max-steps=100", ("max-steps", 100)),
        ("strict=false", ("strict", False)),
        ("allow=mbarrier-reinit", ("allow", "mbarrier-reinit")),
        ("uninitialised=zero", ("uninitialised", "zero")),
    ],
)
def test_settings_are_read(text, found):
    assert parse_setting(text, tuple(SETTINGS)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed=1", "accumulation, resident-clusters, max-steps"),
        ("engine", "engine is native or python"),
        ("engine=c", "engine is native or python"),
        ("max-steps=0", "max-steps is a whole number of at least 1"),
        ("strict=yes", "strict is true or false"),
        ("allow=exit-pendin", "allow is a rule; the nearest are exit-pending, "),
        ("allow=race-shared", "allow is a rule; the nearest are "),
    ],
)
def test_what_is_no_setting_is_refused(text, said):
    with pytest.raises(UsageProblem) as error:
        parse_setting(text, tuple(SETTINGS))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("rule", ["race-shared", "mbarrier-reinit"])
def test_each_command_allows_the_rules_that_it_looks_at(rule):
    """A rule of the checker and one of the emulator: emugpu run has only the second."""
    run, verify = (
        CliRunner().invoke(main, [command, str(EXAMPLE), "--emulate", f"allow={rule}s"]).stderr.partition("nearest")[2]
        for command in ("run", "verify")
    )
    assert rule in verify and (rule in run) == (rule == "mbarrier-reinit")
    for command, accepted in (("run", rule in run), ("verify", True)):
        done = CliRunner().invoke(main, [command, str(EXAMPLE), "--emulate", f"allow={rule}"])
        assert (done.exit_code == 0) == accepted, done.output


DEFAULTS = {"schedules": "4", "first_seed": 1, "silence": 60.0, "strict": False}


def emulation_of(*words: str) -> Emulation:
    """What a command gets that has these words."""

    @click.command(cls=ClearErrors)
    @emulation_options(*SETTINGS, **DEFAULTS)
    def command(emulation: Emulation) -> None:
        found.append(emulation)

    found: list[Emulation] = []
    done = CliRunner().invoke(command, words)
    if done.exit_code:
        raise UsageProblem(done.stderr)
    return found[0]


def test_the_defaults_are_the_commands():
    found = emulation_of()
    assert (found.schedules, found.ptxas, found.given) == (4, True, frozenset())
    assert found.options == EmulationOptions(seed=1, strict=False, timeout=60.0)
    check = found.check_options()
    assert (check.schedules, check.emulation, check.strict, check.allow) == (4, found.options, False, ())


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ("", ""),
        ("--schedules 4@1", ""),
        ("--schedules fifo", "--schedules 1"),
        ("--schedules random:1", None),
        ("--schedules declining --timeout 0.5", None),
        ("--schedules 10@7 --emulate accumulation=tensor_core", None),
        ("--schedules 1@9 --emulate uninitialised=random", None),
        ("--emulate resident-clusters=2 --emulate max-steps=9 --emulate engine=python --emulate strict=true", None),
        ("--emulate allow=exit-pending --emulate allow=peer-exited --emulate ptxas=false --timeout 61", None),
        ("--emulate engine=native --jobs 3", ""),
        ("--timeout 60", ""),
    ],
)
def test_the_words_for_what_was_asked_leave_defaults_out_and_mean_the_same(words, again):
    found = emulation_of(*shlex.split(words))
    written = emulation_words(found, **DEFAULTS)
    assert written == shlex.split(words if again is None else again)
    if "--jobs" not in words:
        same = emulation_of(*written)
        assert (same.options, same.schedules, same.ptxas) == (found.options, found.schedules, found.ptxas)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--schedules 1@3", "the only schedule is fifo, which uses no seed; write random:3"),
        ("--emulate strict=true --emulate strict=true", "--emulate strict is given twice; give it once"),
        ("--timeout 0", "0"),
        ("--timeout nan", "nan is not a finite number"),
        ("--jobs 0", "0"),
    ],
)
def test_what_means_nothing_is_refused(words, said):
    with pytest.raises(UsageProblem) as error:
        emulation_of(*words.split())
    assert said in str(error.value) and str(error.value).count("\n") == 1


# ---- outputs ----


def test_the_ending_says_what_is_written(tmp_path):
    kinds = ("json", "md", "folder")
    assert parse_output(f"{tmp_path}/a.md", kinds) == ("md", f"{tmp_path}/a.md")
    assert parse_output("-", kinds) == ("json", "-")
    assert parse_output(f"{tmp_path}/new/", kinds) == ("folder", f"{tmp_path}/new/")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("x.bmp", "-o x.bmp: this command writes .json, .md or a folder, DIR/; use such an ending"),
        ("x", "use such an ending"),
        ("x.folder", "use such an ending"),
        ("", "use such an ending"),
        ("no/such/x.json", "is not a file in an existing folder"),
        ("/proc/x.json", "cannot be written"),
        ("/proc/x/", "cannot be written"),
        ("/etc/hostname/x/", "is not a folder"),
    ],
)
def test_what_cannot_be_written_is_refused(place, said):
    with pytest.raises(UsageProblem) as error:
        parse_output(place, ("json", "md", "folder"))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_each_place_gets_what_it_is_for_and_one_that_fails_costs_no_other(tmp_path, capsys):
    @click.command(cls=ClearErrors)
    @output_option("json", "md")
    def command(outputs: Outputs) -> int:
        (tmp_path / "gone").rmdir()
        found.append(outputs.write(json=lambda: "{}\n", md=lambda: "# M\n"))
        found.append(outputs)
        return found[0].exit_code

    found: list = []
    (tmp_path / "gone").mkdir()
    places = ["-o", tmp_path / "gone" / "x.json", "-o", tmp_path / "a.md", "--json", tmp_path / "b.json"]
    done = CliRunner().invoke(command, [str(word) for word in places])
    assert done.exit_code == 3 and "cannot write" in done.stderr
    written, outputs = found
    assert not written.complete and written.places == (f"{tmp_path}/a.md", f"{tmp_path}/b.json")
    assert outputs.shows_report and outputs.asks_for("md") and not outputs.asks_for("folder")
    assert (tmp_path / "a.md").read_text() == "# M\n" and (tmp_path / "b.json").read_text() == "{}\n"


# ---- the surface ----


def commands(group: click.Group = main, name: str = "emugpu") -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name, and the program itself."""
    context = click.Context(group)
    yield name, group
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def test_the_program_has_few_options():
    seen = {
        f"{name} {parameter.opts[-1]}"
        for name, command in commands()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and parameter.opts[-1] != "--version"
    }
    assert "emugpu verify --schedules" in seen and len(seen) <= MOST_OPTIONS, f"{len(seen)}: {sorted(seen)}"


@pytest.mark.parametrize(
    ("command", "several", "gpu"),
    [("run", True, True), ("verify", True, False), ("exec", False, False), ("debug", False, False)],
)
def test_help_offers_only_what_the_command_does(command, several, gpu):
    shown = " ".join(CliRunner().invoke(main, [command, "--help"]).stdout.split())
    assert ("or a number: 10 or 10@SEED" in shown) is several
    assert ("fifo, declining, reversed or random:SEED. [default: fifo]" in shown) is not several
    assert ("60 on a GPU" in shown) is gpu


@pytest.mark.parametrize("name", ["run", "verify", "exec", "debug", "ptx", "ptx list", "ptx init"])
def test_help_fits_on_one_screen_and_ends_with_the_exit_codes(name):
    done = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=80)
    assert done.exit_code == 0 and done.output.count("\n") <= 40, done.output
    if " " not in name:
        flat = " ".join(done.output.split())
        assert all(f"{code} {meaning}" in flat for code, meaning in EXIT_CODES.items())


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["0", "1", "-1", "80"])
def test_a_terminal_without_a_size_is_written_to(columns):
    command = [sys.executable, "-m", "emugpu", "run", str(EXAMPLE)]
    done = subprocess.run(
        command, env={**os.environ, "COLUMNS": columns, "LINES": "0"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout.endswith("reverse.toml: PASSED\n"), done.stderr
