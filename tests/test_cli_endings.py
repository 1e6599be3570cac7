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
from harness import paths

HARNESS = [sys.executable, "-m", "harness"]
SGEMM = """
ptx = "{root}/tests/data/cuda/sgemm.ptx"
launch = {{ kernel = "scale_and_add", grid = 1, block = 32, arguments = ["x", "y", 2.0, 32] }}
expect.y = "{expected}"
[buffers]
x = {{ dtype = "f32", shape = 32, init = "index" }}
y = {{ dtype = "f32", shape = 32, init = "index" }}
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


def test_ctrl_c_while_python_still_imports_says_nothing(tmp_path):
    # What is imported raises SIGINT, as a user does who is quicker than Python.
    (tmp_path / "ml_dtypes.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n"
    )
    code = "from harness.__main__ import entry; entry()"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{paths.ROOT}"}
    done = subprocess.run([sys.executable, "-c", code, "list"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_without_assertions_everything_works_as_with_them(series):
    words = ["run", "kernel6", "--shape", "256,512,64", "--cluster", "2x1"]
    done = subprocess.run([sys.executable, "-O", *HARNESS[1:], *words], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PASSED" in done.stdout
