"""The command line: what it accepts, what it says, how it exits."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import harness.cli.main
import harness.cli.running
from emugpu.cli.render import show_table
from emugpu.emulator import Deadlock
from emugpu.launch.memory import LaunchMemory
from harness import paths
from harness.compile.artifacts import Artifact
from harness.compile.catalog import KERNELS
from harness.compile.compiler import Gpu

SMALL = ["--shape", "256,512,128", "-c", "cluster=2x1"]


@pytest.fixture
def harness_command():
    """Runs the command line inside this process."""
    return lambda *arguments: CliRunner().invoke(harness.cli.main.main, [str(a) for a in arguments])


@pytest.fixture
def no_compiler(monkeypatch):
    """Makes any use of the compiler or the build cache a failure of the test."""

    def fail(*_):
        raise AssertionError("nothing may be built")

    monkeypatch.setattr(harness.cli.running, "build_with_notice", fail)


BAD_REQUESTS = [
    (["kernel99"], "there is no kernel 'kernel99'; use one of: kernel5, kernel6, kernel7, kernel8, kernel9"),
    ([], "Missing argument 'KERNEL...|all'; see harness run --help"),
    (["kernel6", "two\nlines"], "there is no kernel 'two\\nlines'"),
    (["kernel6", "--shape", "0"], "M=0 must be between 1 and 2147479552"),
    (["kernel6", "--shape", ""], "shape '' is not M,N,K or one number"),
    (["kernel6", "--shape", "-8"], "shape '-8' is not M,N,K or one number"),
    (["kernel6", "--shape", "8,8"], "shape '8,8' is not M,N,K or one number"),
    (["kernel6", "--shape", "8,8,8,8"], "shape '8,8,8,8' is not M,N,K or one number"),
    (["kernel6", "--shape", "8x8x8"], "shape '8x8x8' is not M,N,K or one number"),
    (["kernel6", "--shape", "8.0,8,8"], "shape '8.0,8,8' is not M,N,K or one number"),
    (["kernel6", "--shape", "٨"], "shape '٨' is not M,N,K or one number"),
    (["kernel6", "--shape", "8,12,8"], "N=12 must be a multiple of 8 (TMA needs rows"),
    (["kernel6", "--shape", "8,8,100"], "use K=104"),
    (["kernel6", "--shape", "8,8,2147479551"], "use K=2147479552"),
    (["kernel6", "--shape", "2147479553,8,8"], "M=2147479553 must be between 1 and 2147479552"),
    (["kernel6", "--shape", "9" * 5000], "every size must be between 1 and 2147479552"),
    (
        ["kernel9", "--shape", "8,8,520"],
        "K 520 is not a multiple of 32: rows must be a multiple of 16 bytes for TMA, and",
    ),
    (
        ["kernel8", "--shape", "40,64,64", "--problem", "groups=40,2"],
        "groups 40,2: their rows add up to 42, not to M=40",
    ),
    (["kernel9", "--shape", "8,8,40", "--dtype", "mxfp8", "--device", "emulator"], "of whole blocks with scale"),
    (
        ["kernel6", "--device", "emulated-gpu"],
        "--device emulated-gpu is gone",
    ),
    (
        ["kernel8", "-c", "arch=sm_90a", "--dtype", "e4m3", "--shape", "64,64,24"],
        "K 24 is not a multiple of 16: rows must be a multiple of 16 bytes for TMA, pad to 32",
    ),
    (["kernel9", "-c", "out_dtype=f32", "-c", "epilogue_width=64"], "64: 256 bytes of f32, a swizzled row has at most"),
    (["kernel8", "-c", "split_k=0", "-c", "arch=sm_90a"], "split k 0 is not at least 1; write auto|1..16"),
    (["kernel8", "-c", "split_k=some"], "split k 'some' is not a whole number; write auto|1..16"),
    (["kernel6", "-c", "cluster=4"], "cluster '4' is not CMxCN"),
    (["kernel6", "-c", "cluster=4x4x1"], "cluster '4x4x1' is not CMxCN"),
    (["kernel6", "-c", "cluster=axb"], "cluster 'axb' is not CMxCN"),
    (["kernel6", "-c", "cluster=-2x1"], "cluster '-2x1' is not CMxCN"),
    (["kernel6", "-c", "cluster=0x1"], "both sizes must be at least 1"),
    (["kernel6", "-c", "cluster=2x0"], "both sizes must be at least 1"),
    (["kernel6", "-c", "cluster=1x1"], "use 2x1, or cta_group=1"),
    (["kernel6", "-c", "cluster=3x2"], "3 CTAs along M cannot be split into pairs"),
    (["kernel6", "-c", "cluster=8x4"], "has 32 CTAs; a cluster has at most 16"),
    (["kernel8", "-c", "sms=0"], "sms 0 is not at least 1"),
    (["kernel6", "-c", "stages=0"], "the ring needs at least 1; kernel6 takes 1 to 5 here; use 1\n"),
    (
        ["kernel6", "-c", "stages=6"],
        "A and B 196608 + C 65536 + barriers 112 = 262256, more than the 232448 bytes",
    ),
    (["kernel5", "-c", "stages=2"], "kernel5 has no pipeline, its only depth is 1; use kernel6, or leave out stages"),
    (["kernel7", "-c", "cta_group=3"], "cta group 3 is not possible on sm_100a; use 1 or 2"),
    (["kernel7", "-c", "mma_shape=256"], "mma shape '256' is not MxN; write for example 256x256"),
    (["kernel7", "-c", "mma_shape=64x64"], "M must be 128 or 256; use 128x64, or cta_group=1"),
    (["kernel7", "-c", "mma_shape=256x250"], "N must be a multiple of 32 up to 256; use 256x256 or 256x224"),
    (["kernel7", "-c", "epilogue_width=48"], "epilogue width 48 is not one of 16, 32, 64"),
    (["kernel7", "-c", "preset=cute-99"], "there is no preset 'cute-99'; use one of: cute-03, cute-04"),
    (["kernel6", "-c", "preset=1cta", "-c", "stages=4"], "stages 4: A and B 196608 + C 65536"),
    (["kernel6", "--timeout", "0"], "0.0 is not in the range x>0"),
    (["kernel6", "-c", "stages=99999999"], "stages '99999999' is above 999999; write for example 2"),
    (["kernel6", "-c", "stages=five"], "stages 'five' is not a whole number; write for example 2"),
    (["kernel6", "--timeout", "nan"], "Invalid value for '--timeout': nan is not a finite number"),
    (["kernel6", "--timeout", "inf"], "Invalid value for '--timeout': inf is not a finite number"),
    (["kernel6", "-o", ""], "-o : this command writes .json or a folder, DIR/; use such an ending"),
    (["kernel6", "-o", "x.bmp"], "-o x.bmp: this command writes .json or a folder, DIR/; use such an ending"),
    (["kernel6", "-o", "/proc/x/"], "-o /proc/x: /proc cannot be written"),
    (["kernel6", "--ptx", ""], "Invalid value for '--ptx': it is empty; give a name"),
    (["kernel6", "--dtype", "fp64"], "'fp64' is not"),
    (["kernel6", "--device", "tpu"], "'tpu' is not one of 'auto', 'gpu', 'emulator'"),
    (["kernel6", "-c", "arch=sm_80"], "there is no arch 'sm_80'; use one of: sm_100a, sm_90a"),
    (["kernel6", "--problem", "inputs=zeros"], "inputs 'zeros' is not one of normal, integer, index"),
    (["kernel6", "--problem", "seed=-1"], "seed '-1' is not a whole number from 0 to 4294967295"),
    (["kernel6", "--problem", "seed=x"], "--problem seed=x: seed 'x' is not a whole number from 0"),
    (["kernel6", "--problem", "size=4"], "--problem size=4: this command takes NAME=VALUE, of: groups, masked, inputs"),
    (["kernel6", "-c", "stage=4"], "'stage=4' is no option of a kernel; write NAME=VALUE, of: preset, arch, dtype"),
    (["kernel6", "-c", "stages"], "'stages' is no option of a kernel; write NAME=VALUE"),
    (
        ["kernel6", "-c", "nowhere.toml"],
        "-c nowhere.toml: cannot be read (No such file or directory)",
    ),
    (["kernel6", "-c", "dtype=fp16", "--dtype", "bf16"], "--dtype bf16: -c dtype=fp16 contradicts it"),
    (
        ["kernel6", "--schedules", "lifo"],
        "--schedules lifo: write fifo, declining, reversed, random:SEED, or a number of",
    ),
    (["kernel6", "--schedules", "0"], "--schedules 0: write fifo, declining, reversed, random:SEED, or a number of"),
    (
        ["kernel6", "--schedules", "1@5"],
        "--schedules 1@5: the only schedule is fifo, which uses no seed; write random:5",
    ),
    (["kernel6", "--schedules", "random:-1"], "the seed '-1' is not a whole number from 0 to 4294957295"),
    (["kernel6", "x.toml"], "x.toml is a launch file, not a kernel; emugpu runs it: emugpu run x.toml"),
    (["kernel6", "--emulate", "accumulation=f64"], "--emulate accumulation=f64: accumulation is f32 or tensor_core"),
    (["kernel6", "--json", "/no/such/folder/x.json"], "is not a file in an existing folder"),
    (["kernel6", "--json", "/tmp"], "is not a file in an existing folder"),
    (["kernel6", "--json", ""], "is not a file in an existing folder"),
    (["--profile", "kernel6", "kernel6"], "--profile kernel6: the file must end in .json; to name none, put --profile"),
    (["kernel6", "--profile", "/no/such/folder/x.json"], "--profile '/no/such/folder/x.json' is not a file in an"),
    (["kernel6", "--jobs", "2", "--profile"], "--profile measures one process, but --jobs 2 starts several"),
    (["kernel6", "--device", "gpu", "--profile"], "--profile is for --device emulator, not for gpu"),
    (["kernel6", "--no-such-option"], "No such option '--no-such-option'; see harness run --help"),
    (["kernel6", "--shape"], "requires an argument"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD_REQUESTS, ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else ""
)
def test_bad_requests_get_one_line_and_exit_code_2(harness_command, no_compiler, results_dir, arguments, message):
    result = harness_command("run", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("harness: error: ") and message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not results_dir.exists()


@pytest.mark.parametrize("command", ["run", "debug", "verify"])
def test_a_word_that_is_neither_a_kernel_nor_a_program(harness_command, command):
    """A misspelt kernel is not taken for a program."""
    result = harness_command(command, "kernel77")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert "there is no kernel 'kernel77'; use one of: kernel5, " in result.stderr


def test_a_configuration_from_a_file_that_words_override(harness_command, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('cluster = "2x1"\nstages = 2\nmulticast = false\n')
    plan = json.loads(harness_command("explain", "kernel6", "-c", file, "-c", "stages=3", "-o", "-").stdout)["plan"]
    config = plan["config"]
    assert (config["cluster"], config["stages"], config["multicast"]) == ([2, 1], 3, False)
    file.write_text("stage = 2\n")
    result = harness_command("explain", "kernel6", "-c", file)
    assert result.exit_code == 2 and f"-c {file}: 'stage=2' is no option of a kernel" in result.stderr


def test_commands_that_do_not_exist(harness_command):
    result = harness_command("fly")
    assert result.exit_code == 2
    assert result.stderr == "harness: error: No such command 'fly'; see harness --help\n"
    assert harness_command("clean", "all").stderr.endswith(
        "unexpected extra argument (all); see harness clean --help\n"
    )


def test_help_and_no_arguments(harness_command):
    assert harness_command("--help").exit_code == 0
    text = harness_command("run", "-h").stdout
    for option in (
        "shape",
        "problem",
        "config",
        "dtype",
        "device",
        "schedules",
        "emulate",
        "output",
    ):
        assert f"--{option}" in text
    nothing = harness_command()
    assert nothing.exit_code == 2 and "Usage" in nothing.output


def test_list_names_every_kernel(harness_command):
    result = harness_command("list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in KERNELS)


def test_doctor_tells_what_is_there(harness_command):
    result = harness_command("doctor")
    assert result.exit_code == 0
    for word in ("Python", "Mojo", "MAX", "ptxas", "GPU", "emulator", str(paths.results_dir())):
        assert word in result.stdout


def test_doctor_and_list_as_json(harness_command, tmp_path):
    result = harness_command("doctor", "--json", "-")
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["schema"] == 1 and data["able"] is True
    found = {finding["name"]: finding for finding in data["findings"]}
    assert set(found["Mojo"]) == {"name", "found", "use", "needed", "problem"}
    assert {"ptxas", "nvdisasm", "results", "build cache"} <= set(found)
    assert harness_command("list", "--json", tmp_path / "list.json").exit_code == 0
    listed = json.loads((tmp_path / "list.json").read_text())
    assert [kernel["name"] for kernel in listed["kernels"]] == list(KERNELS)
    assert listed["presets"][0]["options"]["cluster"] == [4, 4]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_tables_on_narrow_terminals(width):
    console = Console(file=io.StringIO(), force_terminal=True, no_color=True, width=width)
    show_table(console, "title", ("name", "what", ""), [("one", "some words that go on", "more of them")])
    text = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
    assert max(map(len, text.splitlines())) <= width
    assert {"one", "some", "words", "that", "go", "on", "more", "of", "them"} <= set(text.split())


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_doctor_says_what_is_broken_and_where(harness_command, monkeypatch, tmp_path):
    ptxas = program(tmp_path, "ptxas", "echo no such library >&2; exit 127")
    nvdisasm = program(tmp_path, "nvdisasm", "echo release 13.0, V13.0.85; echo Build x")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    lines = harness_command("doctor").stdout.splitlines()
    assert any(f"{ptxas}: it ends with code 127: no such library" in line for line in lines)
    assert any(f"13.0.85 at {nvdisasm}" in line for line in lines)
    assert any(f"at {sys.executable}" in line for line in lines)
    ptxas.write_text("nonsense")
    assert f"{ptxas}: it cannot be run (Exec format error)" in harness_command("doctor").stdout


def test_figures_of_a_broken_ptxas_say_so(artifacts, monkeypatch, tmp_path):
    ptxas = program(tmp_path, "ptxas", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert artifacts[2, 1].statistics() == {"error": f"{ptxas}: it ends with code 1"}


@pytest.mark.parametrize("variable", ["HARNESS_RESULTS_DIR", "HARNESS_CACHE_DIR"])
def test_doctor_writes_to_the_folders(harness_command, monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, str(tmp_path / "new" / "folder"))
    assert harness_command("doctor").exit_code == 0
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    result = harness_command("doctor")
    folder = tmp_path / "file" / "builds" if variable == "HARNESS_CACHE_DIR" else tmp_path / "file"
    assert result.exit_code == 3 and f"{folder}: cannot be written: Not a directory" in result.stdout


def test_doctor_without_a_compiler(harness_command, monkeypatch):
    monkeypatch.setenv("HARNESS_MOJO", "/no/such/mojo")
    result = harness_command("doctor")
    assert result.exit_code == 3
    assert "/no/such/mojo: it cannot be run (No such file or directory)" in result.stdout


def test_run_prints_a_report_and_logs_a_record(harness_command, artifacts, results_dir):
    result = harness_command("run", "kernel6", *SMALL)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-2].endswith("PASSED")
    for text in ("cluster 2x1", "0 of 131,072", "not measured: emulated", "mma instructions"):
        assert text in result.stdout
    [line] = (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["schema"] == 1 and record["kernel"] == "kernel6"
    assert record["problem"] == {"m": 256, "n": 512, "k": 128}
    assert record["config"]["cluster"] == [2, 1] and record["config"]["stages"] == 5
    assert record["device"]["name"] == "emulated sm_100a"
    assert record["inputs"] == {"kind": "integer", "seed": 0}
    assert record["validation"]["passed"] and record["validation"]["exact"]
    assert record["timing"] == {"seconds": None, "reason": "not measured: emulated"}
    assert record["counters"]["mma_flops"] == 2 * 256 * 512 * 128
    assert len(record["ptx"]["sha256"]) == 64
    assert record["toolchain"]["mojo"] and record["git"] is not None


def test_a_profile_beside_the_report(harness_command, artifacts, results_dir, tmp_path):
    result = harness_command("run", "kernel6", *SMALL, "--no-save", "--profile", str(tmp_path / "p.json"))
    assert result.exit_code == 0 and result.stdout.splitlines()[-1].endswith("PASSED")
    assert "s of emulation, sampled" in result.stderr
    assert "Python instructions" in result.stderr or "native" in result.stderr  # of few samples one may be missing
    assert json.loads((tmp_path / "p.json").read_text())["profiles"][0]["weights"]


@pytest.mark.parametrize(("shape", "granted"), [("256,512,64", False), ("4096,2048,64", True)])
@pytest.mark.slow
def test_launch_control_that_grants_nothing_is_said_with_a_shape_where_it_does(harness_command, shape, granted):
    result = harness_command("run", "kernel8", "-c", "arch=sm_100a", "--shape", shape, "--no-save")
    assert result.exit_code == 0 and ("--shape 4096,2048,512 has more" in result.stdout) is not granted


@pytest.mark.parametrize("inputs", ["normal", "index", "uniform"])
@pytest.mark.parametrize("shape", ["256,512,128", "8", "136,264,72"])
def test_all_inputs_pass(harness_command, artifacts, inputs, shape):
    result = harness_command(
        "run", "kernel6", "-c", "cluster=2x1", "--shape", shape, "--problem", f"inputs={inputs}", "--no-save"
    )
    assert result.exit_code == 0, result.output


def test_schedule_seed_and_accumulation_are_passed_on(harness_command, artifacts):
    arguments = ["--schedules", "random:7", "--emulate", "accumulation=tensor_core", "--problem", "inputs=normal"]
    result = harness_command("run", "kernel6", *SMALL, *arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    device = json.loads(result.stdout)["device"]
    assert (device["schedule"], device["schedule_seed"], device["accumulation"]) == (
        "random",
        7,
        "tensor_core",
    )


def test_json_on_standard_output_is_nothing_but_json(harness_command, artifacts, results_dir):
    result = harness_command("run", "kernel6", *SMALL, "--json", "-", "--no-save")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["validation"]["passed"]
    assert not results_dir.exists()


def test_json_in_a_file(harness_command, artifacts, results_dir, tmp_path):
    path = tmp_path / "record.json"
    result = harness_command("run", "kernel6", *SMALL, "--json", path)
    assert result.exit_code == 0
    [line] = (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()
    assert json.loads(path.read_text()) == json.loads(line)


@pytest.fixture
def spoiled(monkeypatch):
    """Returns a function that changes what C holds at the end before it is validated."""
    download = LaunchMemory.download

    def spoil(change):
        def spoiled_download(memory, name):
            values = np.array(download(memory, name))
            if name == "C":
                change(values)
            return values

        monkeypatch.setattr(LaunchMemory, "download", spoiled_download)

    return spoil


def test_a_wrong_result_is_shown_recorded_and_exits_with_4(harness_command, artifacts, spoiled, results_dir):
    def change(output):
        output[130, 300] += 1000

    spoiled(change)
    result = harness_command("run", "kernel6", *SMALL)
    assert result.exit_code == 4
    assert "wrong tiles: 1 of 4" in result.stdout
    assert "1,1   from 128  from 256  1 of 32768" in result.stdout
    assert "130  300" in result.stdout
    assert "WRONG RESULT" in result.stdout
    [line] = (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()
    validation = json.loads(line)["validation"]
    assert not validation["passed"] and validation["mismatches"] == 1
    assert [(m["row"], m["column"]) for m in validation["first_mismatches"]] == [(130, 300)]


def test_a_wrong_result_can_be_kept(harness_command, artifacts, spoiled, tmp_path, monkeypatch):
    def change(output):
        output[130, 300] += 1000

    folder = tmp_path / "kept"
    assert harness_command("run", "kernel6", *SMALL, "--no-save", "-o", f"{folder}/").exit_code == 0
    assert not folder.exists()
    spoiled(change)
    drawn = ["--problem", "inputs=index", "--problem", "seed=3"]
    result = harness_command("run", "kernel6", *SMALL, "--no-save", "-o", f"{folder}/", *drawn)
    assert result.exit_code == 4 and str(folder / "kernel6") in result.stderr
    a, b, output, reference = (np.load(folder / "kernel6" / f"{n}.npy") for n in ("a", "b", "output", "reference"))
    assert a.shape == (256, 128) and b.shape == (512, 128)
    assert np.array_equal(a @ b.T, reference)
    assert np.argwhere(output != reference.astype(output.dtype)).tolist() == [[130, 300]]
    assert (folder / "kernel6" / "kernel.ptx").read_text() == artifacts[2, 1].ptx
    problem = json.loads((folder / "kernel6" / "plan.json").read_text())["problem"]
    assert problem == {"m": 256, "n": 512, "k": 128, "groups": [], "ld": [], "masked": 0}
    assert json.loads((folder / "kernel6" / "record.json").read_text())["inputs"]["seed"] == 3
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("emugpu.cli.outputs.check_folder", lambda *_: None)  # it was one when the run began
    result = harness_command("run", "kernel6", *SMALL, "--no-save", "-o", f"{tmp_path}/file/")
    assert result.exit_code == 4 and f"cannot write to {tmp_path}/file/kernel6: Not a directory" in result.stderr


def test_tiles_that_are_never_written_are_wrong(harness_command, artifacts, monkeypatch):
    plan_of = Artifact.plan

    def without_right_half(self, shape):
        plan = plan_of(self, shape)
        return replace(plan, grid=(plan.grid[0], 1, 1))

    monkeypatch.setattr(Artifact, "plan", without_right_half)
    result = harness_command("run", "kernel6", *SMALL)
    assert result.exit_code == 4, result.output
    assert "wrong tiles: 2 of 4" in result.stdout
    assert "0,1   from 0    from 256  32768 of 32768" in result.stdout


def test_a_wrong_result_with_json_on_standard_output(harness_command, artifacts, spoiled):
    def change(output):
        output[:] = np.nan

    spoiled(change)
    result = harness_command("run", "kernel6", *SMALL, "--json", "-", "--no-save")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["validation"]["non_finite"] == 256 * 512
    assert "wrong tiles: 4 of 4" in result.stderr


def test_a_deadlock_is_shown_whole(harness_command, artifacts, monkeypatch, results_dir):
    def deadlock(*_, **__):
        raise Deadlock("nobody can run\n  barrier full[0] waits for 65536 bytes\n  warp 5 waits at line 99")

    monkeypatch.setattr("emugpu.launch.launching.Device.launch", deadlock)
    result = harness_command("run", "kernel6", *SMALL)
    assert result.exit_code == 3
    assert result.stderr.splitlines() == [
        "harness: error: Deadlock: nobody can run",
        "  barrier full[0] waits for 65536 bytes",
        "  warp 5 waits at line 99",
    ]
    assert not list(results_dir.glob("*.jsonl"))


def test_an_unexpected_error_is_no_traceback(harness_command, artifacts, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("emugpu.launch.launching.run", broken)
    result = harness_command("run", "kernel6", *SMALL)
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-1] == (
        "harness: error: unexpected ZeroDivisionError: division by zero; set EMUGPU_TRACEBACK=1 to see where"
    )
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_no_compiler(harness_command, monkeypatch, tmp_path):
    monkeypatch.setenv("HARNESS_MOJO", "/no/such/mojo")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    result = harness_command("run", "kernel6")
    assert result.exit_code == 3
    assert "the Mojo compiler was not found at /no/such/mojo" in result.stderr


def test_device_gpu_without_a_gpu(harness_command, no_compiler, monkeypatch):
    monkeypatch.setattr("harness.run.runner.find_gpus", list)
    result = harness_command("run", "kernel6", "--device", "gpu")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "no NVIDIA GPU was found" in result.stderr and "--device emulator" in result.stderr


@pytest.mark.parametrize(
    ("gpu", "arguments", "message"),
    [
        (Gpu("NVIDIA B200", "10.0", "180 GiB", "580.1"), [], "a GPU run needs torch (pip install '.[torch]')"),
        (Gpu("NVIDIA L4", "8.9", "24 GiB", "580.1"), [], "no kernel here runs on a GPU of compute capability 8.9"),
        (
            Gpu("NVIDIA H200", "9.0", "141 GiB", "580.1"),
            ["-c", "arch=sm_100a"],
            "kernels for sm_100a need B200 or GB200 (compute capability 10.0); this GPU is NVIDIA H200",
        ),
    ],
)
def test_device_gpu_that_cannot_be_used(harness_command, no_compiler, monkeypatch, gpu, arguments, message):
    monkeypatch.setattr("harness.run.runner.find_gpus", lambda: [gpu])
    monkeypatch.setattr("harness.run.runner.package_version", lambda name: None)
    result = harness_command("run", "kernel6", "--device", "gpu", *arguments)
    assert result.exit_code == 3
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_a_problem_larger_than_the_machine(harness_command, no_compiler):
    result = harness_command("run", "kernel6", "--shape", "2000000")
    assert result.exit_code == 3
    assert "GiB to emulate and check; this machine has" in result.stderr


def test_results_that_cannot_be_written(harness_command, no_compiler, monkeypatch, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("HARNESS_RESULTS_DIR", str(in_the_way / "results"))
    result = harness_command("run", "kernel6")
    assert result.exit_code == 3
    assert "cannot write the record to" in result.stderr
    assert result.stderr.endswith("; set HARNESS_RESULTS_DIR to another folder, or use --no-save\n")
    result = harness_command("bench", "--filter", "kernel6 bf16 2x1")
    assert result.exit_code == 3
    assert result.stderr.endswith("; set HARNESS_RESULTS_DIR to another folder\n")  # it has no --no-save


def harness_process(*arguments: str, code: str | None = None) -> subprocess.Popen:
    program = ["-c", code] if code else ["-m", "harness"]
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=paths.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_as_a_program(artifacts, results_dir):
    process = harness_process("run", "kernel6", *SMALL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "PASSED" in out and err == ""
    assert "\x1b" not in out
    assert len((results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()) == 1


def test_usage_error_as_a_program():
    process = harness_process("run", "kernel6", "-c", "cluster=3x3")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.count("\n") == 1 and "Traceback" not in err


def test_a_reader_that_goes_away():
    process = harness_process("list")
    process.stdout.close()
    assert process.wait(timeout=60) == -signal.SIGPIPE
    assert process.stderr.read() == ""


INTERRUPTED = """
import sys, time
import emugpu.launch.launching
from harness.cli.main import main

def emulate(*args, **kwargs):
    print("emulating", flush=True)
    time.sleep(60)

emugpu.launch.launching.run = emulate
main(prog_name="harness")
"""


def test_an_interrupted_run_leaves_no_record(artifacts, results_dir):
    process = harness_process("run", "kernel6", *SMALL, code=INTERRUPTED)
    assert process.stdout.readline() == "emulating\n"
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "harness: error: interrupted"
    assert list(results_dir.iterdir()) == []


def test_the_package_is_found_from_any_folder(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "harness", "list"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "kernel6" in done.stdout
    assert Path(paths.ROOT, "kernels", "host", "emit.mojo").is_file()
