// C = A @ B.T by wgmma, tiles brought by TMA through a ring of stages. bf16 in, f32 out. Arguments: M N K.
#include "check.h"

#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <vector>

constexpr int TILE = 64;
constexpr int STAGES = 3;
constexpr int THREADS = 128;
constexpr int TILE_BYTES = TILE * TILE * 2;

__device__ uint32_t shared_address(const void *pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }

__device__ void load_tile(void *to, const CUtensorMap *map, uint64_t *barrier, int k, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(map), "r"(k), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}

__device__ void wait(uint64_t *barrier, int parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}"
                 ::"r"(shared_address(barrier)), "r"(parity)
                 : "memory");
}

// K-major, swizzled by 128 bytes, 1024 bytes from eight rows to the next eight.
__device__ uint64_t descriptor(const void *tile) {
    return uint64_t((shared_address(tile) & 0x3FFFF) >> 4) | 1ull << 16 | uint64_t(1024 >> 4) << 32 | 1ull << 62;
}

// The accumulator of m64n64: 32 registers of each thread.
#define EACH(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15) F(16) F(17) \
    F(18) F(19) F(20) F(21) F(22) F(23) F(24) F(25) F(26) F(27) F(28) F(29) F(30)

__device__ void multiply(float (&d)[32], uint64_t a, uint64_t b) {
#define OUTPUT(i) "+f"(d[i]),
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
                 "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
                 : EACH(OUTPUT) "+f"(d[31])
                 : "l"(a), "l"(b));
#undef OUTPUT
}

__global__ void __launch_bounds__(THREADS)
    gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, float *c, int m, int n, int k) {
    extern __shared__ __align__(1024) uint8_t tiles[];
    __shared__ uint64_t full[STAGES];
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    const int steps = (k + TILE - 1) / TILE;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[stage])));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const auto load = [&](int step) {
        const int stage = step % STAGES;
        uint8_t *a = tiles + stage * 2 * TILE_BYTES;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full[stage])),
                     "r"(2 * TILE_BYTES)
                     : "memory");
        load_tile(a, &map_a, &full[stage], step * TILE, row);
        load_tile(a + TILE_BYTES, &map_b, &full[stage], step * TILE, column);
    };
    if (threadIdx.x == 0)
        for (int step = 0; step < STAGES - 1 && step < steps; ++step) load(step);

    float d[32] = {};
    for (int step = 0; step < steps; ++step) {
        wait(&full[step % STAGES], step / STAGES % 2);
        const uint8_t *a = tiles + step % STAGES * 2 * TILE_BYTES;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int slice = 0; slice < TILE / 16; ++slice)
            multiply(d, descriptor(a) + 2 * slice, descriptor(a + TILE_BYTES) + 2 * slice);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
        // Everyone is done with the stage before this one, which is the next to be filled.
        if (threadIdx.x == 0 && step + STAGES - 1 < steps) load(step + STAGES - 1);
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < 32; ++i) {
        const int r = row + warp * 16 + lane / 4 + i / 2 % 2 * 8;
        const int s = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (r < m && s < n) c[size_t(r) * n + s] = d[i];
    }
}

static CUtensorMap tensor_map(void *address, int rows, int columns) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    CUtensorMap map;
    const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[] = {cuuint64_t(columns) * 2};
    const cuuint32_t box[] = {TILE, TILE}, steps[] = {1, 1};
    const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, address, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        std::printf("cuTensorMapEncodeTiled: %d\n", int(result));
        std::exit(1);
    }
    return map;
}

int main(int count, char **arguments) {
    const int m = count > 3 ? std::atoi(arguments[1]) : 200, n = count > 3 ? std::atoi(arguments[2]) : 136;
    const int k = count > 3 ? std::atoi(arguments[3]) : 328;
    std::vector<__nv_bfloat16> a(size_t(m) * k), b(size_t(n) * k);
    for (size_t i = 0; i < a.size(); ++i) a[i] = float(int(i * 37 % 129) - 64) / 8;
    for (size_t i = 0; i < b.size(); ++i) b[i] = float(int(i * 53 % 131) - 65) / 4;
    __nv_bfloat16 *device_a, *device_b;
    float *device_c;
    std::vector<float> c(size_t(m) * n);
    CHECK(cudaMalloc(&device_a, a.size() * 2));
    CHECK(cudaMalloc(&device_b, b.size() * 2));
    CHECK(cudaMalloc(&device_c, c.size() * 4));
    CHECK(cudaMemcpy(device_a, a.data(), a.size() * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(device_b, b.data(), b.size() * 2, cudaMemcpyHostToDevice));
    const int shared = STAGES * 2 * TILE_BYTES;
    CHECK(cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    const dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
    gemm<<<grid, THREADS, shared>>>(tensor_map(device_a, m, k), tensor_map(device_b, n, k), device_c, m, n, k);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(c.data(), device_c, c.size() * 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            double sum = 0;
            for (int at = 0; at < k; ++at)
                sum += double(__bfloat162float(a[size_t(i) * k + at])) * __bfloat162float(b[size_t(j) * k + at]);
            wrong += c[size_t(i) * n + j] != float(sum);
        }
    std::printf("gemm of %d x %d x %d: %d wrong\n", m, n, k, wrong);
    return wrong != 0;
}
