"""The products as PyTorch differentiates them: the gradients of A and B are products by the same kernels.

With C = activation(alpha * A . B^T + bias) or alpha * A . B^T + beta * residual, and G the gradient of the sum: that of
A is alpha * G . B, that of B alpha * G^T . A, that of the bias the sum of G's rows, that of the residual beta * G. G, A
and B are read as they lie. An activation costs one product more, because what it was given is computed again. PyTorch
raises RuntimeError if a gradient of these gradients is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import is_grad_enabled
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling
from torch.nn import functional

from harness.pytorch.calls import Product, run
from harness.pytorch.checks import Asked
from harness.pytorch.operator import call_operator

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes whose tensors nothing but the GPU looks at, unless a compiler, a mode or a transform of torch.func is active.
"""
count_modes, transforms = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack
SWIGLU_COLUMNS = 8
"""Columns of gates, and behind them as many of what they gate (docs/epilogues.md)."""


def product(
    asked: tuple[Any, ...],
    a: torch.Tensor,
    b: torch.Tensor,
    first: torch.Tensor | None,
    second: torch.Tensor | None,
    group_sizes: torch.Tensor | None,
    out: torch.Tensor | None,
    alpha: float,
    beta: float,
    c_scale: float,
) -> Product:
    """Computes the product, with a gradient if one is wanted. The arguments are those of `run`."""
    if (
        a.requires_grad
        or b.requires_grad
        or (first is not None and first.requires_grad)
        or (second is not None and second.requires_grad)
        or (out is not None and out.requires_grad)
    ) and is_grad_enabled():
        if out is not None:
            rule = "out takes no gradient; leave it out, or call under torch.no_grad()"
            raise ValueError(f"a tensor requires a gradient and out is given: {rule}")
        found: Product = _Product.apply(asked, a, b, first, second, group_sizes, alpha, beta, c_scale)
        return found
    if (
        is_compiling()
        or count_modes()
        or transforms() is not None
        or not (
            type(a) in PLAIN
            and not a.is_neg()
            and type(b) in PLAIN
            and not b.is_neg()
            and (first is None or (type(first) in PLAIN and not first.is_neg()))
            and (second is None or (type(second) in PLAIN and not second.is_neg()))
            and (group_sizes is None or (type(group_sizes) in PLAIN and not group_sizes.is_neg()))
            and (out is None or (type(out) in PLAIN and not out.is_neg()))
        )
    ):
        return call_operator(asked, a, b, first, second, group_sizes, out, alpha, beta, c_scale)
    return run(asked, a, b, first, second, group_sizes, out, None, alpha, beta, c_scale)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        asked: tuple[Any, ...],
        a: torch.Tensor,
        b: torch.Tensor,
        first: torch.Tensor | None,
        second: torch.Tensor | None,
        group_sizes: torch.Tensor | None,
        alpha: float,
        beta: float,
        c_scale: float,
    ) -> Product:
        ctx.asked, ctx.alpha, ctx.beta = asked, alpha, beta
        ctx.save_for_backward(a, b, first)
        found = product(asked, a, b, first, second, group_sizes, None, alpha, beta, c_scale)
        ctx.reason = _reason(Asked(*asked), group_sizes, found)
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *of_c: Any) -> tuple[Any, ...]:
        if ctx.reason:
            raise NotImplementedError(f"{ctx.reason} has no gradient; call it under torch.no_grad(), or on .detach()")
        (a, b, bias), asked, given = ctx.saved_tensors, Asked(*ctx.asked), of_c[0]
        if asked.activation is not None:
            given = _before_activation(asked, a, b, bias, given)
        given = given.to(a.dtype)
        scaled = given if ctx.alpha == 1 else given * ctx.alpha
        scaled = scaled.contiguous()  # the gradient of a sum is one number for all elements
        of_a = of_b = of_bias = of_residual = None
        if ctx.needs_input_grad[1]:
            of_a = _multiply(scaled, b.t())
        if ctx.needs_input_grad[2]:
            of_b = _multiply(scaled.t(), a.t())
        if ctx.needs_input_grad[3]:
            of_bias = given.sum(0)
        if ctx.needs_input_grad[4]:
            of_residual = given if ctx.beta == 1 else given * ctx.beta
        return None, of_a, of_b, of_bias, of_residual, None, None, None, None


def _reason(asked: Asked, group_sizes: torch.Tensor | None, found: Product) -> str:
    """Returns what it is that has no gradient, or nothing."""
    if asked.dtype:
        return "scaled_matmul"
    if group_sizes is not None:
        return "grouped_matmul"
    return "" if isinstance(found, torch.Tensor) else "a quantised C"


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns A . B^T in their type, with the configuration that suits the problem."""
    found = product(("", None, None, "kernel8", True, ()), a, b, None, None, None, None, 1.0, 1.0, 1.0)
    assert isinstance(found, torch.Tensor)
    return found


def _before_activation(
    asked: Asked, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, of_c: torch.Tensor
) -> torch.Tensor:
    """Returns the gradient of what the activation was given, from that of C. It is computed again, in float32."""
    before = product(("", None, torch.float32, "kernel8", True, ()), a, b, bias, None, None, None, 1.0, 1.0, 1.0)
    assert isinstance(before, torch.Tensor)
    with torch.enable_grad():
        before = before.detach().requires_grad_()
        after = ACTIVATIONS[asked.activation](before)
        return torch.autograd.grad(after, before, of_c.float())[0]


def _swiglu(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.view(len(x), -1, 2, SWIGLU_COLUMNS).unbind(2)
    return (functional.silu(gate) * up).flatten(1)


ACTIVATIONS: dict[str | None, Any] = {
    "relu": functional.relu,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "swiglu": _swiglu,
}
"""The activations of `harness.epilogues`, as PyTorch computes them."""
