"""Matrix products of cuBLAS and cuBLASLt. NumPy computes them, so they show nothing about NVIDIA's own kernels."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from emugpu.driver.api import handles
from emugpu.driver.results import DriverError
from emugpu.driver.state import Session

F32, F64, F16, I8, I32, BF16, E4M3, E5M2 = (
    np.dtype(kind)
    for kind in (
        *(np.float32, np.float64, np.float16, np.int8, np.int32),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
)
DTYPES = {0: F32, 1: F64, 2: F16, 3: I8, 10: I32, 14: BF16, 28: E4M3, 29: E5M2}
"""By number in cudaDataType."""
MOST = {E4M3: 448.0, E5M2: 57344.0}
"""The largest numbers of the 8-bit formats."""
_ORDERS = {0: "COL", 1: "ROW"}
_TRANSPOSED = {0: False, 1: True, 2: True}
"""By cublasOperation_t: not transposed, transposed, and conjugate transposed, which is the same for real numbers."""
_TF32 = (74, 75, 77)
"""Compute types that may convert f32 to TF32: CUBLAS_COMPUTE_32F_FAST_16F, _FAST_16BF, _FAST_TF32."""
_BIAS, _RELU, _GELU = 4, 2, 32
_EPILOGUES = (1, _RELU, _BIAS, _RELU | _BIAS, _GELU, _GELU | _BIAS)
"""cublasLtEpilogue_t; the first does nothing."""

_HALF = dict.fromkeys((64, 65), F16)
_SINGLE = dict.fromkeys((68, 69, *_TF32), F32)
SCALARS: dict[int, np.dtype[Any]] = {**_HALF, **_SINGLE, 70: F64, 71: F64, 72: I32, 73: I32}
"""The type of alpha and beta, by compute type."""
_RESULTS: dict[tuple[np.dtype[Any], np.dtype[Any]], tuple[np.dtype[Any], ...]] = {
    (F16, F16): (F16,), (F32, F16): (F16, F32), (F32, BF16): (BF16, F32), (F32, F32): (F32,), (F32, I8): (F32,),
    (F64, F64): (F64,), (I32, I8): (I32,),
}  # fmt: skip
"""The types that C and D may have, by the types of alpha and of A and B.

