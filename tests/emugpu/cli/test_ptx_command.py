"""``emugpu ptx list`` and ``init``: what a PTX file holds, and a launch file to fill in."""

from __future__ import annotations

import json
import tomllib

import pytest
from click.testing import CliRunner
from cuda_programs import FOLDER
from ptx_programs import source

from emugpu.cli.main import main
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.listing import compiler_of, list_kernels

MAPS = """.version 8.8
.target sm_100a
.address_size 64
.global .align 8 .b8 counters[24];
.const .align 4 .f32 scale;
.extern .shared .align 128 .b8 dynamic[];
.visible .entry _ZN3lab4copyEv(.param .align 64 .b8 a_map[128], .param .align 64 .b8 args[192], .param .u64 out,
    .param .u64 size, .param .f32 factor, .param .align 4 .b8 plain[12], .param .u64 .ptr .global .align 16 in)
.reqntid 64, 2
.reqnctapercluster 2, 1, 1
{
.reg .b32 %r<4>; .reg .b64 %d<9>;
.shared .align 8 .b8 words[1024];
mov.b64 %d1, args;
cvta.param.u64 %d2, %d1;
add.s64 %d3, %d2, 64;
mov.b32 %r1, words;
ld.param.u64 %d5, [out];
cvta.to.global.u64 %d6, %d5;
st.global.b32 [%d6], %r1;
ld.param.u64 %d7, [in];
ld.global.b32 %r2, [%d7];
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%d3, {%r1, %r1}], [%r1];
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [a_map, {%r1, %r1}], [%r1];
ret;
}
"""

BROKEN = (
    source("mov.u32 %r1, 1; ret;")
    + """
.visible .entry unknown_words(.param .u64 out, .param .u32 n)
.maxntid 32
{
.reg .b32 %r<4>; /* a } in a comment, and } */ // }
.pragma "a } in a string";
frobnicate.u32 %r1, %r2;
mov.u32 %r1, %nonsense;
ret;
}
.visible .entry unfinished(.param .u64 out)
{
.reg .b32 %r<4>;
surprise!
ret;
}
.visible .entry lacking()
{
.reg .b32 %r<4>;
frobnicate.u32 %r1, %r2;
add.u32 %r1, %r2, %r3;
sust.b.2d.b32.trap [%r1], {%r2};
ret;
}
.visible .entry too_new()
{
.reg .b32 %r<4>;
add.u32 %r1, %r2;
ret;
}
"""
)


def command(*arguments) -> object:
    return CliRunner().invoke(main, ["ptx", *(str(a) for a in arguments)])


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "broken.ptx"
    path.write_text(BROKEN)
    return path


def test_the_json_of_a_file_of_nvcc():
    result = command("list", FOLDER / "sgemm.ptx", "--json", "-")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["target"] == "sm_100a" and data["compiler"] == "nvcc 13.0"
    assert [kernel["name"] for kernel in data["kernels"]] == ["sgemm", "sgemm_one_barrier", "scale_and_add"]
    parameters = data["kernels"][0]["parameters"]
    assert [(p["index"], p["bytes"], p["align"]) for p in parameters] == [
        (0, 8, 8), (1, 8, 8), (2, 8, 8), (3, 4, 4), (4, 4, 4),
    ]  # fmt: skip
    assert parameters[3]["name"] == "sgemm_param_3"
    assert all(kernel["unimplemented"] == [] for kernel in data["kernels"])
    assert data["kernels"][0]["static_shared"] == 8192 and data["kernels"][0]["directives"] == {"maxntid": [1024]}


def test_what_parameters_seem_to_be():
    [kernel] = list_kernels(MAPS).kernels
    assert kernel.readable == "lab::copy()" and kernel.static_shared == 1024 and not kernel.problem
    assert [p.seems for p in kernel.parameters] == [
        "tensor map", "struct with a tensor map at 64", "pointer", "pointer or integer", "f32", "struct", "pointer",
    ]  # fmt: skip
    assert kernel.directives == {"reqntid": (64, 2), "reqnctapercluster": (2, 1, 1)}
    assert list_kernels(MAPS).symbols == (("global", "counters", 24), ("const", "scale", 4))


