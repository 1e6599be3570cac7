"""The element types of buffers: what they are called, how NumPy holds them, and how they lie in memory.

Types of less than a byte are packed as the hardware has them (PTX ISA 5.2.3): element 0 in the lowest bits, 2 elements
of 4 bits in a byte, 4 elements of 6 bits in 3 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True)
class DataType:
    """name: as in PTX. numpy: holds one element each. bits: in memory. aliases: other names for it."""

    name: str
    numpy: np.dtype
    bits: int
    aliases: tuple[str, ...] = ()

    @property
    def is_float(self) -> bool:
        return self.name[0] not in "su" or self.name == "ue8m0"

    @property
    def packed(self) -> bool:
        """Returns whether several elements share bytes."""
        return self.bits < 8

    @property
    def group(self) -> int:
        """Returns the fewest elements that are whole bytes."""
        return {4: 2, 6: 4}.get(self.bits, 1)

    def to_memory(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Returns the bytes of an array in memory, row-major."""
        held = np.ascontiguousarray(values, self.numpy)
        codes = held.reshape(-1).view(np.uint8)
        if not self.packed:
            return codes
        bits = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, : self.bits]
        return np.packbits(bits.reshape(-1), bitorder="little")

    def from_memory(self, data: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns the reverse of `to_memory`."""
        if not self.packed:
            return data.view(self.numpy).reshape(shape)
        count = int(np.prod(shape, dtype=np.int64))
        bits = np.unpackbits(data, bitorder="little", count=count * self.bits).reshape(count, self.bits)
        return np.packbits(bits, axis=1, bitorder="little").reshape(-1).view(self.numpy).reshape(shape)

    def memory_bytes(self, shape: tuple[int, ...]) -> int:
        return int(np.prod(shape, dtype=np.int64)) * self.bits // 8


def _type(name: str, held: DTypeLike, bits: int, *aliases: str) -> DataType:
    return DataType(name, np.dtype(held), bits, aliases)


_FLOATS = (
    _type("f64", np.float64, 64, "float64", "fp64", "double"),
    _type("f32", np.float32, 32, "float32", "fp32", "float"),
    _type("tf32", np.float32, 32),
    _type("f16", np.float16, 16, "float16", "fp16", "half"),
    _type("bf16", ml_dtypes.bfloat16, 16, "bfloat16"),
    _type("e4m3", ml_dtypes.float8_e4m3fn, 8, "float8_e4m3fn", "ue4m3", "fp8_e4m3"),
    _type("e5m2", ml_dtypes.float8_e5m2, 8, "float8_e5m2", "fp8_e5m2"),
    _type("ue8m0", ml_dtypes.float8_e8m0fnu, 8, "float8_e8m0fnu", "e8m0"),
    _type("e3m2", ml_dtypes.float6_e3m2fn, 6, "float6_e3m2fn", "fp6_e3m2"),
    _type("e2m3", ml_dtypes.float6_e2m3fn, 6, "float6_e2m3fn", "fp6_e2m3"),
    _type("e2m1", ml_dtypes.float4_e2m1fn, 4, "float4_e2m1fn", "fp4", "fp4_e2m1"),
)
_SIGNED = tuple(_type(f"s{bits}", f"i{bits // 8}", bits, f"int{bits}", f"i{bits}") for bits in (8, 16, 32, 64))
_UNSIGNED = tuple(_type(f"u{bits}", f"u{bits // 8}", bits, f"uint{bits}", f"b{bits}") for bits in (8, 16, 32, 64))
DATA_TYPES = {t.name: t for t in (*_FLOATS, *_SIGNED, *_UNSIGNED)}
_BY_ALIAS = {alias: t for t in DATA_TYPES.values() for alias in (t.name, *t.aliases)}


def find_type(name: str) -> DataType | None:
    """Returns a type by any of its names."""
    return _BY_ALIAS.get(name.lower())


def fits(value: int | float, dtype: DataType) -> bool:
    """Returns whether a whole-number type holds a value."""
    least = -(1 << dtype.bits - 1) if dtype.name[0] == "s" else 0
    return isinstance(value, int) and least <= value < least + (1 << dtype.bits)


def round_to_tf32(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the nearest values with 10 bits of fraction, ties away from zero, as ``cvt.rna.tf32.f32``."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
