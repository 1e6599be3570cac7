"""Products by cuBLASLt on the emulated driver: layouts, types, scales and epilogues, and what it does not take.

Operands are small integers, whose products are exact in every type; A, B and C differ in every row and column.
"""

from __future__ import annotations

import pytest
from driver_programs import run_script

from emugpu.driver.log import judge

LT = """
import itertools, math
import numpy as np
from cublaslt_client import *
begin()
rng = np.random.default_rng(1)
M, N, K = 5, 4, 7
a, b, c = (rng.integers(-4, 5, shape) for shape in ((M, K), (K, N), (M, N)))
want = a @ b
def pair(kind, other=None, ta=1, tb=0, gap=0):
    return Matrix(a.T if ta else a, kind, gap=gap), Matrix(b.T if tb else b, other or kind, gap=gap)
def out(kind, gap=0):
    return Matrix(np.full((M, N), -77), kind, gap=gap)
"""


def test_layouts_types_and_batches():
    """Transposed or not, by rows or columns, with gaps between the lines, in four types of D; and batches."""
    code, log = run_script(
        LT
        + """
for kind, to in (("bf16", "bf16"), ("bf16", "f32"), ("f16", "f16"), ("f32", "f32")):
    for ta, tb, rows_a, rows_d, gap in itertools.product((0, 1), (0, 1), (0, 1), (0, 1), (0, 3)):
        A, B = Matrix(a.T if ta else a, kind, rows_a, gap), Matrix(b.T if tb else b, kind, not rows_a, gap)
        C, D = Matrix(c, to, not rows_d, gap), Matrix(np.zeros((M, N)), to, rows_d, gap)
        assert matmul(A, B, C, D, 2.0, 3.0, ta=ta, tb=tb) == 0
        assert (D.read() == 2 * want + 3 * c).all(), (kind, to, ta, tb, rows_a, rows_d, gap)
many = np.stack([a, 2 * a, 1 - a])
A, B = Matrix(many, "bf16", many=True, gap=2), Matrix(np.stack([b, -b, b + 1]), "bf16", many=True)
D = Matrix(np.zeros((3, M, N)), "f32", many=True, gap=1)
bias = upload(np.arange(30, dtype=np.float32))
assert matmul(A, B, D, D, epilogue=4, bias=bias, bias_stride=10) == 0
for n, (left, right) in enumerate(zip(many, (b, -b, b + 1))):
    assert (D.read()[n] == left @ right + (10 * n + np.arange(M))[:, None]).all(), n
A, B, D = Matrix(a, "f64"), Matrix(b / 3, "f64"), out("f64")
assert matmul(A, B, D, D, compute=70, scalars=1) == 0 and np.allclose(D.read(), a @ (b / 3), rtol=1e-15)
A, B, D = Matrix(a, "s8"), Matrix(b, "s8"), out("s32")
assert matmul(A, B, D, D, 3, compute=72, scalars=10) == 0 and (D.read() == 3 * want).all()
"""
    )
    assert code == 0
    assert set(log.computed) == {"cublasLtMatmul"} and not log.unhandled
    verdict = judge(log, "program", "", False)
    assert verdict.fidelity["computed by NumPy"] == log.computed
    assert ("incomplete", "cublasLtMatmul is computed by NumPy, and nothing else was launched") in verdict.reasons


def test_alpha_and_beta_in_device_memory_and_c_that_is_not_read():
    code, log = run_script(
        LT
        + """
A, B = pair("bf16")
C, D = Matrix(c, "f32"), out("f32")
assert matmul(A, B, C, D, number(2.0), number(-3.0), ta=1, pointers=1) == 0
assert (D.read() == 2 * want - 3 * c).all()
assert matmul(A, B, C, D, 0x10, number(0.0), ta=1, pointers=1) == 7      # not an address of the device
C.address = 0
assert matmul(A, B, C, D, 1.0, 0.0, ta=1) == 0 and (D.read() == want).all()
assert matmul(A, B, C, D, 1.0, 1.0, ta=1) == 7
"""
    )
    assert code == 0 and not log.unhandled


