"""The problem C[M,N] = A[M,K] . B[N,K]^T: its sizes, element types and inputs.

When a result is right, `harness.validation` says.

Values of A and B:

* ``normal``: standard normal. ``uniform``: uniform in [-1, 1). Both rounded to the element type.
* ``integer``: whole numbers in -4..4. Every sum stays below 2^24 in magnitude up to K = 2^20, so that f32
  accumulation is exact in any order and the output must be equal to the last bit. (The largest fp16, 65504,
  is 9 standard deviations of such a sum at K = 2^20 and 38 at K = 65536: it is not met.)
* ``index``: values that tell rows, columns and slices of K apart; see `emugpu.launch.memory.index_operand`.
* ``codes``: of types with scale factors, elements and factors drawn as codes, without NaN.

Block-scaled types: see `harness.block_scaling`; e4m3: `harness.fp8`. The reference then has exact products, in
float64. Hopper adds e4m3 with 13 fraction bits: ``integer`` is exact up to K = 2^16, where 2^14 is 9 standard
deviations of a sum.

With groups (docs/grouped.md) the rows of A and of C belong to groups, each with a B of its own, [N, K]; B is all of
them, one after the other. With masked groups each has as many rows in memory, of which the first are A's and C's.

A fused epilogue (`harness.epilogues`) makes C of the product. What it reads: a bias that tells columns apart and a
residual that tells rows and columns apart, both small whole numbers where the inputs are exact; random ones as large
as the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from emugpu.errors import UsageProblem
from emugpu.launch.memory import index_operand
from emugpu.launch.spec import DATA_TYPES
from harness import fp8
from harness.block_scaling import FORMATS, BlockFormat, draw
from harness.epilogues import EPILOGUES, NONE, Epilogue

# Rows of A and B are K elements apart and rows of C are N elements apart. Tensor maps take strides that are multiples
# of 16 bytes (CUDA driver API, cuTensorMapEncodeTiled), which is 8 elements of 2 bytes.
STRIDE_ELEMENTS = 8
# Tensor coordinates are signed 32-bit (PTX ISA, cp.async.bulk.tensor), including those of CTAs outside the problem,
# because a grid is rounded up to whole clusters. kernels/host/launch_plan.mojo has the same number.
LARGEST = 2**31 - 4096
MOST_GROUPS = 1024
"""kernels/common/groups.mojo has the same number."""


@dataclass(frozen=True)
class Shape:
    """The sizes M, N, K in elements.

    ``groups``: rows of A in each group, M in total; () if there are no groups and one B. ``ld``: leading dimensions of
    A, B and C in elements, 0 for a contiguous matrix; () if all are contiguous. ``masked``: rows of A and C in memory
    from the start of a group to the next; 0 if the groups are contiguous.
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
            if name == "K" and self.ld:  # the planner checks the alignment then
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
            raise UsageProblem(f"masked {self.masked}: only groups are masked; name the rows of each, with groups")
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
        """Returns the groups in the form of `parse_groups`."""
        return ",".join(map(str, self.groups))

    @property
    def ld_text(self) -> str:
        return ",".join(map(str, self.ld))

    @property
    def as_option(self) -> str:
        """Returns the shape in the form of `parse_shape`."""
        return f"{self.m},{self.n},{self.k}{f'@{self.ld_text}' if self.ld else ''}"

    @property
    def title(self) -> str:
        """Returns the shape for people."""
        return f"C[{self.m},{self.n}], K={self.k}{self._more(', ')}"

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON, which `from_dict` reads. It has groups, ld and masked only if they are set."""
        more = {"groups": list(self.groups), "ld": list(self.ld), "masked": self.masked}
        return {"m": self.m, "n": self.n, "k": self.k, **{name: value for name, value in more.items() if value}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Shape:
        groups, ld = (tuple(data.get(name, ())) for name in ("groups", "ld"))
        return cls(data["m"], data["n"], data["k"], groups, ld, data.get("masked", 0))

    def numbers(self) -> dict[str, int]:
        """Returns each size by its name; with groups, the rows of each instead of M."""
        rows = {f"group {number}": size for number, size in enumerate(self.groups)} or {"M": self.m}
        return {**rows, "N": self.n, "K": self.k}

    def with_numbers(self, values: Mapping[str, int]) -> Shape:
        """Returns the same shape with other sizes, in the form of `numbers`."""
        *rows, n, k = values.values()
        return Shape(sum(rows), n, k, tuple(rows) if self.groups else (), self.ld, self.masked)

    @property
    def b_rows(self) -> int:
        """Returns the rows of B, of all groups together."""
        return self.n * max(1, len(self.groups))

    @property
    def rows_in_memory(self) -> int:
        """Returns the rows of A and C in memory."""
        return len(self.groups) * self.masked or self.m

    @property
    def flops(self) -> int:
        """Returns the floating-point operations of the product: one multiplication and one addition per term."""
        return 2 * self.m * self.n * self.k


def parse_shape(text: str) -> Shape:
    """Reads ``M,N,K``, or one number for a cube, or ``M,N,K@LDA,LDB,LDC`` with leading dimensions (0: none)."""
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

    ``ptx``: its name in PTX. ``unit_roundoff``: half an ulp of 1, relative. ``smallest_normal``: numbers below it are
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

    @property
    def bits(self) -> int:
        """Returns the bits in memory, where two elements of 4 bits share a byte."""
        return DATA_TYPES[self.ptx].bits


BF16 = ElementType("bf16", "bf16", np.dtype(ml_dtypes.bfloat16), 2.0**-8, 2.0**-126)
FP16 = ElementType("fp16", "f16", np.dtype(np.float16), 2.0**-11, 2.0**-14)
F32 = ElementType("f32", "f32", np.dtype(np.float32), 2.0**-24, 2.0**-126)
ELEMENT_TYPES = {dtype.name: dtype for dtype in (BF16, FP16)}
"""Types of A and B that are not block-scaled."""

FP8 = "e4m3"
DTYPES = (*ELEMENT_TYPES, FP8, *FORMATS)
"""Types of A and B."""

E4M3 = ElementType(FP8, FP8, fp8.ELEMENT.numpy, 2.0**-4, 2.0**-6)
OUT_TYPES = {dtype.name: dtype for dtype in (BF16, FP16, F32, E4M3)}
"""Types of C that PyTorch has; e4m3 has a scale factor for each 128 columns of a row. PyTorch and MAX use the same
names as NumPy, `ElementType.numpy.name`.
"""

C_TYPES = OUT_TYPES | {
    "nvfp4": ElementType("nvfp4", "e2m1", FORMATS["nvfp4"].element.numpy, 2.0**-2, 1.0),
    "mxfp8": replace(E4M3, name="mxfp8"),
    "mxfp4": ElementType("mxfp4", "e2m1", FORMATS["mxfp4"].element.numpy, 2.0**-2, 1.0),
}
"""All types of C, including block-scaled formats with their scale factors."""


def check_dtype(name: str) -> None:
    """Refuses a name that is no type of A and B."""
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
    """A [M, K] and B [N, K], with groups [groups * N, K], row-major, and how they were made.

    ``factors``: the scale factors of A and of B, if any. ``alpha``: the factor of C. ``epilogue``: the fused one.
    ``given``: its operands, by the names in its formula.
    """

    a: np.ndarray
    b: np.ndarray
    kind: str
    seed: int
    factors: tuple[np.ndarray, np.ndarray] | None = None
    alpha: float = 1.0
    epilogue: Epilogue = EPILOGUES[NONE]
    given: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[int, ...] = ()
    masked: int = 0

    @property
    def rows(self) -> np.ndarray | None:
        """Returns the valid rows of A and C in memory, if masked groups leave others."""
        if not self.masked:
            return None
        return np.concatenate([at * self.masked + np.arange(size) for at, size in enumerate(self.groups)])

    def in_memory(self, values: np.ndarray) -> np.ndarray:
        """Arranges A, or an array with the same rows, in memory. Invalid rows are 1, so that their results are not NaN
        and would show in C.
        """
        if self.rows is None:
            return values
        found = np.ones((len(self.groups) * self.masked, values.shape[1]), values.dtype)
        found[self.rows] = values
        return found

    @property
    def given_in_memory(self) -> dict[str, Any]:
        """Returns `given`, with arrays that have rows of C arranged as in memory."""
        return {name: self.in_memory(each) if name == "residual" else each for name, each in self.given.items()}

    @property
    def exact(self) -> bool:
        """Returns whether the f32 sums have no rounding error. Then the output must match exactly, unless an epilogue
        rounds.
        """
        return self.kind in EXACT_KINDS


def make_inputs(
    shape: Shape, dtype: str, kind: str, seed: int, epilogue: Epilogue = EPILOGUES[NONE], scales: str = "tensor"
) -> Inputs:
    """Draws A and B, and an epilogue's operands. The same arguments give the same values. ``scales`` applies to
    e4m3.
    """
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


def epilogue_operands(shape: Shape, dtype: str, kind: str, seed: int, epilogue: Epilogue) -> dict[str, Any]:
    """Draws an epilogue's operands, by the names in its formula. Each group has its own bias."""
    if epilogue.name == NONE:
        return {}
    rows, columns = np.arange(shape.m)[:, None], np.arange(shape.n)
    exact = kind in EXACT_KINDS
    of_b = np.arange(shape.b_rows).reshape(len(shape.groups), shape.n) if shape.groups else columns
    # 127 and 61 are primes: columns, or rows, repeat only at these distances.
    marks = {"bias": 4 * (37 * of_b % 127) - 252, "residual": 4 * ((13 * rows + 5 * columns) % 61) - 120}
    given: dict[str, Any] = {"alpha": 0.5, "beta": -2.0} if exact else {"alpha": 0.75, "beta": -1.25}
    rng = np.random.default_rng([seed, 1])
    for name, values in marks.items():
        drawn = values if exact else shape.k**0.5 * rng.standard_normal(values.shape)
        given[name] = drawn.astype(ELEMENT_TYPES[dtype].numpy)
    return {name: value for name, value in given.items() if epilogue.takes(name)}


def check_kind(kind: str, dtype: str) -> None:
    """Refuses inputs that a type does not support."""
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
