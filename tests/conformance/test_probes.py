"""The probes: on the emulator, through a driver that is played by the emulator, and against what GPUs answered."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import types
from ctypes.util import find_library
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fake_cuda import FakeCuda
from foreign_probes import FOREIGN, RECORDING

from conformance import approximations, emulator, gpu, recording
from conformance.__main__ import main
from conformance.catalogue import BLACKWELL, PROBES
from conformance.probe import decode, differences, encode, outputs_of
from emugpu.cuda.driver import SWIZZLES, Driver
from emugpu.emulator import Device
from emugpu.errors import CannotRun

pytestmark = pytest.mark.slow

LAUNCHED = ("elect_sync", "tma_out_of_bounds", "tma_multicast_ranks", "mbarrier_across_a_cluster", "cp_async_forms")
FOREIGN_LAUNCHED = ("cute_persistent_f16", "triton_tma_matmul", "nvcc_split_k_s32", "nvcc_calls")
"""Probes and kernels with arguments, clusters, grids and blocks of every kind."""


ALL = {**PROBES, **FOREIGN}


@cache
def answers(name):
    """What the emulator answers, computed once."""
    return emulator.run(ALL[name])


@pytest.mark.parametrize("name", [*LAUNCHED, "cvt_from_64_bits"])
def test_outputs_survive_a_recording(name, tmp_path):
    probe = PROBES[name]
    outputs = answers(name)
    path = tmp_path / "recording.json"
    recording.write(path, {"gpu": "none"}, {name: recording.entry(probe, outputs, 1.0)})
    entry = recording.read(path)["probes"][name]
    assert differences(outputs, decode(entry["outputs"])) == []
    assert entry["answer"] == json.loads(json.dumps(probe.read(outputs)))
    assert entry["digest"] == probe.digest()


def test_what_the_emulator_answers():
    """The points that the machine model rests on, in words."""
    found = {name: PROBES[name].read(answers(name)) for name in PROBES}
    assert all(case["whole box signalled"] for case in found["tma_out_of_bounds"].values())
    assert found["tma_row_pitch"]["128B box 64 bytes wide at 0"]["rows 0 and 1 begin at"] == [0, 128 + 16]
    assert found["elect_sync"]["0x7fff8000"] == [15]
    masks = found["tma_multicast_ranks"]
    assert masks["cluster 2x2, rank 3 loads, mask 0b0110"]["data in ranks"] == [1, 2]
    assert masks["cluster 2x2, rank 3 loads, mask 0b0110"]["cluster_ctaid of ranks"][2] == [0, 1]
    plain = found["tma_plain_load_barrier"]["cluster 2x1, rank 1 loads, barrier of rank 0"]
    assert plain["barrier completed in ranks"] == plain["data in ranks"] == [1]
    assert found["cluster_addresses"]["own address"][3] == "0x3000400"
    assert all(found[name] == {"exact": True} for name in found if name.startswith("wgmma_tile"))


def test_differences_name_case_buffer_and_place():
    first = {"one": {"d": np.arange(6, dtype=np.uint32).reshape(2, 3)}}
    second = {"one": {"d": np.array([[0, 1, 2], [3, 0xFF, 5]], np.uint32)}}
    assert differences(first, decode(encode(first))) == []
    assert differences(first, second) == ["one, d: 1 of 6 elements differ, first at (1, 1): 0x4 and 0xff"]


def test_the_digest_changes_with_inputs_and_launch():
    probe = PROBES["elect_sync"]
    case = probe.cases[0]
    other = dict(case.buffers, masks=case.buffers["masks"] ^ 1)
    digests = {
        probe.digest(),
        replace(probe, ptx=probe.ptx + "\n").digest(),
        replace(probe, cases=(replace(case, buffers=other),)).digest(),
        replace(probe, cases=(replace(case, block=64),)).digest(),
    }
    assert len(digests) == 4


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("name", PROBES)
def test_ptxas_assembles_it_without_remarks(name, tmp_path):
    source = tmp_path / "probe.ptx"
    source.write_text(PROBES[name].ptx)
    command = ["ptxas", "-arch=sm_90a", str(source), "-o", str(tmp_path / "probe.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ---- the GPU side, on a driver that the emulator plays ----


def run_on_driver(probe, cuda, folder: Path):
    """What a process of a probe leaves when this driver answers."""
    asked = folder / "cases.pickle"
    asked.write_bytes(pickle.dumps([(probe.launchable(case), case.outputs) for case in probe.cases]))
    gpu.answer(asked, folder, range(len(probe.cases)), Driver(cuda))
    found = {}
    for number, case in enumerate(probe.cases):
        with np.load(folder / f"{number}.npz") as contents:
            found[case.name] = outputs_of(case, contents)
    return found


@pytest.mark.parametrize("name", [*LAUNCHED, *FOREIGN_LAUNCHED])
def test_the_driver_calls_launch_the_same_as_the_emulator(name, tmp_path):
    probe = ALL[name]
    cuda = FakeCuda(Device(accumulation=probe.accumulation))
    assert differences(answers(name), run_on_driver(probe, cuda, tmp_path)) == []
    assert not cuda.alive and cuda.promotions <= {0}


def test_a_failing_driver_call_is_named(tmp_path):
    cuda = FakeCuda()
    cuda.cuModuleLoadDataEx = lambda *arguments: 218
    with pytest.raises(CannotRun, match=r"cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX \(218\)"):
        run_on_driver(PROBES["elect_sync"], cuda, tmp_path)


def test_a_child_that_fails_or_hangs():
    """Without a driver the child says so; one that outlives its time is ended."""
    probe = PROBES["elect_sync"]
    if find_library("cuda") is None:
        with pytest.raises(CannotRun, match="no CUDA driver on this machine"):
            gpu.run_in_child(probe)
    with pytest.raises(CannotRun, match="no answer after 0 s; the probe hangs"):
        gpu.run_in_child(probe, seconds=0.01)


def test_swizzles_that_only_a_gpu_has_reach_its_driver():
    probe = BLACKWELL["tma_swizzles_of_atoms"]
    asked = {wanted.gpu_swizzle for case in probe.cases for wanted in probe.launchable(case).maps.values()}
    assert asked == {"128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"} <= set(SWIZZLES)


def fake_nvidia_smi(monkeypatch, answer: str) -> None:
    done = types.SimpleNamespace(returncode=0, stdout=answer, stderr="")
    monkeypatch.setattr(gpu.program, "run", lambda *a, **k: done)


def test_the_recorder_compares_and_writes(monkeypatch, tmp_path):
    fake_nvidia_smi(monkeypatch, "NVIDIA H200, 580.1, 9.0\n")

    def answer(probe, seconds):
        outputs = emulator.run(probe)
        if probe.name == "mbarrier_phases":
            outputs["steps"]["report"] = outputs["steps"]["report"] ^ 1
        if probe.name == "stmatrix_ldmatrix":
            raise CannotRun("no answer")
        return gpu.Answered(outputs, {})

    monkeypatch.setattr(gpu, "run_in_child", answer)
    path = tmp_path / "new" / "h200.json"
    first = CliRunner().invoke(main, ["--device", "gpu", "--json", str(path), "elect_sync"])
    assert first.exit_code == 0, first.output
    assert "NVIDIA H200, driver 580.1" in first.output and "as the emulator" in first.output
    names = ["mbarrier_phases", "stmatrix_ldmatrix"]
    second = CliRunner().invoke(main, ["--device", "gpu", "--json", str(path), *names])
    assert second.exit_code == 1
    assert "differs from the emulator" in second.output and "failed: no answer" in second.output
    data = recording.read(path)
    assert data["machine"]["driver"] == "580.1"
    assert set(data["probes"]) == {"elect_sync", *names}
    assert data["probes"]["stmatrix_ldmatrix"]["error"] == "no answer"


def test_a_gpu_that_cannot_answer(monkeypatch):
    fake_nvidia_smi(monkeypatch, "NVIDIA A100, 580.1, 8.0\n")
    result = CliRunner().invoke(main, ["--device", "gpu"])
    assert result.exit_code == 3
    assert "NVIDIA A100 has compute capability 8.0; there are probes for 9.0 (sm_90a), 10.0 (sm_100a)" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such_probe"], "'no_such_probe' is not one of 'elect_sync'"),
        (["--timeout", "nan"], "nan is not a finite number"),
        (["--timeout", "-1"], "-1.0 is not in the range x>0"),
        (["--json", "/"], "File '/' is a directory"),
        (["--json", ""], "it is empty; give a name"),
        (["--json", "/dev/null/x.json"], "--json /dev/null: /dev/null is not a folder"),
        (["elect_sync", "--group", "hopper"], "--group says nothing beside the probes that are named; leave it out"),
    ],
)
def test_bad_requests_get_one_line(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (2, "") and said in done.stderr
    assert done.stderr.startswith("conformance: error: ") and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


# ---- what GPUs answered ----


@pytest.mark.parametrize("name", [name for name, probe in ALL.items() if probe.exact])
def test_the_emulator_does_what_the_gpu_did(name):
    assert differences(recorded(name), answers(name)) == []


@cache
def recording_of(name):
    """The machine and the entry that is kept for a probe, which must not have changed since."""
    folder = Path(__file__).parents[2] / "tests/data" / "hardware"
    data = recording.read(RECORDING if name in FOREIGN else folder / "h200.json")
    program = "tests/conformance/foreign_probes.py" if name in FOREIGN else "-m conformance"
    again = f"record it again: python {program}"
    assert name in data["probes"], f"{name} was not recorded on {data['machine']['gpu']}; {again}"
    entry = data["probes"][name]
    assert "error" not in entry, f"{name} failed on {data['machine']['gpu']}: {entry.get('error')}; {again}"
    assert entry["digest"] == ALL[name].digest(), f"{name} has changed since it was recorded; {again}"
    return entry


def recorded(name):
    return decode(recording_of(name)["outputs"])


@pytest.mark.parametrize("name", ["generic_addresses", "approximate_functions_special"])
def test_answers_that_are_the_same_on_the_gpu(name):
    """Outputs that hold approximations, or depend on time, but say the same."""
    assert recording_of(name)["answer"] == json.loads(json.dumps(ALL[name].read(answers(name))))


ALLOWED = {
    "ex2": ("relative", 2.0**-22),
    "rcp": ("relative", 2.0**-23),
    "sqrt": ("relative", 2.0**-23),
    "rsqrt": ("relative", 2.0**-22.9),
    "tanh": ("relative", 2.0**-11),
    "sin": ("absolute", 2.0**-20.5),
    # The ISA says 2^-20.5; an H200 is off by 2^-20.45 somewhere.
    "cos": ("absolute", 2.0**-20.4),
    # 2^-22 of the result, which is at most 20 here, and of 1 close to it.
    "lg2": ("absolute", 20 * 2.0**-22),
}
"""The errors that PTX ISA 9.7.3 allows."""


@pytest.mark.parametrize("function", ALLOWED)
def test_approximate_functions_are_as_good_as_the_isa_says(function):
    """On the GPU over 2^18 inputs, and on the emulator, which also is close to the GPU."""
    kind, allowed = ALLOWED[function]
    name = "approximate_functions"
    found = recording_of(name)["answer"][function]
    assert 2.0**-26 < found[kind] <= allowed
    assert approximations.errors(answers(name))[function][kind] <= allowed
    on_gpu, here = (
        outputs["samples"][f"{function}.f32"].view(np.float32) for outputs in (recorded(name), answers(name))
    )
    scale = np.abs(on_gpu) if kind == "relative" else 1.0
    assert (np.abs(on_gpu.astype(np.float64) - here) <= 2 * allowed * scale).all()


@pytest.mark.parametrize("form", ["ex2.f16", "ex2.bf16", "tanh.f16", "tanh.bf16"])
def test_approximate_functions_of_halves_are_one_unit_off_at_most(form):
    name = "approximate_functions_16_bits"
    assert recording_of(name)["answer"][form] <= 1.01
    assert approximations.half_errors(answers(name))[form] <= 0.5
    on_gpu, here = (outputs["all"][form].astype(np.int32) for outputs in (recorded(name), answers(name)))
    assert np.abs(on_gpu - here).max() <= 1


CLOSE = {"triton_softmax": 2, "triton_layer_norm": 0, "nvcc_singles": 2, "nvcc_halves": 0}
"""Kernels that use approximate functions, and how many units in the last place they are from the GPU's results."""


@pytest.mark.parametrize("name", CLOSE)
def test_kernels_with_approximate_functions_are_close_to_the_gpu(name):
    on_gpu, here = (next(iter(outputs.values()))["y"] for outputs in (recorded(name), answers(name)))
    units = np.abs(on_gpu.astype(np.int64) - here.astype(np.int64))
    assert units.max() == CLOSE[name]


def test_doubles_are_those_of_the_gpu_but_for_a_square_root():
    """rsqrt of f64 starts from an approximation and is not corrected to the last bit."""
    on_gpu, here = (
        outputs["uniform"]["y"].astype(np.int64) for outputs in (recorded("nvcc_doubles"), answers("nvcc_doubles"))
    )
    units = np.abs(on_gpu - here)
    assert units[5].max() == 1
    assert not np.delete(units, 5, axis=0).any()
