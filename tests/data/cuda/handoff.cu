// CTA 0 produces, CTA 1 consumes, through a ring of two buffers in global memory; `full` and `empty` count rounds.
// The three variants order the data before the flag in the three usual ways.
constexpr int SLOTS = 2;

struct ByReleaseAndAcquire {
    static __device__ void raise(unsigned* flag, unsigned value) {
        __nv_atomic_store_n(flag, value, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_DEVICE);
    }
    static __device__ void wait(unsigned* flag, unsigned value) {
        while (__nv_atomic_load_n(flag, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE) < value) {
        }
    }
};

struct ByFenceAndRelaxed {
    static __device__ void raise(unsigned* flag, unsigned value) {
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        __nv_atomic_store_n(flag, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
    }
    static __device__ void wait(unsigned* flag, unsigned value) {
        while (__nv_atomic_load_n(flag, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE) < value) {
        }
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
};

struct ByMembarAndVolatile {
    static __device__ void raise(unsigned* flag, unsigned value) {
        __threadfence();
        *static_cast<volatile unsigned*>(flag) = value;
    }
    static __device__ void wait(unsigned* flag, unsigned value) {
        while (*static_cast<volatile unsigned*>(flag) < value) {
        }
        __threadfence();
    }
};

template <typename How>
__device__ void produce(unsigned* full, unsigned* empty, int* ring, unsigned rounds) {
    for (unsigned round = 0; round < rounds; ++round) {
        if (threadIdx.x == 0 && round >= SLOTS) How::wait(empty, round - SLOTS + 1);
        __syncthreads();
        ring[round % SLOTS * blockDim.x + threadIdx.x] = round * 1000 + threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) How::raise(full, round + 1);
    }
}

template <typename How>
__device__ void consume(unsigned* full, unsigned* empty, const int* ring, int* sums, unsigned rounds) {
    int sum = 0;
    for (unsigned round = 0; round < rounds; ++round) {
        if (threadIdx.x == 0) How::wait(full, round + 1);
        __syncthreads();
        sum = 3 * sum + ring[round % SLOTS * blockDim.x + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) How::raise(empty, round + 1);
    }
    sums[threadIdx.x] = sum;
}

template <typename How>
__device__ void handoff(unsigned* full, unsigned* empty, int* ring, int* sums, unsigned rounds) {
    if (blockIdx.x == 0)
        produce<How>(full, empty, ring, rounds);
    else
        consume<How>(full, empty, ring, sums, rounds);
}

#define KERNEL(name) extern "C" __global__ void name(unsigned* full, unsigned* empty, int* ring, int* sums, unsigned rounds)

KERNEL(handoff_release_acquire) { handoff<ByReleaseAndAcquire>(full, empty, ring, sums, rounds); }
KERNEL(handoff_fence_relaxed) { handoff<ByFenceAndRelaxed>(full, empty, ring, sums, rounds); }
KERNEL(handoff_membar_volatile) { handoff<ByMembarAndVolatile>(full, empty, ring, sums, rounds); }

// Broken: the flag goes up before the data is there.
KERNEL(handoff_flag_before_data) {
    using How = ByReleaseAndAcquire;
    if (blockIdx.x == 1) return consume<How>(full, empty, ring, sums, rounds);
    for (unsigned round = 0; round < rounds; ++round) {
        if (threadIdx.x == 0) {
            if (round >= SLOTS) How::wait(empty, round - SLOTS + 1);
            How::raise(full, round + 1);
        }
        __syncthreads();
        ring[round % SLOTS * blockDim.x + threadIdx.x] = round * 1000 + threadIdx.x;
        __syncthreads();
    }
}

// Broken: the producer does not wait until a buffer is empty again, and overtakes the consumer.
KERNEL(handoff_without_empty) {
    using How = ByReleaseAndAcquire;
    if (blockIdx.x == 1) return consume<How>(full, empty, ring, sums, rounds);
    for (unsigned round = 0; round < rounds; ++round) {
        ring[round % SLOTS * blockDim.x + threadIdx.x] = round * 1000 + threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) How::raise(full, round + 1);
    }
}

// Broken: the consumer says "empty" one round late, and the two end up waiting for each other.
KERNEL(handoff_empty_too_late) {
    using How = ByReleaseAndAcquire;
    if (blockIdx.x == 0) return produce<How>(full, empty, ring, rounds);
    int sum = 0;
    for (unsigned round = 0; round < rounds; ++round) {
        if (threadIdx.x == 0) How::wait(full, round + 1);
        __syncthreads();
        sum = 3 * sum + ring[round % SLOTS * blockDim.x + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0 && round > 1) How::raise(empty, round - 1);
    }
    sums[threadIdx.x] = sum;
}
