// Loops that look at memory or a clock until something happens. One CTA per participant, one thread of it does the talking.

// Everybody adds to `value` under one lock; a CTA takes the lock in the way `How` says.
struct ByCompareAndSwap {
    static __device__ void lock(unsigned* word) {
        while (atomicCAS(word, 0u, 1u) != 0u) {
        }
    }
    static __device__ void unlock(unsigned* word) { atomicExch(word, 0u); }
};

struct ByExchange {
    static __device__ void lock(unsigned* word) {
        while (atomicExch(word, 1u) != 0u) {
        }
    }
    static __device__ void unlock(unsigned* word) { *static_cast<volatile unsigned*>(word) = 0u; }
};

struct ByOr {
    static __device__ void lock(unsigned* word) {
        while (atomicOr(word, 4u) & 4u) {
        }
    }
    static __device__ void unlock(unsigned* word) { atomicAnd(word, ~4u); }
};

struct ByCompareAndSwapWithBackOff {
    static __device__ void lock(unsigned* word) {
        unsigned pause = 32;
        while (atomicCAS(word, 0u, 1u) != 0u) {
            __nanosleep(pause);
            if (pause < 1024) pause *= 2;
        }
    }
    static __device__ void unlock(unsigned* word) { atomicExch(word, 0u); }
};

template <typename How>
__device__ void add_under_lock(unsigned* lock, int* value, int times) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < times; ++i) {
        How::lock(lock);
        __threadfence();
        *static_cast<volatile int*>(value) = *static_cast<volatile int*>(value) + static_cast<int>(blockIdx.x) + 1;
        __threadfence();
        How::unlock(lock);
    }
}

#define LOCK_KERNEL(name, How) \
    extern "C" __global__ void name(unsigned* lock, int* value, int times) { add_under_lock<How>(lock, value, times); }

LOCK_KERNEL(lock_by_cas, ByCompareAndSwap)
LOCK_KERNEL(lock_by_exchange, ByExchange)
LOCK_KERNEL(lock_by_or, ByOr)
LOCK_KERNEL(lock_with_back_off, ByCompareAndSwapWithBackOff)

// Broken: the lock is never given back.
struct ByCompareAndSwapForEver : ByCompareAndSwap {
    static __device__ void unlock(unsigned*) {}
};
LOCK_KERNEL(lock_never_given_back, ByCompareAndSwapForEver)

struct ByBackOffForEver : ByCompareAndSwapWithBackOff {
    static __device__ void unlock(unsigned*) {}
};
LOCK_KERNEL(lock_with_back_off_never_given_back, ByBackOffForEver)

// CTA 1 waits until CTA 0, which is busy for `work` rounds, says `value`; with plain polling of a volatile word.
extern "C" __global__ void wait_for_volatile(volatile unsigned* flag, unsigned* seen, unsigned work, unsigned value) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        unsigned state = 1;
        for (unsigned i = 0; i < work; ++i) state = state * 1664525u + 1013904223u;
        seen[0] = state;
        *flag = 7;
    } else {
        while (*flag != value) {
        }
        seen[1] = *flag;
    }
}

// Gives up after `tries` looks; says how often it looked, or 0 if the flag came up.
extern "C" __global__ void wait_with_patience(volatile unsigned* flag, unsigned* seen, unsigned tries) {
    if (threadIdx.x != 0) return;
    for (unsigned i = 0; i < tries; ++i)
        if (*flag) {
            seen[blockIdx.x] = 0;
            return;
        }
    seen[blockIdx.x] = tries;
}

__device__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

// Ends by itself after `wait` nanoseconds of the global timer.
extern "C" __global__ void wait_for_globaltimer(unsigned long long* elapsed, unsigned long long wait) {
    const unsigned long long start = nanoseconds();
    unsigned long long now = start;
    while (now - start < wait) now = nanoseconds();
    if (threadIdx.x == 0) elapsed[blockIdx.x] = now - start;
}

// Ends by itself after `wait` cycles of the SM's clock.
extern "C" __global__ void wait_for_clock(long long* elapsed, long long wait) {
    const long long start = clock64();
    long long now = start;
    while (now - start < wait) now = clock64();
    if (threadIdx.x == 0) elapsed[blockIdx.x] = now - start;
}

// The flag never comes up, and the loop notices by the clock.
extern "C" __global__ void wait_with_timeout(volatile unsigned* flag, unsigned* seen, long long limit) {
    if (threadIdx.x != 0) return;
    const long long start = clock64();
    while (*flag == 0)
        if (clock64() - start > limit) {
            seen[blockIdx.x] = 0xdead;
            return;
        }
    seen[blockIdx.x] = 1;
}

extern "C" __global__ void wait_with_globaltimer_timeout(volatile unsigned* flag, unsigned* seen,
                                                         unsigned long long limit) {
    if (threadIdx.x != 0) return;
    const unsigned long long start = nanoseconds();
    while (*flag == 0)
        if (nanoseconds() - start > limit) {
            seen[blockIdx.x] = 0xdead;
            return;
        }
    seen[blockIdx.x] = 1;
}

// No memory, no clock: 32 lanes compute for a long time.
extern "C" __global__ void compute_only(unsigned* result, unsigned rounds) {
    unsigned state = threadIdx.x + 1;
#pragma unroll 1
    for (unsigned i = 0; i < rounds; ++i) state = state * 1664525u + 1013904223u;
    result[blockIdx.x * blockDim.x + threadIdx.x] = state;
}
