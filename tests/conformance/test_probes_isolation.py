"""A probe that faults, hangs or asks what a GPU lacks loses no other, and a case of it no other case."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from driver_programs import run
from fake_cuda import FakeCuda

from conformance import emulator, gpu
from conformance.__main__ import main
from conformance.catalogue import PROBES
from conformance.comparison import compare
from conformance.probe import Outputs, Pointer, Probe, ProbeCase, decode
from conformance.ptx import kernel
from emugpu.cuda.driver import Driver
from emugpu.errors import CannotRun

STORE = kernel(
    ["u64 found", "u64 place"],
    "ld.param.u64 %rd0, [found];\nld.param.u64 %rd1, [place];\nld.global.u64 %rd2, [%rd1];\nadd.u64 %rd0, %rd0, %rd2;\n"
    "st.global.u32 [%rd0], 7;\n",
)
"""Stores a word behind the start of a buffer: 2 bytes behind it is a fault."""


def probe_with(*places: int) -> Probe:
    cases = tuple(
        ProbeCase(
            name=f"{number}, at {place}",
            buffers={"found": np.zeros(4, np.uint32), "place": np.array([place], np.uint64)},
            arguments=(Pointer("found"), Pointer("place")),
            outputs=("found",),
            block=32,
            shared=64,
        )
        for number, place in enumerate(places)
    )
    return Probe(
        "stores", "Where?", STORE, cases, read=lambda outputs: {n: o["found"].tolist() for n, o in outputs.items()}
    )


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """nvidia-smi that names an emulated B200, for programs that ask it."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'NVIDIA B200, 580.1, 10.0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


@pytest.mark.skipif(sys.platform != "linux", reason="the emulated driver is for Linux")
@pytest.mark.slow
def test_faults_in_processes_of_their_own(tmp_path, machine, capfd):
    """On an emulated driver: a case that faults, a probe that faults in every case, one of Hopper's."""
    path, code = tmp_path / "answers.json", tmp_path / "ask.py"
    code.write_text(
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path; from conformance.catalogue import BLACKWELL, PROBES\n"
        "from conformance.record import record; from test_probes_isolation import probe_with\n"
        "some = [probe_with(0, 2, 4, 6, 8), PROBES['elect_sync'], PROBES['wgmma_sums_f16']]\n"
        f"sys.exit(not record([*some, BLACKWELL['tmem_alloc_growing']], 'gpu', Path({str(path)!r})))\n"
    )
    done = run(capfd, "b200", sys.executable, code)
    assert done.code == 1, done
    said = {line.split()[0]: line for line in done.out.splitlines()}
    assert "1 probes are skipped: they ask what sm_100a has not, but sm_90a has\n" in done.out
    assert said["stores"].endswith("differs from the emulator") and said["elect_sync"].endswith("as the emulator")
    fault = "launch: cuCtxSynchronize failed: CUDA_ERROR_MISALIGNED_ADDRESS (716)"
    assert f"\n    1, at 2: failed: {fault}\n    3, at 6: failed: {fault}\n" in done.out
    assert "failed: launch: cuCtxSynchronize failed: CUDA_ERROR" in said["tmem_alloc_growing"]
    assert "3 probes, 2 failed, 1 differ from the emulator\n" in done.out
    kept = json.loads(path.read_text())["probes"]
    assert {name: array["found"].tolist() for name, array in decode(kept["stores"]["outputs"]).items()} == {
        "0, at 0": [7, 0, 0, 0], "2, at 4": [0, 7, 0, 0], "4, at 8": [0, 0, 7, 0],
    }  # fmt: skip
    assert kept["stores"]["failed"] == {"1, at 2": fault, "3, at 6": fault}
    assert "CUDA_ERROR" in kept["tmem_alloc_growing"]["error"]
    assert kept["elect_sync"]["outputs"] and "wgmma_sums_f16" not in kept and "wgmma_sums_f16" not in said


def children(monkeypatch, driver_of, hang: int | None = None) -> list[list[int]]:
    """Processes that are played here, each with a driver of its own; one may hang at a case. What each was asked."""
    asked = []

    def child(file: Path, parts: Path, seconds: float, cases: list[int]):
        asked.append(list(cases))
        before = cases[: cases.index(hang)] if hang in cases else cases
        try:
            gpu.answer(file, parts, before, Driver(driver_of()))
        except CannotRun as error:
            return str(error), False
        return ("no answer after 1 s; the probe hangs on this GPU", True) if hang in cases else (None, False)

    monkeypatch.setattr(gpu, "_child", child)
    return asked


def test_a_case_that_hangs_is_left_out(monkeypatch):
    asked = children(monkeypatch, lambda: FakeCuda(), hang=1)
    found = gpu.run_in_child(probe_with(0, 4, 8), 1)
    assert asked == [[0, 1, 2], [2]]
    assert list(found.outputs) == ["0, at 0", "2, at 8"]
    assert found.failed == {"1, at 4": "no answer after 1 s; the probe hangs on this GPU"}


class Failing(FakeCuda):
    """Every launch fails."""

    def cuLaunchKernelEx(self, *arguments):
        return 700


def test_many_failures_end_a_probe(monkeypatch):
    asked = children(monkeypatch, lambda: Failing())
    with pytest.raises(CannotRun, match=r"cuLaunchKernelEx failed: CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"):
        gpu.run_in_child(probe_with(*range(0, 16, 2)), 1)
    assert [len(cases) for cases in asked] == [8, 7, 6, 5]


class FailingSecond(FakeCuda):
    """Its second launch fails."""

    launches = 0

    def cuLaunchKernelEx(self, *arguments):
        self.launches += 1
        return 700 if self.launches == 2 else super().cuLaunchKernelEx(*arguments)


