"""``harness confront``: what scripts rely on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli.main import main

INTERVALS = "format,a_in,cta_group,m,n,k,latency_cycles,interval_cycles,fit_constant_cycles\n"
LOOPS = "format,tile_m,tile_n,tile_k,stages,k,microseconds\n"


def confront(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["confront", *(str(word) for word in words)])


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


@pytest.mark.slow
def test_json_is_what_scripts_expect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums: Any = ModuleType("harness.model.silicon.sums")
    sums.confront_sums = lambda path: SimpleNamespace(file=path.name, cases=7, different=1, refused=2)
    monkeypatch.setitem(sys.modules, "harness.model.silicon.sums", sums)
    (tmp_path / "sums.json").write_text("[]")
    write(
        tmp_path,
        mma_intervals=INTERVALS + "BF16,shared,1,128,256,16,264,160,148\nBF16,shared,1,96,256,16,264,128.0,148.4\n",
        mainloops=LOOPS + "bf16,64,16,16,2,131072,1936.69\ne4m3,128,256,256,4,131072,400\n",
        unknown="what,ever\n1,2\n",
    )
    result = confront("b200", "--data", tmp_path, "--json", "-")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["sums"] == [{"file": "sums.json", "cases": 7, "different": 1, "refused": 2}]
    assert [each["name"] for each in data["tables"]] == ["mma_intervals", "mma_intervals latency", "mainloops"]
    intervals, latency, loops = data["tables"]
    assert intervals == {
        "name": "mma_intervals", "rows": 2, "mean_error_percent": 20, "largest_error_percent": 20, "refused": 1,
    }  # fmt: skip
    assert latency["mean_error_percent"] == 0 and latency["refused"] == 1
    assert loops["rows"] == 2 and loops["refused"] == 1 and loops["mean_error_percent"] < 12


def test_people_see_the_worst_row(tmp_path: Path) -> None:
    write(tmp_path, mma_intervals=INTERVALS + "BF16,shared,1,128,256,16,264,160,148\n")
    result = confront("b200", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert "BF16 128x256, A in shared, cta_group::1: 160, 128 cycles" in result.output
    assert "-20.0 %" in result.output and "Nothing here is measured" in result.output


def test_the_tables_that_are_shipped_have_sources_and_others_have_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b200").mkdir()
    write(tmp_path / "b200", mma_intervals=INTERVALS + "BF16,shared,1,128,256,16,264,160,148\n")
    assert "SemiAnalysisAI" not in confront("b200", "--data", tmp_path / "b200").output
    monkeypatch.setattr("harness.cli.confront.SHIPPED", tmp_path)
    assert "SemiAnalysisAI/microbench-blackwell, May 2026" in confront("b200").output


def test_a_table_of_which_nothing_is_predicted_has_no_error(tmp_path: Path) -> None:
    write(tmp_path, mainloops=LOOPS + "bf16,64,17,16,2,131072,1936.69\n")
    (found,) = json.loads(confront("b200", "--data", tmp_path, "--json", "-").stdout)["tables"]
    assert found["refused"] == found["rows"] == 1 and found["mean_error_percent"] is None
    assert confront("b200", "--data", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("mainloops", "format,tile_m\nbf16,64\n", "column tile_n, tile_k, stages, k, microseconds: is missing"),
        ("mainloops", LOOPS, "has no rows"),
        ("mainloops", LOOPS + "bf17,64,16,16,2,131072,1936\n", "format 'bf17': must be one of bf16, f16, e4m3, e5m2"),
        ("mainloops", LOOPS + "bf16,64,16,16,0,131072,1936\n", "line 2: stages '0': must be a whole number, 1 or more"),
        ("mainloops", LOOPS + "bf16,64,16,16,2,131072,nan\n", "microseconds 'nan': must be a number above 0"),
        ("mainloops", LOOPS + "bf16,64,16\n", "tile_k '': must be a whole number"),
        ("mma_intervals", INTERVALS + "BF16,global,1,64,64,16,1,1,1\n", "a_in 'global': must be one of shared, tmem"),
    ],
)
def test_a_broken_table_is_named_in_one_line(tmp_path: Path, name: str, text: str, problem: str) -> None:
    write(tmp_path, **{name: text})
    result = confront("b200", "--data", tmp_path)
    assert result.exit_code == 2
    assert problem in result.output and f"{name}.csv" in result.output and result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("b200", "--data", "nowhere"), "nowhere: is no folder"),
        (("b200", "--data", "."), "has no file to hold the model against"),
        (("h200",), "GPU 'h200': it has no published tables; these GPUs have: b200"),
    ],
)
def test_what_there_is_not_is_refused(
    words: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = confront(*words)
    assert result.exit_code == 2 and problem in result.output and result.output.count("\n") == 1
