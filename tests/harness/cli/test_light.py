"""A command imports what it needs itself, and says in one line what installs an extra that is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest
from bench_support import series_records
from click.testing import CliRunner

import emugpu.errors
from harness.cli.main import COMMANDS, main
from harness.extras import EXTRAS
from harness.paths import ROOT

MOST_MODULES = 40
SHARED = {"bench": (), "report": (), "sweep": ("dask",)}
"""What the packages of an extra need themselves."""
OPTIONAL = (*(package for packages in EXTRAS.values() for package in packages), "textual", "dask", "torch")


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_the_version_needs_next_to_nothing():
    listing = "import sys, atexit; atexit.register(lambda: print(*sys.modules)); from harness.__main__ import entry; "
    done = python(f"{listing}sys.argv = ['harness', '--version']; entry()")
    assert done.stdout.startswith("harness 0."), done.stderr
    loaded = done.stdout.split()
    assert sum(name.split(".")[0] in ("harness", "emugpu") for name in loaded) <= MOST_MODULES
    assert not {"numpy", "rich", "ml_dtypes", "max", *OPTIONAL} & set(loaded)


def test_a_kernel_runs_without_the_extras(artifacts):
    program = f"import sys; sys.modules |= dict.fromkeys({OPTIONAL}); from harness.__main__ import entry; "
    words = ["harness", "run", "kernel6", "--shape", "256,256,64", "-c", "cluster=2x1", "--no-save", "--json", "-"]
    done = python(f"{program}sys.argv = {words}; entry()")
    assert done.returncode == 0, done.stderr
    assert '"passed": true' in done.stdout


def test_every_command_has_help_without_the_extras():
    program = f"import sys; sys.modules |= dict.fromkeys({OPTIONAL}); from harness.cli.main import main; "
    done = python(
        f"{program}context = main.make_context('harness', ['list']); "
        "print(*(main.get_command(context, name).name for name in main.list_commands(context)))"
    )
    assert done.stdout.split() == list(COMMANDS), done.stderr


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("report", ["report"]),
        ("sweep", ["sweep", "kernel6", "--shape", "256", "--cluster-address", "tcp://127.0.0.1:1"]),
        ("bench", ["bench", "--suite", "gpu"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_missing_extra_is_named_with_what_installs_it(extra, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(emugpu.errors, "find_spec", lambda package: None)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 3
    [message] = [line for line in done.stderr.splitlines() if line.startswith("harness: error: ")]
    assert EXTRAS[extra][0] in message
    assert f"pip install 'blackwell-matmul-lab[{extra}]'" in message
    assert not any(tmp_path.rglob("*.*"))


ALONE = {
    "bench": ["bench", "--suite", "SUITE"],
    "report": ["report"],
    "sweep": ["sweep", "kernel6", "--shape", "256,512,64", "-c", "cluster=2x1", "--jobs", "1", "-o", "t.csv"],
}


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_is_enough(extra, artifacts, results_dir, tmp_path):
    """The packages of the others are hidden."""
    results_dir.mkdir()
    lines = [json.dumps(record) for record in series_records()[:1]]
    (results_dir / "emulated-sm_100a.jsonl").write_text("\n".join(lines) + "\n")
    suite = tmp_path / "suite.toml"
    suite.write_text(
        'schema = 1\nkernels = "kernel6"\nclusters = "2x1"\nshapes = "256,512,64"\ndtypes = "bf16"\n'
        'inputs = "index"\n[[cases]]\n'
    )
    words = ["harness", *(str(suite) if word == "SUITE" else word for word in ALONE[extra])]
    hidden = [package for package in OPTIONAL if package not in (*EXTRAS[extra], *SHARED[extra], "torch")]
    done = python(
        f"import os, sys; sys.modules |= dict.fromkeys({hidden}); os.chdir({str(tmp_path)!r}); "
        f"from harness.__main__ import entry; sys.argv = {words}; entry()"
    )
    assert done.returncode == 0, done.stderr


def test_the_extras_are_those_of_the_project():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        names = [line.partition(">")[0] for line in declared[extra]]
        assert sorted(packages) == sorted(names)
