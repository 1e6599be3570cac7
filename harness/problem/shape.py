"""The problem C[M,N] = A[M,K] . B[N,K]^T and the sizes that can be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import UsageProblem

# Rows of A and B are K elements apart and rows of C are N elements apart. Tensor maps take strides that are
# multiples of 16 bytes (CUDA driver API, cuTensorMapEncodeTiled), which is 8 elements of 2 bytes.
STRIDE_ELEMENTS = 8
# Tensor coordinates are signed 32-bit (PTX ISA, cp.async.bulk.tensor), also those of CTAs outside the problem, as a
# grid is rounded up to whole clusters. The same number is in kernels/common/launch_plan.mojo.
LARGEST = 2**31 - 4096


@dataclass(frozen=True)
class Shape:
    """M, N, K in elements."""

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        for name, value in (("M", self.m), ("N", self.n), ("K", self.k)):
            if not 1 <= value <= LARGEST:
                raise UsageProblem(f"shape {self}: {name}={value} must be between 1 and {LARGEST}")
        for name, value in (("N", self.n), ("K", self.k)):
            if value % STRIDE_ELEMENTS:
                near = min(-(-value // STRIDE_ELEMENTS), LARGEST // STRIDE_ELEMENTS) * STRIDE_ELEMENTS
                raise UsageProblem(
                    f"shape {self}: {name}={value} must be a multiple of {STRIDE_ELEMENTS} "
                    f"(TMA needs rows that are multiples of 16 bytes); use {name}={near}"
                )

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        """Floating-point operations of the product: one multiplication and one addition per term."""
        return 2 * self.m * self.n * self.k


def parse_shape(text: str) -> Shape:
    """Reads ``M,N,K``, or one number for a cube."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (1, 3) or not all(part.isascii() and part.isdecimal() for part in parts):
        raise UsageProblem(
            f"shape {text!r} is not M,N,K or one number, positive and whole; write for example 512,512,512"
        )
    if any(len(part) > 12 for part in parts):
        raise UsageProblem(f"shape {text!r}: every size must be between 1 and {LARGEST}")
    numbers = [int(part) for part in parts]
    return Shape(*(numbers * 3 if len(numbers) == 1 else numbers))
