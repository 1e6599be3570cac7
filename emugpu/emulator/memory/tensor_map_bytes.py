"""Tensor maps as the 128 bytes that the hardware reads (PTX ISA 5.5.8, 9.7.9.28).

The layout is undocumented. It was derived from what the driver of an H200 writes for 691 maps, and from what
``tensormap.replace`` changes there (tests/data/hardware/h200_tensor_maps.json). Little-endian words of 64 bits:

    0    global address
    1    0 im2col mode   4-6 rank - 1   7-10 element type   11-12 interleave   13-14 swizzle   15 fill with NaN
         16 tf32   17-18 L2 promotion   19-20 atoms of the 128-byte swizzle: 0 of 16 bytes   32-63 stride 1 / 16
    2    strides 2 and 3 / 16, 32 bits each
    3    0-31 stride 4 / 16   32-47 four more bits of each stride
    4    dimensions 0 and 1, each less 1
    5    dimensions 2 and 3, each less 1
    6    0-31 dimension 4 - 1   32-46 element strides - 1, three bits each   56-63 box 0 - 1
    7    boxes 1 to 4 less 1, a byte each; in im2col mode 0-15 lower and 16-31 upper corner, 32-41 pixels - 1
    8    bytes of a box, 9 period of the swizzle: written by the driver, and left unchanged by ``tensormap.replace``

Bits of words 0 to 7 that are not named are 0, but bits 1 and 21 of word 1 are not checked: CuTe DSL, which packs maps
itself, sets some. Bits 19 and 20 are known from its maps; no H200 has them. CuTe DSL does not initialise words 8 and
up, and the hardware reads only the first 64 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.swizzle import Swizzle
from emugpu.emulator.memory.tensor_map import MAX_RANK, Im2colMap, TensorMap, TensorMapElement

NBYTES = 128
ALIGNMENT = 64
"""The alignment of a map's address."""
READ_BYTES = 64
MAX_ADDRESS = 1 << 57
_WORDS = struct.Struct("<16Q")
_ELEMENTS = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "b4x16", "b4x16_p64",
             "b6x16_p32")  # fmt: skip
"""The element types by their code in word 1. The last three, which no H200 has, are in the driver's order."""
_REPLACED_ELEMENTS = (*_ELEMENTS[:11], "tf32", "tf32.ftz", *_ELEMENTS[11:])
"""The element types by their code in ``tensormap.replace``."""
_BYTES = ("e4m3", "e5m2", "ue8m0")
"""Types of one byte that the hardware treats as u8."""
_SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128, Swizzle.B128_ATOM_32B)
"""By their number in the driver API. The API has more: atoms of 32 bytes with swapped halves, and atoms of 64 bytes."""
_SPAN_128 = 3
_CORNER_BITS = {3: 16, 4: 8, 5: 5}
"""The number of bits of each corner in im2col mode, by rank."""
_UNUSED = {1: 0xFFC0_000C, 3: 0xFFFF << 48, 6: 0x1FF << 47, 7: 0xFFFF_FFFF << 32}
"""Bits that are 0 in every map."""