def test_epilogues():
    """A bias for each row of D; ReLU behind it, of a NaN 0; GELU by its tanh."""
    code, log = run_script(
        LT
        + """
rows = np.arange(M) * 5 - 9.0
gelu = np.vectorize(lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
for kind, to in (("bf16", "bf16"), ("bf16", "f32"), ("f16", "f16"), ("f32", "f32")):
    A, B = pair(kind)
    bias = upload(rows.astype(TYPES[to][0]))
    for epilogue, expected in (
        (1, want), (2, np.maximum(want, 0)), (4, want + rows[:, None]), (6, np.maximum(want + rows[:, None], 0)),
        (32, gelu(want / 8)), (36, gelu(want / 8 + rows[:, None])),
    ):
        D = out(to, gap=2)
        alpha = 0.125 if epilogue & 32 else 1.0
        assert matmul(A, B, D, D, alpha, ta=1, epilogue=epilogue, bias=bias) == 0
        error = {"bf16": 2**-8, "f16": 2**-11, "f32": 2e-7}[to]
        assert np.allclose(D.read(), expected, rtol=error, atol=1e-7), (kind, to, epilogue)
assert np.abs(gelu(np.array(1.0)) - 0.8413447) > 1e-4              # the other GELU, by the error function
wrong = a.astype(float).copy()
wrong[1, 2] = np.nan
D = out("f32")
assert matmul(Matrix(wrong, "bf16"), Matrix(b, "bf16"), D, D, epilogue=2) == 0 and (D.read()[1] == 0).all()
D = out("f32")
assert matmul(*pair("f32"), D, D, ta=1, epilogue=4) == 7                 # a bias, and no address
"""
    )
    assert code == 0 and not log.unhandled


def test_tf32_is_rounded_and_f32_is_not():
    code, _ = run_script(
        LT
        + """
x = np.array([[1 + 2**-11, 1 + 2**-12, 1 - 2**-12, 3.0, -1 - 2**-11, np.inf]]).T     # the first and fifth are ties
A, B = Matrix(x, "f32"), Matrix([[1.0]], "f32")
for compute, expected in ((68, x), (77, [[1 + 2**-10], [1], [1], [3], [-1 - 2**-10], [np.inf]])):
    D = Matrix(np.zeros((6, 1)), "f32")
    assert matmul(A, B, D, D, compute=compute) == 0
    assert (D.read() == expected).all(), (compute, D.read())
blas, other = ctypes.CDLL("libcublas.so.13"), c_void_p()
blas.cublasCreate_v2(byref(other))
i, one, none, at = c_int32, byref(c_float(1)), byref(c_float(0)), lambda m: c_uint64(m.address)
for mode, expected in ((0, x), (3, [[1 + 2**-10], [1], [1], [3], [-1 - 2**-10], [np.inf]])):
    D = Matrix(np.zeros((6, 1)), "f32")
    assert blas.cublasSetMathMode(other, mode) == 0
    given = (i(0), i(0), i(6), i(1), i(1), one, at(A), i(6), at(B), i(1), none, at(D), i(6))
    assert blas.cublasSgemm_v2(other, *given) == 0
    assert (D.read() == expected).all(), (mode, D.read())
"""
    )
    assert code == 0


FP8 = """
M, N, K = 16, 32, 48
a, b, c = (rng.integers(-4, 5, shape) for shape in ((M, K), (K, N), (M, N)))
want = a @ b
"""


