"""How a command ends in odd surroundings: no standard output, files that cannot be written, early Ctrl-C, ``-O``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import harness.cli.main
from emugpu.cli.main import main as emugpu_main
from harness import paths

HARNESS = [sys.executable, "-m", "harness"]
SGEMM = """
ptx = "{root}/tests/data/cuda/sgemm.ptx"
launch = {{ kernel = "scale_and_add", grid = 1, block = 32, arguments = ["x", "y", 2.0, 32] }}
expect.y = "{expected}"
[buffers]
x = {{ dtype = "f32", shape = 32, init = "integer" }}
y = {{ dtype = "f32", shape = 32, init = "integer" }}
"""


def invoke(*arguments: object):
    return CliRunner().invoke(harness.cli.main.main, [*map(str, arguments)])


@pytest.fixture
def launch(tmp_path):
    def write(expected: str) -> Path:
        path = tmp_path / "launch.toml"
        path.write_text(SGEMM.format(root=paths.ROOT, expected=expected))
        return path

    return write


@pytest.mark.parametrize(("words", "code"), [(["list"], 3), (["list", "--json", "-"], 3), (["run", "kernel66"], 2)])
def test_no_standard_output_at_all(words, code):
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" >&-', "-", *HARNESS, *words], cwd=paths.ROOT, stderr=subprocess.PIPE, text=True
    )
    assert "Traceback" not in done.stderr and "unexpected" not in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("harness: error: ")
    assert done.returncode == code


def test_a_closed_standard_input_is_empty(launch):
    words = [sys.executable, "-m", "emugpu", "debug", str(launch("2 * x + y"))]
    done = subprocess.run(["bash", "-c", 'exec "$@" <&-', "-", *words], capture_output=True, text=True)
    assert done.returncode == 0 and "(debug)" in done.stdout and not done.stderr


@pytest.mark.slow
def test_a_terminal_without_a_width_is_one_of_the_usual_width():
    words = {"capture_output": True, "text": True, "cwd": paths.ROOT, "env": {**os.environ, "COLUMNS": "0"}}
    done = subprocess.run([*HARNESS, "list"], **words)
    assert done.returncode == 0 and "kernel6" in done.stdout
    help_text = subprocess.run([*HARNESS, "run", "--help"], **words).stdout
    assert "--shape M,N,K" in help_text


@pytest.mark.parametrize(
    ("mojo", "said"),
    [("/bin/true", "ended with code 0, left no program and said nothing"), ("/dev/null", "cannot be started")],
)
def test_a_compiler_that_compiles_nothing_is_named(tmp_path, mojo, said):
    environment = {**os.environ, "HARNESS_MOJO": mojo, "HARNESS_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([*HARNESS, "run", "kernel6"], cwd=paths.ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert f"the Mojo compiler {mojo} {said}" in done.stderr and "check what EMUGPU_MOJO names" in done.stderr


def test_ctrl_c_while_python_still_imports_says_nothing(tmp_path):
    # What is imported raises SIGINT, as a user does who is quicker than Python.
    (tmp_path / "ml_dtypes.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n"
    )
    code = "from harness.__main__ import entry; entry()"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{paths.ROOT}"}
    done = subprocess.run([sys.executable, "-c", code, "list"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.slow
def test_without_assertions_everything_works_as_with_them(series):
    words = ["run", "kernel6", "--shape", "256,512,64", "-c", "cluster=2x1"]
    done = subprocess.run([sys.executable, "-O", *HARNESS[1:], *words], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PASSED" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "kernel6", "--shape", "256,512,64", "-c", "cluster=2x1", "--json", "/dev/full"], "PASSED"),
        (["compare", "kernel6", "--shape", "256,512,64", "-c", "cluster=2x1", "--json", "/dev/full"], "exact"),
        (
            ["verify", "kernel6", "--shape", "256", "-c", "cluster=2x1", "--schedules", 1, "--json", "/dev/full"],
            "clean",
        ),
    ],
    ids=lambda value: " ".join(map(str, (value[0], *value[-2:]))) if isinstance(value, list) else "",
)
def test_a_file_that_cannot_be_written_costs_no_result_and_is_not_claimed(series, monkeypatch, words, said):
    monkeypatch.chdir(paths.ROOT)
    done = invoke(*words)
    assert done.exit_code == 3
    assert done.stderr == "harness: error: cannot write /dev/full: No space left on device\n"
    assert said in done.stdout and "written to" not in done.stdout


def emugpu(*arguments: object):
    return CliRunner().invoke(emugpu_main, [*map(str, arguments)])


def test_a_wrong_result_of_a_launch_is_told_even_so(launch):
    option = ["--json", "/dev/full"]
    done = emugpu("run", launch("x"), *option)
    assert done.exit_code == 4
    assert "WRONG RESULT" in done.stdout and "written to" not in done.stdout
    assert done.stderr.startswith("emugpu: error: cannot write")
    assert emugpu("run", launch("2 * x + y"), *option).exit_code == 3


def test_a_folder_to_dump_into_is_made_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for run in (lambda *words: invoke("run", "kernel6", *words), lambda *words: emugpu("run", "none.toml", *words)):
        done = run("-o", f"{tmp_path}/file/dump/")
        assert done.exit_code == 2
        assert ": error: -o " in done.stderr and "name another folder" in done.stderr