SUMS = """.version 8.8
.target sm_90a
.address_size 64
.global .align 4 .b8 table[64];
.extern .shared .align 4 .b8 tile[];
.visible .entry sums(.param .u64 in, .param .u64 out, .param .u64 stride, .param .u64 bytes, .param .u64 base,
    .param .u64 row, .param .u32 n, .param .u64 .ptr .global .align 1 scratch)
{
.reg .b32 %r<5>; .reg .b64 %d<19>;
ld.param.b64 %d1, [in]; ld.param.b64 %d2, [out]; ld.param.b64 %d3, [stride]; ld.param.b64 %d4, [bytes];
ld.param.b64 %d5, [base]; ld.param.b64 %d6, [row]; ld.param.b32 %r2, [n];
mov.u32 %r1, %tid.x; mul.wide.u32 %d7, %r1, 4;
BODY
ret;
}
"""


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ("add.s64 %d9, %d7, %d1; add.s64 %d10, %d9, 16; ld.global.b32 %r3, [%d10];", ["in"]),
        ("mad.lo.s64 %d11, %d7, %d3, %d2; st.global.b32 [%d11], %r1;", ["out"]),
        ("mov.b64 %d8, %d1; more: ld.global.b32 %r3, [%d8]; add.s64 %d8, %d8, %d6; bra more;", ["in"]),
        ("mov.b64 %d8, 0; mov.b64 %d8, %d2; ld.global.b32 %r3, [%d8];", ["out"]),
        ("add.s64 %d8, %d5, %d4; st.global.b32 [%d8], %r1;", []),
        ("add.s64 %d8, %d5, %d4; add.s64 %d9, %d8, %d6; st.global.b32 [%d9], %r1;", []),
        ("mov.b64 %d8, table; add.s64 %d9, %d8, %d6; st.global.b8 [%d9], %r1;", []),
        ("ld.global.b64 %d8, [%d1]; add.s64 %d9, %d8, %d6; st.global.b8 [%d9], %r1;", ["in"]),
        ("mov.b32 %r3, tile; add.s32 %r4, %r3, %r2; st.shared.b8 [%r4], %r1;", []),
        ("mul.lo.s32 %r4, %r1, 4; add.s32 %r3, %r4, %r2; st.shared.b8 [%r3], %r1;", []),
    ],
)
def test_a_parameter_is_a_pointer_if_no_other_part_of_an_address_can_be_one(body, pointers):
    """Triton and inline assembly add to a pointer before any cvta. A sum of two parameters does not say which it is."""
    [kernel] = list_kernels(SUMS.replace("BODY", body)).kernels
    assert not kernel.unimplemented
    assert [p.name for p in kernel.parameters if p.seems == "pointer"] == pointers


def test_a_kernel_that_cannot_be_understood_does_not_hide_the_others(broken):
    data = json.loads(command("list", broken, "--json", "-").stdout)
    kernels = {kernel["name"]: kernel for kernel in data["kernels"]}
    assert list(kernels) == ["kernel", "unknown_words", "unfinished", "lacking", "too_new"]
    lines = BROKEN.splitlines()
    for name, refused in [
        ("kernel", []),
        ("unknown_words", ["mov.u32 %r1, %nonsense;"]),
        ("unfinished", ["surprise!"]),
        ("lacking", ["frobnicate.u32 %r1, %r2;", "sust.b.2d.b32.trap [%r1], {%r2};"]),
        ("too_new", ["add.u32 %r1, %r2;"]),
    ]:
        found = kernels[name]["unimplemented"]
        assert [entry["text"].rstrip(";") for entry in found] == [text.rstrip(";") for text in refused], name
        assert all(lines[entry["line"] - 1].rstrip(";") == entry["text"].rstrip(";") for entry in found), name
        assert bool(kernels[name]["problem"]) == (name in ("unknown_words", "unfinished", "too_new"))
    assert [p["bytes"] for p in kernels["unknown_words"]["parameters"]] == [8, 4]
    text = command("list", broken).stdout
    assert "2 of 4 instructions are not implemented" in text and "cannot be launched: PTX line" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; name a .ptx file"),
        (b"\xff\xfe\x00", "is not text; name a .ptx file"),
        (b"int main() {}", "it has no .target directive; name a .ptx file"),
    ],
)
def test_files_that_are_no_ptx(tmp_path, content, message):
    path = tmp_path / "x.ptx"
    if content is not None:
        path.write_bytes(content)
    for arguments in (["list", path], ["init", path]):
        result = command(*arguments)
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr.startswith("emugpu: error: ") and message in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "line", ["add.s32 %r1, %r2|;", ".reg;", "mov.u32 %r1, [%r2 + x];", "ld.global.b32 %r1, [a+0x0x];"]
)
def test_text_that_is_no_statement_is_said_with_its_line(tmp_path, line):
    path = tmp_path / "x.ptx"
    path.write_text(source("ret;").replace("ret;", f"\n{line}\nret;") + "\n.visible .entry fine() { ret; }\n")
    first, second = list_kernels(path.read_text()).kernels
    assert second.name == "fine" and not second.unimplemented
    [refusal] = first.unimplemented
    assert refusal.text.rstrip(";") == line.rstrip(";") and first.problem.startswith(f"PTX line {refusal.line}: ")


