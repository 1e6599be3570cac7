"""Triton's tutorials as tests: what each of them checks, without its benchmarks and without cuBLAS.

It is copied beside them. It is loaded by the Python of the suite, and needs nothing of this repository.
"""

import runpy

import pytest
import torch
import triton
from triton._C.libtriton import nvidia

CALLS = {
    "01-vector-add": [],
    "02-fused-softmax": [],
    "04-low-memory-dropout": [],
    "05-layer-norm": [],
    "07-extern-functions": [],
    "09-persistent-matmul": [("validate", 32, 32, 32, torch.float16)],
    "10-block-scaled-matmul": [("validate_block_scaled", 256, 256, 512, kind) for kind in ("nvfp4", "mxfp4", "mxfp8")],
    "11-programmatic-dependent-launch": [("validate", 1024)],
}
"""What is called after a file has run: 09 to 11 check in functions. 01, 04 and 07 compare nothing. 06 has tests."""


@pytest.mark.parametrize("name", CALLS)
def test_tutorial(name, monkeypatch, capsys):
    monkeypatch.setattr(triton.testing.Mark, "run", lambda *arguments, **options: None)
    monkeypatch.setattr(nvidia.cublas, "CublasLt", lambda workspace: None)
    tutorial = runpy.run_path(f"{name}.py")
    for function, *arguments in CALLS[name]:
        tutorial[function](*arguments)
    assert "❌" not in capsys.readouterr().out
