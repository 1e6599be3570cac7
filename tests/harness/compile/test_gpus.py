"""The figures of GPUs: one file each; the kernels, which are Mojo, have the same."""

from __future__ import annotations

import re

import pytest

from emugpu.emulator.machine.grid import residency
from emugpu.errors import CannotRun
from emugpu.gpus import check_target, facts, names, usual_gpu
from harness import paths


def test_the_kernels_know_the_same_gpcs():
    text = (paths.kernels_dir() / "common" / "schedule.mojo").read_text(encoding="utf-8")
    [blackwell, hopper] = re.findall(r"\[((?:\d+(?:, )?)+)\]", text)
    assert tuple(map(int, blackwell.split(", "))) == usual_gpu("sm_100a").gpcs
    assert tuple(map(int, hopper.split(", "))) == usual_gpu("sm_90a").gpcs


@pytest.mark.parametrize("name", names())
def test_peaks_agree_with_each_other(name):
    """The peak is what all SMs multiply at a clock that such a GPU has."""
    gpu = facts(name)
    hertz = gpu.tflops * 1e12 / (2 * gpu.multiplications * gpu.sms)
    assert 1.7e9 < hertz < (2.0e9 if name in ("b200", "b300", "h100", "h200") else 2.6e9) and gpu.source


@pytest.mark.parametrize(("target", "sms"), [("sm_90", 132), ("sm_100a", 148), ("sm_100f", 148), ("sm_103a", 148)])
def test_the_emulated_gpu_has_the_sms_of_the_usual_one(target, sms):
    assert usual_gpu(target).sms == sms == residency(target, 1, 200 * 1024, 128, None)


def test_clusters_fit_into_gpcs_as_an_h200_answered():
    assert [facts("h200").resident_clusters(size) for size in (2, 4, 8, 16)] == [66, 30, 15, 7]


@pytest.mark.parametrize(
    ("target", "on"),
    [
        ("sm_80", ["9.0", "10.0", "10.3", "12.0"]),
        ("sm_90a", ["9.0"]),
        ("sm_100", ["10.0", "10.3", "12.0"]),
        ("sm_100a", ["10.0"]),
        ("sm_100f", ["10.0", "10.3"]),
        ("sm_103", ["10.3", "12.0"]),
    ],
)
def test_ptx_runs_on_the_gpus_of_its_target(target, on):
    def runs(capability: str) -> bool:
        try:
            check_target(target, capability, "a GPU")
        except CannotRun as error:
            assert str(error) == f"the PTX is for {target}, and a GPU has compute capability {capability}; emulate it"
            return False
        return True

    assert [capability for capability in ("9.0", "10.0", "10.3", "12.0") if runs(capability)] == on
