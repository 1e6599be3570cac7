"""The first values of buffers.

integer        whole numbers in -4..4, of unsigned types 0..8, of ue8m0 1, 2 or 4: sums of products are exact
index          values that tell rows, columns and slices of K apart (`index_operand`); of
               whole-number types the element's number, modulo the type's range
normal         standard normal, of ue8m0 powers of two about 1; of whole-number types rounded, times 16
uniform        uniform in [-1, 1), of ue8m0 1/2 or 1; of whole-number types over the whole range
zeros, nan     all the same
uninitialised  nothing: reading it is an error
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageProblem
from harness.launch.elements import DataType, round_to_tf32
from harness.launch.spec import Fill

CHUNK = 8
"""Elements of K in the 16 bytes that a swizzle moves as a whole."""
SCALES = 8


def make_values(fill: Fill, dtype: DataType, shape: tuple[int, ...], number: int) -> NDArray[Any] | None:
    """Returns the values of a buffer that is no file; None: uninitialised. number: of the buffer, so that equal ones
    differ.
    """
    if fill.kind == "uninitialised":
        return None
    if fill.kind == "array":
        return fill.array
    rng = np.random.default_rng((fill.seed, number))
    draw = _exponents if dtype.name == "ue8m0" else _floats if dtype.is_float else _wholes
    with np.errstate(over="ignore", invalid="ignore"):
        return to_type(draw(fill, dtype, shape, rng), dtype)


def to_type(values: NDArray[Any], dtype: DataType) -> NDArray[Any]:
    """Rounded to the type; whole numbers that do not fit wrap around."""
    values = np.asarray(values)
    if not dtype.is_float and values.dtype.kind == "f":
        return values.astype(np.int64).astype(dtype.numpy)
    made = values.astype(dtype.numpy, copy=False)
    return round_to_tf32(made) if dtype.name == "tf32" else made


def _floats(fill: Fill, dtype: DataType, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    match fill.kind:
        case "integer":
            return rng.integers(-4, 5, size=shape).astype(np.float32)
        case "index":
            return index_operand(shape[0], shape[1], rng)
        case "normal":
            return rng.standard_normal(shape, dtype=np.float32)
        case "uniform":
            return rng.random(shape, dtype=np.float32) * 2 - 1
        case "nan":
            return np.full(shape, np.nan, dtype.numpy)
    return np.full(shape, fill.number, np.float64)


def _wholes(fill: Fill, dtype: DataType, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    signed = dtype.name[0] == "s"
    info = np.iinfo(dtype.numpy)
    match fill.kind:
        case "integer":
            return rng.integers(-4, 5, size=shape) if signed else rng.integers(0, 9, size=shape)
        case "index":
            return np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64).reshape(shape)
        case "normal":
            values = np.rint(16 * rng.standard_normal(shape)).astype(np.int64)
            return values if signed else np.abs(values)
        case "uniform":
            return rng.integers(info.min, info.max, size=shape, dtype=dtype.numpy, endpoint=True)
    return np.full(shape, fill.number, dtype.numpy)


def _exponents(fill: Fill, dtype: DataType, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    match fill.kind:
        case "integer":
            return np.exp2(rng.integers(0, 3, size=shape))
        case "normal":
            return np.exp2(np.rint(rng.standard_normal(shape)))
        case "uniform":
            return np.exp2(rng.integers(-1, 1, size=shape).astype(np.float64))
        case "nan":
            return np.full(shape, np.nan)
    return np.full(shape, fill.number, np.float64)


def index_operand(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Values [rows, k] in which the place of every row and of every 16 bytes of K can be told.

    K is cut into chunks of 8 elements, 16 bytes: what a swizzle moves as a whole. Each chunk of each row is
    one of 16 words: the 8 Walsh functions (rows of a Hadamard matrix) and their negatives, drawn
    independently. Two words multiply to +8 or -8 if they are the same function and to 0 otherwise, so a
    chunk that meets another chunk of the other operand than it should adds something else. No element is
    zero: each one of them counts.

    Each row is scaled by a power of two, from the sum of the octal digits of its number. Rows that are a
    swizzle row, a slice, a tile or a CTA apart differ in a digit, so that each nonzero element of a
    misplaced row is off by a power of two.

    An element of C is then 8 * j * 2^s, where j is the end of a random walk of K / 8 steps, one in eight of
    which moves, and s is between -12 and 2. |j| <= 256, which 8 bits of significand hold exactly, is 8
    standard deviations at K = 65536: rounding the output hides nothing. These are numbers between 2^-9 and
    2^13, well inside the range of fp16.
    """
    words = _walsh_words()
    drawn = rng.integers(0, len(words), size=(rows, k // CHUNK), dtype=np.uint8)
    values: NDArray[Any] = words[drawn].reshape(rows, k) * row_scales(rows)[:, None]
    return values


def row_scales(rows: int) -> np.ndarray:
    """Returns one power of two per row, 2^-6 to 2^1, by the sum of the octal digits of the row number."""
    number = np.arange(rows)
    digit_sum = np.zeros(rows, dtype=np.int64)
    while number.any():
        digit_sum += number % 8
        number = number // 8
    return np.exp2((digit_sum % SCALES - 6).astype(np.float32))


def _walsh_words() -> np.ndarray:
    """The 8 rows of the Hadamard matrix of order 8 (Sylvester's construction) and their negatives: [16,
    8].
    """
    matrix = np.ones((1, 1), dtype=np.float32)
    for _ in range(3):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.concatenate([matrix, -matrix])


def load_file(path: Path, dtype: DataType, shape: tuple[int, ...] | None, where: str) -> NDArray[Any]:
    """Returns an array of a .npy file in the buffer's type; where: who asks, for messages.

    Types that NumPy lacks are saved by it as bytes without a meaning; those of the right size are taken as they are.
    """
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageProblem(
            f"{where}: cannot read {path} as a .npy file: {reason}; write one with numpy.save"
        ) from error
    if values.dtype.kind == "V":
        if values.dtype.itemsize != dtype.numpy.itemsize:
            raise UsageProblem(
                f"{where}: {path} holds elements of {values.dtype.itemsize} bytes, {dtype.name} has others"
            )
        values = values.view(dtype.numpy)
    if values.dtype.kind not in "fiubV" and values.dtype != dtype.numpy:
        raise UsageProblem(f"{where}: {path} holds {values.dtype}; save numbers")
    if shape is not None and values.shape != shape:
        raise UsageProblem(f"{where}: {path} has shape {list(values.shape)}, and shape = {list(shape)} is asked for")
    if not values.shape or not values.size:
        raise UsageProblem(f"{where}: {path} has shape {list(values.shape)}; at least one element is needed")
    return to_type(values, dtype)


def as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """For arithmetic: float64, or whole numbers of 64 bits."""
    whole = {"i": np.int64, "u": np.uint64 if values.dtype == np.uint64 else np.int64}
    return values.astype(whole.get(values.dtype.kind, np.float64))
