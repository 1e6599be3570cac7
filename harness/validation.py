"""What C must be, and whether a result is right: the reference, how far each element may be off, and the verdict.

With exact inputs (``integer``, ``index``) every element must equal the reference rounded once. Zeros of either
sign are equal. With random inputs an element x of the exact product may be missed by

    u * |x|  +  2^-22 * sqrt(K) * |a| * |b|

* u is the unit roundoff of the output type (2^-8 for bf16, 2^-11 for fp16, 2^-24 for f32): the result is rounded once.
  |x| counts as at least the smallest normal number, below which a rounding error does not shrink further.
* The second term is the f32 accumulation. A tensor core adds 16 products to the accumulator in one step,
  aligns the 17 terms to the largest and drops what lies below 2^-24 of it. With partial sums of at most P,
  the K/16 steps lose at most K/16 * 17 * 2^-24 * P. Partial sums of values without a bias walk at random: P
  <= 4 |a| |b| / sqrt(K), where |a| and |b| are the lengths of the row of A and the row of B (4 standard
  deviations at the end of the walk; for K <= 16 it holds for any values by Cauchy-Schwarz). The product is
  4.25 * sqrt(K) * 2^-24 * |a| |b|, taken as 2^-22. With a fused epilogue: what that makes of C, and what the epilogue
  itself rounds (`harness.epilogues.Epilogue.bound`).

Of e4m3 on Hopper the second term is (2^-9 + 2^-15 * sqrt(d)) * sqrt(d / K) * |a| |b|, where f32 registers take over
after each d products (all K, or 128 with scale factors of blocks). What is cut lies below 2^-13 of P, by the walk above
at most 4 |a| |b| / sqrt(d) of such d. d products lose 0 to 1 of that, either way: 5.5 standard deviations are 3.2
sqrt(d), with P 12.8 * 2^-13. The sum is cut twice in each of d / 32 steps, always toward zero: sqrt(d) / 4 * 2^-13. And
K / d errors add up as a walk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from emugpu.launch.expectation import SHOWN, json_number
from harness import fp8
from harness.block_scaling import Scaled
from harness.epilogues import NONE, Epilogue
from harness.problem import ElementType, Inputs


@dataclass(frozen=True)
class Reference:
    """C [M, N] in f32 or f64, and the lengths of each row of A and of the row of B of each column, [1, N] or with
    groups [M, N], which bound rounding errors.

    ``exact``: nothing before the output has a rounding error, so it must be `values` rounded once. ``fp8_depth``: for
    e4m3, the number of products that a tensor core adds before f32 registers take over; 0 for other types. ``bound``:
    with a fused epilogue, the largest error of each element before it is rounded.
    """

    values: np.ndarray
    a_norms: np.ndarray
    b_norms: np.ndarray
    k: int
    exact: bool
    fp8_depth: int = 0
    bound: Any = None

    @property
    def accumulation(self) -> Any:
        """Returns the largest error of each element of the product."""
        return accumulation_error(self) * (self.a_norms[:, None] * self.b_norms)

    def through(self, epilogue: Epilogue, given: Mapping[str, Any]) -> Reference:
        """Returns the reference after a fused epilogue. It needs NumPy arrays."""
        if epilogue.name == NONE:
            return self
        product = self.values.astype(np.float64)
        exact = self.exact and epilogue.is_exact
        error = 0 * product if self.exact else self.accumulation
        bound = None if exact else epilogue.bound(product, error, given)
        return replace(self, values=epilogue.of(product, given), exact=exact, bound=bound)

    def rounded(self, dtype: ElementType) -> np.ndarray:
        """Returns `values` rounded to nearest even in the output type, as f32."""
        with np.errstate(over="ignore"):
            return self.values.astype(dtype.numpy).astype(np.float32)


Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _blas(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product: np.ndarray = a @ b.T
    return product


def compute_reference(inputs: Inputs, product: Product = _blas) -> Reference:
    """Computes A . B^T by NumPy's BLAS, or another product of [M, K] and [N, K]: in f32 if that is exact, in f64 for
    random and scaled values.
    """
    a: np.ndarray
    b: np.ndarray
    depth = 0
    if inputs.a.dtype == fp8.ELEMENT.numpy and not _has_bytes(inputs.factors):
        a, b = inputs.a.astype(np.float64), inputs.b.astype(np.float64)
        depth = min(a.shape[1], fp8.BLOCK) if inputs.factors else a.shape[1]
        if inputs.factors:
            a *= fp8.factor_of_each(inputs.factors[0], "A", a.shape)
            b *= fp8.factor_of_each(inputs.factors[1], "B", b.shape)
        a *= inputs.alpha
    elif inputs.factors:
        a, b = (Scaled(*each).numbers() for each in zip((inputs.a, inputs.b), inputs.factors, strict=True))
        a *= inputs.alpha
    else:
        work = np.float32 if inputs.exact else np.float64
        a, b = inputs.a.astype(work), inputs.b.astype(work)
    b_norms = np.linalg.norm(b, axis=1)[None, :]
    given = inputs.given
    if inputs.groups:
        of_row = np.repeat(np.arange(len(inputs.groups)), inputs.groups)
        b_norms = b_norms.reshape(len(inputs.groups), -1)[of_row]
        given = {name: value[of_row] if name == "bias" else value for name, value in given.items()}
    reference = Reference(
        values=_product_of_groups(a, b, inputs.groups, product) if inputs.groups else product(a, b),
        a_norms=np.linalg.norm(a, axis=1),
        b_norms=b_norms,
        k=a.shape[1],
        exact=inputs.exact,
        fp8_depth=depth,
    )
    return reference.through(inputs.epilogue, given)


def _product_of_groups(a: np.ndarray, b: np.ndarray, groups: Sequence[int], product: Product) -> np.ndarray:
    """Multiplies each group's rows of A by its own B."""
    rows = np.split(a, np.cumsum(groups)[:-1])
    return np.concatenate([product(*each) for each in zip(rows, np.split(b, len(groups)), strict=True)])


