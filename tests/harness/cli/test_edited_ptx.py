"""``harness run KERNEL --ptx FILE``: PTX edited by hand in place of the compiled one, and never taken for it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from emugpu.launch.ptxas import ptxas_version
from harness.cli.main import main
from harness.experiments import history

SMALL = ["--shape", "256,512,128", "-c", "cluster=2x1"]


@pytest.fixture
def edit(series, tmp_path):
    """Writes the PTX of kernel6 with one line replaced; which one is said by what it holds."""

    def edit(old: str, new: str, name: str = "edited.ptx"):
        text = series["kernel6"].ptx
        assert old in text
        path = tmp_path / name
        path.write_text(text.replace(old, new, 1))
        return path

    return edit


def command(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_edited_ptx_is_launched_by_our_plan_and_the_record_says_so(edit, series, results_dir):
    path = edit("\tret;", "\tbar.warp.sync -1;\n\tret;")
    result = command("run", "kernel6", *SMALL, "--ptx", path, "--json", "-")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["ptx"]["edited"] == str(path) and record["ptx"]["sha256"] != series["kernel6"].ptx_sha256
    assert record["validation"]["passed"] and "version" in record["ptx"]["ptxas"]
    plain = json.loads(command("run", "kernel6", *SMALL, "--json", "-").stdout)
    assert "edited" not in plain["ptx"]
    more = record["counters"]["instructions"]["barrier"] - plain["counters"]["instructions"]["barrier"]
    assert 0 < more <= 24, "one instruction more in each of 24 warps, or in those that come by"
    lines = (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [record, plain]
    text = command("run", "kernel6", *SMALL, "--ptx", path, "--no-save").stdout
    assert f"no: edited PTX from {path}" in text and f"kernel6 with PTX of {path} on emulated sm_100a: PASSED" in text


def test_what_ptxas_says_of_edited_ptx_is_not_kept_for_the_compiled_one(edit, series):
    before = series["kernel6"].statistics()
    command("run", "kernel6", *SMALL, "--no-save", "--ptx", edit("\tret;", "\tfrobnicate;\n\tret;"))
    assert series["kernel6"].statistics() == before and "error" not in before


def test_a_wrong_edit_is_exit_code_4_and_one_that_breaks_a_rule_3(edit):
    transposed = edit("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group", "// ", "no_store.ptx")
    assert command("run", "kernel6", *SMALL, "--no-save", "--ptx", transposed).exit_code == 4
    words = ("run", "kernel6", *SMALL, "--no-save", "--emulate", "ptxas=false", "--ptx")
    result = command(*words, edit("\tret;", "\tfrobnicate.u32 %r1;\n\tret;"))
    assert result.exit_code == 3 and "is not implemented: frobnicate.u32 %r1" in result.stderr
    result = command(*words, edit("\tret;", "\tadd.u32 %r1;\n\tret;"))
    assert result.exit_code == 3 and "add takes 3 operands, not 1" in result.stderr
    assert result.stderr.startswith("harness: error: ") and "edited.ptx: PtxSyntaxError: PTX line " in result.stderr


needs_ptxas = pytest.mark.skipif(ptxas_version() is None, reason="needs ptxas")


@needs_ptxas
@pytest.mark.parametrize("words", [("run", "kernel6", "--no-save"), ("verify", "kernel6")])
def test_what_ptxas_refuses_is_an_error_unless_asked_otherwise(edit, words):
    path = edit("\tret;", "\tbar.warp.sync -1, 5;\n\tret;")
    result = command(*words, *SMALL, "--ptx", path)
    assert result.exit_code == 3 and "PASSED" not in result.output
    assert "ptxas refuses " in result.stderr and "--emulate ptxas=false" in result.stderr


def test_compare_shows_the_kernel_as_compiled_and_as_edited(edit):
    path = edit("\tret;", "\tbar.warp.sync -1;\n\tret;")
    result = command("compare", "kernel5", "kernel6", *SMALL, "--no-save", "--ptx", path, "--json", "-")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert [(k["kernel"], k["edited"]) for k in data["kernels"]] == [
        ("kernel5", None),
        ("kernel6", None),
        ("kernel6", str(path)),
    ]
    assert data["steps"][1]["to"] == "kernel6 (edited.ptx)"
    assert [change["figure"] for change in data["steps"][1]["changes"]] == ["warp instructions"]
    broken = edit("\tret;", "\tadd.u32 %r1;\n\tret;")
    words = ["--no-save", "--emulate", "ptxas=false", "--ptx", broken, "--json", "-"]
    result = command("compare", "kernel6", *SMALL, *words)
    assert result.exit_code == 3 and "kernel6 (edited.ptx): PtxSyntaxError" in result.stderr
    assert [k["verdict"] for k in json.loads(result.stdout)["kernels"]] == ["exact", "could not run"]


@pytest.mark.parametrize(
    ("options", "old", "new", "message"),
    [
        (["-c", "cluster=4x1"], "", "", "and the plan launches kernel6_bf16_2cta_256x256x64_s5_c4x1"),
        ([], ".target sm_100a", ".target sm_90a", "its target is sm_90a, the kernel's sm_100a; add -c arch=sm_90a"),
        ([], ".target sm_100a", "", "is not PTX: it has no .target directive"),
        (["--device", "gpu"], "", "", "runs on the emulator only; leave out --device gpu"),
    ],
)
def test_requests_that_do_not_fit_the_file(edit, artifacts, options, old, new, message):
    result = command("run", "kernel6", *SMALL, "--no-save", "--ptx", edit(old, new), *options)
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1


def test_a_record_of_edited_ptx_is_no_history_of_the_kernel(tmp_path):
    bench = {
        "bench": {"run": "r", "case": "c"},
        "device": {"kind": "k", "name": "n"},
        "facts": {"ptx_instructions": {}},
    }
    record = {"schema": 1, **bench, "validation": {"passed": True}, "ptx": {"sha256": "1"}}
    edited = {**record, "ptx": {"sha256": "2", "edited": "x.ptx"}}
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in (record, edited)))
    loaded = history.load(path)
    assert loaded.records == [record] and not loaded.damaged