def test_fp8_with_its_scales():
    """Each of the three factors alone and all together; D of 8 bits saturates; the bias has 16 bits."""
    code, log = run_script(
        LT
        + FP8
        + """
for kinds in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3")):
    A, B = pair(*kinds)
    for scales in ({"a_scale": 0.5}, {"b_scale": 4.0}, {"a_scale": 0.25, "b_scale": 2.0}, {}):
        D = out("f32", gap=4)
        assert matmul(A, B, D, D, ta=1, fast=1, **{name: number(value) for name, value in scales.items()}) == 0
        assert (D.read() == want * np.prod([*scales.values(), 1.0])).all()
A, B = pair("e4m3")
D, C = out("e4m3"), Matrix(c, "bf16")
bias = upload(np.arange(M).astype(TYPES["bf16"][0]))
at = {"a_scale": number(0.5), "b_scale": number(0.25), "d_scale": number(2.0)}
assert matmul(A, B, C, D, 1.0, 3.0, ta=1, epilogue=4, bias=bias, bias_type=14, **at) == 0
exact = 2 * (want / 8 + 3 * c + np.arange(M)[:, None])
assert (D.read() == exact.astype(np.float32).astype(TYPES["e4m3"][0]).astype(float)).all()
assert matmul(A, B, C, D, 1000.0, ta=1) == 0
assert (D.read() == np.clip(1000 * want, -448, 448)).all() and (np.abs(want) > 0).any()
D = out("e5m2")
assert matmul(A, B, C, D, 1e6, ta=1) == 0 and (D.read() == np.clip(1e6 * want, -57344, 57344)).all()
D = out("f32")
bias = upload(np.arange(M).astype(TYPES["bf16"][0]))
assert matmul(A, B, D, D, ta=1, epilogue=4, bias=bias) == 0 and (D.read() == want + np.arange(M)[:, None]).all()
"""
    )
    assert code == 0 and not log.unhandled


@pytest.mark.parametrize(("gpu", "status"), [("b200", 0), ("h200", 15)])
def test_on_hopper_fp8_takes_a_transposed_times_b_only(gpu, status):
    code, log = run_script(
        LT
        + FP8
        + f"""
D = out("f32")
assert matmul(*pair("e4m3"), D, D, ta=1) == 0
for ta, tb in ((0, 0), (1, 1), (0, 1)):
    assert matmul(*pair("e4m3", ta=ta, tb=tb), D, D, ta=ta, tb=tb) == {status}
""",
        gpu,
    )
    assert code == 0
    assert ("cublasLtMatmul: fp8 on Hopper that is not A transposed times B" in log.unhandled) == bool(status)


REFUSED = {
    "epilogue=130": "epilogue 130",
    "aux=D.address": "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER",
    "c_scale=D.address": "CUBLASLT_MATMUL_DESC_C_SCALE_POINTER",
    "amax=D.address": "CUBLASLT_MATMUL_DESC_AMAX_D_POINTER",
    "a_mode=2": "CUBLASLT_MATMUL_DESC_A_SCALE_MODE",
    "tc=1": "CUBLASLT_MATMUL_DESC_TRANSC",
    "fill=0": "CUBLASLT_MATMUL_DESC_FILL_MODE",
    "unknown=1": "attribute 77 of CUBLASLT_MATMUL_DESC",
    "alpha=number(1), beta=number(1), pointers=2": "pointer mode 2",
    "compute=78": "compute type 78",
    "scalars=2": "scale type 2 for compute type 68",
    "epilogue=4, bias=D.address, bias_type=2": "a bias of data type 2 for D of float32",
}


