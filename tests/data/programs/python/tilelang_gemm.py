"""A GEMM in TileLang, which compiles its CUDA C++ with nvcc and has PyTorch's tensors."""

import tilelang
import tilelang.language as T
import torch

M, N, K = 128, 64, 96


@tilelang.jit
def matmul():
    @T.prim_func
    def main(a: T.Tensor((M, K), "float16"), b: T.Tensor((K, N), "float16"), c: T.Tensor((M, N), "float32")):
        with T.Kernel(1, M // 64, threads=128) as (_, row):
            a_tile = T.alloc_shared((64, 32), "float16")
            b_tile = T.alloc_shared((32, N), "float16")
            sums = T.alloc_fragment((64, N), "float32")
            T.clear(sums)
            for step in T.Pipelined(K // 32, num_stages=2):
                T.copy(a[row * 64, step * 32], a_tile)
                T.copy(b[step * 32, 0], b_tile)
                T.gemm(a_tile, b_tile, sums)
            T.copy(sums, c[row * 64, 0])

    return main


a, b = (torch.randint(-4, 5, shape, device="cuda").half() for shape in ((M, K), (K, N)))
c = torch.empty(M, N, device="cuda")
matmul()(a, b, c)
print(f"TileLang GEMM of {M} x {N} x {K}: {int((c != a.float() @ b.float()).sum())} wrong")
