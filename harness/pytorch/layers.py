"""Linear layers of PyTorch models, by the kernels."""

from __future__ import annotations

import warnings
from typing import TypeVar

import torch

from harness.problem import STRIDE_ELEMENTS
from harness.pytorch.functions import matmul

Model = TypeVar("Model", bound=torch.nn.Module)


class Linear(torch.nn.Linear):
    """A Linear layer with bfloat16 or float16 parameters on a GPU. It is made, saved and trained like PyTorch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dim() == 2 and len(input):
            found = matmul(input, self.weight, bias=self.bias)
        elif input.numel():
            rows = matmul(input.reshape(-1, self.in_features), self.weight, bias=self.bias)
            assert isinstance(rows, torch.Tensor)
            found = rows.view(*input.shape[:-1], self.out_features)
        else:
            return super().forward(input)
        assert isinstance(found, torch.Tensor)
        return found


def swap(model: Model) -> Model:
    """Makes all Linear layers of a model `Linear` layers, in place, and returns the model. Parameters stay the same
    objects. A layer whose sizes are not multiples of 8 stays PyTorch's, and a warning names it.
    """
    for name, module in model.named_modules():
        if type(module) is not torch.nn.Linear:
            continue
        sizes = f"{module.in_features} to {module.out_features} columns"
        if module.in_features % STRIDE_ELEMENTS or module.out_features % STRIDE_ELEMENTS:
            rule = f"stays PyTorch's: the kernels need multiples of {STRIDE_ELEMENTS}"
            warnings.warn(f"{name or 'the model'} ({sizes}) {rule}", stacklevel=2)
            continue
        module.__class__ = Linear
    return model
