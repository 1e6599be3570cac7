"""wmma of every shape and type: two matrices from memory, multiplied, and back, against NumPy."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import launch

from emugpu.emulator import Device, Fault

DTYPES = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32),
    "s8": np.dtype(np.int8), "u8": np.dtype(np.uint8), "f64": np.dtype(np.float64), "f32": np.dtype(np.float32),
    "s32": np.dtype(np.int32),
}  # fmt: skip
BIG = ("m16n16k16", "m32n8k16", "m8n32k16")
FORMS = [
    *((shape, d, "f16", c) for shape in BIG for d, c in itertools.product(("f16", "f32"), repeat=2)),
    *((shape, "f32", "bf16", "f32") for shape in BIG), ("m16n16k8", "f32", "tf32", "f32"),
    *((shape, "s32", kind, "s32") for shape in BIG for kind in ("s8", "u8")), ("m8n8k4", "f64", "f64", "f64"),
]  # fmt: skip
# Registers of a fragment, as the ISA has them.
COUNTS = {"f16": lambda n: 8, "bf16": lambda n: n // 64, "tf32": lambda n: n // 32, "s8": lambda n: n // 128,
          "u8": lambda n: n // 128, "f64": lambda n: n // 32}  # fmt: skip
RESULTS = {"f16": 64, "f32": 32, "s32": 32, "f64": 32}


def vector(first: int, count: int, letter: str = "r") -> str:
    return "{" + ", ".join(f"%{letter}{first + n}" for n in range(count)) + "}"


def multiply(shape, d, kind, c, a, b, old, layouts, suffix="", space="", setup="", strides=("", "", "")):
    """D as it lies in memory, at the start of the output: the operands are given as they lie there."""
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    letter = "rd" if kind == "f64" else "r"
    # Single bits and four bits have one register.
    count = COUNTS.get(kind, lambda n: 1)
    parts = [vector(8, count(m * k), letter), vector(16, count(n * k), letter)]
    old_registers, result = (vector(first, m * n // RESULTS[t], letter) for first, t in ((24, c), (24, d)))
    if c != d:
        result = vector(40, m * n // RESULTS[d])
    types = f"{d}.{c}" if kind == "f16" else f"{d}.{kind}.{kind}.{c}"
    head = f"sync.aligned.{{}}.{shape}{space}"
    la, lb, lc = layouts
    body = f"""
    ld.param.u64 %rd4, [a]; ld.param.u64 %rd5, [b]; ld.param.u64 %rd6, [c]; {setup}
    wmma.load.a.{head.format(la)}.{kind} {parts[0]}, [%rd4]{strides[0]};
    wmma.load.b.{head.format(lb)}.{kind} {parts[1]}, [%rd5]{strides[1]};
    wmma.load.c.{head.format(lc)}.{c} {old_registers}, [%rd6]{strides[2]};
    wmma.mma.{suffix}sync.aligned.{la}.{lb}.{shape}.{types} {result}, {parts[0]}, {parts[1]}, {old_registers};
    wmma.store.d.{head.format(lc)}.{d} [%rd0], {result}{strides[2]}; ret;
    """
    device = Device()
    places = [device.upload(np.ascontiguousarray(x)) for x in (a, b, old)]
    size = old.size * DTYPES[d].itemsize
    run = launch(
        body,
        initial=np.zeros(size // 4, np.uint32),
        parameters=["u64 a", "u64 b", "u64 c"],
        arguments=places,
        device=device,
    )
    return device.download(run.out, DTYPES[d], old.shape)


@pytest.mark.parametrize(("shape", "d", "kind", "c"), FORMS)
def test_small_integers_multiply_exactly(shape, d, kind, c):
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    rng = np.random.default_rng(m * n)
    low = 0 if kind == "u8" else -3
    a, b = rng.integers(low, 4, (m, k)), rng.integers(low, 4, (k, n))
    old = rng.integers(-50, 50, (m, n))
    for layouts in itertools.product(("row", "col"), repeat=3):
        lay = [x.T if layout == "col" else x for x, layout in zip((a, b, old), layouts, strict=True)]
        given = (lay[0].astype(DTYPES[kind]), lay[1].astype(DTYPES[kind]), lay[2].astype(DTYPES[c]))
        found = multiply(shape, d, kind, c, *given, layouts)
        wanted = a @ b + old
        assert (found.astype(np.int64) == (wanted.T if layouts[2] == "col" else wanted)).all(), layouts


def test_strides_are_in_elements():
    rng = np.random.default_rng(3)
    a, b, old = rng.integers(-3, 4, (16, 20)), rng.integers(-3, 4, (16, 24)), rng.integers(-9, 9, (16, 40))
    given = (a.astype(np.float16), b.astype(np.float16), old.astype(np.float32))
    found = multiply("m16n16k16", "f32", "f16", "f32", *given, ("row", "row", "row"), strides=(", 20", ", 24", ", 40"))
    assert (found[:, :16] == a[:, :16] @ b[:, :16] + old[:, :16]).all()


def test_a_fragment_of_shared_memory_by_a_generic_address():
    """The other elements of C are scaled one by one, as programs do with fragments."""
    body = """
    mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 16, %r3; mov.b32 %r5, 0x3c003c00;
    st.shared.v4.b32 [%r4], {%r5, %r5, %r5, %r5};
    bar.warp.sync -1; cvt.u64.u32 %rd4, %r3; cvta.shared.u64 %rd4, %rd4;
    wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r8, %r9, %r10, %r11, %r12, %r13, %r14, %r15}, [%rd4];
    wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%r16, %r17, %r18, %r19, %r20, %r21, %r22, %r23}, [%r3], 16;
    mov.b32 %r24, 0; wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32
    {%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}, {%r8, %r9, %r10, %r11, %r12, %r13, %r14, %r15},
    {%r16, %r17, %r18, %r19, %r20, %r21, %r22, %r23}, {%r24, %r24, %r24, %r24, %r24, %r24, %r24, %r24};
    mul.f32 %r30, %r30, 0f40000000;
    wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd0],
    {%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}; ret;
    """
    found = launch(body, words=256, module_scope=".shared .align 16 .b8 words[512];").words(256).view(np.float32)
    assert sorted(found.tolist()) == 224 * [16.0] + 32 * [32.0]


def test_single_bits_and_four_bits():
    rng = np.random.default_rng(4)
    old = rng.integers(-9, 9, (8, 8)).astype(np.int32)
    bits = rng.integers(0, 2, (2, 8, 128), dtype=np.uint8)
    packed = np.packbits(bits, axis=2, bitorder="little")
    for name, together in (("xor", np.bitwise_xor), ("and", np.bitwise_and)):
        layouts = ("row", "col", "row")
        found = multiply("m8n8k128", "s32", "b1", "s32", *packed, old, layouts, suffix=f"{name}.popc.")
        assert (found == together(bits[0][:, None], bits[1][None]).sum(2, dtype=np.int64) + old).all()
    fours = rng.integers(-8, 8, (2, 8, 32))
    nibbles = (fours & 15).astype(np.uint8)
    found = multiply("m8n8k32", "s32", "s4", "s32", *(nibbles[..., ::2] | nibbles[..., 1::2] << 4), old, layouts)
    assert (found == fours[0] @ fours[1].T + old).all()


@pytest.mark.parametrize(
    "text",
    [
        "wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1, %r2}, [%rd0]",
        "wmma.load.a.sync.aligned.row.m16n16k8.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd0]",
        "wmma.load.b.sync.aligned.row.m8n8k32.s4 {%r1}, [%rd0]",
        "wmma.store.d.sync.aligned.row.m16n16k16.bf16 [%rd0], {%r1, %r2, %r3, %r4}",
    ],
)
def test_what_does_not_exist_is_refused(text):
    zeros = "".join(f"mov.b32 %r{n}, 0;" for n in range(1, 9))
    with pytest.raises(Fault, match="not implemented"):
        launch(f"{zeros} {text}; ret;")


def test_half_a_warp_is_refused():
    body = "setp.lt.u32 %p1, %r0, 9; @%p1 wmma.load.a.sync.aligned.row.m8n8k32.s4 {%r1}, [%rd0]; ret;"
    with pytest.raises(Fault, match=r"wmma\.load needs all 32 lanes"):
        launch(body, words=64)
