"""A vector add by numba-cuda: arrays, launch and check are numba's own."""

import numpy as np
from numba import cuda


@cuda.jit
def add(a, b, sums):
    i = cuda.grid(1)
    if i < sums.size:
        sums[i] = a[i] + b[i]


count = 1000
a = np.arange(count, dtype=np.float32)
b = (np.arange(count) ** 2 % 97).astype(np.float32)
sums = cuda.to_device(np.full(count, np.nan, np.float32))
add[8, 128](cuda.to_device(a), cuda.to_device(b), sums)
wrong = int((sums.copy_to_host() != a + b).sum())
print(f"numba vector add on {cuda.get_current_device().name} of {count} elements: {wrong} wrong")
raise SystemExit(wrong != 0)
