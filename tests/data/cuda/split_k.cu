// C = A . B with the sum over k cut into pieces that different CTAs compute.
// A is [M, K], B is [K, N], C is [M, N], row-major; a tile of C is 8 x 8, one thread per element.
constexpr int TILE = 8;

template <typename T>
__device__ T partial_sum(const T* a, const T* b, int row, int column, int n, int k, int from, int to) {
    T sum = 0;
    for (int i = from; i < to; ++i) sum += a[row * k + i] * b[i * n + column];
    return sum;
}

__device__ int load_acquire(const int* address) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(address)) : "memory");
    return value;
}

__device__ void store_release(int* address, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(address)), "r"(value) : "memory");
}

// The CTAs of one tile (blockIdx.z) add their pieces in order: the lock word of the tile says whose turn it is.
template <typename T>
__device__ void in_order(const T* a, const T* b, T* c, int* locks, int n, int k, int turn) {
    const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    const int piece = k / gridDim.z, split = blockIdx.z;
    const T sum = partial_sum(a, b, row, column, n, k, split * piece, (split + 1) * piece);
    int* lock = &locks[blockIdx.y * gridDim.x + blockIdx.x];
    const bool leader = threadIdx.x == 0 && threadIdx.y == 0;
    if (leader) {
        while (load_acquire(lock) != turn) {
        }
    }
    __syncthreads();
    T* element = &c[row * n + column];
    *element = split == 0 ? sum : *element + sum;
    __syncthreads();
    if (leader) store_release(lock, (split + 1) % gridDim.z);
}

extern "C" __global__ void split_k_f32(const float* a, const float* b, float* c, int* locks, int n, int k) {
    in_order(a, b, c, locks, n, k, blockIdx.z);
}

extern "C" __global__ void split_k_s32(const int* a, const int* b, int* c, int* locks, int n, int k) {
    in_order(a, b, c, locks, n, k, blockIdx.z);
}

// Broken: the last piece waits for a turn that never comes.
extern "C" __global__ void split_k_wrong_turn(const int* a, const int* b, int* c, int* locks, int n, int k) {
    in_order(a, b, c, locks, n, k, blockIdx.z == gridDim.z - 1 ? gridDim.z : blockIdx.z);
}

// Broken: nobody waits for anybody; C starts as zero, and pieces get lost.
extern "C" __global__ void split_k_without_lock(const int* a, const int* b, int* c, int n, int k) {
    const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    const int piece = k / gridDim.z, split = blockIdx.z;
    volatile int* element = &c[row * n + column];
    const int before = *element;
    __syncthreads();
    *element = before + partial_sum(a, b, row, column, n, k, split * piece, (split + 1) * piece);
}

// Stream-K: the k blocks of all tiles in one line, cut into one equal stretch per CTA, whatever the tiles' edges.
// Who has the first k block of a tile finishes it: it waits for the pieces of the CTAs that follow, in order.
extern "C" __global__ void stream_k(const float* a, const float* b, float* c, float* pieces, int* flags, int n, int k,
                                    int k_block, int tiles_n, int tiles) {
    const int blocks_of_tile = k / k_block, blocks = tiles * blocks_of_tile;
    const int share = (blocks + gridDim.x - 1) / gridDim.x;
    int at = blockIdx.x * share;
    const int end = min(at + share, blocks);
    const int thread = threadIdx.y * TILE + threadIdx.x;
    while (at < end) {
        const int tile = at / blocks_of_tile;
        const int start_of_tile = tile * blocks_of_tile, end_of_tile = start_of_tile + blocks_of_tile;
        const int stop = min(end, end_of_tile);
        const int row = tile / tiles_n * TILE + threadIdx.y, column = tile % tiles_n * TILE + threadIdx.x;
        float sum = partial_sum(a, b, row, column, n, k, (at - start_of_tile) * k_block, (stop - start_of_tile) * k_block);
        if (at != start_of_tile) {
            pieces[blockIdx.x * TILE * TILE + thread] = sum;
            __syncthreads();
            if (thread == 0) store_release(&flags[blockIdx.x], 1);
        } else {
            int covered = stop;
            for (int peer = blockIdx.x + 1; covered < end_of_tile; ++peer) {
                if (thread == 0) {
                    while (load_acquire(&flags[peer]) == 0) {
                    }
                }
                __syncthreads();
                sum += pieces[peer * TILE * TILE + thread];
                covered = min((peer + 1) * share, end_of_tile);
            }
            c[row * n + column] = sum;
        }
        at = stop;
    }
}
