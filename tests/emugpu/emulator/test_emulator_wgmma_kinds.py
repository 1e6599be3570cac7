"""wgmma.mma_async of every type: tf32, fp8, integers, f16 results; A from shared memory and from registers."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import launch
from tensor_kinds import core_matrices, rows_of_bytes, values

from emugpu.emulator import Device

N = 16
DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
A_AT, B_AT, OLD_AT = 0, 2048, 4096
"""Byte offsets in `out`: A by rows as core matrices, B likewise, then the registers of D before and after."""
DESCRIPTOR = 128 >> 4 << 16 | 256 >> 4 << 32
ROOM = ".shared .align 1024 .b8 words[4096];"

PROGRAM = """
.reg .b32 %x<8>; .reg .b32 %a<4>;
mov.b32 %r1, words; mad.wide.u32 %rd2, %r0, 16, %rd0; mad.lo.u32 %r2, %r0, 16, %r1;
ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd2]; st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}};
ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd2+2048]; st.shared.v4.b32 [%r2+2048], {{%r4, %r5, %r6, %r7}};
fence.proxy.async; bar.sync 0;
shr.u32 %r12, %r1, 4; cvt.u64.u32 %rd3, %r12; add.s64 %rd4, %rd3, {a}; add.s64 %rd5, %rd3, {b};
{fragment}
mad.wide.u32 %rd6, %r0, {bytes}, %rd0;
{loads}
setp.ne.u32 %p1, 0, {keep};
wgmma.fence.sync.aligned;
{wgmma}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{stores}
ret;
"""
FRAGMENT = """
shr.u32 %r13, %r0, 5; and.b32 %r14, %r0, 31; shr.u32 %r15, %r14, 2; and.b32 %r16, %r14, 3;
mad.lo.u32 %r17, %r13, 512, %r1; mad.lo.u32 %r17, %r15, 16, %r17; mad.lo.u32 %r17, %r16, 4, %r17;
ld.shared.b32 %a0, [%r17]; ld.shared.b32 %a1, [%r17+256]; ld.shared.b32 %a2, [%r17+128]; ld.shared.b32 %a3, [%r17+384];
"""
"""Warp w has rows 16 w and up. Register j of thread t: row t / 4 + 8 (j % 2), bytes 4 (t % 4) and up of chunk j / 2."""


def place(t: int, i: int) -> tuple[int, int]:
    """Row and column of element i of thread t (PTX ISA 9.7.15.5.1.1)."""
    return 16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2


def multiply(types: str, a: np.ndarray, b: np.ndarray, *, old: np.ndarray | None = None, in_registers: bool = False,
             scale: int = 1, suffix: str = "", device: Device | None = None, **options) -> np.ndarray:  # fmt: skip
    """D of one instruction, m64n16; old: D before, or None for nothing."""
    d_type, a_type, b_type = types.split(".")
    count = 4 if d_type == "f16" else 8
    dtype = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[d_type]
    before = np.zeros((64, N), dtype) if old is None else old.astype(dtype)
    registers = np.array([[before[place(t, i)] for i in range(8)] for t in range(128)], dtype)
    flags = "" if d_type == "s32" else f", {scale}, 1"
    if a_type in ("f16", "bf16"):
        flags += ", 0" if in_registers else ", 0, 0"
    d = ", ".join(f"%x{n}" for n in range(count))
    source = "{%a0, %a1, %a2, %a3}" if in_registers else "%rd4"
    wgmma = f"wgmma.mma_async.sync.aligned.m64n{N}k{DEPTH[a_type]}.{types}{suffix} {{{d}}}, {source}, %rd5, %p1{flags};"
    body = PROGRAM.format(
        a=DESCRIPTOR | A_AT >> 4, b=DESCRIPTOR | B_AT >> 4, fragment=FRAGMENT if in_registers else "", wgmma=wgmma,
        keep=int(old is not None), bytes=4 * count,
        loads="".join(f"ld.global.b32 %x{n}, [%rd6+{OLD_AT + 4 * n}];\n" for n in range(count)),
        stores="".join(f"st.global.b32 [%rd6+{OLD_AT + 4 * n}], %x{n};\n" for n in range(count)),
    )  # fmt: skip
    memory = np.zeros(OLD_AT + 128 * 4 * count, np.uint8)
    for at, rows, element in ((A_AT, a, a_type), (B_AT, b, b_type)):
        data = core_matrices(rows_of_bytes(rows, element, "wgmma"))
        memory[at : at + data.size] = data
    memory[OLD_AT:] = registers.view(np.uint8).ravel()
    words = memory.view(np.uint32)
    run = launch(body, threads=128, target="sm_90a", module_scope=ROOM, initial=words, device=device, **options)
    found = run.words(len(words))[OLD_AT // 4 :].view(dtype).reshape(128, 8)
    result = np.zeros((64, N), dtype)
    for t in range(128):
        for i in range(8):
            result[place(t, i)] = found[t, i]
    return result


TYPES = [
    "f32.tf32.tf32", "f32.e4m3.e4m3", "f32.e5m2.e4m3", "f16.f16.f16", "f16.e4m3.e5m2", "s32.s8.s8", "s32.u8.s8",
    "s32.s8.u8", "f32.bf16.bf16",
]  # fmt: skip


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("types", TYPES)
def test_integers_multiply_exactly(types, in_registers):
    d_type, a_type, b_type = types.split(".")
    rng = np.random.default_rng(len(types))
    k = DEPTH[a_type]
    a, b = values(rng, a_type, (64, k)), values(rng, b_type, (N, k))
    old = rng.integers(-60, 60, (64, N))
    for schedule in ("fifo", "random"):
        found = multiply(types, a, b, in_registers=in_registers, schedule=schedule, seed=1)
        np.testing.assert_array_equal(found.astype(np.int64), a @ b.T)
    np.testing.assert_array_equal(multiply(types, a, b, old=old, in_registers=in_registers), old + a @ b.T)
    if d_type != "s32":
        found = multiply(types, a, b, old=old, in_registers=in_registers, scale=-1)
        np.testing.assert_array_equal(found.astype(np.int64), old - a @ b.T)


def test_integers_wrap_or_saturate():
    a, b = np.full((64, 32), -128.0), np.full((N, 32), -128.0)
    old = np.full((64, N), (1 << 31) - 1)
    assert (multiply("s32.s8.s8", a, b, old=old) == -(1 << 31) - 1 + 32 * 128 * 128).all()
    assert (multiply("s32.s8.s8", a, b, old=old, suffix=".satfinite") == (1 << 31) - 1).all()


def test_fp8_sums_have_fewer_bits_than_those_of_16_bit_types():
    """1 + 2^-14: below the 13th bit it is cut off; bf16 inputs keep it."""
    rows = {}
    for element in ("e5m2", "bf16"):
        a, b = np.zeros((64, DEPTH[element])), np.zeros((N, DEPTH[element]))
        a[:, :2], b[:, :2] = [1, 2.0**-7], [1, 2.0**-7]
        found = multiply(f"f32.{element}.{element}", a, b, device=Device(accumulation="tensor_core"))
        assert (found == found[0, 0]).all()
        rows[element] = float(found[0, 0])
    assert rows == {"e5m2": 1.0, "bf16": 1.0 + 2.0**-14}


def test_tf32_ignores_the_low_bits_of_its_inputs():
    a, b = np.zeros((64, 8)), np.zeros((N, 8))
    a[:, 0], b[:, 0] = 1 + 2.0**-10 + 2.0**-11, 1.0
    assert (multiply("f32.tf32.tf32", a, b) == 1 + 2.0**-10).all()
