// C = A @ B.T in f16 with f32 sums: cp.async in three stages, ldmatrix and mma.sync, one tile of 64 x 64 a CTA.
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

constexpr int M = 64, N = 64, K = 32, STAGES = 3, PITCH = K + 8;

__device__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

extern "C" __global__ void __launch_bounds__(128) mma_gemm(const half *a, const half *b, half *c, int n, int k) {
  __shared__ __align__(16) half tiles[STAGES][2][M * PITCH];
  int t = threadIdx.x, warp = t / 32, lane = t % 32;
  const half *sources[2] = {a + blockIdx.y * M * k, b + blockIdx.x * N * k};
  auto fetch = [&](int stage, int step) {
    for (int which = 0; which < 2; ++which)
      for (int i = t; i < M * K / 8; i += 128) {
        int row = i / (K / 8), chunk = i % (K / 8);
        __pipeline_memcpy_async(&tiles[stage][which][row * PITCH + chunk * 8],
                                sources[which] + row * k + step * K + chunk * 8, 16);
      }
  };
  float sums[8][4] = {};
  int steps = k / K;
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) fetch(s, s);
    __pipeline_commit();
  }
  for (int step = 0; step < steps; ++step) {
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    if (step + STAGES - 1 < steps) fetch((step + STAGES - 1) % STAGES, step + STAGES - 1);
    __pipeline_commit();
    const half *left = tiles[step % STAGES][0], *right = tiles[step % STAGES][1];
    for (int kk = 0; kk < K; kk += 16) {
      unsigned x[4], y[2];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(shared_address(left + (warp * 16 + lane % 16) * PITCH + kk + lane / 16 * 8)));
      for (int j = 0; j < 8; ++j) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(y[0]), "=r"(y[1])
                     : "r"(shared_address(right + (j * 8 + lane % 8) * PITCH + kk + lane / 8 % 2 * 8)));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[j][0]), "+f"(sums[j][1]), "+f"(sums[j][2]), "+f"(sums[j][3])
            : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
      }
    }
  }
  for (int j = 0; j < 8; ++j)
    for (int h = 0; h < 2; ++h) {
      int row = blockIdx.y * M + warp * 16 + lane / 4 + 8 * h, column = blockIdx.x * N + j * 8 + lane % 4 * 2;
      *(half2 *)(c + row * n + column) = __floats2half2_rn(sums[j][2 * h], sums[j][2 * h + 1]);
    }
}
