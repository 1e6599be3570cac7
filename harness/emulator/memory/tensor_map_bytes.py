"""Tensor maps as the 128 bytes that a kernel may copy, pass on and change (PTX ISA 5.5.8, 9.7.9.28).

The hardware's encoding is undocumented; this one is the emulator's own. Codes of types, swizzles and fills are those of
`tensormap.replace`, which are the driver's.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from harness.emulator.errors import Fault
from harness.emulator.memory.swizzle import Swizzle
from harness.emulator.memory.tensor_map import MAX_RANK, TensorMap

NBYTES = 128
_MAGIC = b"TENSORMP"
_LAYOUT = struct.Struct("<8sQ5I4Q5H5B5B")
"""Mark, address, dimensions, strides, box, element strides, then rank, element type, interleave, swizzle, fill."""
_ELEMENTS = {
    0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 9: "f64", 10: "bf16", 11: "tf32",
    13: "b4x16", 14: "b4x16_p64", 15: "b6x16_p32", 16: "e4m3", 17: "e5m2", 18: "ue8m0",
}  # fmt: skip
"""Those from 16 on are bytes to the driver, which has no names for them."""
_ELEMENT_CODES = {name: code for code, name in _ELEMENTS.items()}
_SWIZZLES = {0: Swizzle.NONE, 1: Swizzle.B32, 2: Swizzle.B64, 3: Swizzle.B128}
_SWIZZLE_CODES = {swizzle: code for code, swizzle in _SWIZZLES.items()}


def _padded(values: tuple[int, ...], count: int) -> list[int]:
    return [*values, *([0] * (count - len(values)))]


def encode(tmap: TensorMap) -> bytes:
    """The 128 bytes of a map."""
    fields = (
        *(d & 0xFFFFFFFF for d in _padded(tmap.dims, MAX_RANK)),
        *_padded(tmap.strides, MAX_RANK - 1),
        *_padded(tmap.box, MAX_RANK),
        *_padded(tmap.element_strides, MAX_RANK),
    )
    codes = (tmap.rank, _ELEMENT_CODES[tmap.element.name], 0, _SWIZZLE_CODES[tmap.swizzle], int(tmap.fill_nan))
    return _LAYOUT.pack(_MAGIC, tmap.address, *fields, *codes).ljust(NBYTES, b"\0")


def is_tensor_map(data: bytes) -> bool:
    return data.startswith(_MAGIC)


@lru_cache(maxsize=1024)
def decode(data: bytes) -> TensorMap:
    """The map that 128 bytes hold. Fault if they hold none, or one whose fields do not fit together."""
    _, address, *fields = _LAYOUT.unpack_from(data)
    if not is_tensor_map(data):
        raise Fault("these bytes are not those of a tensor map", "tensor-map")
    dims, strides, box, steps = fields[:5], fields[5:9], fields[9:14], fields[14:19]
    rank, element, interleave, swizzle, fill = fields[19:]
    if element not in _ELEMENTS or swizzle not in _SWIZZLES or interleave:
        what = f"type {element}, interleave {interleave}, swizzle {swizzle}"
        raise Fault(f"a tensor map with {what} is not implemented", "unsupported")
    try:
        return TensorMap(
            address,
            _ELEMENTS[element],  # type: ignore[arg-type]
            tuple(d or 1 << 32 for d in dims[:rank]),
            tuple(strides[: rank - 1]),
            tuple(box[:rank]),
            tuple(steps[:rank]),
            _SWIZZLES[swizzle],
            bool(fill),
        )
    except ValueError as error:
        raise Fault(str(error), "tensor-map") from error


_CODES = {"rank": 0, "elemtype": 1, "interleave_layout": 2, "swizzle_mode": 3, "fill_mode": 4}
FIELDS = ("global_address", "global_dim", "global_stride", "box_dim", "element_stride", *_CODES)
WITH_ORDINAL = ("global_dim", "global_stride", "box_dim", "element_stride")


def replace(data: bytes, field: str, ordinal: int, value: int) -> bytes:
    """The bytes with one field changed. The rank is given less one."""
    mark, address, *fields = _LAYOUT.unpack_from(data)
    if not is_tensor_map(data):
        raise Fault("the bytes to be changed are not those of a tensor map", "tensor-map")
    first, count, limit = {
        "global_dim": (0, 5, 32),
        "global_stride": (5, 4, 64),
        "box_dim": (9, 5, 16),
        "element_stride": (14, 5, 8),
    }.get(field, (0, 0, 0))
    if field == "global_address":
        address = value
    elif field in _CODES:
        fields[19 + _CODES[field]] = (value + 1 if field == "rank" else value) & 0xFF
    elif not 0 <= ordinal < count:
        raise Fault(f"tensormap.replace of {field} {ordinal}: a tensor map has {count} of them", "tensor-map")
    else:
        fields[first + ordinal] = value & ((1 << limit) - 1)
    packed: Any = _LAYOUT.pack(mark, address, *fields)
    return bytes(packed).ljust(NBYTES, b"\0")