@dataclass(frozen=True)
class Im2colFields:
    """The fields of a map in im2col mode instead of boxes: spatial corners, width first, and pixels."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    pixels: int


@dataclass(frozen=True)
class Fields:
    """The content of a tensor map, whether or not the emulator can copy with it.

    element: a name of `_ELEMENTS`, or tf32 or tf32.ftz. box: in im2col mode, the channels only. interleave, swizzle,
    l2_promotion: their numbers in the driver API. im2col: None in a tiled map.
    """

    address: int
    element: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    fill_nan: bool = False
    im2col: Im2colFields | None = None

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def box_bytes(self) -> int:
        """The box size that the driver stores. It rounds down where copies round up (`TensorMap.box_shape`)."""
        kind = TensorMapElement.from_name(self.element.removesuffix(".ftz"))
        if self.im2col is None:
            count = prod(extent // step for extent, step in zip(self.box, self.element_strides, strict=True))
        else:
            count = self.box[0] * self.im2col.pixels
        return count * kind.bytes // kind.unit

    def pack(self) -> bytes:
        """Returns the 128 bytes, as the driver writes them."""
        words = [0] * 16
        words[0] = self.address
        code, tf32 = _element_code(self.element)
        words[1] = int(self.im2col is not None) | self.rank - 1 << 4 | code << 7 | self.interleave << 11
        words[1] |= min(self.swizzle, _SPAN_128) << 13 | max(self.swizzle - _SPAN_128, 0) << 19
        words[1] |= self.fill_nan << 15 | tf32 << 16 | self.l2_promotion << 17
        for i, extent in enumerate(self.dims):
            words[4 + i // 2] |= extent - 1 << 32 * (i % 2)
        for i, stride in enumerate(self.strides):
            words[(3 + i) // 2] |= (stride >> 4 & 0xFFFF_FFFF) << 32 * ((3 + i) % 2)
            words[3] |= stride >> 36 << 32 + 4 * i
        for i, step in enumerate(self.element_strides):
            words[6] |= step - 1 << 32 + 3 * i
        words[6] |= self.box[0] - 1 << 56
        if self.im2col is None:
            for i, extent in enumerate(self.box[1:]):
                words[7] |= extent - 1 << 8 * i
        else:
            words[7] = _pack_im2col(self.im2col, _CORNER_BITS[self.rank])
        words[8] = self.box_bytes
        words[9] = _SWIZZLES[self.swizzle].pattern_bytes
        return _WORDS.pack(*words)

    @classmethod
    def unpack(cls, data: bytes) -> Fields:
        """Returns the content of 128 bytes. Fault if they cannot be a map."""
        if not is_tensor_map(data):
            raise Fault("these bytes are not those of a tensor map", "tensor-map")
        words = _WORDS.unpack(data)
        one, six, seven = words[1], words[6], words[7]
        rank = (one >> 4 & 7) + 1
        element = _ELEMENTS[one >> 7 & 15]
        tiled = not one & 1
        return cls(
            address=words[0],
            element=element.replace("f32", "tf32") if one >> 16 & 1 else element,
            dims=tuple((words[4 + i // 2] >> 32 * (i % 2) & 0xFFFF_FFFF) + 1 for i in range(rank)),
            strides=tuple(_stride(words, i) for i in range(rank - 1)),
            box=((six >> 56) + 1, *((seven >> 8 * i & 0xFF) + 1 for i in range(rank - 1 if tiled else 0))),
            element_strides=tuple((six >> 32 + 3 * i & 7) + 1 for i in range(rank)),
            interleave=one >> 11 & 3,
            swizzle=_SPAN_128 + (one >> 19 & 3) if one >> 13 & 3 == _SPAN_128 else one >> 13 & 3,
            l2_promotion=one >> 17 & 3,
            fill_nan=bool(one >> 15 & 1),
            im2col=None if tiled else _unpack_im2col(seven, rank - 2, _CORNER_BITS[rank]),
        )

    @property
    def map(self) -> TensorMap:
        """The map with which the emulator copies. Fault if it cannot, or if the fields do not fit together."""
        if self.interleave:
            raise Fault(f"a tensor map with interleave {self.interleave} is not implemented", "unsupported")
        if self.swizzle >= len(_SWIZZLES):
            raise Fault(f"a tensor map with swizzle {self.swizzle} is not implemented", "unsupported")
        fields: dict[str, Any] = {
            "address": self.address,
            "element": self.element.removesuffix(".ftz"),
            "dims": self.dims,
            "strides": self.strides,
            "element_strides": self.element_strides,
            "swizzle": _SWIZZLES[self.swizzle],
            "fill_nan": self.fill_nan,
        }
        try:
            if self.im2col is None:
                return TensorMap(box=self.box, **fields)
            corners: dict[str, Any] = {
                "lower": self.im2col.lower,
                "upper": self.im2col.upper,
                "pixels": self.im2col.pixels,
            }
            return Im2colMap(box=(*self.box, *[1] * (self.rank - 1)), **fields, **corners)
        except ValueError as error:
            raise Fault(str(error), "tensor-map") from error


def _element_code(name: str) -> tuple[int, bool]:
    """Returns the code of a type, and whether it is a kind of tf32."""
    if name in _BYTES:
        return 0, False
    tf32 = name.startswith("tf32")
    return _ELEMENTS.index(name.removeprefix("t") if tf32 else name), tf32


def _stride(words: tuple[int, ...], i: int) -> int:
    low = words[(3 + i) // 2] >> 32 * ((3 + i) % 2) & 0xFFFF_FFFF
    return (words[3] >> 32 + 4 * i & 15) << 36 | low << 4


def _pack_im2col(fields: Im2colFields, bits: int) -> int:
    word = fields.pixels - 1 << 32
    for first, corner in ((0, fields.lower), (16, fields.upper)):
        for i, value in enumerate(corner):
            word |= (value & (1 << bits) - 1) << first + bits * i
    return word


def _unpack_im2col(word: int, count: int, bits: int) -> Im2colFields:
    def corner(first: int) -> tuple[int, ...]:
        values = (word >> first + bits * i & (1 << bits) - 1 for i in range(count))
        return tuple(value - (value >> bits - 1 << bits) for value in values)

    return Im2colFields(corner(0), corner(16), (word >> 32) + 1)


def encode(tmap: TensorMap, l2_promotion: int = 0) -> bytes:
    """Returns the 128 bytes of a map. Types of one byte for which the hardware has no code become u8."""
    im2col = Im2colFields(tmap.lower, tmap.upper, tmap.pixels) if isinstance(tmap, Im2colMap) else None
    return Fields(
        address=tmap.address,
        element=tmap.element.name,
        dims=tmap.dims,
        strides=tmap.strides,
        box=tmap.box[:1] if im2col else tmap.box,
        element_strides=tmap.element_strides,
        swizzle=_SWIZZLES.index(tmap.swizzle),
        l2_promotion=l2_promotion,
        fill_nan=tmap.fill_nan,
        im2col=im2col,
    ).pack()


def is_tensor_map(data: bytes) -> bool:
    """Returns whether these can be the 128 bytes of a map.

    In the part that the hardware reads, every bit without a meaning must be 0, every code must be valid, and not all
    may be 0.
    """
    if len(data) != NBYTES or not any(data[:READ_BYTES]):
        return False
    words = _WORDS.unpack(data)
    one = words[1]
    rank, code = (one >> 4 & 7) + 1, one >> 7 & 15
    if rank > MAX_RANK or code >= len(_ELEMENTS) or words[0] >= MAX_ADDRESS:
        return False
    if one & 1 and (rank not in _CORNER_BITS or words[7] >> 42):
        return False
    unused = {**_UNUSED, 7: 0} if one & 1 else _UNUSED
    return not any(words[n] & mask for n, mask in unused.items())


@lru_cache(maxsize=1024)
def decode(data: bytes) -> TensorMap:
    """Returns the map in 128 bytes. Fault if they are no map, or one with which the emulator cannot copy."""
    return Fields.unpack(data).map


# ---- tensormap.replace ----

_CODES = {"rank": (4, 3), "interleave_layout": (11, 2), "swizzle_mode": (13, 2), "fill_mode": (15, 1),
          "swizzle_atomicity": (19, 2)}  # fmt: skip
"""Fields of word 1: the first bit, and the number of bits."""
FIELDS = ("global_address", "global_dim", "global_stride", "box_dim", "element_stride", "elemtype", *_CODES)
WITH_ORDINAL = ("global_dim", "global_stride", "box_dim", "element_stride")


def replace(data: bytes, field: str, ordinal: int, value: int) -> bytes:
    """Returns the bytes with one field changed.

    The rank is given less one; sizes are given as they are. The bytes need not be a map yet: Triton starts with zeros
    and sets every field.
    """
    words = list(_WORDS.unpack(data))

    def put(word: int, first: int, bits: int, number: int) -> None:
        mask = (1 << bits) - 1
        words[word] = words[word] & ~(mask << first) | (number & mask) << first

    if field in WITH_ORDINAL and not 0 <= ordinal < (MAX_RANK - 1 if field == "global_stride" else MAX_RANK):
        count = MAX_RANK - 1 if field == "global_stride" else MAX_RANK
        raise Fault(f"tensormap.replace of {field} {ordinal}: a tensor map has {count} of them", "tensor-map")
    if field == "global_address":
        words[0] = value
    elif field in _CODES:
        put(1, *_CODES[field], value)
    elif field == "elemtype":
        if value >= len(_REPLACED_ELEMENTS):
            raise Fault(f"tensormap.replace of elemtype {value}: there is no such type", "tensor-map")
        code, tf32 = _element_code(_REPLACED_ELEMENTS[value])
        put(1, 7, 4, code)
        put(1, 16, 1, tf32)
    elif field == "global_dim":
        put(4 + ordinal // 2, 32 * (ordinal % 2), 32, value - 1)
    elif field == "global_stride":
        put((3 + ordinal) // 2, 32 * ((3 + ordinal) % 2), 32, value >> 4)
        put(3, 32 + 4 * ordinal, 4, value >> 36)
    elif field == "element_stride":
        put(6, 32 + 3 * ordinal, 3, value - 1)
    elif ordinal == 0:
        put(6, 56, 8, value - 1)
    else:
        put(7, 8 * (ordinal - 1), 8, value - 1)
    return _WORDS.pack(*words)
