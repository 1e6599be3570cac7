"""Scalar instructions against a model in plain Python integers, for lanes that differ and for lanes that agree.

`test_emulator_isa_tables` has those that exist for several widths and signs.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from ptx_values import evaluate

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def execute(body: str, values: np.ndarray, reads: int | str = "%id0") -> np.ndarray:
    """Run ``body`` with a, b, c in %d1..3 (low halves in %r1..3); the result is %d0, one per thread."""
    low = "".join(f"cvt.u32.u64 %r{n}, %d{n};" for n in (1, 2, 3))
    operands = [(f"d{n + 1}", row) for n, row in enumerate(values)]
    return evaluate(low + "mov.b64 %d0, 0;" + body, operands, "d0", reads=reads)


def s(value: int, bits: int = 32) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def clamp(value: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, value)) & M32


def leading(v: int, bits: int, signed: bool) -> int:
    v = v ^ ((1 << bits) - 1) if signed and v >> (bits - 1) else v
    return v.bit_length() - 1 if v else -1


def nth_set(mask: int, base: int, n: int) -> int:
    step = 1 if n >= 0 else -1
    position, left = base, abs(n) - 1
    if n == 0:
        return base if mask >> base & 1 else M32
    while 0 <= position < 32:
        if mask >> position & 1:
            if left == 0:
                return position
            left -= 1
        position += step
    return M32


def parts(v: int, bits: int, signed: bool) -> list[int]:
    found = [v >> bits * n & ((1 << bits) - 1) for n in range(32 // bits)]
    return [s(x, bits) for x in found] if signed else found


def halves(function, signed: bool):
    def both(a: int, b: int) -> int:
        low, high = (function(x, y) & 0xFFFF for x, y in zip(parts(a, 16, signed), parts(b, 16, signed), strict=True))
        return low | high << 16

    return both


OUT32 = " cvt.u64.u32 %d0, %r0;"

CASES = {
    "sub.s32 %r0, 7, %r2;": lambda a, b, c: (7 - b) & M32,
    "add.s32 %r0, %r1, -16;": lambda a, b, c: (a - 16) & M32,
    "max.u32 %r0, %r1, 100;": lambda a, b, c: max(a, 100),
    "and.b32 %r0, %r1, %r2;": lambda a, b, c: a & b,
    "or.b32 %r0, %r1, %r2;": lambda a, b, c: a | b,
    "xor.b32 %r0, %r1, -1;": lambda a, b, c: a ^ M32,
    "not.b32 %r0, %r1;": lambda a, b, c: a ^ M32,
    "shl.b32 %r0, %r1, 5;": lambda a, b, c: a << 5 & M32,
    "shr.u32 %r0, %r1, 5;": lambda a, b, c: a >> 5,
    "shr.s32 %r0, %r1, 5;": lambda a, b, c: s(a) >> 5 & M32,
    "and.b32 %r4, %r2, 63; shl.b32 %r0, %r1, %r4;": lambda a, b, c: a << (b & 63) & M32,
    "and.b32 %r4, %r2, 63; shr.u32 %r0, %r1, %r4;": lambda a, b, c: a >> (b & 63),
    "and.b32 %r4, %r2, 63; shr.s32 %r0, %r1, %r4;": lambda a, b, c: s(a) >> (b & 63) & M32,
    "shr.s32 %r0, %r1, 40;": lambda a, b, c: s(a) >> 40 & M32,
    "shf.l.wrap.b32 %r0, %r1, %r2, 7;": lambda a, b, c: ((b << 32 | a) << 7 >> 32) & M32,
    "shf.r.clamp.b32 %r0, %r1, %r2, %r3;": lambda a, b, c: (b << 32 | a) >> min(c, 32) & M32,
    "prmt.b32 %r0, %r1, %r2, 0x0123;": lambda a, b, c: int.from_bytes(a.to_bytes(4, "big"), "little"),
    "bfe.u32 %r0, %r1, 4, 8;": lambda a, b, c: a >> 4 & 255,
    "bfe.s32 %r0, %r1, 4, 8;": lambda a, b, c: ((a >> 4 & 255) ^ 128) - 128 & M32,
    "bfi.b32 %r0, %r1, %r2, 8, 4;": lambda a, b, c: (b & ~0xF00) | (a & 15) << 8,
    "popc.b32 %r0, %r1;": lambda a, b, c: a.bit_count(),
    "clz.b32 %r0, %r1;": lambda a, b, c: 32 - a.bit_length(),
    "brev.b32 %r0, %r1;": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, %r3, 17, %p1;": lambda a, b, c: c if s(a) < s(b) else 17,
    "setp.ge.and.s32 %p1, %r1, %r2, %p0; selp.b32 %r0, 1, 0, %p1;": lambda a, b, c: int(s(a) >= s(b) and a != c),
    "setp.eq.u32 %p1|%p2, %r1, %r2; selp.b32 %r0, 1, 0, %p2;": lambda a, b, c: int(a != b),
    "mov.b32 %r0, 5; setp.gt.s32 %p1, %r1, %r2; @%p1 mov.b32 %r0, %r3;": lambda a, b, c: c if s(a) > s(b) else 5,
    "mov.b32 %r0, 5; setp.gt.s32 %p1, %r1, %r2; @!%p1 add.s32 %r0, %r0, %r3;": lambda a, b, c: (
        5 if s(a) > s(b) else (5 + c) & M32
    ),
    "cvt.u16.u32 %h1, %r1; shl.b16 %h2, %h1, 3; cvt.u32.u16 %r0, %h2;": lambda a, b, c: (a & 0xFFFF) << 3 & 0xFFFF,
    "mov.b32 {%h1, %h2}, %r1; mov.b32 %r0, {%h2, %h1};": lambda a, b, c: a >> 16 | (a & 0xFFFF) << 16,
    "add.sat.s32 %r0, %r1, %r2;": lambda a, b, c: clamp(s(a) + s(b)),
    "sub.sat.s32 %r0, %r1, %r2;": lambda a, b, c: clamp(s(a) - s(b)),
    "mad.hi.sat.s32 %r0, %r1, %r2, %r3;": lambda a, b, c: clamp((s(a) * s(b) >> 32) + s(c)),
    "max.relu.s32 %r0, %r1, %r2;": lambda a, b, c: max(s(a), s(b), 0),
    "min.relu.s32 %r0, %r1, %r2;": lambda a, b, c: max(min(s(a), s(b)), 0),
    "add.u16x2 %r0, %r1, %r2;": lambda a, b, c: halves(lambda x, y: x + y, False)(a, b),
    "min.u16x2 %r0, %r1, %r2;": lambda a, b, c: halves(min, False)(a, b),
    "max.s16x2 %r0, %r1, %r2;": lambda a, b, c: halves(max, True)(a, b),
    "min.relu.s16x2 %r0, %r1, %r2;": lambda a, b, c: halves(lambda x, y: max(min(x, y), 0), True)(a, b),
    "mul24.lo.s32 %r0, %r1, %r2;": lambda a, b, c: s(a & 0xFFFFFF, 24) * s(b & 0xFFFFFF, 24) & M32,
    "mul24.hi.u32 %r0, %r1, %r2;": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16,
    "mad24.lo.u32 %r0, %r1, %r2, %r3;": lambda a, b, c: ((a & 0xFFFFFF) * (b & 0xFFFFFF) + c) & M32,
    "sad.s32 %r0, %r1, %r2, %r3;": lambda a, b, c: (abs(s(a) - s(b)) + c) & M32,
    "sad.u32 %r0, %r1, %r2, %r3;": lambda a, b, c: (abs(a - b) + c) & M32,
    "bfind.u32 %r0, %r1;": lambda a, b, c: leading(a, 32, False) & M32,
    "bfind.s32 %r0, %r1;": lambda a, b, c: leading(a, 32, True) & M32,
    "bfind.shiftamt.u32 %r0, %r1;": lambda a, b, c: 31 - leading(a, 32, False) if a else M32,
    "and.b32 %r2, %r2, 31; rem.s32 %r3, %r3, 5; fns.b32 %r0, %r1, %r2, %r3;": lambda a, b, c: nth_set(
        a, b & 31, int(np.fix(s(c) / 5)) * -5 + s(c)
    ),
    "cnot.b32 %r0, %r1;": lambda a, b, c: int(a == 0),
    "and.b32 %r2, %r2, 63; szext.clamp.s32 %r0, %r1, %r2;": lambda a, b, c: (
        s(a & ((1 << min(b & 63, 32)) - 1), min(b & 63, 32)) & M32 if b & 63 else 0
    ),
    "and.b32 %r2, %r2, 63; szext.wrap.u32 %r0, %r1, %r2;": lambda a, b, c: a & ((1 << (b & 31)) - 1),
    "dp4a.s32.u32 %r0, %r1, %r2, %r3;": lambda a, b, c: (
        c + sum(x * y for x, y in zip(parts(a, 8, True), parts(b, 8, False), strict=True)) & M32
    ),
    "dp2a.hi.u32.s32 %r0, %r1, %r2, %r3;": lambda a, b, c: (
        c + sum(x * y for x, y in zip(parts(a, 16, False), parts(b, 8, True)[2:], strict=True)) & M32
    ),
    "dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;": lambda a, b, c: (
        c + sum(x * y for x, y in zip(parts(a, 16, True), parts(b, 8, True)[:2], strict=True)) & M32
    ),
    "slct.b32.s32 %r0, %r1, %r2, %r3;": lambda a, b, c: a if s(c) >= 0 else b,
    "set.lt.u32.s32 %r0, %r1, %r2;": lambda a, b, c: M32 if s(a) < s(b) else 0,
    "set.gt.f32.u32 %r0, %r1, %r2;": lambda a, b, c: 0x3F800000 if a > b else 0,
    "setp.lt.u32 %p0, %r1, %r2; set.eq.xor.u32.u32 %r0, %r1, %r3, %p0;": lambda a, b, c: (
        M32 if (a == c) ^ (a < b) else 0
    ),
    "lop3.b32 %r0, %r1, %r2, %r3, 0x1D;": lambda a, b, c: (~a & b | ~b & ~c) & M32,
    "lop3.b32 %r0, %r1, %r2, %r3, 0x96;": lambda a, b, c: a ^ b ^ c,
    "lop3.b32 %r0, %r1, %r2, %r3, 0xE8;": lambda a, b, c: (a & b) | (b & c) | (a & c),
    "lop3.or.b32 %r0|%p0, %r1, %r2, %r3, 0x80, 0; selp.b32 %r0, 1, 0, %p0;": lambda a, b, c: int(a & b & c != 0),
    "prmt.b32.f4e %r0, %r1, %r2, %r3;": lambda a, b, c: (b << 32 | a) >> 8 * (c & 3) & M32,
    "prmt.b32.rc8 %r0, %r1, %r2, %r3;": lambda a, b, c: (a >> 8 * (c & 3) & 255) * 0x01010101,
    "prmt.b32.rc16 %r0, %r1, %r2, %r3;": lambda a, b, c: (a >> 16 * (c & 1) & 0xFFFF) * 0x00010001,
    "prmt.b32.b4e %r0, %r1, %r2, %r3;": lambda a, b, c: sum(
        ((b << 32 | a) >> 8 * ((c % 4 - n) % 8) & 255) << 8 * n for n in range(4)
    ),
    "prmt.b32.ecl %r0, %r1, %r2, %r3;": lambda a, b, c: sum((a >> 8 * max(n, c & 3) & 255) << 8 * n for n in range(4)),
    "prmt.b32.ecr %r0, %r1, %r2, %r3;": lambda a, b, c: sum((a >> 8 * min(n, c & 3) & 255) << 8 * n for n in range(4)),
}
WIDE = {
    "mad.wide.s32 %d0, %r1, %r2, %d3;": lambda a, b, c: (s(a & M32) * s(b & M32) + c) & M64,
    "shl.b64 %d0, %d1, 33;": lambda a, b, c: a << 33 & M64,
    "shr.u64 %d0, %d1, 33;": lambda a, b, c: a >> 33,
    "shr.s64 %d0, %d1, 3;": lambda a, b, c: s(a, 64) >> 3 & M64,
    "mov.b64 {%r4, %r5}, %d1; mov.b64 %d0, {%r5, %r4};": lambda a, b, c: a >> 32 | (a & M32) << 32,
    "or.b64 %d0, %d1, 4611756662049472512;": lambda a, b, c: a | 4611756662049472512,
    "popc.b64 %r4, %d1; cvt.u64.u32 %d0, %r4;": lambda a, b, c: f"{a:b}".count("1"),
    "clz.b64 %r4, %d1; cvt.u64.u32 %d0, %r4;": lambda a, b, c: 64 - a.bit_length(),
    "brev.b64 %d0, %d1;": lambda a, b, c: int(f"{a:064b}"[::-1], 2),
}

EDGES = [0, 1, 2, 31, 32, 0x7FFFFFFF, 0x80000000, M32, M32 - 1, 1 << 32, M64 >> 1, M64, 1 << 63, 0x7FFF8000, 0x80007FFF,
         0xFFFF0001, 0x00FF00FF]  # fmt: skip


def operands(seed: int) -> np.ndarray:
    """[3, 96]: edges, numbers of every size, and both in turns."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, M64, size=(3, 96), dtype=np.uint64, endpoint=True)
    values[:, 64:] = (values[:, 64:] & M32) >> rng.integers(0, 31, (3, 32)).astype(np.uint64)
    for row in values:
        row[:32:2] = rng.choice(np.array(EDGES, np.uint64), 16)
        row[32:64] = np.roll(np.resize(np.array(EDGES, np.uint64), 32), rng.integers(32))
    values[0, :4] = values[1, :4]
    return values


