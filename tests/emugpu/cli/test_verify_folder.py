"""``emugpu verify DIR``: a row for each kernel of a folder, and the page on what is implemented."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner
from cuda_programs import FOLDER, SGEMM_LAUNCH
from ptx_forms import FORMS, LACKING, RUBIN
from test_ptx_command import BROKEN
from test_run_command import SCALE

from emugpu.cli.main import main
from emugpu.emulator import RULES
from emugpu.emulator.instructions.table import TABLE
from emugpu.emulator.isa import FORMS as ISA
from emugpu.launch import corpus
from emugpu.launch.coverage import TARGETS, coverage_page, targets_of
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import run
from emugpu.paths import ROOT


def command(*arguments):
    return CliRunner().invoke(main, ["verify", *(str(a) for a in arguments)])


@pytest.fixture
def folder(tmp_path):
    """Two PTX files, one of them in part not understood, and launch files that pass, fail, and do not run."""
    place = tmp_path / "corpus"
    (place / "nvcc").mkdir(parents=True)
    shutil.copy(FOLDER / "sgemm.ptx", place / "nvcc")
    (place / "broken.ptx").write_text(BROKEN)
    near = SGEMM_LAUNCH.replace(f"{FOLDER}/", "")
    (place / "nvcc" / "good.toml").write_text(near)
    (place / "nvcc" / "wrong.toml").write_text(near.replace("A @ B", "A @ B + 1"))
    (place / "nvcc" / "bad.toml").write_text(near.replace("grid = 1", "grid = 0"))
    (place / "scale.toml").write_text(SCALE.replace(f"{FOLDER}/", "nvcc/"))
    (place / "other.toml").write_text("[tool]\nname = 'not a launch file'\n")
    (place / "outside.toml").write_text(SGEMM_LAUNCH)
    (place / "nvcc" / "null.toml").write_text(near.replace('"B", "C", 32', '"B", "null", 32'))
    return place


@pytest.mark.slow
def test_a_row_for_every_kernel_and_every_launch(folder):
    result = command(folder, "--json", "-", "--jobs", "2")
    assert result.exit_code == 4, result.stderr
    rows = json.loads(result.stdout)
    found = {(row["file"], row["kernel"], row["launch"]): row for row in rows}
    sgemm = "nvcc/sgemm.ptx"
    results = {key: row["result"] for key, row in found.items() if row["result"] != "-"}
    assert results == {
        (sgemm, "sgemm", "nvcc/good.toml"): "clean",
        (sgemm, "sgemm", "nvcc/wrong.toml"): "wrong",
        (sgemm, "?", "nvcc/bad.toml"): "incomplete",
        (sgemm, "sgemm", "nvcc/null.toml"): "wrong",
        (sgemm, "scale_and_add", "scale.toml"): "clean",
        ("elsewhere", "sgemm", "outside.toml"): "clean",
    }
    assert found[sgemm, "sgemm", "nvcc/wrong.toml"]["reason"].startswith("a result is wrong: C in ")
    assert "Fault: kernel 'sgemm'" in found[sgemm, "sgemm", "nvcc/null.toml"]["reason"]
    assert "launch.grid = 0" in found[sgemm, "?", "nvcc/bad.toml"]["reason"]
    assert found[sgemm, "sgemm_one_barrier", None]["compiler"] == "nvcc 13.0"
    good = found[sgemm, "sgemm", "nvcc/good.toml"]
    assert good["warnings"] == 0 and good["seconds"] > 0 and good["implemented"] == "yes"
    assert found["broken.ptx", "lacking", None]["implemented"] == "all but 2 of 4"
    assert found["broken.ptx", "unknown_words", None]["implemented"].startswith("no: PTX line ")


@pytest.mark.slow
def test_exit_codes_and_the_table(folder):
    (folder / "nvcc" / "wrong.toml").unlink()
    (folder / "nvcc" / "null.toml").unlink()
    result = command(folder)
    assert result.exit_code == 5
    assert "6 not launched, 1 incomplete, 3 clean" in result.stdout
    assert "nvcc/bad.toml: incomplete:" in result.stdout
    (folder / "nvcc" / "bad.toml").unlink()
    for path in (folder / "nvcc" / "good.toml", folder / "outside.toml"):
        path.write_text(path.read_text().replace('C = "A @ B"', ""))
    done = subprocess.run(
        [sys.executable, "-m", "emugpu", "verify", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 5 and "2 incomplete" in done.stdout, done.stderr
    assert [re.split(r"  +", line)[:1] for line in done.stdout.splitlines()[1:3]] == [["file"], ["broken.ptx"]]


def test_folders_with_nothing_to_look_at(tmp_path):
    nothing = "is not a launch file, a folder, or a program"
    for place, message in [(tmp_path, "has no .ptx file and no launch file"), (tmp_path / "no", nothing)]:
        result = command(place)
        assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1


def test_what_was_not_looked_at_is_incomplete(tmp_path):
    """PTX that no launch file launches, and a launch file that cannot be read."""
    shutil.copy(FOLDER / "sgemm.ptx", tmp_path)
    nothing = command(tmp_path)
    assert nothing.exit_code == 5 and "3 not launched" in nothing.stdout
    (tmp_path / "good.toml").write_text(SGEMM_LAUNCH)
    (tmp_path / "bad.toml").write_text('ptx = "sgemm.ptx"\n[launch\n')
    done = command(tmp_path)
    assert done.exit_code == 5 and "1 clean" in done.stdout
    assert "bad.toml: incomplete: " in done.stdout and "is not TOML" in done.stdout
    (tmp_path / "bad.toml").write_text('ptx = "sgemm.ptx\\u0000"\n')
    done = command(tmp_path)
    assert done.exit_code == 5 and "1 clean" in done.stdout and "must be text: the PTX file" in done.stdout
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "bad.toml").write_text('ptx = "circle"\n')
    done = command(tmp_path)
    assert done.exit_code == 5 and "1 clean" in done.stdout and "bad.toml: incomplete: " in done.stdout
    (tmp_path / "circle.ptx").symlink_to("circle.ptx")
    done = command(tmp_path)
    assert done.exit_code == 5 and "1 clean" in done.stdout and "circle.ptx: Too many levels of symbolic" in done.stdout


def test_what_goes_wrong_with_one_file_costs_the_others_nothing(folder, monkeypatch):
    """The emulator's own errors are rows of the table, too; launch files of PTX that cannot be listed have theirs."""
    list_kernels, check = corpus.list_kernels, corpus.check

    def list_all_but_one(text):
        if "unknown_words" in text:
            raise IndexError("list index out of range")
        return list_kernels(text)

    def check_several_alone(several, options):
        if len(several[0].launches) == 1:
            raise KeyError("r1")
        return check(several, options)

    monkeypatch.setattr(corpus, "list_kernels", list_all_but_one)
    monkeypatch.setattr(corpus, "check", check_several_alone)
    (folder / "broken.toml").write_text('ptx = "broken.ptx"\n[launch]\nkernel = "lacking"\ngrid = 1\nblock = 1\n')
    done = command(folder, "--json", "-", "--emulate", "ptxas=false")
    rows = {(row["file"], row["launch"]): row for row in json.loads(done.stdout)}
    assert done.exit_code == 5
    results = {key: (row["result"], row["implemented"], row["reason"]) for key, row in rows.items()}
    unlisted = "no: unexpected IndexError: list index out of range"
    assert results["broken.ptx", "broken.toml"] == ("incomplete", unlisted, "unexpected KeyError: 'r1'")
    assert results["nvcc/sgemm.ptx", "nvcc/good.toml"] == ("incomplete", "yes", "unexpected KeyError: 'r1'")
    assert results["nvcc/sgemm.ptx", "scale.toml"][0] == "clean"
    (folder / "broken.toml").unlink()
    rows = {(row["file"], row["launch"]): row for row in json.loads(command(folder, "--json", "-").stdout)}
    assert (rows["broken.ptx", None]["result"], rows["broken.ptx", None]["implemented"]) == ("-", unlisted)


