"""What other compilers make, and runs on hardware every day, has no error: kernels of nvcc, Triton and CuTe."""

from __future__ import annotations

import pytest

from harness.launch.check import CheckOptions, check
from harness.launch.launch_file import read_launch_file
from harness.paths import ROOT

FILES = sorted((ROOT / "tests" / "data" / "launches").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_kernel_of_another_compiler_has_no_error(file):
    [checked] = check([read_launch_file(file)], CheckOptions(schedules=2))
    assert [f"{finding.rule}: {finding.message}" for finding in checked.report.errors] == []
    assert checked.is_sound


def test_there_are_kernels_of_three_compilers():
    assert {file.stem.split("_")[0] for file in FILES} == {"nvcc", "triton", "cute"}
    assert len(FILES) >= 20
