"""Descriptors of matrix operands: shared-memory matrix descriptors and tcgen05 instruction descriptors.

PTX ISA 9.7.16.4.1 (tcgen05 matrix descriptor), 9.7.16.4.2 (instruction descriptor, its shapes in 9.7.16.2.1),
9.7.15.5.1.2.2 (wgmma matrix descriptor), canonical layouts in 9.7.16.3.3 and 9.7.15.5.1.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.bytes import CHUNK
from emugpu.emulator.memory.swizzle import Swizzle

LINE = 128
"""Bytes of a line. The line number drives the swizzle."""


class Major(Enum):
    """The dimension of an operand that is contiguous in shared memory."""

    K = "K-major"
    MN = "MN-major"


@dataclass(frozen=True)
class MatrixDescriptor:
    """The place of an operand in shared memory. All units are bytes.

    Attributes:
        start: address of the operand's first element, before the swizzle.
        leading_bytes: leading dimension byte offset (LBO).
        absolute: `leading_bytes` is no offset, but the address of another 128-byte line. It has what of the 48 bytes of
            a row is beyond the end of the first one (K = 96; PTX ISA 9.7.16.3.1.2).
        stride_bytes: stride dimension byte offset (SBO).
        swizzle: swizzle mode in which the operand was written.
        base_offset: the 128-byte line, modulo 8, at which the swizzle pattern starts; 0 if the pattern depends on
            absolute addresses, as TMA writes it.
    """

    start: int
    leading_bytes: int
    stride_bytes: int
    swizzle: Swizzle
    base_offset: int = 0
    absolute: bool = False


_SM100_SWIZZLES = {0: Swizzle.NONE, 2: Swizzle.B128, 4: Swizzle.B64, 6: Swizzle.B32}
_SM90_SWIZZLES = {0: Swizzle.NONE, 1: Swizzle.B128, 2: Swizzle.B64, 3: Swizzle.B32}


def _bits(value: int, first: int, last: int) -> int:
    return (value >> first) & ((1 << (last - first + 1)) - 1)


def _require_zero(value: int, what: str, *ranges: tuple[int, int]) -> None:
    for first, last in ranges:
        if _bits(value, first, last):
            raise Fault(f"{what} {value:#x}: reserved bits {first}..{last} must be 0", "descriptor")


def _common_fields(value: int, what: str, swizzle: Swizzle, absolute: bool = False) -> MatrixDescriptor:
    _require_zero(value, what, (14, 15), (30, 31))
    return MatrixDescriptor(
        start=_bits(value, 0, 13) << 4,
        leading_bytes=_bits(value, 16, 29) << 4,
        stride_bytes=_bits(value, 32, 45) << 4,
        swizzle=swizzle,
        base_offset=_bits(value, 49, 51),
        absolute=absolute,
    )


@lru_cache(maxsize=4096)
def decode_sm100(value: int, absolute: bool = False) -> MatrixDescriptor:
    """Decodes a tcgen05 matrix descriptor (PTX ISA 9.7.16.4.1). Fault on invalid or unsupported fields.

    absolute: for an MMA with K = 96, whose rows of 48 bytes need the absolute leading dimension mode.
    """
    what = "tcgen05 matrix descriptor"
    if _bits(value, 46, 48) != 0b001:
        raise Fault(
            f"{what} {value:#x}: bits 46..48 are {_bits(value, 46, 48):#05b}, must be 0b001 on sm_100", "descriptor"
        )
    _require_zero(value, what, (53, 60))
    if _bits(value, 52, 52) != absolute:
        which = "K = 96 without" if absolute else "without K = 96 of sm_103a, the"
        text = f"{which} absolute leading dimension mode (bit 52) is not implemented"
        raise Fault(f"{what} {value:#x}: {text}", "unsupported")
    code = _bits(value, 61, 63)
    if absolute and (code != 2 or _bits(value, 49, 51)):
        raise Fault(f"{what} {value:#x}: K = 96 needs swizzle code 2 (128B) and base offset 0", "descriptor")
    goes_on = _bits(value, 0, 2) > 5  # rows begin at byte 96 or 112 of a line
    if absolute and (_bits(value, 32, 34) or (goes_on and _bits(value, 16, 18))):
        text = "K = 96 with lines that do not begin at a multiple of 128 bytes is not implemented"
        raise Fault(f"{what} {value:#x}: {text}", "unsupported")
    if code == 1:
        raise Fault(f"{what} {value:#x}: swizzle code 1 (128B with 32-byte atoms) is not supported", "unsupported")
    if code not in _SM100_SWIZZLES:
        raise Fault(f"{what} {value:#x}: swizzle code {code} (bits 61..63) is none of 0, 1, 2, 4, 6", "descriptor")
    return _common_fields(value, what, _SM100_SWIZZLES[code], absolute)


@lru_cache(maxsize=4096)
def decode_sm90(value: int) -> MatrixDescriptor:
    """Decodes a wgmma matrix descriptor (PTX ISA 9.7.15.5.1.2.2). Fault on invalid or unsupported fields."""
    what = "wgmma matrix descriptor"
    _require_zero(value, what, (46, 48), (52, 61))
    return _common_fields(value, what, _SM90_SWIZZLES[_bits(value, 62, 63)])


@lru_cache(maxsize=4096)
def operand_positions(
    descriptor: MatrixDescriptor, rows: int, k_elements: int, element_bytes: int, major: Major
) -> NDArray[np.intp]:
    """Returns the numbers (shared address / 16) of the 16-byte chunks of an operand of `rows` x `k_elements`.

    K-major: shape [rows, chunks along K]; a chunk holds neighbours along K of one row.
    MN-major: shape [k_elements, chunks along the rows]; a chunk holds neighbouring rows of one k.

    The byte offsets of the canonical layout are added to the start address, and then the swizzle is applied to the
    absolute address. So a start inside a swizzle atom (the usual way to step along K) needs no special case. A base
    offset shifts the pattern by that many lines. The wgmma of an H200 reads operands this way in every combination of
    swizzle mode and major-ness.
    """
    span = descriptor.swizzle.span_bytes
    stride, leading = descriptor.stride_bytes, descriptor.leading_bytes
    if major is Major.K:
        row = np.arange(rows)[:, None]
        k_byte = np.arange(0, k_elements * element_bytes, CHUNK)[None, :]
        if descriptor.absolute:
            in_line = descriptor.start % LINE + k_byte
            k_byte = np.where(in_line < LINE, k_byte, leading + in_line - LINE - descriptor.start)
        if descriptor.swizzle is Swizzle.NONE:
            offset = row % 8 * CHUNK + row // 8 * stride + k_byte // CHUNK * leading
        else:
            offset = row % 8 * span + row // 8 * stride + k_byte
    else:
        row_byte = np.arange(0, rows * element_bytes, CHUNK)[None, :]
        k = np.arange(k_elements)[:, None]
        if descriptor.swizzle is Swizzle.NONE:
            offset = row_byte // CHUNK * stride + k % 8 * CHUNK + k // 8 * leading
        else:
            offset = row_byte % span + row_byte // span * leading + k % 8 * span + k // 8 * stride
    pattern = descriptor.base_offset * LINE
    swizzled = descriptor.swizzle.apply(descriptor.start + offset - pattern) + pattern
    positions: NDArray[np.intp] = np.ascontiguousarray(swizzled // CHUNK, np.intp)
    positions.setflags(write=False)
    return positions


NO_TYPE = 2
"""A code of kind::f8f6f4 without a type. A B200 multiplies with it nevertheless; it is not documented as which type."""
_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
TYPES: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {**_F8F6F4, NO_TYPE: "e4m3"},
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _F8F6F4,
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
"""The types of A and B by their codes."""
D_TYPES_OF_KIND = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "f8f6f4": {0: "f16", 1: "f32"}, "i8": {2: "s32"}}
SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")
DEPTH = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
"""Elements along K: 32 bytes of shared memory, but for K = 96 of sm_103a."""
K96 = 1 << 31
"""The bit of the mxf4 kinds' instruction descriptor for K = 96: 48 bytes of shared memory."""


