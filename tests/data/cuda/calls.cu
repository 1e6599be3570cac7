// Functions that are called, local arrays, structs by value, __device__ and __constant__ variables, printf and assert.
#include <cassert>
#include <cstdio>

__constant__ int table[4] = {3, 1, 4, 1};
__device__ float scale = 2.5f;
__device__ int counter;
__device__ int *where = &counter;

struct Pair {
  int sum;
  long long product;
};

__device__ __noinline__ Pair make(int x, int y) {
  Pair pair;
  pair.sum = x + y;
  pair.product = (long long)x * y;
  return pair;
}

__device__ __noinline__ int fold(Pair pair, int n) {
  int total = 0;
  for (int i = 0; i < n; ++i) total += pair.sum * i + (int)pair.product;
  if (total > 1000) return total - 1000;
  return total;
}

extern "C" __global__ void calls(int *out) {
  int t = threadIdx.x;
  int local[8];
  for (int i = 0; i < 8; ++i) local[(i * 3 + t) & 7] = i * t;
  Pair pair = make(t, table[t & 3]);
  if (t == 5) {
    printf("thread %d of block %d: %lld %s %5.2f %x%%\n", t, blockIdx.x, pair.product, "text", (double)scale, 255);
    atomicAdd(where, 7);
  }
  out[blockIdx.x * blockDim.x + t] = fold(pair, t & 7) + local[t & 7];
}

extern "C" __global__ void asserts(int *out, int limit) {
  assert(threadIdx.x < limit);
  out[threadIdx.x] = 1;
}
