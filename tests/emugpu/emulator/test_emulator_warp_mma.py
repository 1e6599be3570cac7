"""mma.sync of every shape and type, movmatrix, and ldmatrix into its fragments."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import WORDS, launch

from emugpu.emulator import Device, Fault

DTYPES = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2), "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8), "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "s32": np.dtype(np.int32),
}  # fmt: skip

# Row and column of element i of thread t, as the ISA's sections on the shapes give them: g = t / 4, q = t % 4.
A_PLACES = {
    (16, 8, 16): lambda g, q, i: (g + 8 * (i >= 2), 2 * q + i % 2),
    (16, 16, 16): lambda g, q, i: (g if i < 2 or 4 <= i < 6 else g + 8, 2 * q + i % 2 + 8 * (i >= 4)),
    (16, 4, 32): lambda g, q, i: (g + 8 * i, q),
    (16, 8, 32): lambda g, q, i: (g + 8 * (i % 2), q + 4 * (i >= 2)),
    (16, 16, 8): lambda g, q, i: (g + 8 * (i >= 4), 4 * q + i % 4),
    (16, 32, 8): lambda g, q, i: (g if i < 4 or 8 <= i < 12 else g + 8, 4 * q + i % 4 + 16 * (i >= 8)),
    (8, 16, 8): lambda g, q, i: (g, 4 * q + i),
    (8, 4, 64): lambda g, q, i: (g, q),
    (16, 8, 64): lambda g, q, i: (g + 8 * (i % 2), q + 4 * (i >= 2)),
}
"""By M, K and the bits of an element."""
B_PLACES = {
    (8, 16): lambda g, q, i: (2 * q + i, g),
    (16, 16): lambda g, q, i: (2 * q + i % 2 + 8 * (i >= 2), g),
    (4, 32): lambda g, q, i: (q, g),
    (8, 32): lambda g, q, i: (q + 4 * i, g),
    (16, 8): lambda g, q, i: (4 * q + i, g),
    (32, 8): lambda g, q, i: (4 * q + i % 4 + 16 * (i >= 4), g),
    (4, 64): lambda g, q, i: (q, g),
    (8, 64): lambda g, q, i: (q + 4 * i, g),
}
"""By K and the bits of an element."""


def c_place(g: int, q: int, i: int) -> tuple[int, int]:
    return g + 8 * (i >= 2), 2 * q + i % 2


def to_registers(matrix: np.ndarray, place, bits: int) -> np.ndarray:
    """Registers [n, 32] of 32 bits (64 for f64), element by element."""
    count = matrix.size // 32
    rows = [[matrix[place(t // 4, t % 4, i)] for i in range(count)] for t in range(32)]
    raw = np.array(rows, matrix.dtype)
    return raw.view(np.uint64 if bits == 64 else np.uint32).T.copy()


def from_registers(registers: np.ndarray, rows: int, dtype: np.dtype) -> np.ndarray:
    raw = np.ascontiguousarray(registers.T).view(dtype)
    matrix = np.empty((rows, 8), dtype)
    for t in range(32):
        for i in range(raw.shape[1]):
            matrix[c_place(t // 4, t % 4, i)] = raw[t, i]
    return matrix


def multiply(
    shape: str, types: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, suffix: str = "", device=None
) -> np.ndarray:
    """D of one mma.sync; B is [K, 8]."""
    d_type, a_type = types.split(".")[:2]
    bits = 8 * DTYPES[a_type].itemsize
    m, k = a.shape
    wide = d_type == "f64"
    registers = [to_registers(a, A_PLACES[m, k, bits], bits), to_registers(b, B_PLACES[k, bits], bits),
                 to_registers(c, c_place, 64 if wide else 32)]  # fmt: skip
    letter, size = ("rd", 8) if wide else ("r", 4)
    body, names, used = "", [], 8
    for block in registers:
        names.append(", ".join(f"%{letter}{used + n}" for n in range(len(block))))
        for n in range(len(block)):
            body += f"ld.global.b{8 * size} %{letter}{used + n}, [%rd3+{len(body.splitlines()) * 32 * size}];\n"
        used += len(block)
    body = f"ld.param.u64 %rd2, [from]; mad.wide.u32 %rd3, %r0, {size}, %rd2;\n" + body.replace("[%rd3+0]", "[%rd3]")
    d = ", ".join(f"%{letter}{8 + n}" for n in range(len(registers[2])))
    body += (
        f"mma.sync.aligned.{shape}.row.col{suffix}.{types} {{{d}}}, {{{names[0]}}}, {{{names[1]}}}, {{{names[2]}}};\n"
    )
    body += f"mad.wide.u32 %rd1, %r0, {size}, %rd0;\n"
    for n in range(len(registers[2])):
        body += f"st.global.b{8 * size} [%rd1+{n * 32 * size}], %{letter}{8 + n};\n"
    device = device or Device()
    source = device.upload(np.concatenate(registers))
    count = len(registers[2]) * 32
    run = launch(body + "ret;", words=count * size // 4, parameters=["u64 from"], arguments=[source], device=device)
    found = device.download(run.out, np.uint64 if wide else np.uint32, (len(registers[2]), 32))
    return from_registers(found, m, DTYPES[d_type])


FORMS = [
    ("m16n8k8", "f16.f16.f16.f16"), ("m16n8k8", "f32.f16.f16.f32"), ("m16n8k8", "f32.bf16.bf16.f32"),
    ("m16n8k16", "f16.f16.f16.f16"), ("m16n8k16", "f32.f16.f16.f32"), ("m16n8k16", "f32.bf16.bf16.f32"),
    ("m16n8k4", "f32.tf32.tf32.f32"), ("m16n8k8", "f32.tf32.tf32.f32"), ("m16n8k16", "s32.s8.s8.s32"),
    ("m16n8k32", "s32.u8.s8.s32"), ("m16n8k32", "s32.s8.u8.s32"), ("m8n8k16", "s32.s8.s8.s32"),
    ("m16n8k32", "f32.e4m3.e4m3.f32"), ("m16n8k32", "f32.e5m2.e4m3.f32"), ("m16n8k32", "f16.e4m3.e5m2.f16"),
    ("m16n8k16", "f32.e4m3.e4m3.f32"), ("m8n8k4", "f64.f64.f64.f64"), ("m16n8k8", "f64.f64.f64.f64"),
]  # fmt: skip


def shape_of(shape: str) -> tuple[int, int]:
    m, k = shape[1:].split("n8k")
    return int(m), int(k)


@pytest.mark.parametrize(("shape", "types"), FORMS)
def test_small_integers_multiply_exactly(shape, types):
    d_type, a_type, b_type, _ = types.split(".")
    m, k = shape_of(shape)
    rng = np.random.default_rng(m * k)
    low = {t: 0 if t == "u8" else -3 for t in (a_type, b_type)}
    a, b = rng.integers(low[a_type], 4, (m, k)), rng.integers(low[b_type], 4, (k, 8))
    c = rng.integers(-50, 50, (m, 8))
    found = multiply(shape, types, a.astype(DTYPES[a_type]), b.astype(DTYPES[b_type]), c.astype(DTYPES[d_type]))
    np.testing.assert_array_equal(found.astype(np.int64), a @ b + c)


def test_integers_wrap_or_saturate():
    a, b = np.full((16, 32), -128, np.int8), np.full((32, 8), -128, np.int8)
    c = np.full((16, 8), (1 << 31) - 1, np.int32)
    wrapped = multiply("m16n8k32", "s32.s8.s8.s32", a, b, c)
    assert (wrapped == (1 << 31) - 1 + 32 * 128 * 128 - (1 << 32)).all()
    saturated = multiply("m16n8k32", "s32.s8.s8.s32", a, b, c, suffix=".satfinite")
    assert (saturated == (1 << 31) - 1).all()


@pytest.mark.parametrize(
    ("terms", "factor", "model"), [(8, 2.0**-13, 1.0), (3, 2.0**-12, 1 + 2.0**-23), (2, 2.0**-12, 1 + 2.0**-23)]
)
def test_the_tensor_core_truncates(terms, factor, model):
    """Terms below the 25th bit of the largest are lost one by one; what is left of the sum is cut off, not rounded."""
    a, b = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16)
    a[:, 0], b[0] = 1, 1
    a[:, 1 : 1 + terms], b[1 : 1 + terms] = factor, factor
    c = np.zeros((16, 8), np.float32)
    found = multiply("m16n8k16", "f32.f16.f16.f32", a, b, c, device=Device(accumulation="tensor_core"))
    assert (found == model).all()


def test_a_warp_that_is_not_whole_is_refused():
    with pytest.raises(Fault, match=r"mma\.sync needs all 32 lanes"):
        launch(
            "setp.lt.u32 %p1, %r0, 16; "
            "@%p1 mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r1, %r2}, {%r0}, {%r0}, {%r0, %r0}; ret;"
        )


def test_movmatrix_transposes():
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    words = matrix.reshape(32, 2).copy().view(np.uint32).ravel()
    body = """
    mad.wide.u32 %rd1, %r0, 4, %rd0; ld.global.b32 %r2, [%rd1];
    movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2; st.global.b32 [%rd1], %r1; ret;
    """
    found = launch(body, initial=words).words(32)
    assert found.view(np.uint16).reshape(8, 8).tolist() == matrix.T.tolist()


def test_ldmatrix_by_generic_addresses_gives_the_fragments_of_mma():
    """An f16 A of 16 x 16 from shared memory by ldmatrix.x4 equals what the places say."""
    matrix = np.arange(256, dtype=np.float16).reshape(16, 16)
    body = """
    mul.lo.u32 %r2, %r0, 16; mov.b32 %r3, words; add.u32 %r3, %r3, %r2;
    mad.wide.u32 %rd1, %r0, 16, %rd0;
    ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd1]; st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7};
    bar.sync 0;
    and.b32 %r8, %r0, 15; shr.u32 %r9, %r0, 4; mov.b32 %r3, words;
    mad.lo.u32 %r3, %r8, 32, %r3; mad.lo.u32 %r3, %r9, 16, %r3;
    cvt.u64.u32 %rd5, %r3; cvta.shared.u64 %rd5, %rd5;
    ldmatrix.sync.aligned.m8n8.x4.b16 {%r10, %r11, %r12, %r13}, [%rd5];
    mad.wide.u32 %rd1, %r0, 4, %rd0;
    st.global.b32 [%rd1], %r10; st.global.b32 [%rd1+128], %r11;
    st.global.b32 [%rd1+256], %r12; st.global.b32 [%rd1+384], %r13;
    ret;
    """
    found = launch(body, initial=matrix.view(np.uint32).ravel(), module_scope=WORDS).words(128).reshape(4, 32)
    assert found.tolist() == to_registers(matrix, A_PLACES[16, 16, 16], 16).tolist()


def test_other_shapes_and_types_are_refused():
    for text in (
        "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16 {%r1, %r2}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2}",
        "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, "
        "{%r1, %r2, %r3, %r4}",
        "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2}, "
        "{%r1, %r2, %r3, %r4}",
    ):
        with pytest.raises(Fault, match="not implemented"):
            launch(f"mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r3, 0; mov.b32 %r4, 0; {text}; ret;")
