"""The operator ``blackwell_lab::gemm``: what torch.compile, torch.export and PyTorch's modes see of a call.

It writes into C, which its caller allocates. A call that none of these needs to see runs the same code
(`harness.pytorch.calls.run`) without the dispatcher, because that takes as long as the launch.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from harness.pytorch.calls import Product, run
from harness.pytorch.checks import OUT_DTYPES, TORCH_TYPES, Asked, Numbers, Tensors, as_key, check

SCHEMA = (
    "gemm(Tensor(a!) out, Tensor(b!)? factors, Tensor a, Tensor b, Tensor? first, Tensor? second, Tensor? group_sizes, "
    "float alpha, float beta, float c_scale, str asked) -> ()"
)

_library = torch.library.Library("blackwell_lab", "DEF")
_library.define(SCHEMA, tags=(torch.Tag.needs_exact_strides,))


def call_operator(asked: tuple[Any, ...], tensors: Tensors, numbers: Numbers) -> Product:
    """Works as `run`, through the operator."""
    problem = check(Asked(*asked), tensors)
    *given, out = tensors
    if out is not None and not is_dynamo_compiling() and out.is_neg():
        raise ValueError("out.is_neg() is True: its memory holds the opposite of its elements; give an ordinary tensor")
    if out is None:
        out = torch.empty(problem.c[0], dtype=problem.c[1], device=given[0].device)
    factors = None
    if problem.factors is not None:
        factors = torch.empty(problem.factors[0], dtype=problem.factors[1], device=out.device)
    torch.ops.blackwell_lab.gemm(out, factors, *given, *numbers, _to_text(asked))
    return out if factors is None else (out, factors)


@torch.compiler.assume_constant_result
def _to_text(asked: tuple[Any, ...]) -> str:
    """Writes what is asked for as an operator can take it."""
    dtype, activation, out_dtype, kernel, tuned, options = asked
    return json.dumps([dtype, activation, OUT_DTYPES.get(out_dtype, out_dtype), kernel, tuned, dict(options)])


@functools.lru_cache(maxsize=4096)
def _from_text(text: str) -> tuple[Any, ...]:
    dtype, activation, out_dtype, kernel, tuned, options = json.loads(text)
    return dtype, activation, TORCH_TYPES.get(out_dtype, out_dtype), kernel, tuned, as_key(options)


def _gemm(
    out: torch.Tensor,
    factors: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    first: torch.Tensor | None,
    second: torch.Tensor | None,
    group_sizes: torch.Tensor | None,
    alpha: float,
    beta: float,
    c_scale: float,
    asked: str,
) -> None:
    run(_from_text(asked), (a, b, first, second, group_sizes, out), (alpha, beta, c_scale), factors)


_library.impl("gemm", _gemm, "CUDA")
torch.library.register_fake("blackwell_lab::gemm", lambda *_: None, lib=_library)
