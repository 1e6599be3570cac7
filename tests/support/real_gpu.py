"""The GPUs of this machine, for tests that need one."""

from __future__ import annotations

import pytest

from emugpu.errors import CannotRun
from emugpu.gpus import arch_of_gpu
from harness.compile.compiler import find_gpus

GPUS = find_gpus()


def _arch() -> str | None:
    if not GPUS:
        return None
    try:
        return arch_of_gpu(*(int(part) for part in GPUS[0].compute_capability.split(".")))
    except CannotRun:
        return None


ARCH = _arch()
needs_gpu = pytest.mark.skipif(ARCH is None, reason="no GPU here that runs sm_90a or sm_100a kernels")
