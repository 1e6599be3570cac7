"""The problem C[M,N] = A[M,K] . B[N,K]^T: its sizes, element types and inputs, and when a result is right.

Values of A and B:

* ``normal``: standard normal. ``uniform``: uniform in [-1, 1). Both rounded to the element type.
* ``integer``: whole numbers in -4..4. Every sum stays below 2^24 in magnitude up to K = 2^20, so that f32
  accumulation is exact in any order and the output must be equal to the last bit. (The largest fp16, 65504,
  is 9 standard deviations of such a sum at K = 2^20 and 38 at K = 65536: it is not met.)
* ``index``: values that tell rows, columns and slices of K apart; see `harness.launch.memory.index_operand`.
* ``codes``: of types with scale factors, elements and factors drawn as codes, without NaN.

Block-scaled types: see `harness.block_scaling`; e4m3: `harness.fp8`. The reference then has exact products, in
float64. Hopper adds e4m3 with 13 fraction bits: ``integer`` is exact up to K = 2^16, where 2^14 is 9 standard
deviations of a sum.

With groups (docs/grouped.md) the rows of A and of C belong to groups, each with a B of its own, [N, K]; B is all of
them, one after the other. With masked groups each has as many rows in memory, of which the first are A's and C's.

A fused epilogue (`harness.epilogues`) makes C of the product. What it reads: a bias that tells columns apart and a
residual that tells rows and columns apart, both small whole numbers where the inputs are exact; random ones as large
as the product.

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

import ml_dtypes
import numpy as np

from harness import fp8
from harness.block_scaling import FORMATS, BlockFormat, Scaled, draw
from harness.epilogues import NONE, find_epilogue
from harness.errors import UsageProblem
from harness.launch.expectation import SHOWN, json_number
from harness.launch.memory import index_operand

# Rows of A and B are K elements apart and rows of C are N elements apart. Tensor maps take strides that are
# multiples of 16 bytes (CUDA driver API, cuTensorMapEncodeTiled), which is 8 elements of 2 bytes.
STRIDE_ELEMENTS = 8
# Tensor coordinates are signed 32-bit (PTX ISA, cp.async.bulk.tensor), also those of CTAs outside the problem, as a
# grid is rounded up to whole clusters. The same number is in kernels/host/launch_plan.mojo.
LARGEST = 2**31 - 4096
MOST_GROUPS = 1024
"""The same number is in kernels/common/groups.mojo."""


@dataclass(frozen=True)
class Shape:
    """M, N, K in elements. groups: rows of A that each group has, M in all; () if there are none, and one B. ld: of A,
    B and C the elements from one row in memory to the next, where that is more than a row has, else 0; () if all lie
    without gaps. masked: rows of A and C from the first of a group to the first of the next; 0 if there are no others
    between them.
    """

    m: int
    n: int
    k: int
    groups: tuple[int, ...] = ()
    ld: tuple[int, ...] = ()
    masked: int = 0

    def __post_init__(self) -> None:
        for name, value in (("M", self.m), ("N", self.n), ("K", self.k)):
            if not 1 <= value <= LARGEST:
                raise UsageProblem(f"shape {self}: {name}={value} must be between 1 and {LARGEST}")
        for name, value in (("N", self.n), ("K", self.k)):
            if name == "K" and self.ld:  # what begins where then says the planner
                continue
            if value % STRIDE_ELEMENTS:
                near = min(-(-value // STRIDE_ELEMENTS), LARGEST // STRIDE_ELEMENTS) * STRIDE_ELEMENTS
                raise UsageProblem(
                    f"shape {self}: {name}={value} must be a multiple of {STRIDE_ELEMENTS} "
                    f"(TMA needs rows that are multiples of 16 bytes); use {name}={near}"
                )

        if self.groups and sum(self.groups) != self.m:
            total = sum(self.groups)
            raise UsageProblem(
                f"groups {self.groups_text}: their rows add up to {total}, not to M={self.m}; use "
                f"--shape {total},{self.n},{self.k}"
            )
        if self.masked and not self.groups:
            raise UsageProblem(f"masked {self.masked}: of groups; say their rows with --groups")
        if self.masked and max(self.groups) > self.masked:
            raise UsageProblem(f"masked {self.masked}: a group has {max(self.groups)} rows; use {max(self.groups)}")
        if self.rows_in_memory > LARGEST:
            raise UsageProblem(f"{self}: A has {self.rows_in_memory} rows in memory, and at most {LARGEST}")
        if len(self.groups) > MOST_GROUPS:
            raise UsageProblem(f"there are {len(self.groups)} groups, and a launch has at most {MOST_GROUPS}")

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}{self._more(' ')}"

    def _more(self, before: str) -> str:
        groups = f"{before}groups {self.groups_text}" if self.groups else ""
        groups += f"{before}masked {self.masked}" if self.masked else ""
        return groups + (f"{before}ld {self.ld_text}" if self.ld else "")

    @property
    def groups_text(self) -> str:
        """As `parse_groups` reads it."""
        return ",".join(map(str, self.groups))

    @property
    def ld_text(self) -> str:
        return ",".join(map(str, self.ld))

    @property
    def as_option(self) -> str:
        """As `parse_shape` reads it."""
        return f"{self.m},{self.n},{self.k}{f'@{self.ld_text}' if self.ld else ''}"

    @property
    def title(self) -> str:
        """As people read it."""
        return f"C[{self.m},{self.n}], K={self.k}{self._more(', ')}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which `from_dict` reads; groups, ld and masked only where there are some."""
        more = {"groups": list(self.groups), "ld": list(self.ld), "masked": self.masked}
        return {"m": self.m, "n": self.n, "k": self.k, **{name: value for name, value in more.items() if value}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Shape:
        groups, ld = (tuple(data.get(name, ())) for name in ("groups", "ld"))
        return cls(data["m"], data["n"], data["k"], groups, ld, data.get("masked", 0))

    def numbers(self) -> dict[str, int]:
        """Each size by its name; with groups the rows of each in the place of M."""
        rows = {f"group {number}": size for number, size in enumerate(self.groups)} or {"M": self.m}
        return {**rows, "N": self.n, "K": self.k}

    def with_numbers(self, values: Mapping[str, int]) -> Shape:
        """The same with other sizes, as `numbers` has them."""
        *rows, n, k = values.values()
        return Shape(sum(rows), n, k, tuple(rows) if self.groups else (), self.ld, self.masked)

    @property
    def b_rows(self) -> int:
        """Rows of B, of all groups together."""
        return self.n * max(1, len(self.groups))

    @property
    def rows_in_memory(self) -> int:
        """Of A and C."""
        return len(self.groups) * self.masked or self.m

    @property
    def flops(self) -> int:
        """Floating-point operations of the product: one multiplication and one addition per term."""
        return 2 * self.m * self.n * self.k


def parse_shape(text: str) -> Shape:
    """Reads ``M,N,K``, or one number for a cube; ``M,N,K@LDA,LDB,LDC`` with leading dimensions, 0: none."""
    text, at, ld_text = text.partition("@")
    ld = [part.strip() for part in ld_text.split(",")] if at else []
    if at and (len(ld) != 3 or not all(part.isascii() and part.isdecimal() and len(part) <= 12 for part in ld)):
        raise UsageProblem(f"ld {ld_text!r} are not three whole numbers; write for example 500,512,512@512,0,0")
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (1, 3) or not all(part.isascii() and part.isdecimal() for part in parts):
        raise UsageProblem(
            f"shape {text!r} is not M,N,K or one number, positive and whole; write for example 512,512,512"
        )
    if any(len(part) > 12 for part in parts):
        raise UsageProblem(f"shape {text!r}: every size must be between 1 and {LARGEST}")
    m, n, k = (int(part) for part in (parts * 3 if len(parts) == 1 else parts))
    return Shape(m, n, k, ld=tuple(map(int, ld)))


def parse_groups(text: str) -> tuple[int, ...]:
    """Reads the rows of each group, ``40,0,248``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 12 for part in parts):
        raise UsageProblem(
            f"groups {text!r} are not rows of A, whole numbers from 0 on; write for example 40,0,248,1,77"
        )
    return tuple(map(int, parts))


@dataclass(frozen=True)
class ElementType:
    """One floating-point type.

    ptx: its name in PTX. unit_roundoff: half an ulp of 1, relative. smallest_normal: below it numbers are
    evenly spaced.
    """

    name: str
    ptx: str
    numpy: np.dtype
    unit_roundoff: float
    smallest_normal: float

    @property
    def bytes(self) -> int:
        return self.numpy.itemsize


BF16 = ElementType("bf16", "bf16", np.dtype(ml_dtypes.bfloat16), 2.0**-8, 2.0**-126)
FP16 = ElementType("fp16", "f16", np.dtype(np.float16), 2.0**-11, 2.0**-14)
F32 = ElementType("f32", "f32", np.dtype(np.float32), 2.0**-24, 2.0**-126)
ELEMENT_TYPES = {dtype.name: dtype for dtype in (BF16, FP16)}
"""Of A and B that are not block-scaled."""

FP8 = "e4m3"
DTYPES = (*ELEMENT_TYPES, FP8, *FORMATS)
"""Of A and B."""

E4M3 = ElementType(FP8, FP8, fp8.ELEMENT.numpy, 2.0**-4, 2.0**-6)
OUT_TYPES = {dtype.name: dtype for dtype in (BF16, FP16, F32, E4M3)}
"""Of C; e4m3 has a scale factor for each 128 columns of a row. What NumPy calls them, `ElementType.numpy.name`,
PyTorch, MAX and Mojo call them, too."""


def check_dtype(name: str) -> None:
    """Refuses what is no type of A and B."""
    if name not in DTYPES:
        raise UsageProblem(f"dtype {name!r} is not supported; use one of: {', '.join(DTYPES)}")


def operand_bits(name: str) -> int:
    """Returns the bits of an element of A and B."""
    if name == FP8:
        return fp8.ELEMENT.bits
    return FORMATS[name].bits if name in FORMATS else 8 * ELEMENT_TYPES[name].bytes


KINDS = ("normal", "integer", "index", "uniform", "codes")
EXACT_KINDS = ("integer", "index")


@dataclass(frozen=True)
class Inputs:
    """A [M, K] and B [N, K], with groups [groups * N, K], row-major, and how they were made. factors: the scale factors
    of A and of B, if they have any; alpha: what C is multiplied by. epilogue: the fused one; given: what it reads, by
    the names in its formula.
    """

    a: np.ndarray
    b: np.ndarray
    kind: str
    seed: int
    factors: tuple[np.ndarray, np.ndarray] | None = None
    alpha: float = 1.0
    epilogue: str = NONE
    given: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[int, ...] = ()
    masked: int = 0

    @property
    def rows(self) -> np.ndarray | None:
        """Of A and C in memory those that count, if there are others: of masked groups."""
        if not self.masked:
            return None
        return np.concatenate([at * self.masked + np.arange(size) for at, size in enumerate(self.groups)])

    def in_memory(self, values: np.ndarray) -> np.ndarray:
        """A, or what else has its rows, as it lies there. Rows that do not count are 1, so that what is made of them is
        not NaN, and is seen in C."""
        if self.rows is None:
            return values
        found = np.ones((len(self.groups) * self.masked, values.shape[1]), values.dtype)
        found[self.rows] = values
        return found

    @property
    def given_in_memory(self) -> dict[str, Any]:
        """`given`, where what has rows of C has them as they lie."""
        return {name: self.in_memory(each) if name == "residual" else each for name, each in self.given.items()}

    @property
    def exact(self) -> bool:
        """True if the f32 sums have no rounding error: unless an epilogue rounds, the output must match exactly."""
        return self.kind in EXACT_KINDS


def make_inputs(shape: Shape, dtype: str, kind: str, seed: int, epilogue: str = NONE, scales: str = "tensor") -> Inputs:
    """Draws A and B, and what an epilogue reads; the same arguments give the same values. scales: of e4m3."""
    if kind not in KINDS:
        raise UsageProblem(f"inputs {kind!r} are not known; use one of: {', '.join(KINDS)}")
    check_dtype(dtype)
    check_kind(kind, dtype)
    rng = np.random.default_rng(seed)
    if dtype in FORMATS:
        return _make_scaled(shape, FORMATS[dtype], kind, seed, rng)
    if dtype == FP8:
        a, of_a, alpha_a = fp8.draw(kind, "A", scales, (shape.m, shape.k), rng)
        b, of_b, alpha_b = fp8.draw(kind, "B", scales, (shape.n, shape.k), rng)
        factors = None if of_a is None or of_b is None else (of_a, of_b)
        return Inputs(a, b, kind, seed, factors, float(np.float32(alpha_a * alpha_b)))
    numpy_type = ELEMENT_TYPES[dtype].numpy
    a = _DRAW[kind](shape.m, shape.k, rng).astype(numpy_type)
    b = _DRAW[kind](shape.b_rows, shape.k, rng).astype(numpy_type)
    given = epilogue_operands(shape, dtype, kind, seed, epilogue)
    return Inputs(a, b, kind, seed, epilogue=epilogue, given=given, groups=shape.groups, masked=shape.masked)


def epilogue_operands(shape: Shape, dtype: str, kind: str, seed: int, epilogue: str) -> dict[str, Any]:
    """Draws what an epilogue reads, by the names in its formula; of groups, each has a bias."""
    if epilogue == NONE:
        return {}
    found = find_epilogue(epilogue)
    rows, columns = np.arange(shape.m)[:, None], np.arange(shape.n)
    exact = kind in EXACT_KINDS
    of_b = np.arange(shape.b_rows).reshape(len(shape.groups), shape.n) if shape.groups else columns
    # 127 and 61 are primes: only columns, or rows, that many times as far apart are alike.
    marks = {"bias": 4 * (37 * of_b % 127) - 252, "residual": 4 * ((13 * rows + 5 * columns) % 61) - 120}
    given: dict[str, Any] = {"alpha": 0.5, "beta": -2.0} if exact else {"alpha": 0.75, "beta": -1.25}
    rng = np.random.default_rng([seed, 1])
    for name, values in marks.items():
        drawn = values if exact else shape.k**0.5 * rng.standard_normal(values.shape)
        given[name] = drawn.astype(ELEMENT_TYPES[dtype].numpy)
    return {name: value for name, value in given.items() if found.takes(name)}


def check_kind(kind: str, dtype: str) -> None:
    """Refuses inputs that a type does not have."""
    if kind not in _DRAW and dtype in ELEMENT_TYPES:
        raise UsageProblem(
            f"inputs {kind!r} are codes of scale factors, which {dtype} has not; use one of: {', '.join(_DRAW)}"
        )


def _make_scaled(shape: Shape, block_format: BlockFormat, kind: str, seed: int, rng: np.random.Generator) -> Inputs:
    (a, of_a), (b, of_b) = (draw(kind, block_format, rows, shape.k, rng) for rows in (shape.m, shape.n))
    alpha = float(np.float32(of_a * of_b))
    return Inputs(a.elements, b.elements, kind, seed, (a.factors, b.factors), alpha)


def _normal(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((rows, k), dtype=np.float32)


def _uniform(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.random((rows, k), dtype=np.float32) * 2 - 1


def _integer(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-4, 5, size=(rows, k), dtype=np.int8).astype(np.float32)


_DRAW = {"normal": _normal, "uniform": _uniform, "integer": _integer, "index": index_operand}


@dataclass(frozen=True)
class Reference:
    """C [M, N] in f32 or f64, and the length of each row of A and of the row of B that makes each column, [1, N] or
    with groups [M, N]: they bound rounding errors.

    exact: nothing before the output has a rounding error, so that it must be `values` rounded once. fp8_depth: of
    e4m3, the products that a tensor core adds up before f32 registers take over; 0 for other types. bound: with a
    fused epilogue, how far each element may be off before it is rounded.
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
        """How far each element of the product may be off."""
        return accumulation_error(self) * (self.a_norms[:, None] * self.b_norms)

    def through(self, epilogue: str, given: Mapping[str, Any]) -> Reference:
        """Returns the same behind a fused epilogue. Of arrays of NumPy."""
        if epilogue == NONE:
            return self
        found, product = find_epilogue(epilogue), self.values.astype(np.float64)
        exact = self.exact and found.is_exact
        error = 0 * product if self.exact else self.accumulation
        bound = None if exact else found.bound(product, error, given)
        return replace(self, values=found.of(product, given), exact=exact, bound=bound)

    def quantised(self) -> tuple[Reference, Reference]:
        """Returns the elements of C as e4m3, each in units of the scale factor that is expected, and the factors as
        they lie in memory (`harness.fp8`). An error of the largest of a block is one of its factor, so of all of it.
        """
        _, factors, _ = fp8.quantise(self.values, "A", "block")
        assert factors is not None
        each = fp8.factor_of_each(factors, "A", self.values.shape)
        elements = replace(self, values=(self.values / each).astype(np.float32))
        if self.exact:
            return elements, replace(self, values=fp8.in_memory(factors, "A"))
        error = self.accumulation if self.bound is None else self.bound
        starts = np.arange(0, error.shape[1], fp8.BLOCK)
        of_factor = np.maximum.reduceat(error, starts, axis=1) / fp8.LARGEST + 2.0**-23 * factors
        moved = np.repeat(of_factor / factors, fp8.BLOCK, axis=1)[:, : error.shape[1]]
        # A tenth more: for the rounding of what is off, and for products of errors.
        bound = 1.1 * (error / each + moved * np.abs(elements.values))
        return replace(elements, bound=bound), replace(
            self, values=fp8.in_memory(factors, "A"), bound=fp8.in_memory(of_factor, "A")
        )

    def rounded(self, dtype: ElementType) -> np.ndarray:
        """`values` rounded to nearest even in the output type, as f32."""
        with np.errstate(over="ignore"):
            return self.values.astype(dtype.numpy).astype(np.float32)


Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _blas(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product: np.ndarray = a @ b.T
    return product


def compute_reference(inputs: Inputs, product: Product = _blas) -> Reference:
    """A . B^T by the BLAS under NumPy, or another product of [M, K] and [N, K]: in f32 where that is exact, in f64 for
    random and scaled values."""
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
    """Each group's rows of A by its own B."""
    rows = np.split(a, np.cumsum(groups)[:-1])
    return np.concatenate([product(*each) for each in zip(rows, np.split(b, len(groups)), strict=True)])


def _has_bytes(factors: tuple[np.ndarray, np.ndarray] | None) -> bool:
    """Returns whether there are factors of a block-scaled format."""
    return factors is not None and factors[0].itemsize == 1


ACCUMULATION_ERROR = 2.0**-22


def accumulation_error(reference: Reference) -> float:
    """What adding up may cost, as a part of |a| |b|: see above."""
    if not reference.fp8_depth:
        return ACCUMULATION_ERROR * reference.k**0.5
    root = reference.fp8_depth**0.5
    return (2.0**-9 + 2.0**-15 * root) * root / reference.k**0.5


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
    """The verdict. Errors are against the reference rounded to the output type, over the finite elements. buffer: C, or
    the scale factors of C.

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
    buffer: str = "C"

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
                {"row": m.row, "column": m.column, "got": json_number(m.got), "expected": json_number(m.expected)}
                for m in self.first_mismatches
            ],
        }


@dataclass(frozen=True)
class Matmul:
    """C should hold the product, or another buffer the scale factors of C: a `harness.launch.spec.Expectation`. tile:
    rows and columns that one CTA writes. rows: those of the buffer that are C's, all if None. What lies between, and
    behind each where they are further apart than they are long, must stay NaN.
    """

    buffer: str
    dtype: ElementType
    tile: tuple[int, int]
    reference: Reference
    rows: np.ndarray | None = None

    def judge(self, got: np.ndarray, first: Mapping[str, np.ndarray | None]) -> Validation:
        """first: not needed, the reference has been computed."""
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
        """Returns what each element should be, and which are not."""
        rounded = self.reference.rounded(self.dtype)
        expected, wrong = np.full(got.shape, np.nan, np.float32), self._written_elsewhere(got)
        expected[self._places] = rounded
        here = got[self._places].astype(np.float32)
        wrong[self._places] = wrong_elements(here, rounded, self.reference, allowed_error(self.reference, self.dtype))
        return expected, wrong

    @property
    def _places(self) -> tuple[Any, slice]:
        """Of C in the buffer."""
        rows = slice(None) if self.rows is None else self.rows
        return rows, slice(self.reference.values.shape[1])

    def _written_elsewhere(self, got: np.ndarray) -> np.ndarray:
        """Which elements are neither C's nor NaN."""
        others = np.ones(got.shape, bool)
        others[self._places] = False
        others[others] = ~np.isnan(got[others].astype(np.float32))
        return others


def wrong_elements(got: np.ndarray, expected: np.ndarray, reference: Reference, allowed: np.ndarray) -> np.ndarray:
    """Returns which elements are further off than allowed. expected: the reference, rounded to the output type."""
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(got - (expected if reference.exact else reference.values)) <= allowed
        # A NaN is wrong, but where a row is padded; infinity is right where C cannot hold the sum.
        wrong: np.ndarray = ~(near | (got == expected) | np.isnan(reference.values))
    return wrong


def validate(output: np.ndarray, reference: Reference, dtype: ElementType, tile: tuple[int, int]) -> Validation:
    """Compares output [M, N] with the reference; tile: rows and columns of C that one CTA writes."""
    got = output.astype(np.float32)
    expected = reference.rounded(dtype)
    finite = np.isfinite(got)
    non_finite = int(got.size - np.count_nonzero(finite))
    allowed = allowed_error(reference, dtype)
    wrong = wrong_elements(got, expected, reference, allowed)
    # In f64: differences and squares of the largest f32 would overflow.
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
    """How far each element may be off: 0 where the result is exact. Of arrays of NumPy and of PyTorch alike."""
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
