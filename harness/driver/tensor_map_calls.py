"""Calls that make tensor maps (CUDA Driver API, Tensor Map Object Management)."""

from __future__ import annotations

import struct
from typing import Any

from harness.driver.calls import handles
from harness.driver.results import DriverError
from harness.driver.state import Session
from harness.emulator import Fault
from harness.emulator.memory import tensor_map_bytes
from harness.emulator.memory.tensor_map_bytes import Fields, Im2colFields

_TYPES = (
    *("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "tf32", "tf32.ftz"),
    *("b4x16", "b4x16_p64", "b6x16_p32"),
)
"""By CUtensorMapDataType."""


def _encoded(session: Session, kind: int, interleave: int, **fields: Any) -> bytes:
    """The bytes of a map. Raises DriverError as the driver does, which looks at every field."""
    swizzle, fill, rank = fields["swizzle"], fields["fill_nan"], len(fields["dims"])
    if kind >= len(_TYPES) or fill > 1 or swizzle > 4 or fields["l2_promotion"] > 3:
        raise DriverError("INVALID_VALUE", f"a tensor map of type {kind}, swizzle {swizzle}, fill {fill}")
    if interleave or swizzle > 3:
        session.gpu.log.failed(
            f"a tensor map of rank {rank} with interleave {interleave} and swizzle {swizzle} is not implemented"
        )
        raise DriverError("NOT_SUPPORTED")
    try:
        made = Fields(element=_TYPES[kind], **{**fields, "fill_nan": bool(fill)})
        assert made.map
    except (Fault, ValueError) as error:
        raise DriverError("INVALID_VALUE", str(error)) from error
    return made.pack()


def _numbers(data: bytes, code: str) -> tuple[int, ...]:
    return struct.unpack(f"={len(data) // struct.calcsize(code)}{code}", data)


def _check_rank(rank: int, least: int) -> None:
    if not least <= rank <= 5:
        raise DriverError("INVALID_VALUE", f"a tensor map of rank {rank}; it must be {least} to 5")


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
    l2: int,
    fill: int,
) -> bytes:
    _check_rank(rank, 1)
    return _encoded(
        session,
        kind,
        interleave,
        address=address,
        dims=_numbers(dims, "Q"),
        strides=_numbers(strides, "Q"),
        box=_numbers(box, "I"),
        element_strides=_numbers(element_strides, "I"),
        swizzle=swizzle,
        l2_promotion=l2,
        fill_nan=fill,
    )


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
    l2: int,
    fill: int,
) -> bytes:
    _check_rank(rank, 3)
    return _encoded(
        session,
        kind,
        interleave,
        address=address,
        dims=_numbers(dims, "Q"),
        strides=_numbers(strides, "Q"),
        box=(channels,),
        element_strides=_numbers(element_strides, "I"),
        swizzle=swizzle,
        l2_promotion=l2,
        fill_nan=fill,
        im2col=Im2colFields(_numbers(lower, "i"), _numbers(upper, "i"), pixels),
    )


@handles("emulatedReplaceAddress")
def replace_address(session: Session, old: bytes, address: int) -> bytes:
    if address % 16:
        raise DriverError("INVALID_VALUE", f"{address:#x} is not a multiple of 16")
    try:
        return tensor_map_bytes.replace(old, "global_address", 0, address)
    except Fault as error:
        raise DriverError("INVALID_VALUE", str(error)) from error
