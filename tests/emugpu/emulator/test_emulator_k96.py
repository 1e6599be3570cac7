"""tcgen05.mma with K = 96 of sm_103a: rows of 48 bytes that go on in another line, and 6 or 3 scale factors a row.

As CUTLASS's sm103_blockscaled_mma_warpspecialized.hpp walks through K: eight MMAs share three lines of 128 bytes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulator_reference import swizzled
from ptx_programs import launch

from emugpu.debug.decoded import decoded
from emugpu.debug.operands import ScaleFactors, tensor_product
from emugpu.emulator import Device, Fault
from emugpu.emulator.machine import events
from emugpu.emulator.memory.descriptors import decode, decode_sm100
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.memory.tmem import TensorMemory
from emugpu.emulator.units.mma import MmaUnit
from emugpu.emulator.units.mma_instruction import Mma

K, LINE = 768, 128
A_AT, B_AT, SFA_AT, SFB_AT, A_COLUMN = 0x8000, 0x20000, 256, 304, 400
DTYPES = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}


def descriptor(start: int, following: int) -> int:
    """Of rows in lines of 128 bytes, swizzled: bit 52 and the address of the line behind this one's end."""
    return start >> 4 | following >> 4 << 16 | 1024 >> 4 << 32 | 1 << 46 | 1 << 52 | 2 << 61


def packed(values: np.ndarray) -> np.ndarray:
    """Rows of e2m1, two to a byte."""
    codes = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    return codes[:, 0::2] | codes[:, 1::2] << 4


def instruction_descriptor(m: int, n: int, scale: str, a_id: int = 0, b_id: int = 0) -> int:
    return (b_id << 4 | 1 << 7 | 1 << 10 | n >> 3 << 17 | (scale == "ue8m0") << 23 | m >> 4 << 24 | a_id << 29
            | 1 << 31)  # fmt: skip


