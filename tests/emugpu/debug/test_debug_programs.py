"""Launches of a whole program under the debugger."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from emugpu.cli.main import main
from emugpu.driver.log import LaunchRecord
from emugpu.driver.recording import OneLaunch

TESTS = Path(__file__).parents[2]
PROGRAM = f"""
from driver_client import *
start()
add, = load(open({str(TESTS / "data" / "cuda" / "driver_kernels.ptx")!r}).read(), "add")
n = 1000
a = upload((c_float * n)(*range(n)))
b = upload((c_float * n)(*(2 * i for i in range(n))))
c, d = asked("cuMemAlloc_v2", 4 * n), asked("cuMemAlloc_v2", 4 * n)
launch(add, 4, 256, a, b, c, c_int(n - 8))
launch(add, 4, 256, c, b, d, c_int(n))
result_of("cuCtxSynchronize")
"""
MANY = PROGRAM + "for _ in range(20): launch(add, 1, 32, a, b, c, c_int(1))"


def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, commands: str, *options: str):
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "support"))
    (tmp_path / "commands").write_text(commands, encoding="utf-8")
    words = ["debug", "--script", str(tmp_path / "commands"), *options, "--", sys.executable, "-c", program]
    return CliRunner().invoke(main, words)


def test_the_second_launch_reads_what_the_first_has_left_out(tmp_path, monkeypatch):
    """D = C + B in the second launch; the first has been told eight elements too few of C."""
    commands = """
    buffers
    buffer C param_0 f32 1000
    buffer D param_2 f32 1000
    continue
    why D[995]
    show C[990] 1x4
    why D[3]
    """
    done = session(tmp_path, monkeypatch, PROGRAM, commands)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "add_param_0 points to memory_2[0]" in lines and "D: 1000 f32 at 0x800002400000" in lines
    assert any("st.global.f32 by warp 7 of CTA 0 of cluster 3, lane 3" in line for line in lines)
    (at,) = [n for n, line in enumerate(lines) if "ld.global.f32 of C[995], which nobody has written" in line]
    (shown,) = [n for n, line in enumerate(lines) if line.split() == ["2970", "2973", "nan", "nan"]]
    (written,) = [n for n, line in enumerate(lines) if "ld.global.f32 of C[3] may go into it" in line]
    assert at < shown < written


@pytest.mark.parametrize(
    ("options", "first"),
    [(("--launch", "0"), "memory_0[0]"), (("--launch", "add"), "memory_0[0]"), (("--launch", "1"), "memory_2[0]")],
)
def test_a_launch_by_number_and_by_kernel(tmp_path, monkeypatch, options, first):
    done = session(tmp_path, monkeypatch, PROGRAM, "buffers", *options)
    assert done.exit_code == 0 and f"add_param_0 points to {first}" in done.output


def test_the_launch_that_fails_is_the_one(tmp_path, monkeypatch):
    """D lies nowhere; of what the program launches after it a GPU makes nothing."""
    after = "result_of('cuCtxSynchronize')\ntry: launch(add, 1, 32, a, b, c, c_int(1))\nexcept BaseException: pass"
    beyond = PROGRAM.replace("c, b, d, c_int(n))", f"c, b, c_uint64(64), c_int(n))\n{after}")
    done = session(tmp_path, monkeypatch, beyond, "continue\nwhere\nback step")
    assert done.exit_code == 0, done.output
    assert "st.global.f32" in done.output and "(debug) back step" in done.output


@pytest.mark.parametrize(
    ("program", "options", "code", "said"),
    [
        (PROGRAM, ("--launch", "7"), 2, "--launch 7: the program has no such launch; its launches are 0 add, 1 add\n"),
        (MANY, ("--launch", "77"), 2, "18 add, 19 add and 2 more\n"),
        ("raise SystemExit(5)", (), 3, "ended with code 5 and has launched nothing"),
        (PROGRAM, ("--ptx", "x.ptx"), 2, "--ptx: "),
    ],
)
def test_what_is_no_launch(tmp_path, monkeypatch, program, options, code, said):
    done = session(tmp_path, monkeypatch, program, "continue", *options)
    assert done.exit_code == code and said in done.output


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("buffer C param_9 f32 1000", "'param_9' is not memory of this launch; write 0xADDRESS or one of add_param_0"),
        ("buffer C param_0 f32 2000", "are not all memory of one buffer"),
        ("buffer C param_0 f31 2000", "write name, place, type and shape"),
    ],
)
def test_memory_that_there_is_not(tmp_path, monkeypatch, command, said):
    done = session(tmp_path, monkeypatch, PROGRAM, command)
    assert done.exit_code == 2 and said in done.output and "line 1: " in done.output


def test_there_may_be_no_memory_at_all(tmp_path, monkeypatch):
    """A kernel that gets no pointer."""
    text = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry program()\n{\nbar.sync 0;\nret;\n}"
    program = f"from driver_client import *\nstart()\nlaunch(*load({text!r}, 'program'), 1, 32)"
    done = session(tmp_path, monkeypatch, program, "why C[0,0]")
    assert done.exit_code == 2 and "'C[0,0]' is not an element of a buffer; none has a name" in done.output


def test_to_ask_whether_a_launch_is_wanted_changes_nothing(tmp_path):
    recorder = OneLaunch(tmp_path / "kept", "")
    (tmp_path / "kept" / "launch-0").mkdir()
    assert recorder.wants(LaunchRecord(1, "add", (1, 1, 1), (1, 1, 1), (1, 1, 1), 0, 1))
    assert (tmp_path / "kept" / "launch-0").exists()


def test_a_program_that_uses_what_nobody_has_written_runs_to_its_end(tmp_path, monkeypatch):
    """As under exec and verify, the read is reported; a launch file would stop at it."""
    uses = """
    from driver_client import *
    start()
    kernel, = load('''.version 8.8
    .target sm_100a
    .address_size 64
    .visible .entry uses(.param .u64 x) { .reg .b64 %d<2>; .reg .b32 %r<2>; .reg .pred %p;
    ld.param.u64 %d0, [x]; ld.global.u32 %r0, [%d0]; setp.eq.u32 %p, %r0, 3; @%p bra END; st.global.u32 [%d0], 7;
    END: ret; }''', "uses")
    x = asked("cuMemAlloc_v2", 4)
    launch(kernel, 1, 1, x)
    result_of("cuCtxSynchronize")
    """
    program = "\n".join(line.strip() for line in uses.splitlines())
    done = session(tmp_path, monkeypatch, program, "continue\nwhere")
    assert done.exit_code == 0 and "never written" not in done.output, done.output
    strict = session(tmp_path, monkeypatch, program, "continue\nwhere", "--emulate", "uninitialised=fault")
    assert "is read but was never written" in strict.output
