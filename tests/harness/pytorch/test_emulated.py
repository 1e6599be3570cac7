"""PyTorch's functions on the emulated GPU: kernels, tables and launches are the true ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from driver_programs import run as run_program

pytest.importorskip("torch")
PROGRAM = Path(__file__).parents[2] / "support" / "pytorch_on_emulated_gpu.py"


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("harness/pytorch/", "harness/launch/launcher", "kernels/host/")
def test_functions_compute_on_the_gpu_what_pytorch_does(capfd):
    done = run_program(capfd, "h100", sys.executable, PROGRAM)
    assert done.code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    assert len(found) == 7 and all(found.values()), found
    assert len(done.log.launches) == 6 and not any(launch.error for launch in done.log.launches)
