"""`harness run --device emulated-gpu` before anything is compiled: what is chosen, and what is refused."""

import pytest

from harness.compile.config import find_kernel, make_config
from harness.problem import Shape
from harness.run.runner import EMULATED_GPU, Request, choose_device


@pytest.mark.parametrize(("arch", "kind"), [("sm_100a", "emulated-b200"), ("sm_90a", "emulated-h200")])
def test_its_records_are_apart(arch, kind):
    request = Request(make_config("kernel7", arch=arch), Shape(256, 256, 64), through_max=True)
    assert request.device_kind == kind


def test_it_is_the_emulator_for_the_architecture_asked_for():
    kernel = find_kernel("kernel7")
    assert choose_device(EMULATED_GPU, kernel, "auto") == (None, kernel.archs[0])
    assert choose_device(EMULATED_GPU, kernel, "sm_90a") == (None, "sm_90a")
