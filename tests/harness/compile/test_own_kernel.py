"""A kernel of one's own, in a file in any folder, gets what those of the series get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness import paths

EXAMPLE = paths.ROOT / "docs" / "examples" / "my_kernel.mojo"


def harness(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HARNESS_RESULTS_DIR": str(folder / "results")}
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("harness/compile/own_kernel.py", "kernels/own")
def test_a_file_runs_as_a_kernel_of_the_series(tmp_path):
    text = EXAMPLE.read_text()
    mine = tmp_path / "mine.mojo"
    mine.write_text(text)
    done = harness(
        tmp_path, "compare", "kernel7", "mine.mojo", "--shape", "300,520,136", "-c", "cluster=2x2", "--json", "-"
    )
    assert done.returncode == 0, done.stderr
    seventh, own = json.loads(done.stdout)["kernels"]
    assert own["kernel"] == "my_kernel" and own["record"]["validation"]["exact"]
    assert own["figures"] == seventh["figures"]

    # What is edited is compiled anew: without its producer the MMA waits for ever.
    mine.write_text(text.replace("produce(cta, problem, tiles)", "pass"))
    hung = harness(tmp_path, "run", "mine.mojo", "--shape", "300,520,136", "-c", "cluster=2x2", "--schedules", "2")
    assert hung.returncode == 3 and "waits" in hung.stderr + hung.stdout
    assert f"harness run {mine}" in hung.stderr + hung.stdout

    mine.write_text(text.replace("epilogue.leads()", "epilogue.lead()"))
    wrong = harness(tmp_path, "run", "mine.mojo", "--shape", "300,520,136", "-c", "cluster=2x2")
    assert wrong.returncode == 3 and f"{mine}:" in wrong.stderr and "no attribute 'lead'" in wrong.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "mine.mojo cannot be read: No such file or directory; name a Mojo file"),
        (
            "def kernel():\n    pass\n",
            "mine.mojo declares no kernel: it needs a line such as `comptime KERNEL = Kernel(",
        ),
        ("def main():\n    pass\n", "if it is a program, name what runs it: -- mojo run mine.mojo"),
        (
            EXAMPLE.read_text().replace('"my_kernel"', '"kernel7"'),
            "mine.mojo names its kernel kernel7, which the series has",
        ),
    ],
    ids=["missing", "no kernel", "a program", "name of the series"],
)
def test_a_file_that_is_no_kernel_is_refused_in_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "mine.mojo").write_text(content)
    done = harness(tmp_path, "run", "mine.mojo")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_one_file_in_a_command(tmp_path):
    (tmp_path / "a.mojo").write_text(EXAMPLE.read_text())
    (tmp_path / "b.mojo").write_text(EXAMPLE.read_text().replace('"my_kernel"', '"another"'))
    done = harness(tmp_path, "compare", "a.mojo", "b.mojo")
    assert done.returncode == 2
    assert f"b.mojo: one Mojo file can be named, and {tmp_path / 'a.mojo'} is already; leave one out" in done.stderr


# ---- fused epilogues ----
EPILOGUE = paths.ROOT / "docs" / "examples" / "my_epilogue.mojo"
RUN = ("run", "kernel8", "-c", "arch=sm_90a", "--shape", "150,136,72", "-c", "cluster=1x1", "-c", "mma_shape=64x64")


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("harness/compile/own_kernel.py", "kernels/own")
def test_a_file_with_an_epilogue_is_run_and_held_against_its_formula(tmp_path):
    text = EPILOGUE.read_text()
    mine = tmp_path / "mine.mojo"
    mine.write_text(text)
    given = ("-c", "epilogue=mine.mojo", "--problem", "inputs=uniform", "--schedules", "2", "--jobs", "2")
    done = harness(tmp_path, *RUN, *given, "--json", "-")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["config"]["epilogue"] == "bias-relu2" and record["validation"]["passed"]

    mine.write_text(text.replace("fragment.values + fragment.bias()", "fragment.bias() - fragment.values"))
    wrong = harness(tmp_path, *RUN, *given, "--no-save", "--dump", "kept")
    a, b, bias = (np.load(tmp_path / "kept" / "kernel8" / f"{name}.npy") for name in ("a", "b", "bias"))
    assert a.shape == (150, 72) and b.shape == (136, 72) and bias.shape == (136,)
    assert wrong.returncode == 4 and f"-c epilogue={mine}" in wrong.stdout + wrong.stderr

    mine.write_text(text.replace("fragment.bias()", "fragment.bios()"))
    broken = harness(tmp_path, *RUN, *given)
    assert broken.returncode == 3 and f"{mine}:" in broken.stderr and "no attribute 'bios'" in broken.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("struct OwnEpilogue", "struct Mine"), "mine.mojo declares no epilogue: it needs a `struct OwnEpilogue("),
        (('"bias-relu2"', '"relu"'), "mine.mojo names its epilogue relu, which there is already; take another name"),
        (("comptime formula", "comptime other"), "mine.mojo does not say what C must be: it needs a line such as"),
        (("product + bias", "product + bios"), "mine.mojo: formula: there is no buffer bios; the buffers are product"),
        (('0) ** 2"', '0)" + " ** 2"'), 'mine.mojo: formula is "maximum(product + bias, 0)" + " ** 2"; write one text'),
        (('"bias-relu2"', '"Mine"'), "mine.mojo: name is 'Mine'; write it in lower case"),
        (
            ("    comptime takes_bias = True\n", ""),
            "the formula has bias, and takes_bias is False; write `comptime takes_",
        ),
        (
            ("product + bias", "product"),
            "the formula has no bias, and takes_bias is True; write `comptime takes_bias = F",
        ),
        (("product + bias", "gate * up + bias"), "mine.mojo: formula: of a product [16, 32], epilogue bias-relu2: "),
        (
            ("    comptime takes_bias = True", "    comptime results = 4\n    comptime takes_bias = True"),
            "the formula makes 32 columns of 32, and results is 4; write `comptime results = 8`",
        ),
    ],
    ids=[
        "no struct",
        "a name that is taken",
        "no formula",
        "no such name",
        "two texts",
        "a capital",
        "bias not taken",
        "bias not used",
        "half of the columns",
        "results",
    ],
)
def test_a_file_that_is_no_epilogue_is_refused_in_one_line(tmp_path, change, message):
    (tmp_path / "mine.mojo").write_text(EPILOGUE.read_text().replace(*change))
    done = harness(tmp_path, *RUN, "-c", "epilogue=mine.mojo")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_an_epilogue_and_a_kernel_are_two_files(tmp_path):
    done = harness(tmp_path, "run", str(EXAMPLE), "--epilogue", str(EPILOGUE))
    assert done.returncode == 2 and "one Mojo file can be named, and " in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "kernel8", "-c", "epilogue=gelo"), "there is no epilogue 'gelo'; use one of: none, bias, "),
        (("run", "kernel7", "-c", "epilogue=bias"), "epilogue bias: kernel7 stores the product as it is; use kernel8"),
        (
            (*RUN, "-c", "epilogue=swiglu", "-c", "epilogue_width=16"),
            "epilogue width 16: swiglu makes 8 columns of C of it, not 16",
        ),
    ],
    ids=["no such", "another kernel", "too narrow"],
)
def test_an_epilogue_that_cannot_be_is_refused_in_one_line(tmp_path, words, message):
    done = harness(tmp_path, *words)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""
