"""The verdict that is reached on the GPU, which PyTorch's tensors on the CPU stand for, is that of the details."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.build.config import make_config
from harness.problem import Shape
from harness.run import worker

torch = pytest.importorskip("torch")
SHAPE = Shape(96, 136, 64)


def request_for(dtype: str, kind: str) -> worker.Request:
    config = make_config("kernel6", arch="sm_90a", dtype=dtype, cluster=(2, 1))
    return worker.Request(config, "", (128, 256), SHAPE, kind, 1, 1.0, False, False, True, None)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device, **words: empty(*size, **words))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", ["normal", "integer", "index"])
def test_the_same_elements_are_wrong(dtype, kind):
    """An output that is right, and then one element of it after another further and further off."""
    request = request_for(dtype, kind)
    c, a, b = worker._operands(request, getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}[dtype]), 0)
    right = (a.double() @ b.double().t()).to(c.dtype)
    assert worker._is_right(request, a, b, right) and worker._validate(request, a, b, right)["passed"]
    seen = set()
    generator = np.random.default_rng(4)
    for steps in (1, 1, 1, 1, 2, 3, -1, -2, 40):
        row, column = generator.integers(SHAPE.m), generator.integers(SHAPE.n)
        c.copy_(right)
        c.view(torch.int16)[row, column] += steps
        passed = worker._validate(request, a, b, c)["passed"]
        assert worker._is_right(request, a, b, c) == passed
        seen.add(passed)
    assert False in seen
    c.copy_(right)
    c[5, 7] = float("nan")
    assert not worker._is_right(request, a, b, c)


def test_what_is_not_right_gets_its_details(tmp_path: Path):
    request = request_for("bf16", "integer")
    request.details = False
    a, b = (torch.randint(-4, 5, size).to(torch.bfloat16) for size in ((SHAPE.m, SHAPE.k), (SHAPE.n, SHAPE.k)))
    right = (a.float() @ b.float().t()).to(torch.bfloat16)
    wrong = right.clone()
    wrong[3, 100] += 64
    assert worker._validate_all(request, [(right, a, b), (right, a, b)]) == {"passed": True}
    found = worker._validate_all(request, [(right, a, b), (wrong, a, b)])
    assert not found["passed"] and found["mismatches"] == 1
    request.details = True
    assert worker._validate_all(request, [(right, a, b)])["relative_frobenius_error"] == 0