def place(cta: SimpleNamespace, at: int, rows: np.ndarray) -> None:
    """Writes packed rows: a buffer for each 128 bytes along K, in it 8 rows after 8."""
    items = rows.view("<u8")
    addresses = [
        swizzled(at + LINE * (len(rows) * (8 * item // LINE) + row) + 8 * item % LINE, "128B")
        for row, item in np.ndindex(items.shape)
    ]
    cta.shared.scatter(np.array(addresses), 8, items.ravel())


def place_factors(cta: SimpleNamespace, at: int, factors: np.ndarray) -> None:
    """Factor f of row r is byte f % 4 of column r / 32 of the group f / 4, in each quadrant."""
    apart = 4 if len(factors) <= 128 else 8
    for (row, group), word in np.ndenumerate(factors.view("<u4")):
        cta.tmem.data[row % 32 :: 32, at + apart * group + row // 32] = word
        cta.tmem.valid[row % 32 :: 32, at + apart * group + row // 32] = True


@pytest.mark.parametrize(("kind", "scale", "size"), [("mxf4nvf4", "ue4m3", 16), ("mxf4", "ue8m0", 32)])
@pytest.mark.parametrize(
    ("count", "n", "in_tmem"), [(1, 64, False), (1, 128, True), (1, 192, False), (2, 256, False), (2, 256, True)]
)
def test_eight_instructions_walk_through_three_lines(kind, scale, size, count, n, in_tmem):
    """In tensor memory, each of them takes the next 12 columns of A."""
    rng, m = np.random.default_rng(17), 128 * count
    a, b = (rng.integers(-3, 4, (rows, K)).astype(np.float64) for rows in (m, n))
    sfa, sfb = (2.0 ** rng.integers(-3, 4, (rows, K // size)) for rows in (m, n))
    codes = [factors.astype(DTYPES[scale]).view(np.uint8) for factors in (sfa, sfb)]
    ctas = [SimpleNamespace(shared=SharedMemory(0x38000), tmem=TensorMemory()) for _ in range(count)]
    for i, cta in enumerate(ctas):
        cta.tmem.allocate(512)
        rows_of_a = packed(a[128 * i :][:128])
        if in_tmem:
            cta.tmem.data[:, A_COLUMN:][:, : K // 8] = rows_of_a.view("<u4")
            cta.tmem.valid[:, A_COLUMN:][:, : K // 8] = True
        else:
            place(cta, A_AT, rows_of_a)
        place(cta, B_AT, packed(b[n // count * i :][: n // count]))
        place_factors(cta, SFA_AT, codes[0][128 * i :][:128])
        place_factors(cta, SFB_AT, codes[1])
    unit, each, apart = MmaUnit(), 96 // size, 4 if n <= 128 else 8
    for step in range(8):
        line, inside = divmod(48 * step, LINE)
        places = [(at + LINE * rows * line + inside, at + LINE * rows * min(line + 1, 2))
                  for at, rows in ((A_AT, 128), (B_AT, n // count))]  # fmt: skip
        group, byte = divmod(each * step, 4)
        a_at = A_COLUMN + 12 * step if in_tmem else descriptor(*places[0])
        what = Mma(kind, 0, a_at, in_tmem, descriptor(*places[1]),
                   instruction_descriptor(m, n, scale, byte, byte), step > 0, count, None, vectors=each,
                   scales=(SFA_AT + 4 * group, SFB_AT + apart * group))  # fmt: skip
        assert unit.mma(ctas, what, lambda rule, text: pytest.fail(text)) == 2 * m * n * 96
    found = np.empty((m, n))
    for i, cta in enumerate(ctas):
        cta.tmem.settle()
        found[128 * i :][:128] = cta.tmem.data[:, :n].view(np.float32)
    wanted = (a * np.repeat(sfa, size, axis=1)) @ (b * np.repeat(sfb, size, axis=1)).T
    np.testing.assert_array_equal(found, wanted)


PROGRAM = """
mov.b32 %r1, words; mad.wide.u32 %rd2, %r0, 16, %rd0; mad.lo.u32 %r2, %r0, 16, %r1; mov.b32 %r3, 0;
COPY: ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd2]; st.shared.v4.b32 [%r2], {%r4, %r5, %r6, %r7};
add.s64 %rd2, %rd2, 2048; add.u32 %r2, %r2, 2048; add.u32 %r3, %r3, 2048;
setp.lt.u32 %p1, %r3, 6144; @%p1 bra COPY;
setp.lt.u32 %p2, %r0, 32; setp.eq.u32 %p3, %r0, 0; mov.b32 %r9, done;
mov.b32 %r8, place; @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r8], 32;
@%p3 mbarrier.init.shared.b64 [%r9], 1; fence.proxy.async; bar.sync 0;
ld.shared.b32 %r10, [place]; add.u32 %r20, %r10, 8; add.u32 %r21, %r10, 16; setp.ne.u32 %p4, 0, 0;
shr.u32 %r12, %r1, 4; cvt.u64.u32 %rd3, %r12; mul.lo.u64 %rd4, %rd3, 65537;
add.s64 %rd5, %rd4, A; add.s64 %rd6, %rd4, B; add.s64 %rd7, %rd3, F;
@!%p3 bra ISSUED;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r20], %rd7; add.s64 %rd7, %rd7, 32; add.u32 %r22, %r20, 4;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r22], %rd7; add.s64 %rd7, %rd7, 32;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r21], %rd7; add.s64 %rd7, %rd7, 32; add.u32 %r22, %r21, 4;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r22], %rd7;
tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r10], %rd5, %rd6, WHAT, [%r20], [%r21], %p4;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];
ISSUED: WAIT: mbarrier.try_wait.parity.shared.b64 %p5, [%r9], 0; @!%p5 bra WAIT;
tcgen05.ld.sync.aligned.32x32b.x8.b32 {%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}, [%r10];
tcgen05.wait::ld.sync.aligned; mad.wide.u32 %rd8, %r0, 32, %rd0;
st.global.v4.b32 [%rd8+6144], {%r30, %r31, %r32, %r33}; st.global.v4.b32 [%rd8+6160], {%r34, %r35, %r36, %r37};
bar.sync 0; @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32; ret;
"""
ROOM = ".shared .align 1024 .b8 words[6144]; .shared .align 8 .b64 done; .shared .align 8 .b32 place;"


def run(what: int, *, target: str = "sm_103a", a_bits: int = 0, **options) -> tuple[np.ndarray, np.ndarray]:
    """D [128, 8] as a program finds it, and as arithmetic does. The 8 rows of A come again and again.

    Rows begin at byte 96 of one line and go on in the next; their six factors at byte 2 of a word.
    """
    rng = np.random.default_rng(19)
    rows = [rng.integers(-3, 4, (8, 96)).astype(np.float64) for _ in "AB"]
    factors = [2.0 ** rng.integers(-3, 4, (8, 8)) for _ in "AB"]
    memory = np.zeros(6144 + 128 * 32, np.uint8)
    for which, at in zip((0, 1), (0, 2048), strict=True):
        for (row, byte), value in np.ndenumerate(packed(rows[which])):
            memory[swizzled(at + LINE * row + (96 + byte if byte < 32 else 1024 + byte - 32), "128B")] = value
        codes = factors[which].astype(DTYPES["ue4m3"]).view(np.uint8)
        for group in range(2):
            words = memory[4096 + 1024 * which + 512 * group :][:512].reshape(32, 4, 4)
            words[:] = np.tile(codes[:, 4 * group : 4 * group + 4], (4, 1))[:, None]
    no_stride = 0x3FFF << 32
    found = PROGRAM.replace("WHAT", str(what))
    for name, value in {"A": descriptor(96, 1024) & ~no_stride | a_bits, "B": descriptor(2048 + 96, 3072)}.items():
        found = found.replace(f"%rd4, {name};", f"%rd4, {value};")
    found = found.replace("%rd3, F;", f"%rd3, {4096 >> 4 | 128 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46};")
    done = launch(found, threads=128, module_scope=ROOM, initial=memory.view(np.uint32), target=target, **options)
    a, b = (r * np.repeat(f[:, 2:], 16, axis=1) for r, f in zip(rows, factors, strict=True))
    return done.words(len(memory) // 4)[1536:].view(np.float32).reshape(128, 8), np.tile(a @ b.T, (16, 1))


def test_a_program_with_k_96_and_what_is_told_of_it():
    seen: list = []
    found, wanted = run(instruction_descriptor(128, 8, "ue4m3", 2, 2), sinks=[seen.append])
    np.testing.assert_array_equal(found, wanted)
    (mma,) = {e.operation for e in seen if isinstance(e, events.Issued) and e.operation.kind == "mma"}
    blocks = [r.columns for r in mma.reads if isinstance(r, events.TensorBlock)]
    first = blocks[0].start
    assert blocks == [range(first + c, first + c + w) for c, w in ((0, 4), (4, 4), (8, 1), (12, 1))]
    product = tensor_product(mma, 0, 37, first - 8)
    assert product is not None
    assert product.factors == (
        ScaleFactors(0, 37, first + 1, 2, 2), ScaleFactors(0, 37, first + 5, 0, 4),
        ScaleFactors(0, 32, first + 8, 2, 2), ScaleFactors(0, 32, first + 12, 0, 4),
    )  # fmt: skip
    names: Any = SimpleNamespace(shared=lambda offset, cta: hex(offset))
    line = (mma.detail["mma"].a << 4 & 0x3FFFF) - 96
    told = list(decoded(mma, names))
    assert told[2].startswith(f"A: {line + 96:#x}, K-major, swizzle 128B, next line at {line + 1024:#x}, stride ")
    assert told[4].startswith("scale factors of A: 6 of ue4m3 a row, from byte 2 of")


@pytest.mark.parametrize(
    ("what", "options", "rule", "message"),
    [
        ({}, {"target": "sm_100a"}, "descriptor", "only sm_103a has K = 96"),
        ({"a_id": 1}, {}, "descriptor", "scale factor id 1 must be a multiple of 2"),
        ({}, {"a_bits": 1 << 49}, "descriptor", "needs swizzle code 2 .128B. and base offset 0"),
        ({}, {"a_bits": 4 << 61}, "descriptor", "needs swizzle code 2 .128B. and base offset 0"),
    ],
)
def test_refusals(what, options, rule, message):
    with pytest.raises(Fault, match=message) as error:
        run(instruction_descriptor(128, 8, "ue4m3", **{"a_id": 2, "b_id": 2} | what), **options)
    assert error.value.rule == rule


def test_what_no_public_text_shows_is_incomplete_not_wrong():
    """K = 96 is correct PTX for a B300, so a kernel with it is not at fault."""
    for wrong in (
        lambda: decode("mxf4", instruction_descriptor(128, 64, "ue8m0"), 2),
        lambda: decode_sm100(1 << 46 | 1 << 52),
        lambda: decode_sm100(1 << 46, True),
        lambda: decode_sm100(descriptor(96, 1024 + 16), True),
        lambda: decode_sm100(descriptor(96, 1024) | 1 << 32, True),
    ):
        with pytest.raises(Fault, match=r"K = 96.*is not implemented") as error:
            wrong()
        assert error.value.rule == "unsupported"
    with pytest.raises(Fault, match="published") as error:
        run(instruction_descriptor(128, 8, "ue4m3", 2, 2), device=Device(accumulation="tensor_core"))
    assert error.value.rule == "unsupported"