def test_long_names_are_short_in_the_table_and_alike_ones_each_have_a_row(tmp_path):
    """numba names kernels with 170 characters; two instances of a template may look alike when they are shortened."""
    names = [f"cudapy_gemm_{'B2v1' * 30}{n}{'_cw51cXTLSUwv1sCUt9' * 2}" for n in range(2)]
    bodies = "".join(f".visible .entry {name}()\n{{\nret;\n}}\n" for name in names)
    (tmp_path / "long.ptx").write_text(f".version 8.7\n.target sm_90a\n.address_size 64\n{bodies}")
    launch = f'ptx = "long.ptx"\n[launch]\nkernel = "{names[1]}"\ngrid = 1\nblock = 32\n'
    (tmp_path / "long.toml").write_text(launch)
    rows = json.loads(command(tmp_path, "--json", "-").stdout)
    assert [row["result"] for row in rows] == ["incomplete", "-"]
    assert all(row["kernel"].startswith("cudapy_gemm_") and len(row["kernel"]) <= 72 for row in rows)


LAUNCHES = sorted((FOLDER.parent / "launches").glob("*.toml"))


def test_the_launch_files_of_the_test_data_can_be_read():
    assert len(LAUNCHES) >= 16
    for path in LAUNCHES:
        file = read_launch_file(path)
        assert file.ptx.exists() and file.expectations, path


