"""What the tests share: kernels compiled once, and results that go to a temporary folder."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.build import Artifact, build
from harness.build import planner as compiled_planner
from harness.catalog import KERNELS
from harness.config import make_config
from harness.presets import configure

CLUSTERS = ((2, 1), (4, 1), (2, 2), (4, 2), (4, 4))


@pytest.fixture(autouse=True)
def results_dir(tmp_path, monkeypatch) -> Path:
    """Records of tests never go to the checkout."""
    path = tmp_path / "results"
    monkeypatch.setenv("HARNESS_RESULTS_DIR", str(path))
    return path


@contextmanager
def one_worker_at_a_time(tmp_path_factory, what: str):
    """The workers of pytest-xdist take turns, so that only the first one compiles. Yields a shared folder."""
    shared = tmp_path_factory.getbasetemp().parent
    with open(shared / f"{what}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield shared


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory) -> dict[tuple[int, int], Artifact]:
    """kernel6 by cluster shape: one compilation for the whole session, none if the build cache has them."""
    with one_worker_at_a_time(tmp_path_factory, "build"):
        built = build([make_config("kernel6", cluster=cluster) for cluster in CLUSTERS])
    return dict(zip(CLUSTERS, built, strict=True))


@pytest.fixture(scope="session")
def series(tmp_path_factory) -> dict[str, Artifact]:
    """Every kernel with its defaults in a 2x1 cluster, and one stage for the preset ``2cta``."""
    small = [make_config(kernel, cluster=(2, 1)) for kernel in KERNELS]
    with one_worker_at_a_time(tmp_path_factory, "build"):
        built = build([*small, *(configure(kernel, "2cta", stages=1) for kernel in KERNELS)])
    return dict(zip(KERNELS, built, strict=False))


Planner = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def planner(tmp_path_factory) -> Planner:
    """Runs `plan M N K name=value ...` of ``kernels/plan.mojo``; compiled once, no kernel is."""
    with one_worker_at_a_time(tmp_path_factory, "planner"):
        program = compiled_planner()

    def run(m: int = 512, n: int = 512, k: int = 512, **options: object) -> subprocess.CompletedProcess[str]:
        words = [str(m), str(n), str(k), *(f"{name}={value}" for name, value in options.items())]
        return subprocess.run([program, *words], capture_output=True, text=True, timeout=60)

    return run
