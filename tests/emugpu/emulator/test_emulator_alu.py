"""Scalar instructions against a model in plain Python integers, for lanes that differ and for lanes that agree."""

from __future__ import annotations

import struct
import zlib
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emugpu.emulator import Device, Module

M32, M64 = (1 << 32) - 1, (1 << 64) - 1

SOURCE = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 out, .param .u64 in) {{
.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %d<16>;
ld.param.u64 %d10, [out];
ld.param.u64 %d11, [in];
mov.u32 %r9, {lane};
mul.wide.u32 %d12, %r9, 8;
add.s64 %d13, %d11, %d12;
ld.global.b64 %d1, [%d13];
ld.global.b64 %d2, [%d13+256];
ld.global.b64 %d3, [%d13+512];
cvt.u32.u64 %r1, %d1;
cvt.u32.u64 %r2, %d2;
cvt.u32.u64 %r3, %d3;
mov.b64 %d0, 0;
{body}
mov.u32 %r9, %tid.x;
mul.wide.u32 %d12, %r9, 8;
add.s64 %d13, %d10, %d12;
st.global.b64 [%d13], %d0;
ret;
}}
"""


def execute(body: str, values: np.ndarray, lane: str = "%tid.x") -> np.ndarray:
    """Run ``body`` with a, b, c in %d1..3 (low halves in %r1..3); the result is %d0, one per lane."""
    device = Device()
    source = device.upload(values.astype(np.uint64).reshape(-1))
    out = device.alloc(8 * 32)
    device.launch(Module.from_text(SOURCE.format(body=body, lane=lane)), grid=1, block=32, arguments=[out, source])
    return device.download(out, np.uint64, 32)


def s32(v):
    return v - (1 << 32) if v >> 31 & 1 else v


def s64(v):
    return v - (1 << 64) if v >> 63 else v


def trunc_div(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def f32(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bits32(value):
    """Bit pattern; every NaN counts as the canonical one."""
    number = np.float32(value)
    return 0x7FFFFFFF if np.isnan(number) else int(number.view(np.uint32))


OUT32 = " cvt.u64.u32 %d0, %r0;"
FLAG = " selp.b64 %d0, 1, 0, %p0;"

CASES = {
    "add.s32 %r0, %r1, %r2;": lambda a, b, c: (a + b) & M32,
    "sub.s32 %r0, %r1, %r2;": lambda a, b, c: (a - b) & M32,
    "sub.s32 %r0, 7, %r2;": lambda a, b, c: (7 - b) & M32,
    "add.s32 %r0, %r1, -16;": lambda a, b, c: (a - 16) & M32,
    "mul.lo.s32 %r0, %r1, %r2;": lambda a, b, c: a * b & M32,
    "mul.hi.u32 %r0, %r1, %r2;": lambda a, b, c: a * b >> 32,
    "mul.hi.s32 %r0, %r1, %r2;": lambda a, b, c: s32(a) * s32(b) >> 32 & M32,
    "mad.lo.s32 %r0, %r1, %r2, %r3;": lambda a, b, c: (a * b + c) & M32,
    "div.u32 %r0, %r1, %r2;": lambda a, b, c: a // b if b else None,
    "div.s32 %r0, %r1, %r2;": lambda a, b, c: trunc_div(s32(a), s32(b)) & M32 if b else None,
    "rem.s32 %r0, %r1, %r2;": lambda a, b, c: (s32(a) - trunc_div(s32(a), s32(b)) * s32(b)) & M32 if b else None,
    "min.s32 %r0, %r1, %r2;": lambda a, b, c: min(s32(a), s32(b)) & M32,
    "max.s32 %r0, %r1, %r2;": lambda a, b, c: max(s32(a), s32(b)) & M32,
    "min.u32 %r0, %r1, %r2;": lambda a, b, c: min(a, b),
    "max.u32 %r0, %r1, 100;": lambda a, b, c: max(a, 100),
    "neg.s32 %r0, %r1;": lambda a, b, c: -a & M32,
    "abs.s32 %r0, %r1;": lambda a, b, c: abs(s32(a)) & M32,
    "and.b32 %r0, %r1, %r2;": lambda a, b, c: a & b,
    "or.b32 %r0, %r1, %r2;": lambda a, b, c: a | b,
    "xor.b32 %r0, %r1, -1;": lambda a, b, c: a ^ M32,
    "not.b32 %r0, %r1;": lambda a, b, c: a ^ M32,
    "shl.b32 %r0, %r1, 5;": lambda a, b, c: a << 5 & M32,
    "shr.u32 %r0, %r1, 5;": lambda a, b, c: a >> 5,
    "shr.s32 %r0, %r1, 5;": lambda a, b, c: s32(a) >> 5 & M32,
    "and.b32 %r4, %r2, 63; shl.b32 %r0, %r1, %r4;": lambda a, b, c: a << (b & 63) & M32 if b & 63 < 32 else 0,
    "and.b32 %r4, %r2, 63; shr.u32 %r0, %r1, %r4;": lambda a, b, c: a >> (b & 63),
    "and.b32 %r4, %r2, 63; shr.s32 %r0, %r1, %r4;": lambda a, b, c: s32(a) >> min(b & 63, 31) & M32,
    "shf.l.wrap.b32 %r0, %r1, %r2, 7;": lambda a, b, c: ((b << 32 | a) << 7 >> 32) & M32,
    "shf.r.clamp.b32 %r0, %r1, %r2, %r3;": lambda a, b, c: (b << 32 | a) >> min(c, 32) & M32,
    "lop3.b32 %r0, %r1, %r2, %r3, 0x96;": lambda a, b, c: a ^ b ^ c,
    "lop3.b32 %r0, %r1, %r2, %r3, 0xE8;": lambda a, b, c: (a & b) | (b & c) | (a & c),
    "prmt.b32 %r0, %r1, %r2, 0x5410;": lambda a, b, c: (a & 0xFFFF) | (b & 0xFFFF) << 16,
    "prmt.b32 %r0, %r1, %r2, 0x0123;": lambda a, b, c: int.from_bytes(a.to_bytes(4, "big"), "little"),
    "bfe.u32 %r0, %r1, 4, 8;": lambda a, b, c: a >> 4 & 255,
    "bfe.s32 %r0, %r1, 4, 8;": lambda a, b, c: ((a >> 4 & 255) ^ 128) - 128 & M32,
    "bfi.b32 %r0, %r1, %r2, 8, 4;": lambda a, b, c: (b & ~0xF00) | (a & 15) << 8,
    "popc.b32 %r0, %r1;": lambda a, b, c: a.bit_count(),
    "clz.b32 %r0, %r1;": lambda a, b, c: 32 - a.bit_length(),
    "brev.b32 %r0, %r1;": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, %r3, 17, %p1;": lambda a, b, c: c if s32(a) < s32(b) else 17,
    "setp.lt.u32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;": lambda a, b, c: int(a < b),
    "setp.ge.and.s32 %p1, %r1, %r2, %p0; selp.b32 %r0, 1, 0, %p1;": lambda a, b, c: int(s32(a) >= s32(b) and a != c),
    "setp.eq.u32 %p1|%p2, %r1, %r2; selp.b32 %r0, 1, 0, %p2;": lambda a, b, c: int(a != b),
    "setp.lo.u32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;": lambda a, b, c: int(a < b),
    "mov.b32 %r0, 5; setp.gt.s32 %p1, %r1, %r2; @%p1 mov.b32 %r0, %r3;": lambda a, b, c: c if s32(a) > s32(b) else 5,
    "mov.b32 %r0, 5; setp.gt.s32 %p1, %r1, %r2; @!%p1 add.s32 %r0, %r0, %r3;": lambda a, b, c: (
        5 if s32(a) > s32(b) else (5 + c) & M32
    ),
    "cvt.u16.u32 %h1, %r1; shl.b16 %h2, %h1, 3; cvt.u32.u16 %r0, %h2;": lambda a, b, c: (a & 0xFFFF) << 3 & 0xFFFF,
    "cvt.s32.s8 %r0, %r1;": lambda a, b, c: (a & 255 ^ 128) - 128 & M32,
    "mov.b32 {%h1, %h2}, %r1; mov.b32 %r0, {%h2, %h1};": lambda a, b, c: a >> 16 | (a & 0xFFFF) << 16,
    "add.f32 %r0, %r1, %r2;": lambda a, b, c: bits32(np.float32(f32(a)) + np.float32(f32(b))),
    "mul.rn.f32 %r0, %r1, %r2;": lambda a, b, c: bits32(np.float32(f32(a)) * np.float32(f32(b))),
    "cvt.rn.f32.s32 %r0, %r1;": lambda a, b, c: bits32(np.float32(s32(a))),
    "cvt.rzi.s32.f32 %r0, %r1;": lambda a, b, c: (
        0 if f32(a) != f32(a) else max(-(1 << 31), min((1 << 31) - 1, int(max(-1e30, min(1e30, f32(a)))))) & M32
    ),
    "setp.lt.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;": lambda a, b, c: int(f32(a) < f32(b)),
}
WIDE = {
    "add.s64 %d0, %d1, %d2;": lambda a, b, c: (a + b) & M64,
    "sub.s64 %d0, %d1, %d2;": lambda a, b, c: (a - b) & M64,
    "mul.lo.s64 %d0, %d1, %d2;": lambda a, b, c: a * b & M64,
    "mul.hi.u64 %d0, %d1, %d2;": lambda a, b, c: a * b >> 64,
    "mul.wide.u32 %d0, %r1, %r2;": lambda a, b, c: (a & M32) * (b & M32),
    "mul.wide.s32 %d0, %r1, %r2;": lambda a, b, c: s32(a & M32) * s32(b & M32) & M64,
    "mad.wide.s32 %d0, %r1, %r2, %d3;": lambda a, b, c: (s32(a & M32) * s32(b & M32) + c) & M64,
    "shl.b64 %d0, %d1, 33;": lambda a, b, c: a << 33 & M64,
    "shr.u64 %d0, %d1, 33;": lambda a, b, c: a >> 33,
    "shr.s64 %d0, %d1, 3;": lambda a, b, c: s64(a) >> 3 & M64,
    "setp.lt.s64 %p0, %d1, %d2;" + FLAG: lambda a, b, c: int(s64(a) < s64(b)),
    "setp.lt.u64 %p0, %d1, %d2;" + FLAG: lambda a, b, c: int(a < b),
    "min.s64 %d0, %d1, %d2;": lambda a, b, c: min(s64(a), s64(b)) & M64,
    "cvt.s64.s32 %d0, %r1;": lambda a, b, c: s32(a & M32) & M64,
    "cvt.u64.u32 %d0, %r1;": lambda a, b, c: a & M32,
    "mov.b64 {%r4, %r5}, %d1; mov.b64 %d0, {%r5, %r4};": lambda a, b, c: a >> 32 | (a & M32) << 32,
    "or.b64 %d0, %d1, 4611756662049472512;": lambda a, b, c: a | 4611756662049472512,
}

EDGES = [
    0,
    1,
    2,
    31,
    32,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x1_0000_0000,
    0x7FFF_FFFF_FFFF_FFFF,
    M64,
    0x8000_0000_0000_0000,
]


def operands(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, M64, size=(3, 32), dtype=np.uint64, endpoint=True)
    for row in values:
        chosen = rng.choice(32, 16, replace=False)
        row[chosen] = rng.choice(np.array(EDGES, np.uint64), 16)
    values[0, :4] = values[1, :4]
    return values


@pytest.mark.parametrize("body", CASES)
def test_32_bit_instruction(body):
    model = CASES[body]
    values = operands(zlib.crc32(body.encode()))
    prefix = "setp.ne.b32 %p0, %r1, %r3; "
    if body.startswith(("div", "rem")):
        values[1] |= 1
    expected = [model(*(int(v) & M32 for v in lane)) for lane in values.T]
    assert execute(prefix + body + OUT32, values).tolist() == expected
    # The same with all lanes reading lane 3's operands: registers then hold scalars.
    assert execute(prefix + body + OUT32, values, lane="3").tolist() == [expected[3]] * 32


@pytest.mark.parametrize("body", WIDE)
def test_64_bit_instruction(body):
    values = operands(zlib.crc32(body.encode()))
    expected = [WIDE[body](*(int(v) for v in lane)) for lane in values.T]
    assert execute(body, values).tolist() == expected
    assert execute(body, values, lane="5").tolist() == [expected[5]] * 32


floats = st.floats(width=32, allow_nan=False)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(floats, floats, floats), min_size=32, max_size=32))
def test_fused_multiply_add_rounds_once(lanes):
    values = np.array([[bits32(v) for v in lane] for lane in lanes], np.uint64).T
    got = execute("fma.rn.f32 %r0, %r1, %r2, %r3;" + OUT32, values).astype(np.uint32).view(np.float32)
    for (a, b, c), result in zip(lanes, got, strict=True):
        if not all(np.isfinite(np.float32(v)) for v in (a, b, c)) or not np.isfinite(result):
            continue
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        error = abs(Fraction(float(result)) - exact)
        for neighbour in (np.nextafter(result, np.float32(np.inf)), np.nextafter(result, np.float32(-np.inf))):
            if np.isfinite(neighbour):
                assert error <= abs(Fraction(float(neighbour)) - exact)


@pytest.mark.parametrize(("kind", "dtype"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_packing_to_half_precision_rounds_to_nearest_even(kind, dtype):
    rng = np.random.default_rng(3)
    values = rng.integers(0, M32, size=(3, 32), dtype=np.uint64, endpoint=True)
    values[0, :6] = [bits32(v) for v in (1.0, -0.0, np.inf, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 65520.0)]
    with np.errstate(all="ignore"):
        high, low = (
            v.astype(np.uint32).view(np.float32).astype(dtype).view(np.uint16).astype(np.uint64) for v in values[:2]
        )
    keep = ~np.isnan(values[:2].astype(np.uint32).view(np.float32)).any(axis=0)
    got = execute(f"cvt.rn.{kind}x2.f32 %r0, %r1, %r2;" + OUT32, values)
    assert (got == (high << 16 | low))[keep].all() and keep.sum() > 20
    twice = f"cvt.rn.{kind}x2.f32 %r4, %r1, %r2; cvt.rn.{kind}x2.f32 %r5, %r2, %r1; mov.b64 %d0, {{%r4, %r5}};"
    expected = (high << 16 | low) | (low << 16 | high) << 32
    assert (execute(twice, values) == expected)[keep].all()


@pytest.mark.parametrize(
    ("mode", "position", "width", "mask"),
    [
        ("clamp", 0, 0, 0),
        ("clamp", 4, 3, 0x70),
        ("clamp", 31, 1, 0x80000000),
        ("clamp", 24, 20, 0xFF000000),
        ("clamp", 8, 32, 0xFFFFFF00),
        ("clamp", 32, 4, 0),
        ("wrap", 4, 3, 0x70),
        ("wrap", 36, 3, 0x70),
        ("wrap", 36, 35, 0x70),
        ("wrap", 4, 32, 0),
        ("wrap", 24, 20, 0xFF000000),
    ],
)
def test_bmsk_makes_a_mask_of_ones(mode, position, width, mask):
    """Worked by hand from PTX ISA 9.7.1.24."""
    operands = np.broadcast_to(np.array([[position], [width], [0]]), (3, 32))
    assert (execute(f"bmsk.{mode}.b32 %r4, %r1, %r2; cvt.u64.u32 %d0, %r4;", operands) == mask).all()