@pytest.mark.parametrize(
    "name",
    [
        "cute_axpy_sm100",
        "cute_gemm_f16_pairs_sm100",
        "cute_persistent_f16_sm90",
        "cute_scaled_nvfp4_sm100",
        "nvcc_calls",
        "nvcc_wgmma_gemm",
        "triton_softmax_sm100",
        "triton_split_sum_sm90",
        "triton_tma_matmul_sm90",
    ],
)
def test_kernels_of_other_compilers_run_by_their_launch_files(name):
    outcome = run(read_launch_file(FOLDER.parent / "launches" / f"{name}.toml"))
    assert outcome.passed and outcome.compiler.lower().startswith(name.partition("_")[0])


# ---- the page ----

EVERY = {**{family: forms for family, (_, forms) in FORMS.items()}, "lacking": [*LACKING, *RUBIN]}


def test_the_page_tells_what_the_emulator_takes(monkeypatch, capsys):
    [block] = re.findall(
        r"^```python exec=\"1\"\n(.*?)^```", (ROOT / "docs" / "ptx-coverage.md").read_text(), re.M | re.S
    )
    monkeypatch.chdir(ROOT)
    exec(block, {})
    page = capsys.readouterr().out
    for row in ISA:
        assert f"| `{row.title}` | {row.section} | {row.version} |" in page
    for rule in RULES:
        assert f"| `{rule}` |" in page
    parts = {title: text for title, text in re.findall(r"^### (.*)\n\n```\n([^`]*)```$", page, re.M)}
    assert "mul.lo.s32 %r0, %r1, %r2;\n" in parts["basic: sm_90a, sm_100a, sm_103a, sm_120a"]
    assert "tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d1, {%f4, %f5}];\n" in parts["lacking: not implemented"]
    assert "tcgen05.fence::before_thread_sync;\n" in parts["basic (sm_100a): sm_100a, sm_103a"]
    assert "wgmma.fence.sync.aligned;\n" in parts["basic (sm_90a): sm_90a"]
    count = sum(map(len, EVERY.values()))
    assert sum(text.count("\n") for text in parts.values()) == count
    lacking = len(EVERY["lacking"])
    assert f"{count - lacking:,} of {count:,} forms" in page and f"| lacking | 0 | 0 | 0 | 0 | {lacking} |" in page


def test_the_page_follows_the_table(monkeypatch):
    """Take an entry out, and the page says so; a kernel with that instruction stops."""
    assert targets_of("popc.b32 %r0, %r1;") == TARGETS
    monkeypatch.delitem(TABLE, "popc")
    from emugpu.emulator.instructions import table

    table._find.cache_clear()
    try:
        assert targets_of("popc.b32 %r0, %r1;") == ()
        assert "### one: not implemented" in coverage_page({"one": ["popc.b32 %r0, %r1;"]})
    finally:
        table._find.cache_clear()


def test_a_form_that_is_only_in_part_understood_is_not_implemented():
    for statement in ("add.s32 %r0, %r1;", "add.s32 %r0, %r99999;", "add.noise.s32 %r0, %r1, %r2;", "add.s32 %r0 %r1"):
        assert targets_of(statement) == ()
