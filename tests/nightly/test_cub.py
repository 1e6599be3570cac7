"""CUB and Thrust, as the CUDA toolkit has them: each algorithm gives the host's result, and its verdict is clean."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import ROOT

SOURCE = ROOT / "tests" / "nightly" / "cub" / "algorithms.cu"
HALVES = (
    ("DeviceReduce", "DeviceReduce-ArgMin", "DeviceReduce-ByKey", "DeviceRunLengthEncode", "DevicePartition-If",
     "DeviceScan-ByKey", "DeviceScan-Exclusive", "DeviceScan-Inclusive", "DeviceSelect-If", "DeviceSelect-Unique"),
    ("DeviceHistogram", "DeviceMergeSort", "DeviceRadixSort-Keys", "DeviceRadixSort-Pairs", "DeviceSegmentedReduce",
     "DeviceTransform", "thrust-exclusive_scan", "thrust-reduce", "thrust-sort", "thrust-unique_copy"),
)  # fmt: skip
NVCC = shutil.which("nvcc")

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(NVCC is None, reason="nvcc is not on PATH")]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The two programs, which contain PTX for the emulated GPU."""
    folder = tmp_path_factory.mktemp("cub")
    made = [folder / f"half{half}" for half in range(2)]
    options = ["-std=c++17", "-cudart", "shared", "-gencode", "arch=compute_90a,code=compute_90a"]
    for half, to in enumerate(made):
        subprocess.run(["nvcc", *options, f"-DHALF={half}", SOURCE, "-o", to], check=True, capture_output=True)
    return made


@pytest.mark.parametrize(("half", "name"), [(half, name) for half, names in enumerate(HALVES) for name in names])
def test_an_algorithm_of_cub_is_clean(half, name, programs):
    libraries = Path(NVCC or "").resolve().parents[1] / "lib64"
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-m", "emugpu", "verify", "--gpu", "h200", "--", programs[half], name],
        capture_output=True, text=True, check=False, env=environment, timeout=300,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert f"{name}: right" in said, said
    assert done.returncode == 0 and said.rstrip().endswith(f"{name}: clean"), said
