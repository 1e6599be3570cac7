"""tcgen05.mma of every kind in whole programs: types, A in tensor memory, block scaling, .ws, pairs, tcgen05.cp."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tensor_kinds import (
    COPY_SCALES,
    DEPTH,
    DTYPES,
    SFA_AT,
    SFB_AT,
    N,
    core_matrices,
    descriptor,
    instruction_descriptor,
    rows_of_bytes,
    run,
    values,
)

from emugpu.emulator import Device, Fault
from emugpu.emulator.machine import events
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.memory.tmem import TensorMemory
from emugpu.emulator.units.mma import MmaUnit
from emugpu.emulator.units.mma_instruction import Mma

TYPES = [
    ("tf32", "tf32", "tf32", "f32"), ("f8f6f4", "e4m3", "e4m3", "f32"), ("f8f6f4", "e5m2", "e4m3", "f16"),
    ("f8f6f4", "e2m3", "e5m2", "f32"), ("f8f6f4", "e2m1", "e3m2", "f32"), ("i8", "s8", "u8", "s32"),
    ("i8", "u8", "s8", "s32"), ("f16", "bf16", "bf16", "f32"),
]  # fmt: skip


def as_numbers(words: np.ndarray, d_type: str) -> np.ndarray:
    if d_type == "f16":
        return (words & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
    return words.view(np.float32 if d_type == "f32" else np.int32).astype(np.float64)


@pytest.mark.parametrize("schedule", ["fifo", "random"])
@pytest.mark.parametrize(("kind", "a_type", "b_type", "d_type"), TYPES)
def test_integers_multiply_exactly_in_every_kind(kind, a_type, b_type, d_type, schedule):
    rng = np.random.default_rng(4)
    k = DEPTH[kind]
    a, b = values(rng, a_type, (128, k)), values(rng, b_type, (N, k))
    what = instruction_descriptor(kind, 128, a_type, b_type, d_type)
    # A comes from shared memory; kind::f16 has a scaled D to take the general way.
    shift = ", 1" if kind == "f16" else ""
    mma = f"tcgen05.mma.cta_group::1.kind::{kind} [%r10], %rd4, %rd5, {what}, %p4{shift};"
    words = run(kind, mma, rows_of_bytes(a, a_type, kind), rows_of_bytes(b, b_type, kind), schedule=schedule, seed=2)
    np.testing.assert_array_equal(as_numbers(words, d_type), a @ b.T)


def test_the_old_result_is_added_or_divided_first():
    rng = np.random.default_rng(5)
    a, b = values(rng, "tf32", (128, 8)), values(rng, "tf32", (N, 8))
    old = rng.integers(-100, 100, (128, N)).astype(np.float32) * 8
    what = instruction_descriptor("tf32", 128, "tf32", "tf32", negate=1)
    for scale, shift in ((", 3", 8), ("", 1)):
        mma = f"tcgen05.mma.cta_group::1.kind::tf32 [%r10], %rd4, %rd5, {what}, %p4{scale};"
        words = run(
            "tf32", mma, rows_of_bytes(a, "tf32", "tf32"), rows_of_bytes(b, "tf32", "tf32"), old=old.view(np.uint32)
        )
        np.testing.assert_array_equal(words.view(np.float32), old / shift - a @ b.T)


def test_integer_results_wrap_or_saturate():
    a, b = np.full((128, 32), -128.0), np.full((N, 32), -128.0)
    old = np.full((128, N), (1 << 31) - 1, np.uint32)
    for saturate, wanted in ((0, -(1 << 31) - 1 + 32 * 128 * 128), (1, (1 << 31) - 1)):
        what = instruction_descriptor("i8", 128, "s8", "s8", "s32", saturate=saturate)
        mma = f"tcgen05.mma.cta_group::1.kind::i8 [%r10], %rd4, %rd5, {what}, %p4;"
        words = run("i8", mma, rows_of_bytes(a, "s8", "i8"), rows_of_bytes(b, "s8", "i8"), old=old)
        assert (words.view(np.int32) == wanted).all()


STORE_A = """
mad.wide.u32 %rd7, %r0, 32, %rd0;
ld.global.v4.b32 {%r30, %r31, %r32, %r33}, [%rd7]; ld.global.v4.b32 {%r34, %r35, %r36, %r37}, [%rd7+16];
tcgen05.st.sync.aligned.32x32b.x8.b32 [%r22], {%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37};
tcgen05.wait::st.sync.aligned; bar.sync 0;
"""


@pytest.mark.parametrize(
    ("kind", "element"), [("f16", "f16"), ("tf32", "tf32"), ("f8f6f4", "e4m3"), ("f8f6f4", "e2m1"), ("i8", "s8")]
)
def test_a_in_tensor_memory(kind, element):
    """Every row of A is 32 bytes in 8 columns of its lane; its thread stores them from row-major global memory."""
    rng = np.random.default_rng(6)
    k = DEPTH[kind]
    d_type = "s32" if kind == "i8" else "f32"
    a, b = values(rng, element, (128, k)), values(rng, element, (N, k))
    rows = rows_of_bytes(a, element, kind)
    if element == "e2m1":  # bits 2 to 5 of a byte
        others = rng.choice(np.array([0, 1, 2, 3, 0x40, 0xC3], np.uint8), a.shape)
        rows = a.astype(DTYPES[element]).view(np.uint8) << 2 | others
    # Where the first operand would be in shared memory the kernel finds A by rows.
    what = instruction_descriptor(kind, 128, element, element, d_type)
    mma = f"tcgen05.mma.cta_group::1.kind::{kind} [%r10], [%r22], %rd5, {what}, %p4;"
    words = run(kind, mma, _rows_as_core_matrices(rows), rows_of_bytes(b, element, kind), before=STORE_A)
    np.testing.assert_array_equal(as_numbers(words, d_type), a @ b.T)


@pytest.mark.parametrize(("m", "lane"), [(64, 16), (64, 8), (64, 32), (128, 16)])
def test_a_in_tensor_memory_begins_in_the_lane_of_d(m, lane):
    """PTX ISA 9.7.16.10.5: lane 0, or 16 for 64 rows in the upper halves; the same one for A and D."""
    what = instruction_descriptor("f16", m, "f16", "f16")
    mma = f"add.u32 %r22, %r22, {lane << 16}; "
    mma += f"tcgen05.mma.cta_group::1.kind::f16 [%r10], [%r22], %rd5, {what}, %p4;"
    rows = np.zeros((128, 32), np.uint8)
    with pytest.raises(Fault, match=f"lane {lane} must be 0, the lane of D") as raised:
        run("f16", mma, rows, rows[:N], before=STORE_A)
    assert raised.value.rule == "operand"


def _rows_as_core_matrices(rows: np.ndarray) -> np.ndarray:
    """What `core_matrices` turns into these rows, one after the other."""
    return rows.ravel().reshape(16, 2, 8, 16).transpose(0, 2, 1, 3).reshape(128, 32)


SCALES = [
    ("mxf8f6f4", "e4m3", "e5m2", "ue8m0", "", 1), ("mxf8f6f4", "e2m1", "e4m3", "ue8m0", ".block32", 1),
    ("mxf4", "e2m1", "e2m1", "ue8m0", ".scale_vec::2X", 2), ("mxf4nvf4", "e2m1", "e2m1", "ue4m3", ".block16", 4),
    ("mxf4nvf4", "e2m1", "e2m1", "ue8m0", ".block32", 2), ("mxf4nvf4", "e2m1", "e2m1", "ue4m3", ".scale_vec::4X", 4),
]  # fmt: skip


def scale_rows(factors: np.ndarray, dtype) -> np.ndarray:
    """[rows, 4] scale factors as 32 rows of 16 bytes: row r is in row r % 32, word r / 32."""
    out = np.full((32, 4, 4), 0x7F, np.uint8)
    for row in range(len(factors)):
        out[row % 32, row // 32] = factors[row].astype(dtype).view(np.uint8)
    return out.reshape(32, 16)


@pytest.mark.parametrize("accumulation", ["f32", "tensor_core"])
@pytest.mark.parametrize(("kind", "a_type", "b_type", "scale", "size", "vectors"), SCALES)
def test_blocks_are_scaled(kind, a_type, b_type, scale, size, vectors, accumulation):
    """Powers of two as factors, different in every row and block; so every sum is exact."""
    rng = np.random.default_rng(7)
    k, identifier = DEPTH[kind], {1: 2, 2: 2, 4: 0}[vectors]
    a, b = values(rng, a_type, (128, k)), values(rng, b_type, (N, k))
    sfa, sfb = 2.0 ** rng.integers(-3, 4, (128, 4)), 2.0 ** rng.integers(-3, 4, (N, 4))
    what = instruction_descriptor(kind, 128, a_type, b_type, scale=scale, a_id=identifier, b_id=identifier)
    mma = f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale{size} [%r10], %rd4, %rd5, {what}, [%r20], [%r21], %p4;"
    dtype = DTYPES[scale]
    copy = COPY_SCALES.format(sfa=descriptor(SFA_AT, 16), sfb=descriptor(SFB_AT, 16))
    words = run(kind, mma, rows_of_bytes(a, a_type, kind), rows_of_bytes(b, b_type, kind),
                (scale_rows(sfa, dtype), scale_rows(sfb, dtype)), before=copy,
                device=Device(accumulation=accumulation))  # fmt: skip
    chosen = slice(identifier, identifier + vectors)
    wide_a = a * np.repeat(sfa[:, chosen], k // vectors, axis=1)
    wide_b = b * np.repeat(sfb[:, chosen], k // vectors, axis=1)
    np.testing.assert_array_equal(words.view(np.float32), wide_a @ wide_b.T)


OWN_SCALES = """
shr.u32 %r30, %r0, 5; add.u32 %r31, %r30, {a}; add.u32 %r32, %r30, {b};
mul.lo.u32 %r31, %r31, 0x01010101; mul.lo.u32 %r32, %r32, 0x01010101;
setp.gt.u32 %p6, %r30, {last}; @%p6 bra NOT_MINE;
tcgen05.st.sync.aligned.32x32b.x4.b32 [%r20], {{%r31, %r31, %r31, %r31}};
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r21], {{%r32, %r32}};
tcgen05.wait::st.sync.aligned;
NOT_MINE: bar.sync 0;
"""
"""Each warp writes the scale factors of A and B in its own quadrant, 2^(warp + a - 127) and 2^(warp + b - 127)."""


def test_a_quadrant_of_d_takes_the_scale_factors_of_its_own_lanes():
    """A B200 was seen to take those for row 0. They should be the same everywhere: else a warning, or an error."""
    rng = np.random.default_rng(11)
    a, b = values(rng, "e4m3", (128, 32)), values(rng, "e4m3", (N, 32))
    what = instruction_descriptor("mxf8f6f4", 128, "e4m3", "e4m3", scale="ue8m0")
    mma = f"tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r10], %rd4, %rd5, {what}, [%r20], [%r21], %p4;"
    rows = rows_of_bytes(a, "e4m3", "mxf8f6f4"), rows_of_bytes(b, "e4m3", "mxf8f6f4")
    differing = OWN_SCALES.format(a=127, b=125, last=3)
    quadrant = np.arange(128)[:, None] // 32
    found = run("mxf8f6f4", mma, *rows, before=differing).view(np.float32)
    np.testing.assert_array_equal(found, 2.0 ** (2 * quadrant - 2) * (a @ b.T))
    with pytest.raises(Fault, match="differ between quadrants") as error:
        run("mxf8f6f4", mma, *rows, before=differing, strict=True)
    assert error.value.rule == "scale-copies"
    only_the_first = OWN_SCALES.format(a=127, b=125, last=0)
    with pytest.raises(Fault, match="lane 32, column 129, which was never written"):
        run("mxf8f6f4", mma, *rows, before=only_the_first)
    found = run("mxf8f6f4", mma, *rows, before=only_the_first, device=Device(uninitialised="report")).view(np.float32)
    np.testing.assert_array_equal(found[:32], 0.25 * (a @ b.T)[:32])
    assert np.isnan(found[32:]).all()


@pytest.mark.parametrize("accumulation", ["f32", "tensor_core"])
@pytest.mark.parametrize("n", [32, 96, 256])
def test_a_pair_with_128_rows_has_the_scale_factors_of_half_of_b_in_each_half_of_the_lanes(n, accumulation):
    """As CuTe DSL's example 2cta_mma_blockscale_m128.py copies them, with 64x128b.warpx2::01_23."""
    rng = np.random.default_rng(13)
    a, b = values(rng, "e4m3", (128, 32)), values(rng, "e4m3", (n, 32))
    sfa, sfb = rng.integers(124, 131, 128), rng.integers(124, 131, n)
    half, result = n // 2, np.empty((128, n))
    pair = [SimpleNamespace(shared=SharedMemory(1 << 16), tmem=TensorMemory()) for _ in range(2)]
    for i, cta in enumerate(pair):
        cta.tmem.allocate(512)
        for at, rows in ((0x1000, a[64 * i :][:64]), (0x2000, b[half * i :][:half])):
            data = core_matrices(rows_of_bytes(rows, "e4m3", "mxf8f6f4"))
            cta.shared.scatter(at + np.arange(data.size), 1, data)
        # Row r of A: every quadrant. Column c of B: the two quadrants that multiply it, from column 264 in each half.
        places = [(32 * q + r % 32, 256 + r // 32, sfa[64 * i + r]) for r in range(64) for q in range(4)]
        places += [
            (64 * (c // half) + copy + c % half % 32, 264 + c % half // 32, sfb[c])
            for c in range(n)
            for copy in (0, 32)
        ]
        for lane, column, factor in places:
            cta.tmem.data[lane, column], cta.tmem.valid[lane, column] = factor, True
    form = instruction_descriptor("mxf8f6f4", 128, "e4m3", "e4m3", scale="ue8m0", n=n)
    what = Mma("mxf8f6f4", 0, int(descriptor(0x1000)), False, int(descriptor(0x2000)), form, False, 2, None, vectors=1,
               scales=(256, 264))  # fmt: skip
    told: list[tuple[str, str]] = []
    unit = MmaUnit(accumulation)
    unit.mma(pair, what, lambda rule, text: told.append((rule, text)))
    for i, h in ((0, 0), (0, 1), (1, 0), (1, 1)):
        pair[i].tmem.settle(0, 256)
        found = pair[i].tmem.data[64 * h : 64 * h + 64, :half].view(np.float32)
        result[64 * i : 64 * i + 64, half * h : half * h + half] = found
    wanted = (a * 2.0 ** (sfa - 127)[:, None]) @ (b * 2.0 ** (sfb - 127)[:, None]).T
    np.testing.assert_array_equal(result, wanted)
    assert not told
    pair[1].tmem.data[96, 264] += 1  # the second copy of the first column of the right half
    unit.mma(pair, what, lambda rule, text: told.append((rule, text)))
    assert {rule for rule, _ in told} == {"scale-copies"}


def test_a_type_code_that_names_no_type_is_a_warning():
    rng = np.random.default_rng(12)
    a, b = values(rng, "e4m3", (128, 32)), values(rng, "e4m3", (N, 32))
    what = instruction_descriptor("f8f6f4", 128, "e4m3", "e4m3") | 2 << 7
    mma = f"tcgen05.mma.cta_group::1.kind::f8f6f4 [%r10], %rd4, %rd5, {what}, %p4;"
    rows = rows_of_bytes(a, "e4m3", "f8f6f4"), rows_of_bytes(b, "e4m3", "f8f6f4")
    np.testing.assert_array_equal(run("f8f6f4", mma, *rows).view(np.float32), a @ b.T)
    with pytest.raises(Fault, match="type code 2 of A or B is that of no type") as error:
        run("f8f6f4", mma, *rows, strict=True)
    assert error.value.rule == "type-code"


@pytest.mark.parametrize("in_tmem", [False, True])
@pytest.mark.parametrize(("m", "parts"), [(128, 1), (64, 2), (32, 4)])
def test_weight_stationary_layouts(m, parts, in_tmem):
    """With fewer rows, parts of the columns stand one above the other, each with an A of its own in tensor memory."""
    rng = np.random.default_rng(8)
    a, b = values(rng, "e4m3", (128, 32)), values(rng, "e4m3", (N, 32))
    rows, before = rows_of_bytes(a, "e4m3", "f8f6f4"), ""
    if in_tmem:
        rows, before = _rows_as_core_matrices(rows), STORE_A
    what = instruction_descriptor("f8f6f4", m, "e4m3", "e4m3")
    mma = f"tcgen05.mma.ws.cta_group::1.kind::f8f6f4 [%r10], {'[%r22]' if in_tmem else '%rd4'}, %rd5, {what}, %p4;"
    words = run("f8f6f4", mma, rows, rows_of_bytes(b, "e4m3", "f8f6f4"), before=before)
    wide = N // parts
    for p in range(parts):
        of_a = a[m * p : m * (p + 1)] if in_tmem else a[:m]
        found = words[m * p : m * (p + 1), :wide].view(np.float32)
        np.testing.assert_array_equal(found, of_a @ b[wide * p : wide * (p + 1)].T)
    assert not words[:, wide:].any()


@pytest.mark.parametrize(
    ("shape", "rows", "width", "quadrants"),
    [
        ("128x256b", 128, 32, None), ("128x128b", 128, 16, None), ("32x128b.warpx4", 32, 16, [0, 0, 0, 0]),
        ("warpx4.32x128b", 32, 16, [0, 0, 0, 0]),  # as Triton writes it; ptxas takes it
        ("64x128b.warpx2::02_13", 64, 16, [0, 1, 0, 1]), ("64x128b.warpx2::01_23", 64, 16, [0, 0, 1, 1]),
    ],
)  # fmt: skip
def test_copies_from_shared_to_tensor_memory(shape, rows, width, quadrants):
    source = np.random.default_rng(9).integers(0, 256, (128, 32)).astype(np.uint8)
    block = source.ravel()[: rows * width].reshape(rows, width)
    # The bytes at the start of shared memory are the block as core matrices.
    flat = np.zeros(4096, np.uint8)
    flat[: rows * width] = core_matrices(block)
    mma = f"tcgen05.cp.cta_group::1.{shape} [%r10], %rd8;"
    before = f"add.s64 %rd8, %rd3, {descriptor(0, width)};\n"
    words = run("f16", mma, _rows_as_core_matrices(flat.reshape(128, 32)), source[:64], before=before)
    taken = block if quadrants is None else np.concatenate([block[32 * q : 32 * q + 32] for q in quadrants])
    np.testing.assert_array_equal(words[:, : width // 4], np.ascontiguousarray(taken).view(np.uint32))
    assert not words[:, width // 4 :].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "mxf4nvf4", "a_id": 1}, "scale factor id 1 must be a multiple of 4"),
        ({"kind": "mxf4", "scale": "ue4m3"}, "exist in mxf4nvf4 only"),
        ({"kind": "mxf8f6f4", "m": 64}, "M = 64 must be one of"),
        ({"kind": "mxf4nvf4", "size": ".block32"}, "with .block32 they must be ue8m0"),
    ],
)
def test_descriptors_that_a_kind_does_not_have(change, message):
    kind = change["kind"]
    element = "e4m3" if kind == "mxf8f6f4" else "e2m1"
    scale = change.get("scale", "ue4m3" if kind == "mxf4nvf4" else "ue8m0")
    what = instruction_descriptor(kind, change.get("m", 128), element, element, scale=scale, a_id=change.get("a_id", 0))
    size = change.get("size", ".block16" if kind == "mxf4nvf4" else "")
    mma = f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale{size} [%r10], %rd4, %rd5, {what}, [%r20], [%r21], %p4;"
    factors = scale_rows(np.ones((128, 4)), DTYPES[scale])
    zeros = np.zeros((128, 32), np.uint8)
    copy = COPY_SCALES.format(sfa=descriptor(SFA_AT, 16), sfb=descriptor(SFB_AT, 16))
    with pytest.raises(Fault, match=message):
        run(kind, mma, zeros, zeros[:N], (factors, factors), before=copy)


def test_what_is_told_of_scale_factors():
    seen: list = []
    what = instruction_descriptor("mxf8f6f4", 128, "e4m3", "e4m3", scale="ue8m0")
    mma = f"tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r10], %rd4, %rd5, {what}, [%r20], [%r21], %p4;"
    factors, zeros = scale_rows(np.ones((128, 4)), DTYPES["ue8m0"]), np.zeros((128, 32), np.uint8)
    copy = COPY_SCALES.format(sfa=descriptor(SFA_AT, 16), sfb=descriptor(SFB_AT, 16))
    run("mxf8f6f4", mma, zeros, zeros[:N], (factors, factors), before=copy, sinks=[seen.append])
    finished = [e.operation.kind for e in seen if isinstance(e, events.Finished)]
    assert [k for k in finished if k in ("tmem.copy", "mma")] == ["tmem.copy", "tmem.copy", "mma"]
    (multiplied,) = {e.operation for e in seen if isinstance(e, events.Issued) and e.operation.kind == "mma"}
    blocks = [r for r in multiplied.reads if isinstance(r, events.TensorBlock)]
    assert [(b.columns.start, b.columns.stop) for b in blocks] == [(128, 132), (136, 138)]
    assert [w.columns for w in multiplied.writes] == [range(64)]
