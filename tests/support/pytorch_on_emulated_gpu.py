"""A program that calls PyTorch's functions on the GPU that its driver shows, and prints which results are right.

PyTorch is its CPU build: its own operations run on the CPU, and the kernels on the emulated GPU, in the same memory.
"""

from __future__ import annotations

import ctypes
import json
from contextlib import nullcontext
from typing import Any

import torch

from emugpu.cuda.driver import Driver
from harness.pytorch import calls, checks, grouped_matmul, matmul

driver = Driver()
_allocate = ctypes.CDLL("libcuda.so.1").cuMemAllocManaged


def empty(size: tuple[int, ...], *, dtype: torch.dtype, device: Any = None) -> torch.Tensor:
    """A tensor in memory that both the CPU and the emulated GPU can use."""
    count = torch.Size(size).numel()
    nbytes, address = max(16, count * dtype.itemsize), ctypes.c_uint64()
    assert _allocate(ctypes.byref(address), ctypes.c_size_t(nbytes), 1) == 0
    memory = (ctypes.c_uint8 * nbytes).from_address(address.value)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(size)


def attach() -> None:
    """Takes tensors of the CPU for those of the GPU."""
    checks.DEVICE = "cpu"
    torch.empty = empty
    calls.current_stream = lambda index: 0
    gpu = calls.Gpu(0)
    calls._gpu = lambda index: gpu
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_name = lambda device=None: "NVIDIA H100 80GB HBM3"
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.device = lambda device: nullcontext()


def draw(*size: int) -> torch.Tensor:
    made = empty(size, dtype=torch.bfloat16)
    made.copy_(torch.randint(-3, 4, size))
    return made


def main() -> dict[str, bool]:
    attach()
    found = {}

    def check(name: str, got: Any, expected: torch.Tensor) -> None:
        driver.synchronize()
        found[name] = torch.equal(got, expected.to(got.dtype))

    a, b, bias = draw(24, 128), draw(64, 128), draw(64)
    product = a.double() @ b.double().t()
    check("product", matmul(a, b), product)
    other = draw(24, 128)
    check("other addresses", matmul(other, b), other.double() @ b.double().t())
    check("bias-relu", matmul(a, b, bias=bias, activation="relu"), (product + bias.double()).relu())
    for turn in ("split-K", "split-K again"):
        check(turn, matmul(a, b, split_k=2, mma_shape=(64, 64)), product)
    sizes = empty((3,), dtype=torch.int32)
    sizes.copy_(torch.tensor([8, 0, 16]))
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
