"""Where things are: the checkout with its Mojo sources, the results and the build cache."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from harness.errors import CannotRun

ROOT = Path(__file__).resolve().parents[1]


def kernels_dir() -> Path:
    """The folder of the Mojo sources, which lies beside the package in a checkout."""
    path = ROOT / "kernels"
    if not path.is_dir():
        raise CannotRun(f"no Mojo sources at {path}: install the harness from a checkout with `pip install -e .`")
    return path


def results_dir() -> Path:
    """The folder of the result records; HARNESS_RESULTS_DIR overrides it."""
    override = os.environ.get("HARNESS_RESULTS_DIR")
    return Path(override) if override else ROOT / "results"


def cache_dir() -> Path:
    """The folder of the build cache; HARNESS_CACHE_DIR overrides it."""
    override = os.environ.get("HARNESS_CACHE_DIR")
    return Path(override) if override else platformdirs.user_cache_path("blackwell-matmul-lab")
