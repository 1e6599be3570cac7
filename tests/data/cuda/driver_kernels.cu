// What the tests of the emulated driver launch.
#include <cstdio>
#include <cassert>

__device__ int counter = 5;
__constant__ int factor = 3;

extern "C" __global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void say(int what) {
    if (threadIdx.x == 0) printf("block %d says %d\n", blockIdx.x, what);
}

extern "C" __global__ void claim(int n) {
    if (threadIdx.x == 3) printf("before\n");
    assert(n > 0);
}

extern "C" __global__ void wait_for_all(int *where, int threads) {
    if (threadIdx.x < threads) asm volatile("barrier.sync 1, 64;");
    where[threadIdx.x] = counter * factor;
}

extern "C" __global__ void spin(int *flag) {
    while (atomicAdd(flag, 0) == 0) atomicAdd(flag + 1, 1);
}

extern "C" __global__ void dynamic(float *out) {
    extern __shared__ float shared[];
    shared[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x] + counter;
}

// Broken: nothing orders the store of one warp and the load of the other.
extern "C" __global__ void race(float *out) {
    __shared__ float shared[64];
    shared[threadIdx.x] = threadIdx.x;
    if (threadIdx.x >= 32) out[threadIdx.x] = shared[threadIdx.x - 32];
}
