// The greatest magnitude of each row, which tcgen05.ld.red finds while it loads the row from tensor memory (sm_103a).
#include <cstdint>

constexpr int COLUMNS = 8;

__device__ void put(uint32_t tmem, const float* row)
{
    const auto* v = reinterpret_cast<const uint32_t*>(row);
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};\n\t"
                 "tcgen05.wait::st.sync.aligned;"
                 :: "r"(tmem), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7])
                 : "memory");
}

__device__ float take(uint32_t tmem, float (&v)[COLUMNS])
{
    float greatest;
    asm volatile("tcgen05.ld.red.sync.aligned.32x32b.x8.max.abs.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, [%9];\n\t"
                 "tcgen05.wait::ld.sync.aligned;"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]),
                   "=f"(greatest)
                 : "r"(tmem) : "memory");
    return greatest;
}

// One CTA of 128 threads has a row each. scaled: the row over its greatest magnitude, which is in `greatest`.
extern "C" __global__ void row_max(const float* rows, float* scaled, float* greatest)
{
    __shared__ uint32_t base;
    const uint32_t slot = static_cast<uint32_t>(__cvta_generic_to_shared(&base));
    if (threadIdx.x < 32) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" :: "r"(slot) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    __syncthreads();
    const uint32_t tmem = base + ((threadIdx.x / 32 * 32) << 16);
    float row[COLUMNS];
    for (int i = 0; i < COLUMNS; ++i) row[i] = rows[(blockIdx.x * 128 + threadIdx.x) * COLUMNS + i];
    put(tmem, row);
    const float most = take(tmem, row);
    for (int i = 0; i < COLUMNS; ++i) scaled[(blockIdx.x * 128 + threadIdx.x) * COLUMNS + i] = row[i] / most;
    greatest[blockIdx.x * 128 + threadIdx.x] = most;
    __syncthreads();
    if (threadIdx.x < 32)
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" :: "r"(base) : "memory");
}