def test_what_was_answered_before_the_gpu_was_lost_is_kept(monkeypatch):
    drivers = [FailingSecond(), FakeCuda()]
    drivers[1].cuInit = lambda flags: 999
    asked = children(monkeypatch, lambda: drivers[len(asked) - 1])
    found = gpu.run_in_child(probe_with(0, 4, 8, 12), 1)
    assert asked == [[0, 1, 2, 3], [2, 3]]
    assert list(found.outputs) == ["0, at 0"] and list(found.failed) == ["1, at 4", "2, at 8", "3, at 12"]
    assert "cuLaunchKernelEx failed: CUDA_ERROR_ILLEGAL_ADDRESS" in found.failed["1, at 4"]
    assert found.failed["2, at 8"] == found.failed["3, at 12"] == "cuInit failed: CUDA_ERROR_UNKNOWN (999)"


def test_a_probe_that_cannot_be_loaded_is_not_tried_case_by_case(monkeypatch):
    broken = FakeCuda()
    broken.cuModuleLoadDataEx = lambda *arguments: 218
    asked = children(monkeypatch, lambda: broken)
    with pytest.raises(CannotRun, match="cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX"):
        gpu.run_in_child(probe_with(0, 4), 1)
    assert len(asked) == 1


# ---- which probes a GPU is asked ----


def asked_on(monkeypatch, capability: str, answer, *words: str):
    smi = types.SimpleNamespace(returncode=0, stdout=f"NVIDIA X, 580.1, {capability}\n", stderr="")
    monkeypatch.setattr(gpu.program, "run", lambda *a, **k: smi)
    monkeypatch.setattr(gpu, "run_in_child", answer)
    return CliRunner().invoke(main, ["--device", "gpu", *words])


def emulated(probe: Probe, seconds: float) -> gpu.Answered:
    return gpu.Answered(emulator.run(probe), {})


def test_hopper_is_not_asked_what_only_blackwell_has(monkeypatch, tmp_path):
    done = asked_on(monkeypatch, "9.0", emulated, "elect_sync", "mma_layout_64", "commit_own")
    assert done.exit_code == 0, done.output
    assert "2 probes are skipped: they ask what sm_90a has not, but sm_100a has" in done.output
    assert "1 probes, 0 failed, 0 differ" in done.output


def test_without_nvidia_smi_the_driver_says_what_it_is(monkeypatch):
    def missing(*words, **options):
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(gpu.program, "run", missing)
    monkeypatch.setattr(gpu, "Driver", lambda: Driver(FakeCuda()))
    found = gpu.describe()
    assert (found["gpu"], found["driver"], found["compute_capability"]) == ("emulated GPU", "CUDA 13.0", "9.0")


@pytest.mark.parametrize(("capability", "target"), [("10.0", "sm_100a"), ("10.3", "sm_103a")])
def test_blackwell_is_asked_hoppers_questions_too(monkeypatch, capability, target):
    seen = {}

    def answer(probe: Probe, seconds: float) -> gpu.Answered:
        seen[probe.name] = probe.target
        return emulated(probe, seconds)

    done = asked_on(monkeypatch, capability, answer, "elect_sync", "wgmma_sums_f16", "commit_own")
    assert done.exit_code == 0, done.output
    assert seen == {"elect_sync": target, "commit_own": target}


def test_the_answer_of_some_cases_is_kept(monkeypatch, tmp_path):
    path = tmp_path / "answers.json"

    def answer(probe: Probe, seconds: float) -> gpu.Answered:
        outputs: Outputs = emulator.run(probe)
        outputs.pop("M 128, N 8")
        return gpu.Answered(outputs, {"M 128, N 8": "CUDA_ERROR_ILLEGAL_INSTRUCTION"})

    done = asked_on(monkeypatch, "10.0", answer, "mma_small_n", "--json", str(path))
    assert done.exit_code == 1 and "M 128, N 8: failed: CUDA_ERROR_ILLEGAL_INSTRUCTION" in done.output
    entry = json.loads(path.read_text())["probes"]["mma_small_n"]
    assert entry["failed"] and "answer" not in entry and len(entry["outputs"]) == 5


def test_an_answer_that_nobody_expected_costs_no_other(monkeypatch, tmp_path):
    """Zeros where the size of a cluster should be."""
    path = tmp_path / "answers.json"

    def answer(probe: Probe, seconds: float) -> gpu.Answered:
        outputs = emulator.run(probe)
        if probe.name == "tma_plain_load_barrier":
            outputs = {case: {n: np.zeros_like(a) for n, a in arrays.items()} for case, arrays in outputs.items()}
        return gpu.Answered(outputs, {})

    done = asked_on(monkeypatch, "9.0", answer, "tma_plain_load_barrier", "elect_sync", "--json", str(path))
    assert done.exit_code == 1 and "2 probes, 0 failed, 1 differ" in done.output
    kept = json.loads(path.read_text())["probes"]
    assert "cannot reshape" in kept["tma_plain_load_barrier"]["answer"]["cannot be read"]
    assert kept["tma_plain_load_barrier"]["outputs"] and kept["elect_sync"]["answer"]


def test_a_difference_that_cannot_be_told_is_one_all_the_same():
    def explain(expected: Outputs, found: Outputs) -> list[str]:
        raise KeyError("nobody")

    probe = replace(PROBES["elect_sync"], explain=explain)
    assert compare(probe, emulator.run(probe)) == [
        "it differs, and the difference cannot be described: KeyError('nobody')"
    ]