def check(body: str, model, values: np.ndarray) -> None:
    """Each lane gets its own answer, and so do lanes that all have the operands of lane 3."""
    expected = [model(*map(int, lane)) for lane in values.T]
    assert [hex(int(x)) for x in execute(body, values)] == [hex(x) for x in expected]
    assert execute(body, values[:, :32], reads=3).tolist() == [expected[3]] * 32


@pytest.mark.parametrize("body", CASES)
def test_32_bit_instruction(body):
    def model(*lane: int) -> int:
        return CASES[body](*(v & M32 for v in lane))

    check("setp.ne.b32 %p0, %r1, %r3; " + body + OUT32, model, operands(zlib.crc32(body.encode())))


@pytest.mark.parametrize("body", WIDE)
def test_64_bit_instruction(body):
    check(body, WIDE[body], operands(zlib.crc32(body.encode())))


def test_carries_make_long_integers_of_short_ones():
    """256 bits: a + b, a - b, and a * b of their low halves, in words of 32 bits."""
    rng = np.random.default_rng(4)
    words = rng.integers(0, 1 << 32, (2, 3, 32), dtype=np.int64)
    words[:, 1, ::3] = M32
    words[1, 0, ::5] = 0
    a, b = words
    loads = [(f"r{n + 1}", a[n]) for n in range(3)] + [(f"r{n + 4}", b[n]) for n in range(3)]
    add = "add.cc.u32 %r1, %r1, %r4; addc.cc.u32 %r2, %r2, %r5; addc.u32 %r0, %r3, %r6;"
    subtract = "sub.cc.u32 %r1, %r1, %r4; subc.cc.u32 %r2, %r2, %r5; subc.u32 %r0, %r3, %r6;"
    low = [sum(int(x[n, lane]) << 32 * n for n in range(3)) for x in (a, b) for lane in range(32)]
    pairs = list(zip(low[:32], low[32:], strict=True))
    assert evaluate(add, loads, "r0").tolist() == [x + y >> 64 & M32 for x, y in pairs]
    assert evaluate(subtract, loads, "r0").tolist() == [x - y >> 64 & M32 for x, y in pairs]
    assert evaluate(add.replace("%r0, %r3, %r6", "%r0, 0, 0"), loads, "r0").tolist() == [
        (x & M64) + (y & M64) >> 64 for x, y in pairs
    ]
    multiply = """
    mul.lo.u32 %r0, %r1, %r4; mul.hi.u32 %r3, %r1, %r4;
    mad.lo.cc.u32 %r3, %r1, %r5, %r3; madc.hi.u32 %r6, %r1, %r5, 0;
    mad.lo.cc.u32 %r3, %r2, %r4, %r3; madc.hi.cc.u32 %r6, %r2, %r4, %r6;
    addc.u32 %r7, 0, 0;
    mad.lo.cc.u32 %r6, %r2, %r5, %r6; madc.hi.u32 %r0, %r2, %r5, %r7;
    """
    assert evaluate(multiply, loads, "r0").tolist() == [(x & M64) * (y & M64) >> 96 for x, y in pairs]
    wide = [("d1", rng.integers(0, 1 << 63, 32, dtype=np.int64) * 2 + 1), ("d2", np.full(32, -1).astype(np.uint64))]
    assert evaluate("add.cc.u64 %d0, %d1, %d2; addc.u64 %d0, 7, 0;", wide, "d0").tolist() == [8] * 32


