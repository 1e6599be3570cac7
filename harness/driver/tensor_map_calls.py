"""Calls that make tensor maps (CUDA Driver API, Tensor Map Object Management)."""

from __future__ import annotations

import struct
from dataclasses import replace

from harness.driver.calls import handles
from harness.driver.results import DriverError
from harness.driver.state import Session
from harness.emulator import Fault, Im2colMap, Swizzle, TensorMap
from harness.emulator.memory.tensor_map_bytes import decode, encode

_TYPES = (
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32", "tf32", "tf32",
    "b4x16", "b4x16_p64", "b6x16_p32",
)  # fmt: skip
"""By CUtensorMapDataType; 10 and 12 flush denormals to zero, which copies do not see."""
_SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)


def _common(
    session: Session, kind: int, rank: int, interleave: int, swizzle: int, fill: int, dims: bytes, strides: bytes
) -> dict[str, object]:
    if kind >= len(_TYPES) or not 1 <= rank <= 5 or fill > 1:
        raise DriverError("INVALID_VALUE", f"a tensor map of type {kind}, rank {rank}, fill {fill}")
    if interleave or swizzle >= len(_SWIZZLES):
        session.gpu.log.failed(f"a tensor map with interleave {interleave} and swizzle {swizzle} is not implemented")
        raise DriverError("NOT_SUPPORTED")
    return {
        "element": _TYPES[kind],
        "dims": struct.unpack(f"={rank}Q", dims),
        "strides": struct.unpack(f"={rank - 1}Q", strides),
        "swizzle": _SWIZZLES[swizzle],
        "fill_nan": bool(fill),
    }


@handles("cuTensorMapEncodeTiled")
def encode_tiled(
    session: Session,
    kind: int,
    rank: int,
    address: int,
    dims: bytes,
    strides: bytes,
    box: bytes,
    element_strides: bytes,
    interleave: int,
    swizzle: int,
    _l2: int,
    fill: int,
) -> bytes:
    fields = _common(session, kind, rank, interleave, swizzle, fill, dims, strides)
    steps = struct.unpack(f"={rank}I", element_strides)
    try:
        made = TensorMap(
            address=address,
            box=struct.unpack(f"={rank}I", box),
            element_strides=steps,
            **fields,  # type: ignore[arg-type]
        )
    except ValueError as error:
        raise DriverError("INVALID_VALUE", str(error)) from error
    return encode(made)


@handles("cuTensorMapEncodeIm2col")
def encode_im2col(
    session: Session,
    kind: int,
    rank: int,
    address: int,
    dims: bytes,
    strides: bytes,
    lower: bytes,
    upper: bytes,
    channels: int,
    pixels: int,
    element_strides: bytes,
    interleave: int,
    swizzle: int,
    _l2: int,
    fill: int,
) -> bytes:
    fields = _common(session, kind, rank, interleave, swizzle, fill, dims, strides)
    if rank < 3:
        raise DriverError("INVALID_VALUE", f"a tensor map in im2col mode of rank {rank}; it needs 3 and more")
    try:
        made = Im2colMap(
            address=address,
            box=(channels, *(1,) * (rank - 1)),
            element_strides=struct.unpack(f"={rank}I", element_strides),
            lower=struct.unpack(f"={rank - 2}i", lower),
            upper=struct.unpack(f"={rank - 2}i", upper),
            pixels=pixels,
            **fields,  # type: ignore[arg-type]
        )
    except ValueError as error:
        raise DriverError("INVALID_VALUE", str(error)) from error
    return encode(made)


@handles("emulatedReplaceAddress")
def replace_address(session: Session, old: bytes, address: int) -> bytes:
    try:
        return encode(replace(decode(old), address=address))
    except (Fault, ValueError) as error:
        raise DriverError("INVALID_VALUE", str(error)) from error
