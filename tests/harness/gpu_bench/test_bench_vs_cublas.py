"""Kernels beside cuBLAS: what was measured, and what the pages say of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from emugpu.errors import UsageProblem
from harness import paths
from harness.compile.artifacts import Artifact
from harness.gpu_bench import pack
from harness.gpu_bench.__main__ import main, table_alone


def test_a_contestant_alone_has_medians_and_its_ratio_round_by_round():
    def rounds(*several):
        return [{"seconds": s, "joules": s * 700, "sm_clock_mhz": c, "watts": 690.0, "celsius": 61} for s, c in several]

    alone = {"cublas": rounds((2e-4, 1500), (3e-4, 1530)), "kernel8": rounds((1e-4, 1400), (2e-4, 1410))}
    cublas, kernel = table_alone({"shape": [4096, 2048, 1024], "inputs": "normal", "alone": alone})
    assert "1.0000 [1.0000, 1.0000] cublas" in cublas
    assert kernel == (
        "4096x2048x1024 normal    1405 MHz 690 W 61 C   105.00 mJ  114.5 TFLOPS 1.7500 [1.5000, 2.0000] kernel8"
    )


@pytest.mark.parametrize(("results", "count"), [("nvidia-h200-alone.json", 43), ("nvidia-h200-fp8.json", 14)])
def test_the_page_has_the_ratios_that_were_measured(results, count):
    page = (paths.ROOT / "results" / "measured.md").read_text()
    runs = json.loads((paths.ROOT / "results" / results).read_text())["runs"]
    said = [line for run in runs if "alone" in run for line in table_alone(run) if "kernel" in line]
    assert len(said) == count
    for line in said:
        found = re.search(r" ([\d.]+) \[([\d.]+), ([\d.]+)\] kernel", line)
        assert found, line
        ratio, low, high = map(float, found.groups())
        assert low <= ratio <= high and f"{ratio:.3f}" in page, line


class Compiled(Artifact):
    """A kernel as if it had been compiled."""

    ptx = "// PTX"

    def __init__(self) -> None:
        pass

    def plan_json(self, shape) -> str:
        return json.dumps({"entry": "gemm", "problem": {"m": shape.m}, "tiles": [1, 2, 3]})


@pytest.fixture
def compiled(monkeypatch) -> None:
    monkeypatch.setattr(pack, "build", lambda configs: [Compiled() for _ in configs])
    monkeypatch.setattr(pack, "ptxas_version", lambda: None)


def packed(folder, *words: str):
    return CliRunner().invoke(main, ["pack", str(folder), *words])


def test_a_folder_has_the_code_and_the_plan_of_each_kernel_on_each_shape(compiled, tmp_path):
    result = packed(tmp_path / "new", "--shape", "512", "--shape", "256", "--kernel", "kernel6", "--kernel", "kernel7")
    assert result.exit_code == 0, result.output
    runs = json.loads((tmp_path / "new" / "runs.json").read_text())
    assert [run["name"] for run in runs] == [
        *("kernel6 at 512x512x512", "kernel7 at 512x512x512"),
        *("kernel6 at 256x256x256", "kernel7 at 256x256x256"),
    ]
    assert runs[3]["plan"] == {"entry": "gemm", "problem": {"m": 256}}
    assert (tmp_path / "new" / runs[3]["code"]).read_text() == "// PTX"


def test_a_folder_that_is_not_empty_and_an_unknown_option_are_refused(compiled, tmp_path):
    (tmp_path / "file").touch()
    for words, problem in (
        (("--shape", "512", "--kernel", "kernel6"), "is not an empty folder"),
        (("--shape", "512", "--kernel", "kernel6 speed=9"), "--kernel 'kernel6 speed=9': 'speed=9' is no option"),
    ):
        result = packed(tmp_path, *words)
        assert isinstance(result.exception, UsageProblem) and problem in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_code_of_a_folder_needs_nothing_of_the_project(tmp_path):
    pack.copy_code(tmp_path)
    program = """
import sys
import harness.gpu_bench.__main__, emugpu.cuda.driver
ours = [m.__file__ for n, m in sys.modules.items() if n.split(".")[0] in ("harness", "emugpu")]
print(*ours, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(tmp_path)) for path in done.stdout.split())
    command = [sys.executable, "-m", "harness.gpu_bench", "pack", "x", "--shape", "512", "--kernel", "kernel6"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={})
    assert (done.returncode, done.stderr) == (
        3,
        "error: a packed folder has no compiler; pack in a checkout of the project\n",
    )