def test_wide_and_narrow_forms():
    rng = np.random.default_rng(6)
    a, b = rng.integers(0, 1 << 63, (2, 32), dtype=np.int64).astype(np.uint64) * np.uint64(2)
    a[:4] = [0, 1, M64, 1 << 63]
    d = [("d1", a), ("d2", b)]
    assert evaluate("bfind.s64 %r0, %d1;", d, "r0").tolist() == [leading(int(x), 64, True) & M32 for x in a]
    assert evaluate("bfind.shiftamt.u64 %r0, %d1;", d, "r0").tolist() == [
        63 - leading(int(x), 64, False) if x else M32 for x in a
    ]
    assert evaluate("sad.u64 %d0, %d1, %d2, 3;", d, "d0").tolist() == [
        (abs(int(x) - int(y)) + 3) & M64 for x, y in zip(a, b, strict=True)
    ]
    h = [("h1", a & np.uint64(0xFFFF)), ("h2", b & np.uint64(0xFFFF))]
    assert evaluate("sad.s16 %h0, %h1, %h2, 9;", h, "h0").tolist() == [
        (abs(s(int(x) & 0xFFFF, 16) - s(int(y) & 0xFFFF, 16)) + 9) & 0xFFFF for x, y in zip(a, b, strict=True)
    ]
    assert evaluate("cnot.b64 %d0, %d1;", d, "d0").tolist() == [int(x == 0) for x in a]
    assert evaluate("mov.u32 %r0, WARP_SZ;", d, "r0").tolist() == [32] * 32
    assert evaluate("mov.f64 %e0, -1.5;", d, "e0").view(np.float64).tolist() == [-1.5] * 32
    assert evaluate("mov.f32 %f0, 2.5e-1;", d, "f0").view(np.float32).tolist() == [0.25] * 32


