"""The products as PyTorch differentiates them: the gradients of A and B are products by the same kernels.

C is S or activation(S), and S is alpha * A . B^T + bias or alpha * A . B^T + beta * residual. If G is the gradient of
S, the gradient of A is alpha * G . B, that of B alpha * G^T . A, that of the bias the sum of G's rows, and that of the
residual beta * G. The kernels read G, A and B as they lie. An activation costs one product more, which computes S
again. PyTorch raises RuntimeError if a gradient of these gradients is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import is_grad_enabled
from torch.autograd.function import once_differentiable
from torch.compiler import is_dynamo_compiling
from torch.nn import functional

from harness.launch.configure import AUTO
from harness.pytorch.calls import Product, run
from harness.pytorch.checks import Asked, Numbers, Tensors
from harness.pytorch.operator import call_operator

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that only the GPU looks at, unless Dynamo, a mode or a transform of torch.func is active. (What
torch.export traces without Dynamo has another class.)
"""
count_modes, transforms_are_active = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
SWIGLU_COLUMNS = 8
"""Columns of gates, and behind them as many of what they gate (docs/epilogues.md)."""


def product(asked: tuple[Any, ...], tensors: Tensors, numbers: Numbers) -> Product:
    """Computes the product, with a gradient if one is wanted. The arguments are those of `run`."""
    seen = is_dynamo_compiling() or count_modes() or transforms_are_active()
    for x in tensors:
        if x is not None:
            if x.requires_grad and is_grad_enabled():
                return _with_gradient(asked, tensors, numbers)
            seen = seen or type(x) not in PLAIN or x.is_neg()
    return (call_operator if seen else run)(asked, tensors, numbers)


def _with_gradient(asked: tuple[Any, ...], tensors: Tensors, numbers: Numbers) -> Product:
    *given, out = tensors
    if out is not None:
        rule = "out takes no gradient; leave it out, or call under torch.no_grad()"
        raise ValueError(f"a tensor requires a gradient and out is given: {rule}")
    found: Product = _Matmul.apply(asked, numbers, *given)
    return found


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        asked: tuple[Any, ...],
        numbers: Numbers,
        a: torch.Tensor,
        b: torch.Tensor,
        first: torch.Tensor | None,
        second: torch.Tensor | None,
        group_sizes: torch.Tensor | None,
    ) -> Product:
        ctx.asked, ctx.numbers = asked, numbers
        ctx.save_for_backward(a, b, first)
        found = product(asked, (a, b, first, second, group_sizes, None), numbers)
        ctx.reason = _reason(Asked(*asked), group_sizes, found)
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *of_c: Any) -> tuple[Any, ...]:
        if ctx.reason:
            raise NotImplementedError(f"{ctx.reason} has no gradient; call it under torch.no_grad(), or on .detach()")
        (a, b, bias), asked, of_s = ctx.saved_tensors, Asked(*ctx.asked), of_c[0]
        alpha, beta, _ = ctx.numbers
        if asked.activation is not None:
            of_s = _before_activation(asked, a, b, bias, of_s)
        of_s = of_s.to(a.dtype)
        scaled = of_s if alpha == 1 else of_s * alpha
        scaled = scaled.contiguous()  # the gradient of a sum is one number for all elements
        of_a = of_b = of_bias = of_residual = None
        if ctx.needs_input_grad[2]:
            of_a = _multiply(scaled, b.t())
        if ctx.needs_input_grad[3]:
            of_b = _multiply(scaled.t(), a.t())
        if ctx.needs_input_grad[4]:
            of_bias = of_s.sum(0)
        if ctx.needs_input_grad[5]:
            of_residual = of_s if beta == 1 else of_s * beta
        return None, None, of_a, of_b, of_bias, of_residual, None


def _reason(asked: Asked, group_sizes: torch.Tensor | None, found: Product) -> str:
    """Returns the name of what has no gradient, or an empty one."""
    if asked.dtype:
        return "scaled_matmul"
    if group_sizes is not None:
        return "grouped_matmul"
    return "" if isinstance(found, torch.Tensor) else "a quantised C"


def _multiply(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Returns A . B^T + bias, in the type of A unless another is given, by the configuration that suits the problem."""
    found = product(("", None, out_dtype, AUTO, True, ()), (a, b, bias, None, None, None), (1.0, 1.0, 1.0))
    assert isinstance(found, torch.Tensor)
    return found


def _before_activation(
    asked: Asked, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, of_c: torch.Tensor
) -> torch.Tensor:
    """Returns the gradient of S from that of C. It computes S again, in float32."""
    s = _multiply(a, b, bias, torch.float32)
    with torch.enable_grad():
        s = s.detach().requires_grad_()
        return torch.autograd.grad(ACTIVATIONS[asked.activation](s), s, of_c.float())[0]


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
