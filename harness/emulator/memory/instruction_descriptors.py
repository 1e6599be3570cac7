"""The tcgen05.mma instruction descriptor of every kind (PTX ISA 9.7.16.4.2, shapes 9.7.16.2.1).

That of kind::f16, which most kernels use, is in `descriptors`, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from harness.emulator.errors import Fault
from harness.emulator.memory.descriptors import Major

_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_TYPES: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": _F8F6F4,
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _F8F6F4,
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
"""Types of A and B by their codes."""
_D_TYPES = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "f8f6f4": {0: "f16", 1: "f32"}, "i8": {2: "s32"}}
SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")
KINDS = tuple(_TYPES)
DEPTH = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
"""Elements along K: always 32 bytes of shared memory."""


@dataclass(frozen=True)
class Shape:
    """What an instruction descriptor says. a_id and b_id: which bytes of a column hold the scale factors.

    scale: their type, of the block-scaled kinds. saturate: of kind::i8.
    """

    kind: str
    m: int
    n: int
    a_type: str
    b_type: str
    d_type: str
    a_major: Major
    b_major: Major
    negate: bool
    saturate: bool = False
    scale: str = ""
    a_id: int = 0
    b_id: int = 0


def _valid_n(kind: str, group: int, weights: bool) -> tuple[int, ...]:
    if weights:
        return (64, 128, 256)
    if kind == "i8":
        return tuple(range(32, 257, 32)) if group == 2 else (8, 16, 24, 32, *range(48, 257, 16))
    step = 8 * group
    return tuple(range(step, 257, step))


def _valid_m(kind: str, group: int, weights: bool) -> tuple[int, ...]:
    if weights:
        return (32, 64, 128)
    if kind in SCALED:
        return (128,) if group == 1 else (128, 256)
    return (64, 128) if group == 1 else (128, 256)


@lru_cache(maxsize=512)
def decode(kind: str, value: int, group: int, weights: bool = False) -> Shape:
    """Decode for a kind; weights: ``.ws``. Fault on values the instruction does not have."""
    what = f"tcgen05.mma kind::{kind} instruction descriptor"

    def bits(first: int, last: int) -> int:
        return value >> first & ((1 << (last - first + 1)) - 1)

    def zero(*ranges: tuple[int, int]) -> None:
        for first, last in ranges:
            if bits(first, last):
                raise Fault(f"{what} {value:#x}: reserved bits {first}..{last} must be 0", "descriptor")

    if bits(2, 2):
        raise Fault(f"{what} {value:#x}: sparse matrices (bit 2) are not supported", "unsupported")
    types = _TYPES[kind]
    wide_b = kind not in ("mxf4", "mxf4nvf4")
    codes = (bits(7, 9), bits(10, 12 if wide_b else 11))
    for name, code in zip("AB", codes, strict=True):
        if code not in types:
            known = ", ".join(f"{c} ({t})" for c, t in types.items())
            raise Fault(f"{what} {value:#x}: {name} type code {code} must be one of {known}", "descriptor")
    a_type, b_type = (types[code] for code in codes)
    m, n = bits(24, 28) << 4, bits(17, 22) << 3
    if m not in _valid_m(kind, group, weights):
        raise Fault(f"{what} {value:#x}: M = {m} must be one of {_valid_m(kind, group, weights)}", "descriptor")
    if n not in _valid_n(kind, group, weights):
        raise Fault(f"{what} {value:#x}: N = {n} is not one that the instruction has", "descriptor")
    scale, ids, d_type = "", (0, 0), "f32"
    if kind in SCALED:
        zero((0, 1), (3, 3), (6, 6), (24, 26), (31, 31))
        scale = "ue8m0" if bits(23, 23) else "ue4m3"
        if scale == "ue4m3" and kind != "mxf4nvf4":
            raise Fault(f"{what} {value:#x}: scale factors of type ue4m3 (bit 23) exist in mxf4nvf4 only", "descriptor")
        ids = (bits(29, 30), bits(4, 5))
    else:
        zero((0, 1), (6, 6), (23, 23), (29, 31) if not weights else (29, 29))
        if kind != "i8":
            zero((3, 3))
        found = _D_TYPES[kind].get(bits(4, 5))
        if found is None or (kind == "f16" and found == "f16" and (a_type, b_type) != ("f16", "f16")):
            raise Fault(
                f"{what} {value:#x}: D type code {bits(4, 5)} does not go with {a_type} and {b_type}", "descriptor"
            )
        d_type = found
    narrow = ("e2m3", "e3m2", "e2m1")
    for name, bit, element in (("A", 15, a_type), ("B", 16, b_type)):
        if bits(bit, bit) and (element in narrow or kind == "tf32"):
            raise Fault(f"{what} {value:#x}: {name} of type {element} must be K-major here", "descriptor")
    return Shape(
        kind,
        m,
        n,
        a_type,
        b_type,
        d_type,
        Major.MN if bits(15, 15) else Major.K,
        Major.MN if bits(16, 16) else Major.K,
        bool(bits(13, 13) ^ bits(14, 14)),
        kind == "i8" and bool(bits(3, 3)),
        scale,
        *ids,
    )
