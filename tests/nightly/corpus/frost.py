"""FROST, cuDNN's kernels in CuTe DSL, against the recurrence in float32: ``frost.py OPERATION [WORD...]``.

OPERATIONs: gdn, kda (a gated delta rule with a gate for each head, or for each element of a key), mamba2. WORDs: varlen
(two sequences); backward.
"""

from __future__ import annotations

import sys
from itertools import accumulate, pairwise

import cudnn
import torch
from cudnn.linear_attention import gated_delta_net, kimi_delta_attention, mamba2
from torch.nn.functional import normalize, softplus

LENGTHS = (100, 28)
TOLERANCE = 0.03
NAMES = {"gdn": "q k v gate beta", "kda": "q k v gate beta", "mamba2": "x dt A B C"}

# FROST takes the stream from the handle, and does not ask cuDNN's library for one.
cudnn.create_handle = lambda: cudnn.Handle(None, 0, 0)


def main(operation: str, *words: str) -> None:
    torch.manual_seed(1)
    lengths = LENGTHS if "varlen" in words else (sum(LENGTHS),)
    ends = list(accumulate(lengths))
    starts = torch.tensor([0, *ends], dtype=torch.int32).cuda()
    inputs = [each.cuda().requires_grad_() for each in _inputs(operation, sum(lengths))]
    if operation == "mamba2":
        out, _ = mamba2(*inputs, starts)
    else:
        out, _ = {"gdn": gated_delta_net, "kda": kimi_delta_attention}[operation](*inputs, starts, scale=1.0)
    copies = [each.detach().float().cpu().requires_grad_() for each in inputs]
    wanted = torch.cat([_recurrence(operation, copies, *each) for each in pairwise((0, *ends))])
    _compare("out", out, wanted)
    if "backward" in words:
        gradient = torch.randn(wanted.shape).to(out.dtype)
        got = torch.autograd.grad(out, inputs, gradient.cuda())
        expected = torch.autograd.grad(wanted, copies, gradient.float())
        for name, one, other in zip(NAMES[operation].split(), got, expected, strict=True):
            _compare(f"gradient of {name}", one, other)


def _inputs(operation: str, length: int) -> list[torch.Tensor]:
    """Returns the inputs of an operation, with one head: those of the matrix products in bf16."""
    if operation == "mamba2":
        x, b, c = (torch.randn(length, 1, size) / 8 for size in (64, 128, 128))
        return [x.bfloat16(), torch.randn(length, 1), -torch.rand(1), b.bfloat16(), c.bfloat16()]
    q, k = (normalize(torch.randn(length, 1, 128), dim=-1).bfloat16() for _ in range(2))
    gate = -torch.rand((length, 1) if operation == "gdn" else (length, 1, 128))
    return [q, k, torch.randn(length, 1, 128).bfloat16(), gate, torch.rand(length, 1)]


def _recurrence(operation: str, inputs: list[torch.Tensor], start: int, end: int) -> torch.Tensor:
    """Goes through one sequence step by step: in each, the state decays, something is added to it, and it is read."""
    found = []
    if operation == "mamba2":
        x, dt, a, b, c = inputs
        state = torch.zeros(x.shape[-1], b.shape[-1])
        for t in range(start, end):
            step = softplus(dt[t])
            state = state * torch.exp(a * step) + step * torch.outer(x[t, 0], b[t, 0])
            found.append(state @ c[t, 0])
    else:
        q, k, v, gate, beta = (each[:, 0] for each in inputs)
        state = torch.zeros(v.shape[-1], k.shape[-1])
        for t in range(start, end):
            state = state * torch.exp(gate[t])
            state = state + beta[t] * torch.outer(v[t] - state @ k[t], k[t])
            found.append(state @ q[t])
    return torch.stack(found)[:, None]


def _compare(name: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    error = (got.float().cpu() - wanted).abs().max().item() / wanted.abs().max().item()
    print(f"{name}: the largest error is {error:.4f} of the largest value")
    assert error <= TOLERANCE, f"{name}: an error of {error:.4f}"


main(*sys.argv[1:])