def test_comparisons_of_packed_halves():
    rng = np.random.default_rng(8)
    low, high = (rng.integers(-3, 4, (2, 32)).astype(np.float16) for _ in range(2))
    low[0, 0] = high[1, 1] = np.nan
    a, b = (
        low[n].view(np.uint16).astype(np.uint32) | high[n].view(np.uint16).astype(np.uint32) << 16 for n in range(2)
    )
    found = evaluate(
        "setp.lt.f16x2 %p0|%p1, %r1, %r2; selp.b32 %r0, 1, 0, %p0; @%p1 or.b32 %r0, %r0, 2;",
        [("r1", a), ("r2", b)],
        "r0",
    )
    assert found.tolist() == [int(x) + 2 * int(y) for x, y in zip(low[0] < low[1], high[0] < high[1], strict=True)]
    found = evaluate("set.geu.f16x2.f16x2 %r0, %r1, %r2;", [("r1", a), ("r2", b)], "r0")
    assert found.tolist() == [
        (0 if x else 0x3C00) | (0 if y else 0x3C000000) for x, y in zip(low[0] < low[1], high[0] < high[1], strict=True)
    ]
    tiny = [("f1", np.full(32, 1)), ("f2", np.full(32, 2))]
    flags = (
        "setp.lt.ftz.f32 %p0, %f1, %f2; setp.lt.f32 %p1, %f1, %f2; selp.b32 %r0, 1, 0, %p0; @%p1 or.b32 %r0, %r0, 2;"
    )
    assert evaluate(flags, tiny, "r0").tolist() == [2] * 32
    chosen = evaluate(
        "slct.f32.f32 %f0, %f1, %f2, %f3;", [*tiny, ("f3", np.array([0x80000000, 0, 0x7FC00000, 0xBF800000] * 8))], "f0"
    )
    assert chosen.tolist() == [1, 1, 2, 2] * 8