@dataclass(frozen=True)
class InstructionDescriptor:
    """The content of an instruction descriptor.

    a_id, b_id: the byte of a column with the first scale factor. scale: the type of the scale factors, for block-scaled
    kinds. saturate: for kind::i8. is_k96: whether `K96` is set.
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
    is_k96: bool = False

    @property
    def k(self) -> int:
        """The elements of a row of A; without the masked ones, if it is sparse."""
        return 96 if self.is_k96 else DEPTH[self.kind]


def _valid_n(kind: str, group: int, weights: bool, sparse: bool) -> tuple[int, ...]:
    if weights:
        return (64, 128) if sparse else (64, 128, 256)
    if kind == "i8":
        return tuple(range(32, 257, 32)) if group == 2 else (8, 16, 24, 32, *range(48, 257, 16))
    step = 8 * group
    return tuple(range(step, 257, step))


def _valid_m(kind: str, group: int, weights: bool, sparse: bool) -> tuple[int, ...]:
    if weights:
        return (32, 64, 128)
    if kind in SCALED:
        return (128,) if group == 1 else (256,) if sparse else (128, 256)
    return (64, 128) if group == 1 else (128, 256)


@lru_cache(maxsize=512)
def decode(kind: str, value: int, group: int, weights: bool = False, sparse: bool = False) -> InstructionDescriptor:
    """Decodes an instruction descriptor. weights: ``.ws``. sparse: ``.sp``. Fault on values that do not exist."""
    what = f"tcgen05.mma kind::{kind} instruction descriptor"
    bits, zero = partial(_bits, value), partial(_require_zero, value, what)
    if bits(2, 2) != sparse:
        form = "with" if sparse else "without"
        raise Fault(f"{what} {value:#x}: bit 2 (sparse) must be {int(sparse)} {form} .sp", "descriptor")
    selectors = 2 if sparse and kind in ("f16", "tf32") else 1
    if sparse and bits(0, 1) >= selectors:
        raise Fault(f"{what} {value:#x}: sparsity selector {bits(0, 1)} is not below {selectors}", "unsupported")
    types = TYPES[kind]
    wide_b = kind not in ("mxf4", "mxf4nvf4")
    codes = (bits(7, 9), bits(10, 12 if wide_b else 11))
    for name, code in zip("AB", codes, strict=True):
        if code not in types:
            known = ", ".join(f"{c} ({t})" for c, t in types.items())
            raise Fault(f"{what} {value:#x}: {name} type code {code} must be one of {known}", "descriptor")
    a_type, b_type = (types[code] for code in codes)
    m, n = bits(24, 28) << 4, bits(17, 22) << 3
    if m not in _valid_m(kind, group, weights, sparse):
        raise Fault(f"{what} {value:#x}: M = {m} must be one of {_valid_m(kind, group, weights, sparse)}", "descriptor")
    if n not in _valid_n(kind, group, weights, sparse):
        raise Fault(f"{what} {value:#x}: N = {n} is not one that the instruction has", "descriptor")
    scale, ids, d_type = "", (0, 0), "f32"
    is_k96 = kind in ("mxf4", "mxf4nvf4") and not sparse and bool(value & K96)
    if kind in SCALED:
        zero((0, 1), (3, 3), (6, 6), (24, 26))
        if is_k96 and m != 128 * group:
            shapes = "PTX ISA 9.7.16.2.1 has K = 96 only with M = 256 for a pair"
            raise Fault(f"{what} {value:#x}: K = 96 (bit 31) with M = {m} is not implemented; {shapes}", "unsupported")
        if not is_k96:
            zero((31, 31))
        scale = "ue8m0" if bits(23, 23) else "ue4m3"
        if scale == "ue4m3" and kind != "mxf4nvf4":
            raise Fault(f"{what} {value:#x}: scale factors of type ue4m3 (bit 23) exist in mxf4nvf4 only", "descriptor")
        ids = (bits(29, 30), bits(4, 5))
    else:
        zero((1, 1) if sparse else (0, 1), (6, 6), (23, 23), (29, 31) if not weights else (29, 29))
        if kind != "i8":
            zero((3, 3))
        found = D_TYPES_OF_KIND[kind].get(bits(4, 5))
        if found is None or (kind == "f16" and found == "f16" and (a_type, b_type) != ("f16", "f16")):
            raise Fault(
                f"{what} {value:#x}: D type code {bits(4, 5)} does not go with {a_type} and {b_type}", "descriptor"
            )
        d_type = found
    narrow = ("e2m3", "e3m2", "e2m1")
    for name, bit, element in (("A", 15, a_type), ("B", 16, b_type)):
        if bits(bit, bit) and (element in narrow or kind == "tf32"):
            raise Fault(f"{what} {value:#x}: {name} of type {element} must be K-major here", "descriptor")
    return InstructionDescriptor(
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
        is_k96,
    )
