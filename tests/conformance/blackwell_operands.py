"""What the probes of tcgen05.mma were given, read from the bytes of their buffers; formats written down once more."""

from __future__ import annotations

import ml_dtypes
import numpy as np

SLICE = 32
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def floats(words: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(words).view(np.float32).astype(np.float64)


def rows(operands: np.ndarray, start: int, count: int) -> np.ndarray:
    """[count, 32] bytes of K-major rows without swizzle: LBO is 16 bytes a row, SBO 128 bytes."""
    raw = np.ascontiguousarray(operands).view(np.uint8)
    found = np.empty((count, SLICE), np.uint8)
    for row in range(count):
        for byte in range(SLICE):
            place = row // 8 * 128 + row % 8 * 16 + byte // 16 * 16 * count + byte % 16
            found[row, byte] = raw[start + place]
    return found


def small(code: np.ndarray, exponent_bits: int, fraction_bits: int, bias: int) -> np.ndarray:
    """Numbers of a type without infinity and NaN."""
    sign = np.where(code >> (exponent_bits + fraction_bits) & 1, -1.0, 1.0)
    exponent = (code >> fraction_bits & (1 << exponent_bits) - 1).astype(int)
    fraction = (code & (1 << fraction_bits) - 1) / 2.0**fraction_bits
    return sign * np.where(exponent, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))


def numbers(raw: np.ndarray, element: str, packed: bool = False) -> np.ndarray:
    """Rows of 32 bytes as float64 [rows, K]."""
    dtypes = {
        "bf16": ml_dtypes.bfloat16, "f16": np.float16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
    }  # fmt: skip
    if element == "tf32":
        raw = (np.ascontiguousarray(raw).view(np.uint32) & 0xFFFFE000).view(np.uint8)
    if element in dtypes:
        with np.errstate(invalid="ignore"):
            return np.ascontiguousarray(raw).view(dtypes[element]).astype(np.float64)
    if packed:
        return E2M1[np.stack([raw & 15, raw >> 4], axis=-1).reshape(len(raw), -1)]
    width = 4 if element == "e2m1" else 6
    codes = np.empty((len(raw), SLICE), np.int64)
    for at in range(SLICE):
        chunk = raw[:, at // 16 * 16 : at // 16 * 16 + 16].astype(object)
        stream = sum(chunk[:, byte] << 8 * byte for byte in range(16))
        codes[:, at] = [int(value) >> width * (at % 16) & (1 << width) - 1 for value in stream]
    shape = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3)}[element]
    return small(codes, *shape)
