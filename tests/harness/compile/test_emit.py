"""``harness build``: what it writes, and what it says when a tool is missing."""

from __future__ import annotations

import json
import re
import shutil
import stat

import pytest
from click.testing import CliRunner

from harness.cli.main import main
from harness.problem import Shape

KERNEL = ["kernel6", "-c", "cluster=2x1"]


@pytest.fixture
def command(artifacts):
    """Runs ``harness build`` with the kernels of `artifacts` built."""
    return lambda *arguments: CliRunner().invoke(main, ["build", *arguments])


def test_ptx(command, artifacts, tmp_path):
    assert command(*KERNEL, "--emit", "ptx").stdout == artifacts[2, 1].ptx
    path = tmp_path / "kernel.ptx"
    done = command(*KERNEL, "--emit", "ptx", "-o", str(path))
    assert (done.exit_code, done.stdout) == (0, "") and path.read_text() == artifacts[2, 1].ptx


def test_plan(command, artifacts):
    done = command(*KERNEL, "--emit", "plan", "--shape", "512,1024,256")
    assert json.loads(done.stdout) == json.loads(artifacts[2, 1].plan_json(Shape(512, 1024, 256)))


def test_statistics_count_what_is_in_the_text(command, artifacts):
    found = json.loads(command(*KERNEL, "--emit", "asm-stats").stdout)
    assert found["config"] == artifacts[2, 1].config.as_dict()
    assert found["ptxas"] == artifacts[2, 1].statistics()
    counted = found["ptx"]["by_opcode"]
    assert sum(counted.values()) == found["ptx"]["instructions"]
    for opcode in ("tcgen05.mma.cta_group::2.kind::f16", "elect.sync"):
        assert counted[opcode] == len(re.findall(rf"^.*\s{re.escape(opcode)}\s", artifacts[2, 1].ptx, re.M))


def test_without_emit_it_only_builds(command, artifacts):
    done = command(*KERNEL)
    assert done.exit_code == 0
    assert f"was compiled before, PTX in {artifacts[2, 1].folder / 'kernel.ptx'}" in done.stdout


FAKE_TOOL = "#!/bin/sh\necho '        /*0000*/              @!UP0 UTMALDG.2D [UR8], [UR4] ;'\necho \"// $@\"\n"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH of ptxas alone; returns a function that adds a stand-in for another tool."""
    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not on PATH")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ptxas").symlink_to(shutil.which("ptxas"))
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, text: str = FAKE_TOOL) -> None:
        tool = folder / name
        tool.write_text(text)
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)

    return add


def test_machine_code_comes_from_the_disassembler(command, tools):
    tools("nvdisasm")
    done = command(*KERNEL, "--emit", "sass")
    assert done.exit_code == 0, done.output
    assert re.search(r"// --print-code \S+kernel.cubin", done.stdout)
    found = json.loads(command(*KERNEL, "--emit", "asm-stats").stdout)
    assert found["sass"] == {"instructions": 1, "by_opcode": {"UTMALDG.2D": 1}}


def test_the_disassembler_of_triton_will_do(command, tools, tmp_path, monkeypatch):
    tools("nvdisasm")
    place = tmp_path / "site" / "triton" / "backends" / "nvidia" / "bin"
    place.mkdir(parents=True)
    (tmp_path / "bin" / "nvdisasm").rename(place / "nvdisasm")
    (tmp_path / "site" / "triton" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    done = command(*KERNEL, "--emit", "sass")
    assert done.exit_code == 0 and "UTMALDG" in done.stdout


def test_no_disassembler(command, tools, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = command(*KERNEL, "--emit", "sass")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "needs nvdisasm (CUDA toolkit, or PyTorch's triton) on PATH" in done.stderr
    assert done.stderr.count("\n") == 1
    found = json.loads(command(*KERNEL, "--emit", "asm-stats").stdout)
    assert "nvdisasm" in found["sass"]["error"] and found["ptx"]["instructions"] > 100


def test_no_assembler(command, monkeypatch):
    monkeypatch.setenv("PATH", "")
    done = command(*KERNEL, "--emit", "sass")
    assert done.exit_code == 3 and "machine code needs ptxas: ptxas is not on PATH" in done.stderr


def test_a_disassembler_that_fails(command, tools):
    tools("nvdisasm", "#!/bin/sh\necho 'cannot read it' >&2\nexit 1\n")
    done = command(*KERNEL, "--emit", "sass")
    assert done.exit_code == 3 and "nvdisasm: cannot read it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel6", "-o", "x"], "-o does not say what to write; add --emit"),
        (["kernel6", "--emit", "elf"], "'elf' is not one of 'ptx', 'sass', 'plan', 'asm-stats'"),
        (["kernel6", "--emit", "ptx", "-o", "/no/such/x"], "is not a file in an existing folder"),
        (["kernel6", "-c", "cluster=3x1"], "cannot be split into pairs"),
    ],
)
def test_bad_requests_are_one_line(command, arguments, message):
    done = command(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1
