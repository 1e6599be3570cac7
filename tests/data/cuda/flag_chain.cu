// A chained scan: every CTA adds up its part of the input and passes the total on to the next one through a flag.
// The CTAs of a grid wait for each other here, from the first to the last or from the last to the first.
#include <cuda/atomic>

using Flag = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;

__device__ int sum_of_block(const int* input) {
    __shared__ int of_warp[32];
    int sum = __reduce_add_sync(0xffffffffu, input[blockIdx.x * blockDim.x + threadIdx.x]);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += of_warp[warp];
    return sum;
}

// totals[i] = sum of the blocks up to i, in the direction `step`; `first` has nobody to wait for.
__device__ void chain(unsigned* flags, const int* input, int* totals, unsigned first, int step) {
    const int sum = sum_of_block(input);
    if (threadIdx.x != 0) return;
    const unsigned i = blockIdx.x;
    int before = 0;
    if (i != first) {
        while (Flag(flags[i - step]).load(cuda::memory_order_acquire) == 0) {
        }
        before = totals[i - step];
    }
    totals[i] = before + sum;
    Flag(flags[i]).store(1, cuda::memory_order_release);
}

extern "C" __global__ void chain_forward(unsigned* flags, const int* input, int* totals) {
    chain(flags, input, totals, 0, 1);
}

extern "C" __global__ void chain_backward(unsigned* flags, const int* input, int* totals) {
    chain(flags, input, totals, gridDim.x - 1, -1);
}

// The same whatever the order in which CTAs start: a CTA's place in the chain is the ticket that it takes first.
extern "C" __global__ void chain_by_ticket(unsigned* flags, const int* input, int* totals, unsigned* tickets) {
    __shared__ unsigned place;
    if (threadIdx.x == 0) place = atomicAdd(tickets, 1u);
    __syncthreads();
    const unsigned i = place;
    const int sum = __reduce_add_sync(0xffffffffu, input[i * blockDim.x + threadIdx.x]);  // one warp
    if (threadIdx.x != 0) return;
    int before = 0;
    if (i != 0) {
        while (Flag(flags[i - 1]).load(cuda::memory_order_acquire) == 0) {
        }
        before = totals[i - 1];
    }
    totals[i] = before + sum;
    Flag(flags[i]).store(1, cuda::memory_order_release);
}

// Whole clusters of two pass the total on: rank 1 hands its part to rank 0 through shared memory of the cluster.
extern "C" __global__ void __cluster_dims__(2, 1, 1)
    chain_of_clusters(unsigned* flags, const int* input, int* totals, int backward) {
    __shared__ int part_of_peer;
    const unsigned clusters = gridDim.x / 2, cluster = blockIdx.x / 2;
    const int sum = sum_of_block(input);
    const bool leader = __clusterRelativeBlockRank() == 0;
    __cluster_barrier_arrive();  // the leader has started
    __cluster_barrier_wait();
    if (!leader && threadIdx.x == 0)
        *static_cast<int*>(__cluster_map_shared_rank(&part_of_peer, 0)) = sum;
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    if (!leader || threadIdx.x != 0) return;
    const unsigned first = backward ? clusters - 1 : 0;
    const int step = backward ? -1 : 1;
    int before = 0;
    if (cluster != first) {
        while (Flag(flags[cluster - step]).load(cuda::memory_order_acquire) == 0) {
        }
        before = totals[cluster - step];
    }
    totals[cluster] = before + sum + part_of_peer;
    Flag(flags[cluster]).store(1, cuda::memory_order_release);
}

// Broken: the CTA `silent` never raises its flag.
extern "C" __global__ void chain_with_a_silent_cta(unsigned* flags, const int* input, int* totals, unsigned silent) {
    const int sum = sum_of_block(input);
    if (threadIdx.x != 0) return;
    const unsigned i = blockIdx.x;
    int before = 0;
    if (i != 0) {
        while (Flag(flags[i - 1]).load(cuda::memory_order_acquire) == 0) {
        }
        before = totals[i - 1];
    }
    totals[i] = before + sum;
    if (i != silent) Flag(flags[i]).store(1, cuda::memory_order_release);
}