def test_init_writes_a_launch_file_that_can_be_read_and_does_not_overwrite_it(tmp_path):
    (tmp_path / "maps.ptx").write_text(MAPS)
    target = tmp_path / "launch.toml"
    assert command("init", tmp_path / "maps.ptx", "-o", target).exit_code == 0
    file = read_launch_file(target)
    [launch] = file.launches
    assert file.ptx == tmp_path / "maps.ptx" and launch.kernel == "_ZN3lab4copyEv"
    assert launch.grid == (2, 1, 1) and launch.block is None and launch.cluster is None
    assert len(launch.arguments) == 7 and set(file.buffers) == {"p0", "p2", "p6"} and set(file.maps) == {"map0"}
    marked = {
        line.split(":")[0].split("#")[1].strip() for line in target.read_text().splitlines() if "; FILL IN" in line
    }
    assert marked == {"1", "3", "4", "5"}  # numbers and structs; the lines of buffers and maps have marks of their own
    target.write_text("precious")
    result = command("init", tmp_path / "maps.ptx", "-o", target)
    assert result.exit_code == 2 and "exists, and may have been" in result.stderr and target.read_text() == "precious"


def test_init_does_not_write_what_cannot_be_launched(tmp_path):
    path = tmp_path / "cut.ptx"
    text = (FOLDER / "sgemm.ptx").read_text()
    path.write_text(text.replace("ret;", "add.s32 %r1, %r2|;", 1))
    result = command("init", path, "-o", tmp_path / "launch.toml", "--kernel", "sgemm")
    assert result.exit_code == 3 and "sgemm cannot be launched: PTX line " in result.stderr
    assert not (tmp_path / "launch.toml").exists()
    chosen = command("init", path)
    assert chosen.exit_code == 0 and tomllib.loads(chosen.stdout)["launch"]["kernel"] == "sgemm_one_barrier"


def test_a_kernel_without_parameters_has_no_table_of_them(tmp_path):
    path = tmp_path / "x.ptx"
    path.write_text(".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry fine() { ret; }\n")
    lines = command("list", path).stdout.splitlines()
    assert lines[2:4] == ["kernel fine, line 4", "parameters: none"]


def test_init_takes_a_kernel_by_a_part_of_its_name():
    result = command("init", FOLDER / "sgemm.ptx", "--kernel", "scale")
    assert result.exit_code == 0
    data = tomllib.loads(result.stdout)
    assert data["launch"]["kernel"] == "scale_and_add" and data["launch"]["arguments"] == ["p0", "p1", 0.0, 0]
    result = command("init", FOLDER / "sgemm.ptx", "--kernel", "gem")
    assert result.exit_code == 2 and "kernel 'gem' is not clear: it may be sgemm, sgemm_one_barrier" in result.stderr


@pytest.mark.parametrize(
    ("text", "compiler"),
    [
        ("// Generated by NVIDIA NVVM Compiler\n// Cuda compilation tools, release 12.8, V12.8.93", "nvcc 12.8"),
        ("//\n// Generated by LLVM NVPTX Back-End\n//\n.version 8.7\n.file 1 \"/x/matmul.py\"", "Triton"),
        ("// Generated by LLVM NVPTX Back-End", "LLVM"),
        (".visible .entry kernel_cutlass_gemm_1()", "CuTe DSL"),
        ("", ""),
    ],
)  # fmt: skip
def test_compilers_are_told_by_what_they_write(text, compiler):
    assert compiler_of(text) == compiler


def test_coverage_lists_the_instructions_of_the_isa(tmp_path):
    shown = CliRunner().invoke(main, ["ptx", "coverage"])
    assert shown.exit_code == 0 and "wgmma" in shown.output and "several GPUs" in shown.output
    CliRunner().invoke(main, ["ptx", "coverage", "-o", str(tmp_path / "isa.json")])
    rows = {row["instruction"]: row for row in json.loads((tmp_path / "isa.json").read_text())}
    wgmma = {"instruction": "wgmma", "section": "9.7.17", "PTX ISA": "8.0", "targets": "sm_90a", "status": "runs"}
    assert rows["wgmma"] == wgmma
    assert rows["spcompress, spdecompress"]["status"] == "refused: only Rubin has it"