def test_what_it_does_not_take_is_named_and_makes_the_verdict_incomplete(capfd):
    """Attributes, modes and types; and functions. Values that change nothing are taken."""
    calls = "\n".join(f"assert matmul(A, B, D, D, ta=1, {given}) == 15, {given!r}" for given in REFUSED)
    code, log = run_script(
        LT
        + FP8
        + f"""
D = out("f32")
A, B = pair("bf16")
assert matmul(A, B, D, D, ta=1, tc=0, fill=2, aux=0, amax=0, a_mode=0, c_scale=0) == 0 and (D.read() == want).all()
{calls}
for of_a, of_b, of_c, of_d in (
    ("e5m2", "e5m2", "f32", "f32"), ("bf16", "f16", "f32", "f32"), ("bf16", "bf16", "f16", "f16"),
    ("bf16", "bf16", "bf16", "f32"), ("e4m3", "e4m3", "f32", "e4m3"), ("s8", "s8", "s8", "s8"),
):
    assert matmul(*pair(of_a, of_b), out(of_c), out(of_d), ta=1) == 15, (of_a, of_b, of_c, of_d)
A, B = pair("e4m3", gap=1)
assert matmul(A, B, D, D, ta=1) == 15
fp4 = D.layout()
odd = lt.cublasLtMatrixLayoutSetAttribute
assert odd(fp4, 7, byref(c_int64(64)), c_size_t(8)) == 15 and odd(fp4, 8, byref(c_int32(0)), c_size_t(4)) == 0
A, B = pair("bf16")
A.number = 33
assert matmul(A, B, D, D, ta=1) == 15
A.number, A.by_rows = 14, 2
assert matmul(A, B, D, D, ta=1) == 15
assert lt.cublasLtMatrixTransform() == 15 and lt.cublasLtMatmulAlgoGetIds() == 15
"""
    )
    assert code == 0
    said = capfd.readouterr().err
    for words in (
        *REFUSED.values(),
        "cublasLtMatmul: float8_e5m2 times float8_e5m2, C of float32 and D of float32, compute type 68",
        "cublasLtMatmul: bfloat16 times float16, C of float32 and D of float32",
        "cublasLtMatmul: bfloat16 times bfloat16, C of float16 and D of float16, compute type 68",
        "cublasLtMatmul: bfloat16 times bfloat16, C of bfloat16 and D of float32",
        "cublasLtMatmul: float8_e4m3fn times float8_e4m3fn, C of float32 and D of float8_e4m3fn",
        "leading dimension 49: not 16 bytes",
        "cublasLtMatmul: A of data type 33",
        "cublasLtMatmul: order 2 of A",
        "CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET",
        "cublasLtMatrixTransform",
        "cublasLtMatmulAlgoGetIds",
    ):
        assert any(words in name for name in log.unhandled), words
        assert words in said
        assert any(word == "incomplete" and words in reason for word, reason in judge(log, "", "", False).reasons)


def test_wrong_use_is_the_programs_own_error():
    """Shapes that do not fit, a leading dimension below the rows, a factor for 16 bits, sizes of attributes."""
    code, log = run_script(
        LT
        + """
D = out("f32")
A, B = pair("bf16")
assert matmul(A, B, D, D, ta=0) == 7 and matmul(A, B, D, D, ta=1, tb=1) == 7 and matmul(A, B, D, D, ta=3) == 7
assert matmul(A, B, Matrix(c[:4], "f32"), D, ta=1) == 7
assert matmul(A, Matrix(b[:6], "bf16"), D, D, ta=1) == 7                    # K of 7 and of 6
two = Matrix(np.stack([a.T, a.T]), "bf16", many=True)
assert matmul(two, B, D, D, ta=1) == 7 and matmul(A, B, D, D, ta=1) == 0    # a batch of two, and one product
assert matmul(A, B, D, D, ta=1, a_scale=number(2.0)) == 7
D.leading = 4
assert matmul(A, B, D, D, ta=1) == 7
D.leading = 5
D.address += 4
assert matmul(A, B, D, D, ta=1) == 7                                        # one element behind its end
wide, operation = c_uint64(1), c_void_p()
assert lt.cublasLtMatmulDescCreate(byref(operation), 68, 0) == 0
assert lt.cublasLtMatmulDescSetAttribute(operation, 3, byref(wide), c_size_t(8)) == 7
assert set_attribute(operation, "ta", 1) == 0
got, written = c_int32(), c_size_t()
assert lt.cublasLtMatmulDescGetAttribute(operation, 3, byref(got), c_size_t(4), byref(written)) == 0
assert (got.value, written.value) == (1, 4)
assert lt.cublasLtMatmulDescGetAttribute(operation, 3, None, c_size_t(0), byref(written)) == 0 and written.value == 4
assert lt.cublasLtMatmul(None, operation, *14 * [None]) == 7
opaque = (c_uint64 * 8)()
assert lt.cublasLtMatrixLayoutInit_internal(opaque, c_size_t(64), 0, c_uint64(2), c_uint64(3), c_int64(2)) == 0
assert lt.cublasLtMatrixLayoutInit_internal(opaque, c_size_t(8), 0, c_uint64(2), c_uint64(3), c_int64(2)) == 3
"""
    )
    assert code == 0 and not log.unhandled
