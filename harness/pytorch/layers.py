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
        if not input.numel():
            return super().forward(input)
        is_matrix = input.dim() == 2
        found = matmul(input if is_matrix else input.reshape(-1, self.in_features), self.weight, bias=self.bias)
        assert isinstance(found, torch.Tensor)
        return found if is_matrix else found.view(*input.shape[:-1], self.out_features)


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