Source: cuBLAS documentation, cublasGemmEx and cublasLtMatmul.
"""
_RESULTS_OF_FP8 = {F32: (F32,), BF16: (BF16, E4M3, E5M2), F16: (F16, E4M3, E5M2)}
"""The allowed types of D by the type of C, for A and B of 8 bits."""


class BlasMatrix(NamedTuple):
    """A batch of matrices.

    ``leading`` is the number of elements between columns (rows, if it is stored by rows), ``stride`` that between
    matrices.
    """

    address: int
    type: int
    order: int
    rows: int
    columns: int
    leading: int
    stride: int
    scale: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[self.type]

    def view(self, session: Session, number: int, writes: bool = False) -> NDArray[Any]:
        """Returns matrix ``number`` of a batch as a view of device memory. Raises DriverError if it lies elsewhere."""
        lines, length = (self.rows, self.columns) if self.order else (self.columns, self.rows)
        size = self.dtype.itemsize
        at = self.address + number * self.stride * size
        if self.leading < max(1, length) or at % size:
            raise DriverError("INVALID_VALUE", f"a matrix of {self.rows} rows with leading dimension {self.leading}")
        nbytes = ((lines - 1) * self.leading + length) * size
        found = session.find_to_touch(at, nbytes)
        if found is None:
            raise DriverError("INVALID_VALUE", f"{at:#x}, a matrix for cuBLAS, is not device memory")
        block, offset = found
        for line in range(lines):
            first = offset + line * self.leading * size
            if writes:
                block.mark_valid(first, length * size)
            elif block.valid is not None and not block.valid[first : first + length * size].all():
                session.gpu.log.note("a matrix that cuBLAS reads has bytes that were never written")
        view = np.ndarray((lines, length), self.dtype, block.data.data, offset, (self.leading * size, size))
        return view if self.order else view.T


@dataclass
class BlasProduct:
    """D = epilogue(alpha op(A) op(B) + beta C), as `shim/blas.h` describes it."""

    transpose_a: int
    transpose_b: int
    compute: int
    scalars: int
    pointers: int
    alpha: int
    beta: int
    batch: int
    epilogue: int
    bias: int
    bias_type: int
    bias_stride: int
    asks: int
    a: BlasMatrix
    b: BlasMatrix
    c: BlasMatrix
    d: BlasMatrix

    @classmethod
    def read(cls, what: bytes) -> BlasProduct:
        numbers = struct.unpack("=5q2Q2qQ3q" + 4 * "Q6qQ", what)
        return cls(*numbers[:13], *(BlasMatrix(*numbers[at : at + 8]) for at in range(13, 45, 8)))

    @property
    def expected_bias(self) -> np.dtype[Any]:
        """Returns the documented type of the bias: that of D, but no 8-bit type, and not f32 with 8-bit matrices."""
        if self.a.dtype in MOST and self.d.dtype == F32:
            return BF16
        return self.c.dtype if self.d.dtype in MOST else self.d.dtype

    def refusal(self, hopper: bool, light: bool) -> str:
        """Returns what the product needs that is not supported, or "". ``light``: the call is one of cuBLASLt."""
        for name, matrix in (("A", self.a), ("B", self.b), ("C", self.c), ("D", self.d)):
            if matrix.type not in DTYPES:
                return f"{name} of data type {matrix.type}"
            if matrix.order not in _ORDERS:
                return f"order {matrix.order} of {name}"
        if self.compute not in SCALARS:
            return f"compute type {self.compute}"
        scalar = SCALARS[self.compute]
        if DTYPES.get(self.scalars) != scalar:
            return f"scale type {self.scalars} for compute type {self.compute}"
        if self.pointers not in (0, 1):
            return f"pointer mode {self.pointers}"
        if self.epilogue not in _EPILOGUES:
            return f"epilogue {self.epilogue}"
        types = f"{self.a.dtype} times {self.b.dtype}, C of {self.c.dtype} and D of {self.d.dtype}"
        if self.a.dtype in MOST and self.b.dtype in MOST and light:
            if (self.a.dtype, self.b.dtype) == (E5M2, E5M2) or self.compute != 68:
                return f"{types}, compute type {self.compute}"
            if self.d.dtype not in _RESULTS_OF_FP8.get(self.c.dtype, ()):
                return types
            across = [bool(t) != bool(x.order) for t, x in ((self.transpose_a, self.a), (self.transpose_b, self.b))]
            if hopper and across != [True, False]:
                return "fp8 on Hopper that is not A transposed times B"
            for matrix in (self.a, self.b, self.c, self.d):
                if matrix.address % 16 or matrix.leading * matrix.dtype.itemsize % 16:
                    return f"fp8 with a matrix at {matrix.address:#x}, leading dimension {matrix.leading}: not 16 bytes"
        elif self.a.dtype != self.b.dtype or self.c.dtype != self.d.dtype:
            return types
        elif self.d.dtype not in _RESULTS.get((scalar, self.a.dtype), ()):
            return f"{types}, compute type {self.compute}"
        if self.epilogue & _BIAS and self.bias_type >= 0 and DTYPES.get(self.bias_type) != self.expected_bias:
            return f"a bias of data type {self.bias_type} for D of {self.d.dtype}"
        return ""

    def check(self) -> None:
        """Raises DriverError if the matrices do not form a product."""
        if self.transpose_a not in _TRANSPOSED or self.transpose_b not in _TRANSPOSED:
            raise DriverError("INVALID_VALUE", f"operations {self.transpose_a} and {self.transpose_b}")
        m, k = (self.a.rows, self.a.columns)[:: -1 if self.transpose_a else 1]
        other, n = (self.b.rows, self.b.columns)[:: -1 if self.transpose_b else 1]
        shapes = {(self.c.rows, self.c.columns), (self.d.rows, self.d.columns)}
        if k != other or shapes != {(m, n)}:
            raise DriverError("INVALID_VALUE", f"a product of {m} x {k} and {other} x {n} to {sorted(shapes)}")
        if any(matrix.scale and matrix.dtype not in MOST for matrix in (self.a, self.b, self.d)):
            raise DriverError("INVALID_VALUE", "a scale factor for a matrix that is not of 8 bits")

    def scalar(self, session: Session, value: int) -> Any:
        """Returns alpha or beta, given its value or its address."""
        kind = SCALARS[self.compute]
        if self.pointers:
            return _element(session, value, self.scalars)
        return np.frombuffer(value.to_bytes(8, "little"), kind, 1)[0]


@handles("emulatedGemm")
def gemm(session: Session, name: str, what: bytes) -> None:
    """Computes in f64 or in exact integers if the compute type asks for them, else in f32."""
    log = session.gpu.log
    product = BlasProduct.read(what)
    refusal = product.refusal(session.gpu.model.capability[0] == 9, name.startswith("cublasLt"))
    if refusal:
        log.refused(f"{name}: {refusal}")
        raise DriverError("NOT_SUPPORTED")
    product.check()
    if product.asks:
        return
    scalar = SCALARS[product.compute]
    wide: np.dtype[Any] = np.dtype({F64: np.float64, I32: np.int64}.get(scalar, np.float32))
    alpha, beta = (wide.type(product.scalar(session, value)) for value in (product.alpha, product.beta))
    scales = [_element(session, m.scale, 0) if m.scale else F32.type(1) for m in (product.a, product.b, product.d)]
    if product.a.dtype in MOST:
        alpha = alpha * scales[0] * scales[1]
    m, n, k = product.d.rows, product.d.columns, product.a.rows if product.transpose_a else product.a.columns
    for number in range(product.batch if m and n else 0):
        total: NDArray[Any] = np.zeros((m, n), wide)
        if k and alpha:
            left, right = (_taken(x.view(session, number), product, wide) for x in (product.a, product.b))
            left, right = left.T if product.transpose_a else left, right.T if product.transpose_b else right
            total = alpha * (left @ right)
        if beta:
            total = total + beta * product.c.view(session, number).astype(wide)
        if product.epilogue & _BIAS:
            kind = next(number for number, dtype in DTYPES.items() if dtype == product.expected_bias)
            bias = BlasMatrix(product.bias, kind, 0, m, 1, m, product.bias_stride, 0)
            total = total + bias.view(session, number).astype(wide)
        total = _activated(total, product.epilogue)
        result = product.d.view(session, number, writes=True)
        if product.d.dtype in MOST:  # conversions to 8 bits saturate (PTX ISA, cvt: .satfinite is required)
            most = MOST[product.d.dtype]
            total = np.clip(total * scales[2], -most, most)
        with np.errstate(over="ignore"):
            result[...] = total.astype(result.dtype)
    log.note(f"{name} is computed by NumPy, which shows nothing about NVIDIA's own kernels")
    log.computed[name] = log.computed.get(name, 0) + 1


def _element(session: Session, address: int, kind: int) -> Any:
    """Returns one number in device memory."""
    return BlasMatrix(address, kind, 0, 1, 1, 1, 0, 0).view(session, 0)[0, 0]


def _taken(values: NDArray[Any], product: BlasProduct, wide: np.dtype[Any]) -> NDArray[Any]:
    """Returns elements of A or B as the product uses them.

    For TF32, f32 values are rounded to 10 bits of mantissa, ties away from zero (PTX ISA, cvt.rna.tf32).
    """
    taken = values.astype(wide)
    if product.compute in _TF32 and values.dtype == F32:
        bits = taken.view(np.uint32)
        taken = np.where(np.isfinite(taken), ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(F32), taken)
    return taken


def _activated(x: NDArray[Any], epilogue: int) -> Any:
    """Returns ReLU or GELU of cuBLASLt.

    ReLU of a NaN is 0, as published (NVIDIA developer forum, thread 329783). GELU is the approximation by tanh
    (pytorch/pytorch, pull request 104061).
    """
    if epilogue & _RELU:
        return np.fmax(x, x.dtype.type(0))
    if epilogue & _GELU:
        inner = np.sqrt(2 / np.pi) * (x.astype(np.float64) + 0.044715 * x.astype(np.float64) ** 3)
        return (0.5 * x * (1 + np.tanh(inner))).astype(x.dtype)
    return x
