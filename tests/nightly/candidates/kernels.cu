// Small kernels in CUDA C++, each with another way for threads to hand data to one another. VARIANT 0 or 1 sets their sizes.
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#ifndef VARIANT
#define VARIANT 0
#endif
constexpr int THREADS = VARIANT ? 256 : 128, WARPS = THREADS / 32, STAGES = VARIANT ? 4 : 2;
constexpr int CHUNK = VARIANT ? 2048 : 512;  // bytes of a bulk copy

__device__ uint32_t shared_address(const void *p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ void init(uint64_t *bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}
__device__ void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void expect(uint64_t *bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ void arrive(uint64_t *bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ void wait(uint64_t *bar, int parity) {
  asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra AGAIN;\n}" ::"r"(shared_address(bar)), "r"(parity) : "memory");
}
__device__ void load_bulk(void *to, const void *from, int bytes, uint64_t *bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
__device__ void load_box(void *to, const CUtensorMap *map, int x, int y, uint64_t *bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(shared_address(to)), "l"(map), "r"(x), "r"(y), "r"(shared_address(bar)) : "memory");
}

// A sum per CTA: a tree in shared memory, whose last six steps are one warp's.
extern "C" __global__ void __launch_bounds__(THREADS) block_sum(const int *in, int *out) {
  __shared__ int part[THREADS];
  int t = threadIdx.x;
  part[t] = in[blockIdx.x * THREADS + t];
  __syncthreads();
  for (int half = THREADS / 2; half >= 64; half /= 2) {
    if (t < half) part[t] += part[t + half];
    __syncthreads();
  }
  if (t < 32) {
    int sum = part[t] + part[t + 32];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (t == 0) out[blockIdx.x] = sum;
  }
}

// A transpose by tiles of 32 x 32.
extern "C" __global__ void __launch_bounds__(THREADS) transpose(const float *in, float *out, int rows, int columns) {
  __shared__ float tile[32][33];
  int x = threadIdx.x % 32, y = threadIdx.x / 32;
  for (int i = y; i < 32; i += WARPS) tile[i][x] = in[(blockIdx.y * 32 + i) * columns + blockIdx.x * 32 + x];
  __syncthreads();
  for (int i = y; i < 32; i += WARPS) out[(blockIdx.x * 32 + i) * rows + blockIdx.y * 32 + x] = tile[x][i];
}

// Prefix sums of each CTA's numbers, between two buffers in turn.
extern "C" __global__ void __launch_bounds__(THREADS) scan(const int *in, int *out) {
  __shared__ int sums[2][THREADS];
  int t = threadIdx.x, now = 0;
  sums[0][t] = in[blockIdx.x * THREADS + t];
  __syncthreads();
  for (int step = 1; step < THREADS; step *= 2) {
    sums[1 - now][t] = sums[now][t] + (t >= step ? sums[now][t - step] : 0);
    now = 1 - now;
    __syncthreads();
  }
  out[blockIdx.x * THREADS + t] = sums[now][t];
}

// The sum of three neighbours, with a halo in shared memory.
extern "C" __global__ void __launch_bounds__(THREADS) stencil(const int *in, int *out, int count) {
  __shared__ int line[THREADS + 2];
  int t = threadIdx.x, i = blockIdx.x * THREADS + t;
  line[t + 1] = in[i];
  if (t == 0) line[0] = i ? in[i - 1] : 0;
  if (t == THREADS - 1) line[THREADS + 1] = i + 1 < count ? in[i + 1] : 0;
  __syncthreads();
  out[i] = line[t] + line[t + 1] + line[t + 2];
}

// 64 bins, of each CTA in shared memory first.
extern "C" __global__ void __launch_bounds__(THREADS) histogram(const uint32_t *in, int *bins, int count) {
  __shared__ int own[64];
  int t = threadIdx.x;
  if (t < 64) own[t] = 0;
  __syncthreads();
  for (int i = blockIdx.x * THREADS + t; i < count; i += gridDim.x * THREADS) atomicAdd(&own[in[i] % 64], 1);
  __syncthreads();
  if (t < 64) atomicAdd(&bins[t], own[t]);
}

// out = row - max(row): a CTA per row, maxima of warps by shuffles, of the CTA through shared memory.
extern "C" __global__ void __launch_bounds__(THREADS) below_max(const float *in, float *out, int columns) {
  __shared__ float most[WARPS];
  int t = threadIdx.x;
  float best = -INFINITY;
  const float *row = in + blockIdx.x * columns;
  for (int i = t; i < columns; i += THREADS) best = fmaxf(best, row[i]);
  for (int step = 16; step; step /= 2) best = fmaxf(best, __shfl_down_sync(~0u, best, step));
  if (t % 32 == 0) most[t / 32] = best;
  __syncthreads();
  best = most[0];
  for (int warp = 1; warp < WARPS; ++warp) best = fmaxf(best, most[warp]);
  for (int i = t; i < columns; i += THREADS) out[blockIdx.x * columns + i] = row[i] - best;
}

// C = A @ B in f32: tiles of 16 x 16 come by cp.async, one step ahead.
extern "C" __global__ void __launch_bounds__(256) gemm_async(const float *a, const float *b, float *c, int n, int k) {
  __shared__ __align__(16) float left[STAGES][16][16], right[STAGES][16][16];
  int t = threadIdx.x, x = t % 16, y = t / 16, row = blockIdx.y * 16, column = blockIdx.x * 16;
  auto fetch = [&](int step) {
    if (step * 16 < k && t < 128) {
      int which = t / 64, line = t % 64 / 4, part = t % 4 * 4;
      if (which == 0)
        __pipeline_memcpy_async(&left[step % STAGES][line][part], a + (row + line) * k + step * 16 + part, 16);
      else
        __pipeline_memcpy_async(&right[step % STAGES][line][part], b + (step * 16 + line) * n + column + part, 16);
    }
    __pipeline_commit();
  };
  for (int step = 0; step < STAGES - 1; ++step) fetch(step);
  float sum = 0;
#pragma unroll 1
  for (int step = 0; step * 16 < k; ++step) {
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    fetch(step + STAGES - 1);
    for (int i = 0; i < 16; ++i) sum += left[step % STAGES][y][i] * right[step % STAGES][i][x];
  }
  c[(row + y) * n + column + x] = sum;
}

// out = 2 * in + 1: warp 0 fills a ring of stages by bulk copies, the other warps empty it.
extern "C" __global__ void __launch_bounds__(THREADS) bulk_ring(const int *in, int *out, int chunks) {
  __shared__ __align__(128) int ring[STAGES][CHUNK / 4];
  __shared__ uint64_t full[STAGES], empty[STAGES];
  int t = threadIdx.x, first = blockIdx.x * chunks;
  if (t == 0) {
    for (int s = 0; s < STAGES; ++s) init(&full[s], 1), init(&empty[s], WARPS - 1);
    fence_init();
  }
  __syncthreads();
  if (t < 32) {
    if (t == 0)
#pragma unroll 1
      for (int i = 0; i < chunks; ++i) {
        int s = i % STAGES;
        wait(&empty[s], i / STAGES % 2 ^ 1);
        expect(&full[s], CHUNK);
        load_bulk(ring[s], in + (first + i) * (CHUNK / 4), CHUNK, &full[s]);
      }
  } else
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      int s = i % STAGES;
      wait(&full[s], i / STAGES % 2);
      for (int j = t - 32; j < CHUNK / 4; j += THREADS - 32) out[(first + i) * (CHUNK / 4) + j] = 2 * ring[s][j] + 1;
      __syncwarp();
      if (t % 32 == 0) arrive(&empty[s]);
    }
}

// out = in + 3, stored by bulk copies from two buffers in turn.
extern "C" __global__ void __launch_bounds__(THREADS) bulk_store(const int *in, int *out, int chunks) {
  __shared__ __align__(128) int buffer[2][CHUNK / 4];
  int t = threadIdx.x;
  for (int i = 0; i < chunks; ++i) {
    int at = (blockIdx.x * chunks + i) * (CHUNK / 4), *mine = buffer[i % 2];
    if (t == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    __syncthreads();
    for (int j = t; j < CHUNK / 4; j += THREADS) mine[j] = in[at + j] + 3;
    fence_async();
    __syncthreads();
    if (t == 0) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + at), "r"(shared_address(mine)),
                   "r"(CHUNK) : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
  }
  if (t == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Every CTA of a cluster of two adds up what both hold in shared memory.
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(THREADS) cluster_sum(const int *in, int *out) {
  __shared__ int values[THREADS];
  int t = threadIdx.x;
  values[t] = in[blockIdx.x * THREADS + t];
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  uint32_t peer;
  int other;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(shared_address(&values[t])), "r"(blockIdx.x % 2 ^ 1));
  asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(other) : "r"(peer) : "memory");
  out[blockIdx.x * THREADS + t] = values[t] + other;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// One sum: the CTA that comes last adds up what all have left in global memory.
extern "C" __global__ void __launch_bounds__(THREADS) last_adds(const int *in, int *parts, uint32_t *ticket, int *out) {
  __shared__ bool last;
  int t = threadIdx.x;
  parts[blockIdx.x * THREADS + t] = 5 * in[blockIdx.x * THREADS + t];
  __threadfence();
  __syncthreads();
  if (t == 0) last = atomicAdd(ticket, 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  int sum = 0;
  for (int cta = 0; cta < gridDim.x; ++cta) sum += *(volatile int *)&parts[cta * THREADS + t];
  out[t] = sum;
}

// Lanes of a warp reverse their numbers through shared memory, twice over the same words.
extern "C" __global__ void __launch_bounds__(THREADS) warp_reverse(const int *in, int *out) {
  __shared__ int words[WARPS][32];
  int t = threadIdx.x, lane = t % 32, *mine = words[t / 32], i = blockIdx.x * THREADS + t;
  mine[lane] = in[i];
  __syncwarp();
  int reversed = mine[31 - lane];
  __syncwarp();
  mine[lane] = reversed + lane;
  __syncwarp();
  out[i] = mine[31 - lane];
}

// Half of the CTA writes, the other half reads, by two named barriers; two rounds and more over one buffer.
extern "C" __global__ void __launch_bounds__(THREADS) named_barriers(const int *in, int *out, int rounds) {
  __shared__ int words[THREADS / 2];
  int t = threadIdx.x, half = THREADS / 2, base = blockIdx.x * rounds * half;
  for (int i = 0; i < rounds; ++i)
    if (t < half) {
      if (i) asm volatile("bar.sync 2, %0;" ::"n"(THREADS) : "memory");
      words[t] = in[base + i * half + t];
      asm volatile("bar.arrive 1, %0;" ::"n"(THREADS) : "memory");
    } else {
      asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
      out[base + i * half + t - half] = words[THREADS - 1 - t] - 1;
      if (i + 1 < rounds) asm volatile("bar.arrive 2, %0;" ::"n"(THREADS) : "memory");
    }
}

#if __CUDA_ARCH_SPECIFIC__ == 900 || __CUDA_ARCH_SPECIFIC__ == 1000 || defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL)
// A K-major tile with a swizzle of 128 bytes: 1024 bytes from eight rows to the next eight.
__device__ uint64_t descriptor(const void *tile, bool blackwell) {
  return uint64_t((shared_address(tile) & 0x3ffff) >> 4) | 1ull << 16 | uint64_t(1024 >> 4) << 32 |
         (blackwell ? 1ull << 46 | 2ull << 61 : 1ull << 62);
}
#endif
constexpr int TILE_N = VARIANT ? 64 : 32, RING = VARIANT ? 3 : 2;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// C = A @ B.T: tiles of 64 x TILE_N. Warp 4 loads by TMA, a warpgroup multiplies by wgmma and gives stages back.
extern "C" __global__ void __launch_bounds__(160)
    wgmma_ring(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float *c, int n, int steps) {
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t full[RING], empty[RING];
  constexpr int BYTES = (64 + TILE_N) * 128;
  int t = threadIdx.x, warp = t / 32, lane = t % 32, row = blockIdx.y * 64, column = blockIdx.x * TILE_N;
  if (t == 0) {
    for (int s = 0; s < RING; ++s) init(&full[s], 1), init(&empty[s], 128);
    fence_init();
  }
  __syncthreads();
  if (warp == 4) {
    if (lane == 0)
#pragma unroll 1
      for (int i = 0; i < steps; ++i) {
        int s = i % RING;
        wait(&empty[s], i / RING % 2 ^ 1);
        expect(&full[s], BYTES);
        load_box(tiles + s * BYTES, &a, i * 64, row, &full[s]);
        load_box(tiles + s * BYTES + 64 * 128, &b, i * 64, column, &full[s]);
      }
    return;
  }
  float d[32] = {};
#pragma unroll 1
  for (int i = 0; i < steps; ++i) {
    int s = i % RING;
    wait(&full[s], i / RING % 2);
    uint64_t left = descriptor(tiles + s * BYTES, false), right = descriptor(tiles + s * BYTES + 64 * 128, false);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int kk = 0; kk < 4; ++kk) {
#define FIRST "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#if VARIANT
      asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                   "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                   "%32, %33, 1, 1, 1, 0, 0;"
                   : FIRST, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                     "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
                     "+f"(d[31]) : "l"(left + 2 * kk), "l"(right + 2 * kk));
#else
      asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                   "%12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;" : FIRST : "l"(left + 2 * kk), "l"(right + 2 * kk));
#endif
    }
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    arrive(&empty[s]);
  }
  for (int i = 0; i < TILE_N / 2; ++i)
    c[(row + warp * 16 + lane / 4 + i / 2 % 2 * 8) * n + column + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM100_ALL
// C = A @ B.T: tiles of 128 x TILE_N. Warp 0 loads by TMA, warp 1 multiplies by tcgen05.mma, all four store.
extern "C" __global__ void __launch_bounds__(128)
    tcgen05_ring(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float *c, int n, int steps) {
  extern __shared__ __align__(1024) uint8_t tiles[];
  __shared__ uint64_t full[RING], empty[RING], done;
  __shared__ uint32_t slot;
  constexpr int BYTES = (128 + TILE_N) * 128;
  int t = threadIdx.x, warp = t / 32, row = blockIdx.y * 128, column = blockIdx.x * TILE_N;
  if (warp == 0)
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;\n"
                 "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::"r"(shared_address(&slot)) : "memory");
  if (t == 0) {
    for (int s = 0; s < RING; ++s) init(&full[s], 1), init(&empty[s], 1);
    init(&done, 1);
    fence_init();
  }
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  uint32_t d = slot;
  if (t == 0)
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      int s = i % RING;
      wait(&empty[s], i / RING % 2 ^ 1);
      expect(&full[s], BYTES);
      load_box(tiles + s * BYTES, &a, i * 64, row, &full[s]);
      load_box(tiles + s * BYTES + 128 * 128, &b, i * 64, column, &full[s]);
    }
  if (t == 32) {
    uint32_t shape = 1 << 4 | 1 << 7 | 1 << 10 | TILE_N / 8 << 17 | 128 / 16 << 24;  // f32, bf16, bf16, N, M
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      int s = i % RING;
      wait(&full[s], i / RING % 2);
      asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
      uint64_t left = descriptor(tiles + s * BYTES, true), right = descriptor(tiles + s * BYTES + 128 * 128, true);
      for (int kk = 0; kk < 4; ++kk)
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %4, 0;\n"
                     "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, add;\n}"
                     ::"r"(d), "l"(left + 2 * kk), "l"(right + 2 * kk), "r"(shape), "r"(i + kk) : "memory");
      asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(&empty[s])) : "memory");
    }
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(&done)) : "memory");
  }
  __syncwarp();
  wait(&done, 0);
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  for (int j = 0; j < TILE_N; j += 4) {
    float v[4];
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(d + (warp * 32 << 16) + j));
    asm volatile("tcgen05.wait::ld.sync.aligned;" : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3]) :: "memory");
    for (int i = 0; i < 4; ++i) c[(row + t) * n + column + j + i] = v[i];
  }
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(d) : "memory");
}
#endif
