"""The loop of a product of f32 matrices by Triton 3.9.0 on sm_100a, with B in rows of N (docs/found.md).

Triton transposes each tile of B through one buffer in shared memory, and issues the MMAs that read it. It waits for
them at the end of the next pass through the loop; by then it has written the next tile to the buffer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

M, N, K, STEP = 64, 128, 512, 64


@triton.jit
def product(a, b, c, k, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    sums = tl.zeros((M, N), dtype=tl.float32)
    for at in range(0, k, STEP):
        sums = tl.dot(a.load([0, at]), b.load([at, 0]), acc=sums)
    c.store([0, 0], sums)


def main() -> None:
    torch.manual_seed(1)
    a, b, c = torch.randn(M, K).cuda(), torch.randn(K, N).cuda(), torch.zeros(M, N).cuda()
    boxes = ((a, [M, STEP]), (b, [STEP, N]), (c, [M, N]))
    product[(1,)](*(TensorDescriptor.from_tensor(*box) for box in boxes), K, M, N, STEP, num_warps=4, num_stages=2)
    error = (c - a @ b).abs().max().item()
    print(f"the largest error is {error:.4f}")
    assert error < 0.5


main()
