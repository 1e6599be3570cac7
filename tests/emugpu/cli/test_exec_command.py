"""The options of ``emugpu exec``: what is refused before anything is started."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ptx_programs import source

from emugpu.cli.main import main


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "Missing argument"),
        (["--gpu", "h300", "--", "true"], "h300"),
        (["--", "no-such-program-anywhere"], "no-such-program-anywhere"),
        (["--", "{full}/kept"], "cannot be started: Permission denied; name what runs it, too: python, mojo run"),
        (["--json", "no/such/folder/out.json", "--", "true"], "no/such/folder/out.json"),
        (["--json", "--", "true"], "--json needs the name of a file before '--'; name one, or use - for the screen"),
        (["-o", "{full}/", "--", "true"], "is not empty"),
        (
            ["-o", "{full}/kept/deeper/", "--", "true"],
            "-o {full}/kept/deeper: {full}/kept is not a folder; name another folder",
        ),
        (
            ["-o", "/proc/no-such-folder/", "--", "true"],
            "-o /proc/no-such-folder: /proc cannot be written (no such file or directory); name another folder",
        ),
        (["--schedules", "random:-1", "--", "true"], "'-1'"),
        (["--schedules", "10", "--", "true"], "--schedules 10: a program runs once; write fifo"),
        (["--emulate", "strict=true", "--", "true"], "accumulation, max-steps, uninitialised, engine"),
    ],
)
def test_wrong_requests_are_one_line(words, said, tmp_path):
    (tmp_path / "kept").write_text("")
    done = CliRunner().invoke(main, ["exec", *(word.format(full=tmp_path) for word in words)])
    assert done.exit_code == 2
    assert said.format(full=tmp_path) in done.output and "Traceback" not in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_program_that_needs_no_gpu_runs_and_its_exit_code_comes_back():
    assert CliRunner().invoke(main, ["exec", "--quiet", "--", "sh", "-c", "exit 9"]).exit_code == 9


def linked(folder, code, *missing):
    """A C program that is linked with the supplied CUDA runtime, and maybe with names that only the linker has seen."""
    source, program, library = folder / "program.c", folder / "program", folder / "libcudart.so.13"
    source.write_text(code)
    stubs = "".join(f"void {name}(void) {{}}\n" for name in ("cudaCreateChannelDesc", *missing))
    subprocess.run(
        ["cc", "-xc", "-", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library],
        input=stubs,
        text=True,
        check=True,
    )
    subprocess.run(["cc", "-w", source, library, "-o", program], check=True)
    return program


needs_compiler = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("nm")), reason="no C compiler")


@needs_compiler
def test_the_supplied_runtime_has_what_builds_channel_descriptions(tmp_path):
    code = """
    typedef struct { int x, y, z, w, kind; } Format;
    Format cudaCreateChannelDesc(int, int, int, int, int);
    int main(void) { Format f = cudaCreateChannelDesc(32, 16, 8, 4, 2); return f.x + f.y + f.z + f.w + f.kind; }
    """
    done = CliRunner().invoke(main, ["exec", "--quiet", "--", str(linked(tmp_path, code))])
    assert done.exit_code == 62, done.output


@needs_compiler
def test_functions_that_the_supplied_libraries_lack_are_named(tmp_path, capfd):
    program = linked(tmp_path, "int main(void) { return cudaOfTheFuture(); }", "cudaOfTheFuture")
    done = CliRunner().invoke(main, ["exec", "--quiet", "--", str(program)])
    assert done.exit_code == 3
    said = done.stderr + capfd.readouterr().err
    assert "the program needs cudaOfTheFuture, which the emulated driver's libraries do not have" in said


@pytest.mark.parametrize(("words", "mode"), [([], "report"), (["--emulate", "uninitialised=fault"], "fault")])
def test_programs_go_on_when_they_read_what_nobody_has_written(words, mode, monkeypatch):
    """Programs that run on a GPU read such bytes and do not use them."""
    seen = []
    monkeypatch.setattr("emugpu.cli.exec.run_program", lambda command, gpu, environment: seen.append(gpu) or 0)
    assert CliRunner().invoke(main, ["exec", *words, "--", "true"]).exit_code == 0
    assert seen[0].options.uninitialised == mode


def test_a_seed_is_for_random_bytes_too():
    refused = CliRunner().invoke(main, ["exec", "--schedules", "1@3", "--", "true"])
    assert refused.exit_code == 2 and "write random:3" in refused.output
    words = ["--schedules", "1@3", "--emulate", "uninitialised=random"]
    assert CliRunner().invoke(main, ["exec", *words, "--", "true"]).exit_code == 0


def test_a_profile_of_what_a_program_launches(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "support"))
    text = source("mov.u32 %r9, 1000000; L: sub.u32 %r9, %r9, 1; setp.ne.u32 %p0, %r9, 0; @%p0 bra L; ret;")
    program = f"from driver_client import *\nstart()\nlaunch(*load({text!r}, 'kernel'), 1, 32, c_uint64(0))"
    words = ["--profile", str(tmp_path / "found.json"), "--", sys.executable, "-c", program]
    done = CliRunner().invoke(main, ["exec", *words])
    assert done.exit_code == 0 and "s of emulation, sampled" in done.stderr, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert any("sub.u32 %r9" in frame["name"] for frame in found["shared"]["frames"])
