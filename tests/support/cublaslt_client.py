"""A program's side of cuBLASLt, for the tests that run one: descriptors by ctypes, matrices with gaps.

Numbers are those of NVIDIA's cublasLt.h, cublas_api.h and library_types.h.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_char_p, c_double, c_float, c_int8, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

import ml_dtypes
import numpy as np
from driver_client import asked, call

lt = ctypes.CDLL("libcublasLt.so.13")
handle = c_void_p()
TYPES = {
    "f32": (np.float32, 0), "f64": (np.float64, 1), "f16": (np.float16, 2), "s8": (np.int8, 3), "s32": (np.int32, 10),
    "bf16": (ml_dtypes.bfloat16, 14), "e4m3": (ml_dtypes.float8_e4m3fn, 28), "e5m2": (ml_dtypes.float8_e5m2, 29),
}  # fmt: skip
ATTRIBUTES = {
    "compute": (0, c_int32), "scalars": (1, c_int32), "pointers": (2, c_int32), "ta": (3, c_int32), "tb": (4, c_int32),
    "tc": (5, c_int32), "fill": (6, c_int32), "epilogue": (7, c_int32), "bias": (8, c_uint64),
    "bias_stride": (10, c_int64), "aux": (11, c_uint64), "a_scale": (17, c_uint64), "b_scale": (18, c_uint64),
    "c_scale": (19, c_uint64), "d_scale": (20, c_uint64), "amax": (21, c_uint64), "fast": (25, c_int8),
    "bias_type": (26, c_int32), "a_mode": (31, c_int32), "unknown": (77, c_int32),
}  # fmt: skip
GAP = 9.0
"""What lies between the lines of a matrix."""


def begin() -> None:
    assert lt.cublasLtCreate(byref(handle)) == 0


class Matrix:
    """A matrix in device memory, or a batch of them. by_rows: how it lies; gap: elements between its lines."""

    def __init__(self, values: Any, kind: str, by_rows: bool = False, gap: int = 0, many: bool = False) -> None:
        values = np.asarray(values)
        self.shape, self.by_rows, self.many = values.shape, by_rows, many
        self.type, self.number = TYPES[kind]
        lines = values if by_rows else values.swapaxes(-1, -2)
        padded = np.full((*lines.shape[:-1], lines.shape[-1] + gap), GAP)
        padded[..., : lines.shape[-1]] = lines
        self.size, self.leading, self.stride = padded.shape, padded.shape[-1], padded.shape[-1] * padded.shape[-2]
        self.address = upload(padded.astype(self.type))
        self.gap = gap

    def layout(self) -> c_void_p:
        layout = c_void_p()
        rows, columns = self.shape[-2:]
        created = lt.cublasLtMatrixLayoutCreate(
            byref(layout), self.number, c_uint64(rows), c_uint64(columns), c_int64(self.leading)
        )
        assert created == 0
        more = [(1, c_int32(self.by_rows))] if self.by_rows else []
        if self.many:
            more += [(5, c_int32(self.shape[0])), (6, c_int64(self.stride))]
        for number, value in more:
            assert (
                lt.cublasLtMatrixLayoutSetAttribute(layout, number, byref(value), c_size_t(ctypes.sizeof(value))) == 0
            )
        return layout

    def read(self) -> Any:
        """What it holds now, in f64. The gaps are as they were."""
        raw = (c_char * (int(np.prod(self.size)) * np.dtype(self.type).itemsize))()
        call("cuMemcpyDtoH_v2", byref(raw), self.address, ctypes.sizeof(raw))
        lines = np.frombuffer(bytes(raw), self.type).reshape(self.size).astype(np.float64)
        kept = lines[..., self.size[-1] - self.gap :]
        assert (kept == GAP).all(), kept
        lines = lines[..., : self.size[-1] - self.gap]
        return lines if self.by_rows else lines.swapaxes(-1, -2)


def upload(values: Any) -> int:
    raw = np.ascontiguousarray(values).tobytes()
    address = asked("cuMemAlloc_v2", len(raw))
    call("cuMemcpyHtoD_v2", address, c_char_p(raw), len(raw))
    return address


def number(value: float) -> int:
    """Where an f32 lies."""
    return upload(np.array([value], np.float32))


def set_attribute(operation: c_void_p, name: str, value: int) -> int:
    place, kind = ATTRIBUTES[name]
    held = kind(value)
    return lt.cublasLtMatmulDescSetAttribute(operation, place, byref(held), c_size_t(ctypes.sizeof(held)))


def matmul(
    a: Matrix, b: Matrix, c: Matrix, d: Matrix, alpha: Any = 1, beta: Any = 0, compute: int = 68, scalars: int = 0,
    **attributes: int,
) -> int:  # fmt: skip
    """The status of the first call that fails, or 0."""
    operation = c_void_p()
    assert lt.cublasLtMatmulDescCreate(byref(operation), compute, scalars) == 0
    for name, value in attributes.items():
        status = set_attribute(operation, name, value)
        if status:
            return status
    layouts = [x.layout() for x in (a, b, c, d)]
    preference, found, answer = c_void_p(), c_int32(7), (c_char * 96)()
    assert lt.cublasLtMatmulPreferenceCreate(byref(preference)) == 0
    most = c_uint64(1 << 25)
    assert lt.cublasLtMatmulPreferenceSetAttribute(preference, 1, byref(most), c_size_t(8)) == 0
    status = lt.cublasLtMatmulAlgoGetHeuristic(handle, operation, *layouts, preference, 1, byref(answer), byref(found))
    assert found.value == (0 if status else 1)
    kind = {0: c_float, 1: c_double, 10: c_int32}.get(scalars, c_float)
    given = [c_void_p(x) if attributes.get("pointers") else byref(kind(x)) for x in (alpha, beta)]
    places = [c_uint64(x.address) for x in (a, b, c, d)]
    return lt.cublasLtMatmul(
        handle, operation, given[0], places[0], layouts[0], places[1], layouts[1], given[1], places[2], layouts[2],
        places[3], layouts[3], byref(answer), None, c_size_t(0), None,
    )  # fmt: skip
