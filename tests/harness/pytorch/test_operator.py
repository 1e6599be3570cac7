"""What torch.compile and PyTorch's modes see of a call, with tensors on the CPU in place of a GPU's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
functions = pytest.importorskip("harness.pytorch")
on_cpu = pytest.importorskip("pytorch_on_cpu")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from harness.pytorch import operator  # noqa: E402

pytestmark = pytest.mark.slow
M, N, K = 40, 48, 64


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    return on_cpu.FakeGpu(monkeypatch)


def draw(*size: int):
    return torch.randint(-3, 4, size).bfloat16()


A, B, BIAS, RESIDUAL = draw(M, K), draw(N, K), draw(N), draw(M, N)
PRODUCT = A.double() @ B.double().t()
OPTIONS = [
    ({}, PRODUCT),
    ({"bias": BIAS, "activation": "relu"}, (PRODUCT + BIAS.double()).relu()),
    ({"residual": RESIDUAL, "alpha": 0.5}, PRODUCT / 2 + RESIDUAL.double()),
    ({"out_dtype": torch.float32, "cluster": (2, 1)}, PRODUCT),
]


def test_torch_compile_traces_the_functions_whole():
    compiled = torch.compile(functions.matmul, fullgraph=True, backend="aot_eager")
    for options, expected in OPTIONS:
        assert torch.equal(compiled(A, B, **options), expected.to(options.get("out_dtype", torch.bfloat16)))
    into = torch.zeros(M, N).bfloat16()
    assert torch.equal(compiled(A, B, out=into), into) and torch.equal(into, PRODUCT.bfloat16())


def test_torch_export_sees_the_operator():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(B, requires_grad=False)

        def forward(self, a):
            return functions.matmul(a, self.weight)

    for strict in (False, True):
        exported = torch.export.export(Model(), (A,), strict=strict)
        assert "blackwell_lab.gemm" in str(exported.graph)
        assert torch.equal(exported.module()(A), PRODUCT.bfloat16())


def test_torch_compile_of_a_product_with_gradients():
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    compiled = torch.compile(lambda x, y: functions.matmul(x, y) * 2, fullgraph=True, backend="aot_eager")
    compiled(a, b).backward(RESIDUAL)
    assert torch.equal(a.grad, (2 * RESIDUAL.double() @ B.double()).bfloat16())
    assert torch.equal(b.grad, (2 * RESIDUAL.double().t() @ A.double()).bfloat16())


def test_what_compiles_may_have_other_rows_the_next_time(gpu):
    compiled = torch.compile(functions.matmul, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (16, 24, 40):
        assert torch.equal(compiled(A[:rows], B), PRODUCT[:rows].bfloat16())
    assert [shape.m for _, shape in gpu.prepared] == [16, 24, 40]


@pytest.mark.parametrize("options", [options for options, _ in OPTIONS], ids=lambda options: "-".join(options))
def test_the_operator_is_what_its_schema_says(options):
    given = {"bias": None, "activation": None, "residual": None, "alpha": 1.0, "out_dtype": None} | options
    out = torch.zeros(M, N, dtype=given["out_dtype"] or torch.bfloat16)
    more = tuple((name, options[name]) for name in ("cluster",) if name in options)
    asked = operator._to_text(("", given["activation"], given["out_dtype"], "kernel8", True, more))
    arguments = (out, None, A, B, given["bias"], given["residual"], None, given["alpha"], 1.0, 1.0, asked)
    torch.library.opcheck(torch.ops.blackwell_lab.gemm.default, arguments)


def test_what_is_asked_for_goes_through_the_operator_as_text():
    for asked in [
        ("", None, None, "kernel8", True, ()),
        ("", "gelu", torch.float32, "kernel7", False, (("cluster", (2, 1)), ("multicast", False))),
        ("nvfp4", None, "mxfp8", "kernel9", False, ()),
    ]:
        assert operator._from_text(operator._to_text(asked)) == asked


def test_a_mode_sees_the_operator_and_an_ordinary_call_does_not_need_it(monkeypatch):
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(str(function))
            return function(*arguments, **(options or {}))

    with Mode():
        assert torch.equal(functions.matmul(A, B), PRODUCT.bfloat16())
    assert "blackwell_lab.gemm.default" in seen
    monkeypatch.setattr(torch.ops.blackwell_lab, "gemm", lambda *_: pytest.fail("the dispatcher was asked"))
    assert torch.equal(functions.matmul(A, B), PRODUCT.bfloat16())
