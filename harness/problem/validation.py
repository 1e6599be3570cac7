"""Compares an output with the reference, and says where it is wrong.

Exact inputs (``integer``, ``index``): every element must equal the reference rounded once. Zeros of either
sign are equal.

Random inputs: an element x of the exact product may be missed by

    u * |x|  +  2^-22 * sqrt(K) * |a| * |b|

* u is the unit roundoff of the output type (2^-8 for bf16, 2^-11 for fp16): the one rounding of the result.
  |x| counts as at least the smallest normal number, below which a rounding error does not shrink further.
* The second term is the f32 accumulation. A tensor core adds 16 products to the accumulator in one step,
  aligns the 17 terms to the largest and drops what lies below 2^-24 of it. With partial sums of at most P,
  the K/16 steps lose at most K/16 * 17 * 2^-24 * P. Partial sums of values without a bias walk at random: P
  <= 4 |a| |b| / sqrt(K), where |a| and |b| are the lengths of the row of A and the row of B (4 standard
  deviations at the end of the walk; for K <= 16 it holds for any values by Cauchy-Schwarz). The product is
  4.25 * sqrt(K) * 2^-24 * |a| |b|, taken as 2^-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.launch.expectation import SHOWN, json_number
from harness.problem.dtypes import ElementType
from harness.problem.reference import Reference

ACCUMULATION_ERROR = 2.0**-22


@dataclass(frozen=True)
class Mismatch:
    """One wrong element of C. allowed: how far it may be from what was expected."""

    row: int
    column: int
    got: float
    expected: float
    allowed: float


@dataclass(frozen=True)
class WrongTile:
    """One tile of C (the part one CTA writes) with wrong elements; row and column count tiles."""

    row: int
    column: int
    mismatches: int
    elements: int


@dataclass(frozen=True)
class Validation:
    """The verdict. Errors are against the reference rounded to the output type, over the finite elements.

    relative_frobenius_error: length of the error over length of the reference, both taken as vectors.
    """

    passed: bool
    exact: bool
    elements: int
    mismatches: int
    non_finite: int
    max_abs_error: float
    relative_frobenius_error: float
    tolerance: str
    tile: tuple[int, int]
    tiles: int
    wrong_tiles: list[WrongTile] = field(default_factory=list)
    first_mismatches: list[Mismatch] = field(default_factory=list)

    @classmethod
    def from_plain(cls, values: dict) -> Validation:
        """From `dataclasses.asdict` of a verdict that another process reached."""
        lists = {
            "tile": tuple(values["tile"]),
            "wrong_tiles": [WrongTile(**tile) for tile in values["wrong_tiles"]],
            "first_mismatches": [Mismatch(**place) for place in values["first_mismatches"]],
        }
        return cls(**{**values, **lists})

    def as_dict(self) -> dict:
        """For records: the first of the wrong tiles and elements only; values that JSON cannot hold become
        text.
        """
        return {
            "passed": self.passed,
            "exact": self.exact,
            "elements": self.elements,
            "mismatches": self.mismatches,
            "non_finite": self.non_finite,
            "max_abs_error": self.max_abs_error,
            "relative_frobenius_error": self.relative_frobenius_error,
            "tolerance": self.tolerance,
            "tile": list(self.tile),
            "tiles": self.tiles,
            "wrong_tiles": len(self.wrong_tiles),
            "first_wrong_tiles": [[tile.row, tile.column] for tile in self.wrong_tiles[:SHOWN]],
            "first_mismatches": [
                {"row": m.row, "column": m.column, "got": json_number(m.got), "expected": m.expected}
                for m in self.first_mismatches
            ],
        }


@dataclass(frozen=True)
class Matmul:
    """C should hold the product: a `harness.launch.spec.Expectation`. tile: rows and columns that one CTA writes."""

    buffer: str
    dtype: ElementType
    tile: tuple[int, int]
    reference: Reference

    def judge(self, got: np.ndarray, first: Mapping[str, np.ndarray | None]) -> Validation:
        """first: not needed, the reference has been computed."""
        return validate(got, self.reference, self.dtype, self.tile)


def validate(output: np.ndarray, reference: Reference, dtype: ElementType, tile: tuple[int, int]) -> Validation:
    """Compares output [M, N] with the reference; tile: rows and columns of C that one CTA writes."""
    got = output.astype(np.float32)
    expected = reference.rounded(dtype)
    finite = np.isfinite(got)
    allowed = allowed_error(reference, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        # Written so that a NaN is wrong.
        wrong = ~(np.abs(got - (expected if reference.exact else reference.values)) <= allowed)
    # In f64: differences and squares of the largest f32 would overflow.
    error = np.where(finite, got, expected).astype(np.float64) - expected
    size = float(np.linalg.norm(expected.astype(np.float64)))
    length = float(np.linalg.norm(error))
    mismatches = int(np.count_nonzero(wrong))
    return Validation(
        passed=mismatches == 0,
        exact=reference.exact,
        elements=got.size,
        mismatches=mismatches,
        non_finite=int(got.size - np.count_nonzero(finite)),
        max_abs_error=float(np.abs(error).max()),
        relative_frobenius_error=length / size if size else length,
        tolerance=_describe_tolerance(reference, dtype),
        tile=tile,
        tiles=-(-got.shape[0] // tile[0]) * -(-got.shape[1] // tile[1]),
        wrong_tiles=_wrong_tiles(wrong, tile) if mismatches else [],
        first_mismatches=_first_mismatches(wrong, got, expected, allowed) if mismatches else [],
    )


def allowed_error(reference: Reference, dtype: ElementType) -> Any:
    """How far each element may be off: 0 where the result is exact. Of arrays of NumPy and of PyTorch alike."""
    size = abs(reference.values)
    if reference.exact:
        return 0 * size
    size = size + (dtype.smallest_normal - size) * (size < dtype.smallest_normal)
    norms = reference.a_norms[:, None] * reference.b_norms[None, :]
    return dtype.unit_roundoff * size + ACCUMULATION_ERROR * reference.k**0.5 * norms


def _describe_tolerance(reference: Reference, dtype: ElementType) -> str:
    if reference.exact:
        return "equal"
    return f"{dtype.unit_roundoff:g} |x| + {ACCUMULATION_ERROR * reference.k**0.5:.3g} |a| |b|"


def _wrong_tiles(wrong: np.ndarray, tile: tuple[int, int]) -> list[WrongTile]:
    rows, columns = wrong.shape
    # Counts of wrong elements per tile: sums over strips of rows, then over strips of columns.
    by_strip = np.add.reduceat(wrong, np.arange(0, rows, tile[0]), axis=0, dtype=np.int64)
    counts = np.add.reduceat(by_strip, np.arange(0, columns, tile[1]), axis=1)
    return [
        WrongTile(
            row=int(row),
            column=int(column),
            mismatches=int(counts[row, column]),
            elements=min(tile[0], rows - int(row) * tile[0]) * min(tile[1], columns - int(column) * tile[1]),
        )
        for row, column in np.argwhere(counts)
    ]


def _first_mismatches(wrong: np.ndarray, got: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> list[Mismatch]:
    places = zip(*np.unravel_index(np.flatnonzero(wrong)[:SHOWN], wrong.shape), strict=True)
    return [
        Mismatch(int(row), int(column), *(float(array[row, column]) for array in (got, expected, allowed)))
        for row, column in places
    ]
