"""A program that calls PyTorch's functions on the GPU that its driver shows, and prints which results are right.

Under `emugpu exec` PyTorch's build for CPUs has the emulated GPU as its device (`emugpu.pytorch`).
"""

from __future__ import annotations

import json
from typing import Any

import torch

from harness.pytorch import grouped_matmul, matmul


def draw(*size: int) -> torch.Tensor:
    return torch.randint(-3, 4, size, device="cuda").bfloat16()


def main() -> dict[str, bool]:
    found = {}

    def check(name: str, got: Any, expected: torch.Tensor) -> None:
        found[name] = torch.equal(got, expected.to(got.dtype))

    a, b, bias = draw(24, 128), draw(64, 128), draw(64)
    product = a.double() @ b.double().t()
    check("product", matmul(a, b), product)
    other = draw(24, 128)
    check("other addresses", matmul(other, b), other.double() @ b.double().t())
    check("bias-relu", matmul(a, b, bias=bias, activation="relu"), (product + bias.double()).relu())
    for turn in ("split-K", "split-K again"):
        check(turn, matmul(a, b, split_k=2, mma_shape=(64, 64)), product)
    sizes = torch.tensor([8, 0, 16], dtype=torch.int32, device="cuda")
    of_groups = draw(3, 64, 128)
    parts = [a[:8].double() @ of_groups[0].double().t(), a[8:].double() @ of_groups[2].double().t()]
    check("groups", grouped_matmul(a, of_groups, sizes), torch.cat(parts))
    try:
        matmul(a.view(-1)[4 : 4 + 16 * 128].view(16, 128), b)
    except ValueError as error:
        found["misaligned"] = "a begins at the address" in str(error)
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
