"""The figures of GPUs: one file each; the kernels, which are Mojo, have the same."""

from __future__ import annotations

import re

import pytest

from harness import paths
from harness.emulator.machine.grid import residency
from harness.gpus import facts, names, usual_gpu


def test_the_kernels_know_the_same_gpcs():
    text = (paths.kernels_dir() / "common" / "residency.mojo").read_text(encoding="utf-8")
    [blackwell, hopper] = re.findall(r"\[((?:\d+(?:, )?)+)\]", text)
    assert tuple(map(int, blackwell.split(", "))) == usual_gpu("sm_100a").gpcs
    assert tuple(map(int, hopper.split(", "))) == usual_gpu("sm_90a").gpcs


@pytest.mark.parametrize("name", names())
def test_peaks_agree_with_each_other(name):
    """The peak is what all SMs multiply at a clock that such a GPU has."""
    gpu = facts(name)
    hertz = gpu.tflops * 1e12 / (2 * gpu.multiplications * gpu.sms)
    assert 1.7e9 < hertz < 2.0e9 and gpu.source


@pytest.mark.parametrize(("target", "sms"), [("sm_90", 132), ("sm_90a", 132), ("sm_100a", 148), ("sm_100f", 148)])
def test_the_emulated_gpu_has_the_sms_of_the_usual_one(target, sms):
    assert usual_gpu(target).sms == sms == residency(target, 1, 200 * 1024, 128, None)


def test_clusters_fit_into_gpcs_as_an_h200_answered():
    assert [facts("h200").resident_clusters(size) for size in (2, 4, 8, 16)] == [66, 30, 15, 7]
