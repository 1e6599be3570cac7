"""C = A @ B.T by CuTe DSL with tcgen05: compiled, launched and checked by this program. For sm_100a."""

import sys
from pathlib import Path

import cutlass
import ml_dtypes
import numpy as np
from cutlass import cute
from cutlass.cute.runtime import make_ptr
from device_array import DeviceArray, start

sys.path.append(str(Path(__file__).parents[2] / "cute"))
from kernels import GEMMS, gemm

M, N, K = 256, 128, 192


@cute.jit
def multiply(a: cute.Pointer, b: cute.Pointer, c: cute.Pointer):
    of_a, of_b, of_c = (cute.make_layout(shape, stride=(shape[1], 1)) for shape in ((M, K), (N, K), (M, N)))
    tensors = cute.make_tensor(a, of_a), cute.make_tensor(b, of_b), cute.make_tensor(c, of_c)
    _, _, tile, cluster, group = GEMMS["gemm_bf16"]
    gemm(*tensors, tile, cluster, group, cutlass.Int32(2))


def main():
    start()
    a = ((np.arange(M * K) * 37 % 17).reshape(M, K) - 8).astype(ml_dtypes.bfloat16)
    b = ((np.arange(N * K) * 53 % 19).reshape(N, K) - 9).astype(ml_dtypes.bfloat16)
    c = np.full((M, N), np.nan, ml_dtypes.bfloat16)
    arrays = [DeviceArray(x, "bfloat16") for x in (a, b, c)]
    pointers = [make_ptr(cutlass.BFloat16, x.data_ptr(), cute.AddressSpace.gmem, assumed_align=32) for x in arrays]
    multiply(*pointers)
    expected = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)
    wrong = int((arrays[2].numpy() != expected).sum())
    print(f"CuTe DSL GEMM of {M} x {N} x {K}: {wrong} wrong")
    raise SystemExit(wrong != 0)


main()
