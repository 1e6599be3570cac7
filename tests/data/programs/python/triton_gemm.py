"""C = A @ B by Triton, from NumPy arrays: compiled, launched and checked by this program.

Triton asks torch for the GPU if it is installed, and one that is built for CPUs alone says that there is none.
"""

import numpy as np
import triton
import triton.language as tl
from device_array import DeviceArray, start


@triton.jit
def matmul(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, k, BLOCK_K):
        depth = first + inner
        x = tl.load(a + rows[:, None] * k + depth[None, :], (rows[:, None] < m) & (depth[None, :] < k), 0.0)
        y = tl.load(b + depth[:, None] * n + columns[None, :], (depth[:, None] < k) & (columns[None, :] < n), 0.0)
        total = tl.dot(x, y, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total, (rows[:, None] < m) & (columns[None, :] < n))


def main():
    start()
    m, n, k = 200, 136, 96
    a = ((np.arange(m * k) * 37 % 17).reshape(m, k) - 8).astype(np.float16)
    b = ((np.arange(k * n) * 53 % 19).reshape(k, n) - 9).astype(np.float16)
    c = DeviceArray(np.full((m, n), np.nan, np.float32), "float32")
    grid = (triton.cdiv(m, 128), triton.cdiv(n, 64))
    matmul[grid](DeviceArray(a, "float16"), DeviceArray(b, "float16"), c, m, n, k, 128, 64, 32)
    wrong = int((c.numpy() != a.astype(np.float32) @ b.astype(np.float32)).sum())
    print(f"Triton GEMM of {m} x {n} x {k}: {wrong} wrong")
    raise SystemExit(wrong != 0)


main()
