"""The operands of a problem as PyTorch's tensors on the GPU, by the names that a launch plan has for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.block_scaling import FORMATS
from harness.compile.artifacts import operands, other_buffers
from harness.compile.config import KernelConfig
from harness.compile.planner import Plan
from harness.problem import OUT_TYPES, Inputs, Shape

L2_BYTES = 64 << 20
"""The inputs rotate over more than twice this size, so that no launch finds its operands in L2 (H200: 60 MB)."""
MOST_SETS = 512
"""Most sets of inputs. Problems with operands below 256 KiB do find them in L2, because they would need hundreds of
thousands of sets.
"""


@dataclass(frozen=True)
class Operands:
    """The tensors of one launch as they lie in memory, C among them, and its numbers."""

    config: KernelConfig
    shape: Shape
    tensors: Mapping[str, Any]
    numbers: Mapping[str, float]

    @property
    def c(self) -> Any:
        return self.tensors["C"]

    @property
    def a(self) -> Any:
        """A, [M, K]: a view, if it is transposed or has gaps."""
        ld = self.shape.ld[0] if self.shape.ld else 0
        return _matrix(self.tensors["A"], self.shape.m, self.shape.k, ld, self.config.layout[0] == "t")

    @property
    def b(self) -> Any:
        """B^T, [N, K]: a view, if it is transposed or has gaps."""
        ld = self.shape.ld[1] if self.shape.ld else 0
        return _matrix(self.tensors["B"], self.shape.n, self.shape.k, ld, self.config.layout[1] == "n")

    def named(self) -> dict[str, float]:
        """Returns what a launch is given by name: addresses, and numbers."""
        return {**{name: each.data_ptr() for name, each in self.tensors.items()}, **self.numbers}

    def with_c(self, c: Any) -> Operands:
        """Returns the same with another tensor for C."""
        return Operands(self.config, self.shape, {**self.tensors, "C": c}, self.numbers)


def make_sets(config: KernelConfig, plan: Plan, shape: Shape, inputs: Inputs) -> list[Operands]:
    """Returns several sets of operands, which differ in their addresses but not in their content, so that no launch
    finds its operands in L2.
    """
    import torch

    kept = {**operands(config.dtype, inputs, config.layout, shape.ld), **other_buffers(plan, inputs)}
    first = {}
    for name, buffer in kept.items():
        assert buffer.fill and buffer.fill.array is not None
        array = buffer.fill.array
        if config.dtype in FORMATS and name in "AB":
            array = buffer.dtype.to_memory(array).reshape(len(array), -1)
        first[name] = on_gpu(array)
    numbers = {"alpha": inputs.alpha, "beta": 0.0, **{k: v for k, v in inputs.given.items() if np.ndim(v) == 0}}
    dtype = getattr(torch, OUT_TYPES[config.out_dtype].numpy.name)
    found = []
    for number in range(_set_count(list(first.values()), plan.stored_output)):
        these = first if number == 0 else {name: each.clone() for name, each in first.items()}
        c = torch.full(plan.stored_output, float("nan"), dtype=dtype, device=first["A"].device)
        found.append(Operands(config, shape, {**these, "C": c}, numbers))
    return found


def on_gpu(array: NDArray[Any]) -> Any:
    """Returns a tensor with an array's content, of PyTorch's type of the same name."""
    import torch

    dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(np.ascontiguousarray(array).view(f"i{array.itemsize}")).cuda().view(dtype)


def _set_count(inputs: list[Any], output: tuple[int, int]) -> int:
    one = sum(tensor.nbytes for tensor in inputs) + 2 * output[0] * output[1]
    return min(MOST_SETS, max(2, -(-2 * L2_BYTES // one) + 1))


def _matrix(memory: Any, rows: int, columns: int, ld: int, transposed: bool) -> Any:
    """Returns the matrix [rows, columns] in this memory, or the transpose of the one stored there."""
    if transposed:
        return _matrix(memory, columns, rows, ld, False).t()
    return memory.view(rows, ld or columns)[:, :columns]
