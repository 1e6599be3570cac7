"""Matrix products of cuBLAS, which NumPy computes: nothing is said of the kernels that the library would launch."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from harness.driver.api import handles
from harness.driver.results import DriverError
from harness.driver.state import Session

DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16), 3: np.dtype(np.int8),
    10: np.dtype(np.int32), 14: np.dtype(ml_dtypes.bfloat16), 28: np.dtype(ml_dtypes.float8_e4m3fn),
    29: np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
"""By their number in cudaDataType."""
_SCALARS = {64: "e", 65: "e", 70: "d", 71: "d", 72: "i", 73: "i"}
"""The format of alpha and beta by the compute type; of others a float."""


class Matrix(NamedTuple):
    """As cuBLAS has it: column by column. leading: elements from one column to the next; stride: to the next matrix."""

    address: int
    dtype: np.dtype[Any]
    leading: int
    stride: int

    def view(self, session: Session, rows: int, columns: int, number: int, writes: bool = False) -> NDArray[Any]:
        """Matrix ``number`` of a batch, as it lies in memory. Raises DriverError where there is none."""
        size = self.dtype.itemsize
        at = self.address + number * self.stride * size
        if self.leading < max(1, rows) or at % size:
            raise DriverError("INVALID_VALUE", f"a matrix of {rows} rows with leading dimension {self.leading}")
        nbytes = ((columns - 1) * self.leading + rows) * size
        found = session.find_to_touch(at, nbytes)
        if found is None:
            raise DriverError("INVALID_VALUE", f"{at:#x}, a matrix of cuBLAS, is no device memory")
        block, offset = found
        if writes:
            for column in range(columns):
                block.mark_valid(offset + column * self.leading * size, rows * size)
        elif block.valid is not None and not block.valid[offset : offset + nbytes].all():
            session.gpu.log.note("a matrix that cuBLAS reads has bytes that were never written")
        data = np.frombuffer(block.data.data, self.dtype, count=nbytes // size, offset=offset)
        return np.lib.stride_tricks.as_strided(data, (rows, columns), (size, self.leading * size), writeable=writes)


@handles("emulatedGemm")
def gemm(session: Session, name: str, what: bytes) -> None:
    """C = alpha op(A) op(B) + beta C: in f64 if that is asked for, exactly for integers, in f32 else."""
    log = session.gpu.log
    numbers = struct.unpack("=21q", what)
    transpose_a, transpose_b, m, n, k, batch, compute = numbers[:7]
    kind = _SCALARS.get(compute, "f")
    alpha, beta = (struct.unpack_from("=" + kind, what, 8 * place)[0] for place in (7, 8))
    unknown = {numbers[place] for place in (10, 14, 18)} - DTYPES.keys()
    if unknown:
        raise DriverError("NOT_SUPPORTED", f"{name} of data type {min(unknown)}")
    a, b, c = (
        Matrix(numbers[p] % (1 << 64), DTYPES[numbers[p + 1]], numbers[p + 2], numbers[p + 3]) for p in (9, 13, 17)
    )
    wide: np.dtype[Any] = np.dtype({"d": np.float64, "i": np.int64}.get(kind, np.float32))
    for number in range(batch if m and n else 0):
        total: NDArray[Any] = np.zeros((m, n), wide)
        if k and alpha:
            left = a.view(session, *((k, m) if transpose_a else (m, k)), number).astype(wide)
            right = b.view(session, *((n, k) if transpose_b else (k, n)), number).astype(wide)
            total = wide.type(alpha) * ((left.T if transpose_a else left) @ (right.T if transpose_b else right))
        if beta:
            total = total + wide.type(beta) * c.view(session, m, n, number).astype(wide)
        with np.errstate(over="ignore"):
            c.view(session, m, n, number, writes=True)[...] = total.astype(c.dtype)
    log.note(f"{name} is computed by NumPy: nothing is said of NVIDIA's own kernels")
    log.computed[name] = log.computed.get(name, 0) + 1
