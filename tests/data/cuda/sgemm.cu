// The textbook SGEMM: a CTA of 32 x 32 threads computes a 32 x 32 tile of C through tiles in shared memory.
constexpr int TILE = 32;

extern "C" __global__ void __launch_bounds__(TILE* TILE)
    sgemm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int k) {
    __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int at = 0; at < k; at += TILE) {
        tile_a[y][x] = a[row * k + at + x];
        tile_b[y][x] = b[(at + y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += tile_a[y][i] * tile_b[i][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// Broken: the second barrier is missing, so a tile is overwritten while others still read it.
extern "C" __global__ void __launch_bounds__(TILE* TILE)
    sgemm_one_barrier(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int k) {
    __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int at = 0; at < k; at += TILE) {
        tile_a[y][x] = a[row * k + at + x];
        tile_b[y][x] = b[(at + y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += tile_a[y][i] * tile_b[i][x];
    }
    c[row * n + column] = sum;
}

// No shared memory: one thread per element, which anything that runs CTAs at all can run.
extern "C" __global__ void scale_and_add(const float* __restrict__ x, float* __restrict__ y, float factor, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = factor * x[i] + y[i];
}
