"""A launchable on a GPU: the same launch files as on the emulated one, here through the emulated driver."""

from __future__ import annotations

import json
import sys

import pytest
from driver_programs import run as run_program

from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import TOLERANT, run
from harness.paths import ROOT

pytestmark = pytest.mark.slow

LAUNCHES = ROOT / "tests/data/launches"
FILES = {
    "nvcc_calls": "b200",
    "nvcc_chain": "b200",
    "nvcc_split_k": "b200",
    "cute_axpy_sm90": "h200",
    "triton_tma_matmul_sm90": "h200",
    "cute_gemm_bf16_sm100": "b200",
}
"""Symbols, several launches, tensor maps by value and by pointer, structs, clusters."""
PROGRAM = """
import json, sys
from pathlib import Path
from emugpu.errors import ReportedError
from emugpu.launch.launch_file import read_launch_file
from emugpu.cuda.launch import run_on_gpu
try:
    outcome = run_on_gpu(read_launch_file(Path(sys.argv[1])))
except ReportedError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(json.dumps(outcome.as_dict()))
"""


@pytest.mark.parametrize("name", FILES)
def test_a_gpu_gives_what_the_emulated_one_gives(capfd, name):
    path = LAUNCHES / f"{name}.toml"
    done = run_program(capfd, FILES[name], sys.executable, "-c", PROGRAM, path)
    assert done.code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    expected = run(read_launch_file(path), TOLERANT).as_dict()
    assert found["validation"]["passed"] and found["validation"] == expected["validation"]
    assert [launch["grid"] for launch in found["launches"]] == [launch["grid"] for launch in expected["launches"]]
    assert len(done.log.launches) == len(expected["launches"])
    assert found["device"]["kind"] == f"nvidia-{FILES[name]}" and found["counters"] == {}
    assert found["timing"] == {"seconds": None, "reason": "not measured: run once"}


def test_a_wrong_expectation_is_wrong_on_a_gpu_too(capfd, tmp_path):
    path = tmp_path / "launch.toml"
    text = (LAUNCHES / "cute_axpy_sm90.toml").read_text().replace('"../', f'"{LAUNCHES.parent}/')
    path.write_text(text.replace("[expect]\n", '[expect]\nx = "x + 1"\n'))
    done = run_program(capfd, "h200", sys.executable, "-c", PROGRAM, path)
    assert done.code == 0, done.err
    assert not json.loads(done.out.splitlines()[-1])["validation"]["passed"]


def test_what_a_gpu_cannot_do_is_said(capfd, tmp_path):
    path = tmp_path / "launch.toml"
    text = (LAUNCHES / "cute_axpy_sm90.toml").read_text().replace('"../', f'"{LAUNCHES.parent}/')
    path.write_text(text.replace('x = { dtype = "f32", ', 'x = { dtype = "f32", address = 0x7000000000, '))
    done = run_program(capfd, "h200", sys.executable, "-c", PROGRAM, path)
    assert done.code == 1
    assert "UsageProblem: " in done.err and "buffers.x: address = 0x7000000000: a GPU places buffers itself" in done.err


def test_ptx_for_another_gpu_is_refused_before_it_is_loaded(capfd):
    done = run_program(capfd, "h200", sys.executable, "-c", PROGRAM, LAUNCHES / "triton_softmax_sm100.toml")
    assert (
        done.code == 1 and "the PTX is for sm_100a, and NVIDIA H200 has compute capability 9.0; emulate it" in done.err
    )


def test_a_fault_is_said_and_not_that_memory_cannot_be_freed_after_it(capfd, tmp_path):
    path = tmp_path / "launch.toml"
    text = (LAUNCHES / "cute_axpy_sm90.toml").read_text().replace('"../', f'"{LAUNCHES.parent}/')
    path.write_text(text.replace('{ fields = ["y", 1000] }', "{ fields = [4096, 0, 1000, 0] }"))
    done = run_program(capfd, "h200", sys.executable, "-c", PROGRAM, path)
    assert done.code == 1
    assert f"CannotRun: {path}: launch: cuCtxSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in done.err