def _has_bytes(factors: tuple[np.ndarray, np.ndarray] | None) -> bool:
    """Returns whether there are factors of a block-scaled format."""
    return factors is not None and factors[0].itemsize == 1


ACCUMULATION_ERROR = 2.0**-22


def accumulation_error(reference: Reference) -> float:
    """Returns the error of the accumulation, relative to |a| |b|: see above."""
    if not reference.fp8_depth:
        return ACCUMULATION_ERROR * reference.k**0.5
    root = reference.fp8_depth**0.5
    return (2.0**-9 + 2.0**-15 * root) * root / reference.k**0.5


@dataclass(frozen=True)
class Mismatch:
    """One wrong element of C. ``allowed`` is the largest permitted error."""

    row: int
    column: int
    got: float
    expected: float
    allowed: float


@dataclass(frozen=True)
class WrongTile:
    """One tile of C (the part one CTA writes) with wrong elements. ``row`` and ``column`` count tiles."""

    row: int
    column: int
    mismatches: int
    elements: int


@dataclass(frozen=True)
class Validation:
    """The verdict. Errors are relative to the reference rounded to the output type, over the finite elements.
    ``buffer`` is C, or the scale factors of C.

    ``relative_frobenius_error`` is the norm of the error over the norm of the reference, both as vectors.
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
    buffer: str = "C"

    @classmethod
    def from_plain(cls, values: dict) -> Validation:
        """Makes a verdict from `dataclasses.asdict` of another process's verdict."""
        lists = {
            "tile": tuple(values["tile"]),
            "wrong_tiles": [WrongTile(**tile) for tile in values["wrong_tiles"]],
            "first_mismatches": [Mismatch(**place) for place in values["first_mismatches"]],
        }
        return cls(**{**values, **lists})

    def as_dict(self) -> dict:
        """Returns plain data for records: only the first wrong tiles and elements; values that JSON cannot represent
        become text.
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
                {"row": m.row, "column": m.column, "got": json_number(m.got), "expected": json_number(m.expected)}
                for m in self.first_mismatches
            ],
        }


@dataclass(frozen=True)
class Matmul:
    """An `emugpu.launch.spec.Expectation`: C should hold the product, or another buffer the scale factors of C.

    ``tile``: rows and columns that one CTA writes. ``rows``: the rows of the buffer that belong to C, or None for all.
    Other rows, and the gap behind each row if there is one, must stay NaN.
    """

    buffer: str
    dtype: ElementType
    tile: tuple[int, int]
    reference: Reference
    rows: np.ndarray | None = None
    operands = ()
    """The reference has been computed from them."""
    size = None

    @property
    def compared(self) -> str:
        """Names the kernel's result, whose error is compared with `allowed_error`."""
        return self.buffer

    def judge(self, got: np.ndarray, first: Mapping[str, np.ndarray | None]) -> Validation:
        """Judges a result. ``first`` is not needed, because the reference has been computed."""
        found = replace(validate(got[self._places], self.reference, self.dtype, self.tile), buffer=self.buffer)
        if self.rows is not None:
            in_memory = [replace(each, row=int(self.rows[each.row])) for each in found.first_mismatches]
            found = replace(found, first_mismatches=in_memory)
        written = self._written_elsewhere(got)
        if not written.any():
            return found
        places = [
            Mismatch(int(row), int(column), float(got[row, column]), np.nan, 0.0)
            for row, column in np.argwhere(written)[:SHOWN]
        ]
        return replace(
            found,
            passed=False,
            mismatches=found.mismatches + int(np.count_nonzero(written)),
            first_mismatches=[*found.first_mismatches, *places][:SHOWN],
        )

    def differences(self, got: np.ndarray, first: Mapping[str, np.ndarray | None]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the expected elements, and which ones are wrong."""
        rounded = self.reference.rounded(self.dtype)
        expected, wrong = np.full(got.shape, np.nan, np.float32), self._written_elsewhere(got)
        expected[self._places] = rounded
        here = got[self._places].astype(np.float32)
        wrong[self._places] = wrong_elements(here, rounded, self.reference, allowed_error(self.reference, self.dtype))
        return expected, wrong

    @property
    def _places(self) -> tuple[Any, slice]:
        """Returns the place of C in the buffer."""
        rows = slice(None) if self.rows is None else self.rows
        return rows, slice(self.reference.values.shape[1])

    def _written_elsewhere(self, got: np.ndarray) -> np.ndarray:
        """Returns which elements are neither in C nor NaN."""
        others = np.ones(got.shape, bool)
        others[self._places] = False
        others[others] = ~np.isnan(got[others].astype(np.float32))
        return others


def wrong_elements(got: np.ndarray, expected: np.ndarray, reference: Reference, allowed: np.ndarray) -> np.ndarray:
    """Returns which elements have a larger error than allowed. ``expected`` is the reference, rounded to the output
    type.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(got - (expected if reference.exact else reference.values)) <= allowed
        # A NaN is wrong, except where a row is padded; infinity is right if C cannot represent the sum.
        wrong: np.ndarray = ~(near | (got == expected) | np.isnan(reference.values))
    return wrong


def validate(output: np.ndarray, reference: Reference, dtype: ElementType, tile: tuple[int, int]) -> Validation:
    """Compares output [M, N] with the reference. ``tile`` is the size of the part of C that one CTA writes."""
    got = output.astype(np.float32)
    expected = reference.rounded(dtype)
    finite = np.isfinite(got)
    non_finite = int(got.size - np.count_nonzero(finite))
    allowed = allowed_error(reference, dtype)
    wrong = wrong_elements(got, expected, reference, allowed)
    # In f64, because differences and squares of the largest f32 would overflow.
    finite &= np.isfinite(expected)
    error = np.where(finite, got, 0).astype(np.float64) - np.where(finite, expected, 0)
    size = float(np.linalg.norm(expected[np.isfinite(expected)].astype(np.float64)))
    length = float(np.linalg.norm(error))
    mismatches = int(np.count_nonzero(wrong))
    return Validation(
        passed=mismatches == 0,
        exact=reference.exact,
        elements=got.size,
        mismatches=mismatches,
        non_finite=non_finite,
        max_abs_error=float(np.abs(error).max()),
        relative_frobenius_error=length / size if size else length,
        tolerance=_describe_tolerance(reference, dtype),
        tile=tile,
        tiles=-(-got.shape[0] // tile[0]) * -(-got.shape[1] // tile[1]),
        wrong_tiles=_wrong_tiles(wrong, tile) if mismatches else [],
        first_mismatches=_first_mismatches(wrong, got, expected, allowed) if mismatches else [],
    )


def allowed_error(reference: Reference, dtype: ElementType) -> Any:
    """Returns the largest permitted error of each element, 0 if the result is exact. Works on arrays of NumPy and of
    PyTorch.
    """
    size = abs(reference.values)
    if reference.exact:
        return 0 * size
    size = size + (dtype.smallest_normal - size) * (size < dtype.smallest_normal)
    return dtype.unit_roundoff * size + (reference.accumulation if reference.bound is None else reference.bound)


def _describe_tolerance(reference: Reference, dtype: ElementType) -> str:
    if reference.exact:
        return "equal"
    accumulation = f"{accumulation_error(reference):.3g} |a| |b|"
    if reference.bound is not None:
        accumulation = f"what the epilogue rounds and makes of {accumulation}"
    return f"{dtype.unit_roundoff:g} |x| + {accumulation}"


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
