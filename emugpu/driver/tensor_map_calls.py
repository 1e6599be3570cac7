"""Calls that encode tensor maps (CUDA Driver API, Tensor Map Object Management).

The refused arguments and the bytes of the encoded maps are those of an H200's driver (conformance.tensor_map_encoding).
Types and swizzles that only newer GPUs have follow the documentation.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from emugpu.driver.api import handles
from emugpu.driver.results import DriverError
from emugpu.driver.state import Session
from emugpu.emulator.memory.tensor_map import TensorMapElement
from emugpu.emulator.memory.tensor_map_bytes import MAX_ADDRESS, Fields, Im2colFields, is_tensor_map

_TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "tf32", "tf32.ftz",
          "b4x16", "b4x16_p64", "b6x16_p32")  # fmt: skip
"""By CUtensorMapDataType."""
_HOPPER_TYPES = 13
_HOPPER_SWIZZLES, _EMULATED_SWIZZLES, _SWIZZLES = 4, 5, 7
_SPANS = (1 << 32, 32, 64, 128, 128)
"""The largest inner row of a box in bytes, by swizzle."""
_FLOATS = ("f16", "f32", "f64", "bf16", "f32.ftz", "tf32", "tf32.ftz")
_MAX_BOX_BYTES = 227 << 10
_CORNER_LIMITS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}


def _require(ok: bool, what: str, value: object, rule: str) -> None:
    if not ok:
        raise DriverError("INVALID_VALUE", f"tensor map: {what} = {value}: {rule}")


def _within(what: str, values: tuple[int, ...], low: int, high: int) -> None:
    good = all(low <= value <= high for value in values)
    _require(good, what, values if len(values) > 1 else values[0], f"must be {low}..{high}")


def _type(session: Session, kind: int) -> str:
    newer = session.gpu.model.capability >= (10, 0)
    _require(kind < (len(_TYPES) if newer else _HOPPER_TYPES), "type", kind, "is not one that this GPU has")
    return _TYPES[kind]


def _modes(session: Session, element: str, interleave: int, swizzle: int, promotion: int, fill: int) -> None:
    newer = session.gpu.model.capability >= (10, 0)
    _require(interleave <= 2, "interleave", interleave, "must be 0..2")
    _require(swizzle < (_SWIZZLES if newer else _HOPPER_SWIZZLES), "swizzle", swizzle, "is not one that this GPU has")
    _require(promotion <= 3, "l2Promotion", promotion, "must be 0..3")
    _require(fill <= 1, "oobFill", fill, "must be 0 or 1")
    _require(not fill or element in _FLOATS, "oobFill", fill, f"fills with NaN, and {element} has none")
    if swizzle >= _EMULATED_SWIZZLES:
        session.gpu.log.failed(f"tensor map: swizzle {swizzle} (atoms of 64 bytes, or turned round) is not implemented")
        raise DriverError("NOT_SUPPORTED")


def _numbers(data: bytes, letter: str) -> tuple[int, ...]:
    return struct.unpack(f"={len(data) // struct.calcsize('=' + letter)}{letter}", data)


def _tensor(address: int, dims: tuple[int, ...], strides: tuple[int, ...], element: str, interleave: int) -> None:
    padded = element in ("b4x16_p64", "b6x16_p32")
    alignment = 32 if interleave == 2 or padded else 16
    _require(address < MAX_ADDRESS, "globalAddress", f"{address:#x}", "must be below 2^57")
    _require(address % alignment == 0, "globalAddress", f"{address:#x}", f"must be a multiple of {alignment}")
    _within("globalDim", dims, 1, 1 << 32)
    if strides:
        _within("globalStrides", strides, 0, (1 << 40) - 1)
        _require(not any(s % alignment for s in strides), "globalStrides", strides, f"must be multiples of {alignment}")
    unit = 128 if padded else 2 if element == "b4x16" else 1
    _require(dims[0] % unit == 0, "globalDim[0]", dims[0], f"must be a multiple of {unit} for {element}")


def _row(element: str, count: int, interleave: int, swizzle: int, name: str) -> None:
    """Checks the inner row of a box, of ``count`` elements."""
    kind = TensorMapElement.from_name(element.removesuffix(".ftz"))
    nbytes = count * kind.bytes // kind.unit
    if kind.global_bytes:
        _require(count == 128, name, count, f"must be 128 for {element}")
    elif not interleave:
        _require(nbytes % 16 == 0, name, f"{count} elements of {element}", "must be a multiple of 16 bytes")
    if not interleave and not kind.global_bytes:
        _require(
            nbytes <= _SPANS[swizzle], name, f"{nbytes} bytes", f"must fit the {_SPANS[swizzle]} bytes of the swizzle"
        )


def _fields(
    session: Session,
    kind: int,
    address: int,
    sizes: tuple[bytes, bytes, bytes],
    box: tuple[int, ...],
    modes: tuple[int, ...],
    im2col: Im2colFields | None = None,
) -> Fields:
    """Returns the fields that both kinds of maps have.

    ``sizes`` holds dimensions, strides and element strides, ``modes`` interleave, swizzle, L2 promotion and fill.
    """
    element = _type(session, kind)
    _modes(session, element, *modes)
    interleave, swizzle, l2_promotion, fill = modes
    dims, strides, steps = (_numbers(data, letter) for data, letter in zip(sizes, "QQI", strict=True))
    _tensor(address, dims, strides, element, interleave)
    return Fields(address, element, dims, strides, box, steps, interleave, swizzle, l2_promotion, bool(fill), im2col)


@handles("cuTensorMapEncodeTiled")
def encode_tiled(
    session: Session, kind: int, rank: int, address: int, dims: bytes, strides: bytes, box: bytes, steps: bytes,
    *modes: int,
) -> bytes:  # fmt: skip
    interleave, swizzle, *_ = modes
    _require(1 <= rank <= 5, "tensorRank", rank, "must be 1..5")
    _require(not interleave or rank >= 3, "tensorRank", rank, "must be 3 and more with interleave")
    fields = _fields(session, kind, address, (dims, strides, steps), _numbers(box, "I"), modes)
    _within("boxDim", fields.box, 1, 256)
    _within("elementStrides", fields.element_strides, 1, 8)
    _row(fields.element, fields.box[0], interleave, swizzle, "boxDim[0]")
    if not TensorMapElement.from_name(fields.element.removesuffix(".ftz")).global_bytes:
        nbytes = replace(fields, element_strides=(1,) * rank).box_bytes
        _require(nbytes <= _MAX_BOX_BYTES, "boxDim", fields.box, f"has {nbytes} bytes, of {_MAX_BOX_BYTES} that fit")
    return fields.pack()


@handles("cuTensorMapEncodeIm2col")
def encode_im2col(
    session: Session, kind: int, rank: int, address: int, dims: bytes, strides: bytes, lower: bytes, upper: bytes,
    channels: int, pixels: int, steps: bytes, *modes: int,
) -> bytes:  # fmt: skip
    interleave, swizzle, *_ = modes
    _require(3 <= rank <= 5, "tensorRank", rank, "must be 3..5")
    corners = Im2colFields(_numbers(lower, "i"), _numbers(upper, "i"), pixels)
    fields = _fields(session, kind, address, (dims, strides, steps), (channels,), modes, corners)
    limit = _CORNER_LIMITS[rank]
    _within("pixelBoxLowerCorner", corners.lower, -limit, limit - 1)
    _within("pixelBoxUpperCorner", corners.upper, -limit, limit - 1)
    for extent, low, high in zip(fields.dims[1:-1], corners.lower, corners.upper, strict=True):
        _require(extent + high - low > 0, "pixel box", (low, high), f"has nothing of the {extent} pixels")
    _within("channelsPerPixel", (channels,), 1, 256)
    _within("pixelsPerColumn", (pixels,), 1, 1024)
    _within("elementStrides", fields.element_strides, 1, 8)
    _row(fields.element, channels, interleave, swizzle, "channelsPerPixel")
    return fields.pack()


@handles("emulatedReplaceAddress")
def replace_address(session: Session, old: bytes, address: int) -> bytes:
    _require(is_tensor_map(old), "tensorMap", old[:16].hex(), "is not a tensor map")
    _require(
        address % 16 == 0 and 0 < address < MAX_ADDRESS, "globalAddress", f"{address:#x}", "must be a multiple of 16"
    )
    return struct.pack("=Q", address) + old[8:]
