"""The CUDA programs in tests/data/cuda, as modules: parsed once, translated once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from emugpu.emulator import Module

FOLDER = Path(__file__).parents[1] / "data" / "cuda"


@cache
def cuda(name: str, target: str = "sm_100a") -> Module:
    """The module of ``name.cu``; the PTX holds nothing that only one architecture has, so the target may be changed."""
    text = (FOLDER / f"{name}.ptx").read_text()
    return Module.from_text(text.replace(".target sm_100a", f".target {target}"))
