"""FlashAttention-4, forward and backward, against softmax in float32: ``flash_attention.py [WORD...]``.

WORDs: causal; gqa (two heads of queries share a head of keys); varlen (two sequences); split (two splits of the keys);
d128 (the size of a head, otherwise 64); backward.
"""

from __future__ import annotations

import math
import sys

import torch
from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

LENGTHS = (100, 28)
TOLERANCE = 0.03


def main(*words: str) -> None:
    torch.manual_seed(1)
    causal = "causal" in words
    heads, head_size = (2 if "gqa" in words else 1), (128 if "d128" in words else 64)
    length = sum(LENGTHS)
    q, k, v = (
        torch.randn(1, length, number, head_size).to(torch.bfloat16).cuda().requires_grad_() for number in (heads, 1, 1)
    )
    lengths = LENGTHS if "varlen" in words else (length,)
    if "varlen" in words:
        starts = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0).to(torch.int32).cuda()
        most = max(LENGTHS)
        given = dict(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=most, max_seqlen_k=most, causal=causal)
        out = flash_attn_varlen_func(q[0], k[0], v[0], **given)
    else:
        out = flash_attn_func(q, k, v, causal=causal, num_splits=2 if "split" in words else 1)
    out = (out[0] if isinstance(out, tuple) else out).reshape(q.shape)
    sequences = zip(*(x[0].split(lengths) for x in (q, k, v)), strict=True)
    wanted = torch.cat([_attention(*sequence, causal=causal) for sequence in sequences])[None]
    _compare("out", out, wanted)
    if "backward" in words:
        gradient = torch.randn(out.shape).to(out.dtype).cuda()
        got = torch.autograd.grad(out, (q, k, v), gradient)
        expected = torch.autograd.grad(wanted, (q, k, v), gradient.float())
        for name, one, other in zip(("dq", "dk", "dv"), got, expected, strict=True):
            _compare(name, one, other)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    k, v = (x.float().expand(-1, q.shape[1], -1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) / math.sqrt(q.shape[-1])
    if causal:
        later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def _compare(name: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    error = (got.float() - wanted.float()).abs().max().item() / wanted.abs().max().item()
    print(f"{name}: the largest error is {error:.4f} of the largest value")
    assert error <= TOLERANCE, f"{name}: an error of {error:.4f}"


main(*sys.argv[1:])
