"""Old spellings of the command line do what the new ones do, and print them once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from emugpu.cli.main import main as emugpu_main
from emugpu.errors import UsageProblem
from harness.cli.main import main
from harness.cli.old_spellings import COMMANDS, GONE, OPTIONS, respell, takes_value
from harness.paths import ROOT

SGEMM = "tests/data/launches/triton_tma_matmul_sm100.toml"


def parsed(program: str, words: list[str]) -> dict[str, Any]:
    """The parameters of a command, as its options read them."""
    command: click.Command = emugpu_main if program == "emugpu" else main
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        assert found is not None, name
        command = found
    with command.make_context(command.name, words) as context:
        return context.params


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")


EXAMPLES = {
    "--preset": ("run kernel7", "1cta"),
    "--arch": ("verify kernel7", "sm_90a"),
    "--scales": ("run kernel8 --dtype e4m3", "block"),
    "--out-dtype": ("run kernel8", "f32"),
    "--cta-group": ("run kernel7", "1"),
    "--mma-shape": ("run kernel7", "256x128"),
    "--stages": ("sweep kernel7 --shape 512", "3:4"),
    "--cluster": ("compare kernel7", "2x1"),
    "--epilogue-width": ("explain kernel7", "32"),
    "--multicast": ("run kernel7", ""),
    "--no-multicast": ("run kernel7", ""),
    "--scheduler": ("run kernel8", "static"),
    "--raster-group": ("run kernel8", "4"),
    "--accumulators": ("run kernel8", "1"),
    "--clc-depth": ("run kernel8", "2"),
    "--sms": ("predict kernel8 --gpu b200", "64"),
    "--ping-pong": ("run kernel8", ""),
    "--cooperative": ("run kernel8", ""),
    "--split-k": ("run kernel8", "2"),
    "--layout": ("build kernel8", "nn"),
    "--swapped": ("run kernel8", ""),
    "--not-swapped": ("run kernel8", ""),
    "--epilogue": ("run kernel8", "relu"),
    "--tuned": ("run kernel7", ""),
    "--no-tuned": ("run kernel7", ""),
    "--groups": ("run kernel8 --shape 42,64,64", "40,2"),
    "--masked": ("run kernel8 --shape 42,64,64 --problem groups=40,2", "64"),
    "--inputs": ("run kernel7", "index"),
    "--seed": ("verify kernel7", "3"),
    "--accumulation": ("run kernel7", "tensor_core"),
    "--resident-clusters": ("debug kernel7", "1"),
    "--max-steps": ("run kernel7", "1000"),
    "--uninitialised": ("run kernel7", "report"),
    "--engine": ("run kernel7", "python"),
    "--strict": ("verify kernel7", ""),
    "--no-strict": ("run kernel7", ""),
    "--allow": ("verify kernel7", "race-shared"),
    "--ptxas": ("run kernel7", ""),
    "--no-ptxas": ("run kernel7", ""),
    "--waste": ("verify kernel7", ""),
    "--sarif": ("verify kernel7", "findings.sarif"),
    "--junit": ("bench", "bench.xml"),
    "--markdown": ("bench", "bench.md"),
    "--table": ("sweep kernel7 --shape 512", "sweep.csv"),
    "--dump": ("run kernel7", "wrong"),
    "--format json": ("explain kernel7", ""),
    "--format text": ("explain kernel7", ""),
    "--retry-failed": ("sweep kernel7 --shape 512", ""),
    "--rank": ("sweep kernel7 --shape 512", "3"),
}
"""For each old option, a command line that has it, and its value."""


def test_every_option_of_the_table_has_an_example():
    assert EXAMPLES.keys() == OPTIONS.keys()


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_the_table(option, capsys):
    """By the words, with the value behind a blank and behind =, and by what the command then reads."""
    example, value = EXAMPLES[option]
    assert takes_value(option) == bool(value)
    start, words = example.split(), [value] if value else []
    new = [*start, *(word.format(value) for word in OPTIONS[option].split())]
    for old in ([*option.split(), *words], [f"{option}={value}"] if value else option.split()):
        assert respell([*start, *old]) == ("harness", new)
        assert capsys.readouterr().err == f"harness: note: this is now: harness {shlex.join(new)}\n"
    assert parsed("harness", new)


@pytest.mark.parametrize(("old", "new"), COMMANDS.items(), ids=list(COMMANDS))
def test_every_command_of_the_table(old, new, capsys):
    target = {
        "check": "kernel7",
        "exec": "-- true",
        "ptx list": "tests/data/cuda/sgemm.ptx",
        "ptx init": "tests/data/cuda/sgemm.ptx",
        "ptx corpus": "tests/data",
        "ptx predict": f"{SGEMM} --gpu b200",
    }.get(old, SGEMM)
    program, *words = f"{new} {target}".split()
    assert respell(f"{old} {target}".split()) == (program, words)
    assert capsys.readouterr().err == f"harness: note: this is now: {new} {target}\n"
    assert parsed(program, words)


SCHEDULES = [
    ("run kernel7 --schedule random --schedule-seed 7", "run kernel7 --schedules random:7"),
    ("run kernel7 --schedule random", "run kernel7 --schedules random:0"),
    ("run kernel7 --schedule declining --shape 512", "run kernel7 --shape 512 --schedules declining"),
    ("run kernel7 --schedules 10 --schedule-seed 7", "run kernel7 --schedules 10@7"),
    ("run kernel7 --schedules=10 --schedule-seed=7", "run kernel7 --schedules 10@7"),
    ("verify kernel7 --schedules 1 --schedule random --schedule-seed 3", "verify kernel7 --schedules random:3"),
    ("verify kernel7 --schedule-seed 3", "verify kernel7 --schedules 4@3"),
    ("bench --schedule-seed 3", "bench --schedules 4@3"),
    ("sweep kernel7 --shape 512 --schedule-seeds 0:4", "sweep kernel7 --shape 512 --schedules random:0:4"),
    ("sweep kernel7 --shape 512 --seeds 0:4", "sweep kernel7 --shape 512 --schedules random:0:4"),
    ("run kernel7 --preset 1cta --no-tuned", "run kernel7 -c preset=1cta"),
    ("run kernel7 --no-tuned --preset=1cta", "run kernel7 -c preset=1cta"),
    ("sweep --resume kernel7 --shape 512", "sweep --resume missing kernel7 --shape 512"),
    ("sweep --resume failed kernel7 --shape 512", "sweep --resume failed kernel7 --shape 512"),
    ("sweep kernel7 --shape 512 --resume --retry-failed", "sweep kernel7 --shape 512 --resume --resume failed"),
    ("explain kernel7 --format json -o x.json", "explain kernel7 -o x.json"),
    ("explain kernel7 --output=x.json --format=json", "explain kernel7 --output=x.json"),
    ("explain kernel7 -o - --format json", "explain kernel7 -o -"),
    ("explain kernel7 -o x.txt --format text", "explain kernel7 -o x.txt"),
    ("timeline kernel7 -o x.svg --from 10 --to 50", "timeline kernel7 -o x.svg --cycles 10:50"),
    ("timeline kernel7 -o x.svg --from 10", "timeline kernel7 -o x.svg --cycles 10:"),
]


@pytest.mark.parametrize(("old", "new"), SCHEDULES)
def test_several_old_options_are_one_new_one(old, new):
    assert respell(old.split()) == ("harness", new.split())
    assert parsed("harness", new.split())


@pytest.mark.parametrize("line", ["--schedules 4 --schedule random", "--schedule declining --schedules=4"])
def test_a_schedule_beside_several_is_refused_as_before(line):
    """One of them alone would have been run."""
    with pytest.raises(UsageProblem, match=r"--schedules 4 are fifo and random ones; leave --schedule \w+ out"):
        respell(["run", "kernel7", *line.split()])


FORWARDED = [
    (f"run {SGEMM} --strict --dump out", f"run {SGEMM} --emulate strict=true -o out/"),
    (f"ptx run {SGEMM} --schedule random --seed 3", f"run {SGEMM} --schedules random:3"),
    (f"check {SGEMM} --waste", f"verify {SGEMM} --redundant"),
    (f"check {SGEMM} tests/data/launches/{Path(SGEMM).name}", f"verify {SGEMM} {SGEMM}"),
    (f"debug {SGEMM} --script x", f"debug {SGEMM} --script x"),
    ("verify --gpu h200 --sarif x.sarif -- ./a --seed 3", "verify --gpu h200 -o x.sarif -- ./a --seed 3"),
    ("exec --gpu h200 --seed 3 --schedule random -- ./a", "exec --gpu h200 --schedules random:3 -- ./a"),
    ("verify true", "verify true"),
    (f"-v run {SGEMM}", f"-v run {SGEMM}"),
]


@pytest.mark.parametrize(("old", "new"), FORWARDED)
def test_launch_files_and_programs_are_emugpus(old, new):
    assert respell(old.split()) == ("emugpu", new.split())


@pytest.mark.parametrize(
    "line",
    [
        "run kernel7 -c cluster=2x2 -c stages=4 --shape 512 --json -",
        "run kernel7 --schedules 10@7 --shape 512",
        "run kernel7 --schedules 10 --shape 512 --profile",
        "verify kernel7 -o x.sarif --emulate allow=race-shared",
        "run mine.mojo",
        "run kernel77",
        "run kernel6 x.toml",
        f"predict {SGEMM} --gpu b200",
        "bench --suite x.toml",
        "--version",
        "--help",
        "",
    ],
)
def test_what_is_spelt_as_today_stays_as_it_is_without_a_word(line, capsys):
    assert respell(line.split()) == ("harness", line.split())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("line", GONE)
def test_what_is_gone_is_said_in_one_line_with_what_to_do(line):
    words = line.split() if not line.startswith("--") else ["explain" if "format" in line else "run", *line.split()]
    with pytest.raises(UsageProblem, match="gone"):
        respell(words)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and done.stderr == f"harness: error: {GONE[line]}\n"


def test_a_table_that_went_to_the_screen_has_no_new_spelling():
    with pytest.raises(UsageProblem, match="--markdown -: name a file"):
        respell(["bench", "--markdown", "-"])


@pytest.mark.parametrize(
    ("line", "ending"), [("text -o x.json", "txt"), ("text -o -", "txt"), ("json -o x.txt", "json")]
)
def test_a_format_that_the_file_does_not_end_with_is_refused(line, ending):
    """The ending would choose another format."""
    with pytest.raises(UsageProblem, match=f"^--format {line}: the ending .* -o FILE.{ending}$"):
        respell(["explain", "kernel7", "--format", *line.split()])


def test_only_explain_had_formats():
    done = CliRunner().invoke(main, ["build", "kernel7", "--format", "json"])
    assert done.exit_code == 2 and "--format" in done.stderr and done.stdout == "", done.output


def test_the_new_command_is_printed_once_and_done():
    done = CliRunner().invoke(main, ["run", str(ROOT / "tests/data/launches/missing.toml"), "--strict"])
    note, error = done.stderr.splitlines()
    assert note.startswith("harness: note: this is now: emugpu run ") and note.endswith(" --emulate strict=true")
    assert error.startswith("emugpu: error: cannot read ") and done.exit_code == 2
