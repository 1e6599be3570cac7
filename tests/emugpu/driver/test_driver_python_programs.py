"""Python programs on the emulated GPU, compiled and launched by the runtimes of Triton, CuTe DSL, numba and TileLang.

They are skipped where their packages are absent. EMULATED_GPU_PYTHONS may name further Pythons that have some, as a
path (several with colons between them): Triton's has to be without torch, numba's without nvJitLink.
"""

import os
import subprocess
import sys

import pytest
from driver_programs import PROGRAMS, run

from emugpu.paths import ROOT


def python_with(*packages, without=()):
    """The first Python that has all of these packages and none of the others; skips the test if there is none."""
    script = (
        "import importlib.metadata, sys\n"
        "have = {each.name.lower().replace('_', '-') for each in importlib.metadata.distributions()}\n"
        f"sys.exit(not have >= {set(packages)!r} or bool(have & {set(without) or '{0}'!s}))"
    )
    for python in [sys.executable, *filter(None, os.environ.get("EMULATED_GPU_PYTHONS", "").split(":"))]:
        if subprocess.run([python, "-c", script], timeout=60).returncode == 0:
            return python
    pytest.skip(f"no Python with {', '.join(packages)} and without {', '.join(without) or 'anything'}")


@pytest.mark.parametrize("gpu", ["b200", "h200"])
def test_a_triton_gemm(capfd, gpu):
    python = python_with("triton", "numpy", without=["torch"])
    done = run(capfd, gpu, python, PROGRAMS / "python/triton_gemm.py")
    assert (done.out, done.code) == ("Triton GEMM of 200 x 136 x 96: 0 wrong\n", 0)
    (launch,) = done.log.launches
    assert (launch.kernel, launch.grid, launch.block) == ("matmul", (2, 3, 1), (128, 1, 1))
    # Four warps, each with its part of six tiles of 128 x 64 x 96.
    assert launch.counters.mma_instructions > 0


def test_a_cute_dsl_gemm(capfd, monkeypatch):
    """Its host code packs the tensor maps itself, and hands over machine code, whose PTX is found by its names."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    python = python_with("nvidia-cutlass-dsl", "ml-dtypes", "numpy")
    done = run(capfd, "b200", python, PROGRAMS / "python/cute_gemm.py")
    assert "CuTe DSL GEMM of 256 x 128 x 192: 0 wrong\n" in done.out
    assert done.code == 0 and not done.log.failure
    (launch,) = done.log.launches
    # Four tiles of 128 x 64 with three steps along K: a box of A and one of B in each.
    assert launch.counters.tma_loads == 4 * 3 * 2


def test_a_numba_vector_add(capfd):
    python = python_with("numba-cuda", "nvidia-nvvm", without=["nvidia-nvjitlink"])
    done = run(capfd, "h200", python, PROGRAMS / "python/numba_add.py")
    assert (done.out, done.code) == ("numba vector add on NVIDIA H200 of 1000 elements: 0 wrong\n", 0)
    assert [launch.grid for launch in done.log.launches] == [(8, 1, 1)]


@pytest.mark.slow
def test_a_tilelang_gemm(capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    python = python_with("tilelang", "torch", "numpy")
    done = run(capfd, "h100", python, PROGRAMS / "python/tilelang_gemm.py")
    assert "TileLang GEMM of 128 x 64 x 96: 0 wrong\n" in done.out
    assert done.code == 0 and [launch.grid for launch in done.log.launches] == [(1, 2, 1)]
