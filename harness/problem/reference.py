"""What the kernel should have computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.problem.dtypes import ElementType
from harness.problem.inputs import Inputs


@dataclass(frozen=True)
class Reference:
    """C [M, N] in f32 or f64, and the length of each row of A and of B, which bounds rounding errors.

    exact: the f32 sums have no rounding error, so that the output must be `values` rounded once.
    """

    values: np.ndarray
    a_norms: np.ndarray
    b_norms: np.ndarray
    k: int
    exact: bool

    def rounded(self, dtype: ElementType) -> np.ndarray:
        """`values` rounded to nearest even in the output type, as f32."""
        return self.values.astype(dtype.numpy).astype(np.float32)


def compute_reference(inputs: Inputs) -> Reference:
    """A . B^T by the BLAS under NumPy: in f32 where that is exact, in f64 for random values."""
    work = np.float32 if inputs.exact else np.float64
    a: np.ndarray = inputs.a.astype(work)
    b: np.ndarray = inputs.b.astype(work)
    return Reference(
        values=a @ b.T,
        a_norms=np.linalg.norm(a, axis=1),
        b_norms=np.linalg.norm(b, axis=1),
        k=a.shape[1],
        exact=inputs.exact,
    )
