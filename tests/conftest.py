"""What the tests share: kernels compiled once, and results that go to a temporary folder."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from harness.build import Artifact, build
from harness.config import make_config

CLUSTERS = ((2, 1), (4, 1), (2, 2), (4, 2), (4, 4))


@pytest.fixture(autouse=True)
def results_dir(tmp_path, monkeypatch) -> Path:
    """Records of tests never go to the checkout."""
    path = tmp_path / "results"
    monkeypatch.setenv("HARNESS_RESULTS_DIR", str(path))
    return path


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory) -> dict[tuple[int, int], Artifact]:
    """kernel6 by cluster shape: one compilation for the whole session, none if the build cache has them.

    The workers of pytest-xdist take turns, so that only the first one compiles.
    """
    with open(tmp_path_factory.getbasetemp().parent / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = build([make_config("kernel6", cluster=cluster) for cluster in CLUSTERS])
    return dict(zip(CLUSTERS, built, strict=True))
