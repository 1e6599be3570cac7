"""The CUDA programs in tests/data/cuda: as modules, parsed once and translated once, and in a launch file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from emugpu.emulator import Module

FOLDER = Path(__file__).parents[1] / "data" / "cuda"

SGEMM_LAUNCH = f"""ptx = "{FOLDER}/sgemm.ptx"
[buffers]
A = {{ dtype = "f32", shape = [32, 64], init = "integer" }}
B = {{ dtype = "f32", shape = [64, 32], init = "integer", seed = 3 }}
C = {{ dtype = "f32", shape = [32, 32], init = "nan" }}
[launch]
kernel = "sgemm"
grid = 1
block = [32, 32]
arguments = ["A", "B", "C", 32, 64]
[expect]
C = "A @ B"
"""
"""A launch file that is right."""


@cache
def cuda(name: str, target: str = "sm_100a") -> Module:
    """The module of ``name.cu``; the PTX holds nothing that only one architecture has, so the target may be changed."""
    text = (FOLDER / f"{name}.ptx").read_text()
    return Module.from_text(text.replace(".target sm_100a", f".target {target}"))
