// C = A @ B.T in f16 with sums in f16 too: wgmma on tiles of 64 x 64 without swizzle, in two stages of 32 along K.
#include <cstdint>
#include <cuda_fp16.h>

constexpr int M = 64, N = 64, K = 32, CHUNK = 8, STAGES = 2;

// A matrix descriptor (PTX ISA 9.7.15.5.1.2.2): 8 rows of 16 bytes lie together; 1024 bytes on are the next 16 of K.
__device__ uint64_t descriptor(const half *tile) {
  uint64_t start = __cvta_generic_to_shared(tile) >> 4 & 0x3fff;
  return start | uint64_t(M * 16 >> 4) << 16 | uint64_t(128 >> 4) << 32;
}

extern "C" __global__ void __launch_bounds__(128) wgmma_gemm(const half *a, const half *b, half *c, int n, int k) {
  __shared__ __align__(128) half tiles[STAGES][2][M * K];
  int t = threadIdx.x, warp = t / 32, lane = t % 32;
  const half *sources[2] = {a + blockIdx.y * M * k, b + blockIdx.x * N * k};
  uint32_t d[16] = {};
  for (int step = 0; step < k / K; ++step) {
    half(*stage)[M * K] = tiles[step % STAGES];
    for (int which = 0; which < 2; ++which)
      for (int i = t; i < M * K / CHUNK; i += 128) {
        int row = i / (K / CHUNK), chunk = i % (K / CHUNK);
        *(uint4 *)&stage[which][(chunk * M + row) * CHUNK] =
            *(const uint4 *)(sources[which] + row * k + step * K + chunk * CHUNK);
      }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int kk = 0; kk < K; kk += 16) {
      uint64_t left = descriptor(stage[0] + kk * M), right = descriptor(stage[1] + kk * N);
      asm volatile(
          "wgmma.mma_async.sync.aligned.m64n64k16.f16.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
          "%13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
          : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
            "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
          : "l"(left), "l"(right));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  for (int j = 0; j < 16; ++j) {
    int row = blockIdx.y * M + warp * 16 + lane / 4 + 8 * (j % 2), column = blockIdx.x * N + j / 2 * 8 + lane % 4 * 2;
    *(uint32_t *)(c + row * n + column) = d[j];
  }
}
