// Variables of a -G build at every kind of place: registers, local and shared memory, parameters, constants, an inlined
// function and one that is called twice, a block of its own.
enum Mode { OFF, SLOW = 3, FAST = -2 };
enum Code : unsigned char { ONE = 1, BIG = 200 };

namespace tile {

__device__ __forceinline__ int scaled(int value, const float &factor) {
  int twice = value * 2;
  __syncthreads();
  return twice + (int)factor;
}

template <typename T> __device__ __noinline__ void bring(T *first, int n) {
  __shared__ T kept;
  T mine = first[n];
  __syncthreads();
  if (threadIdx.x == 0) kept = mine;
  __syncthreads();
  first[0] = kept;
}

}  // namespace tile

extern "C" __global__ void variables(int *out, unsigned char small, double big) {
  __shared__ unsigned short total;
  __shared__ float row[32];
  constexpr int width = 40;
  const float half = 0.5f;
  const bool more = true;
  Mode mode = threadIdx.x & 1 ? FAST : SLOW;
  Code code = threadIdx.x & 1 ? ONE : BIG;
  float factor = threadIdx.x * half;
  row[threadIdx.x] = factor;
  if (threadIdx.x == 0) total = 1000 + width + small;
  __syncthreads();
  int result = tile::scaled(threadIdx.x, factor);
  tile::bring(row, 1);
  tile::bring(row, 2);
  {
    long long result = -(long long)threadIdx.x;
    out[threadIdx.x] = (int)result;
  }
  out[threadIdx.x] += result + more + mode + code + total + (int)big;
}
