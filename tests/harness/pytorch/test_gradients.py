"""Gradients of the functions, checked against PyTorch's own, with tensors on the CPU in place of a GPU's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
functions = pytest.importorskip("harness.pytorch")
on_cpu = pytest.importorskip("pytorch_on_cpu")
from torch.nn import functional  # noqa: E402

M, N, K = 24, 48, 64


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    return on_cpu.FakeGpu(monkeypatch)


def draw(*size: int):
    return torch.randn(size, generator=torch.Generator().manual_seed(len(size) + sum(size))).bfloat16()


def swiglu(x):
    gate, up = (x.view(len(x), -1, 2, 8)[:, :, n].flatten(1) for n in range(2))
    return functional.silu(gate) * up


CASES = {
    "product": ({}, lambda p, _: p),
    "bias": ({"bias": draw(N)}, lambda p, given: p + given["bias"]),
    "residual": (
        {"residual": draw(M, N), "alpha": 0.5, "beta": 2.0},
        lambda p, given: 0.5 * p + 2.0 * given["residual"],
    ),
    "relu": ({"activation": "relu"}, lambda p, _: p.relu()),
    "bias-gelu": (
        {"bias": draw(N), "activation": "gelu"},
        lambda p, given: functional.gelu(p + given["bias"], approximate="tanh"),
    ),
    "silu": ({"activation": "silu"}, lambda p, _: functional.silu(p)),
    "swiglu": ({"activation": "swiglu"}, lambda p, _: swiglu(p)),
    "float32": ({"out_dtype": torch.float32}, lambda p, _: p),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [M, 1, 5])
def test_gradients_are_those_of_pytorch(name, rows):
    options, formula = CASES[name]
    options = {key: value[:rows] if key == "residual" else value for key, value in options.items()}
    ours = {"a": draw(M, K)[:rows], "b": draw(N, K)} | {k: v for k, v in options.items() if torch.is_tensor(v)}
    ours = {key: value.clone().requires_grad_() for key, value in ours.items()}
    exact = {key: value.detach().double().requires_grad_() for key, value in ours.items()}
    rest = {key: value for key, value in options.items() if not torch.is_tensor(value)}
    c = functions.matmul(**ours, **rest)
    expected = formula(exact["a"] @ exact["b"].t(), exact)
    of_c = draw(*c.shape)
    c.backward(of_c.to(c.dtype))
    expected.backward(of_c.double())
    assert (c.double() - expected).abs().max() <= 2.0**-7 * expected.abs().max()
    for key, value in ours.items():
        assert value.grad.dtype == value.dtype and value.grad.shape == value.shape
        error = (value.grad.double() - exact[key].grad).abs().max()
        assert error <= 2.0**-6 * exact[key].grad.abs().max(), key


def test_only_the_gradients_that_are_wanted_are_computed(gpu):
    a = draw(M, K).requires_grad_()
    functions.matmul(a, draw(N, K)).sum().backward()
    assert len(gpu.launched) == 2
    with torch.no_grad():
        assert not functions.matmul(a, draw(N, K)).requires_grad


def test_the_gradients_read_a_and_b_as_they_lie(gpu):
    a, b = draw(M, K).requires_grad_(), draw(N, K).requires_grad_()
    functions.matmul(a, b).sum().backward()
    _, of_a, of_b = gpu.launched
    assert (of_a.config.layout, of_b.config.layout) == ("nn", "tn")
    assert of_a.b == b.data_ptr() and of_b.b == a.data_ptr() and of_a.a == of_b.a


def test_what_has_no_gradient_says_so_when_it_is_asked_for_it():
    a = draw(M, K).requires_grad_()
    wide = draw(128, K)
    sizes = torch.tensor([M], dtype=torch.int32)
    for c, message in [
        (functions.grouped_matmul(a, draw(1, N, K), sizes), "grouped_matmul has no gradient"),
        (functions.matmul(a, wide, out_dtype=torch.float8_e4m3fn)[0], "a quantised C has no gradient"),
    ]:
        with pytest.raises(NotImplementedError, match=message):
            c.float().sum().backward()


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_gradient_has_no_gradient(activation):
    a = draw(M, K).requires_grad_()
    c = functions.matmul(a, draw(N, K), bias=draw(N) if activation else None, activation=activation)
    [of_a] = torch.autograd.grad(c.square().sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        of_a.sum().backward()


def test_out_takes_no_gradient():
    a, out = draw(M, K).requires_grad_(), draw(M, N)
    with pytest.raises(ValueError, match=r"a tensor requires a gradient and out is given: .*torch.no_grad"):
        functions.matmul(a, draw(N, K), out=out)
    with torch.no_grad():
        assert functions.matmul(a, draw(N, K), out=out) is out


def test_out_that_requires_a_gradient_is_not_overwritten():
    out = torch.zeros(M, N).bfloat16().requires_grad_()
    with pytest.raises(ValueError, match=r"a tensor requires a gradient and out is given: .*torch.no_grad"):
        functions.matmul(draw(M, K), draw(N, K), out=out)
    assert not out.any()
    with torch.no_grad():
        assert functions.matmul(draw(M, K), draw(N, K), out=out) is out and out.any()
