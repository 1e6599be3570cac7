// Each CTA reverses its 64 elements through shared memory; the racy twin lacks the barrier between writes and reads.
// nvcc -ptx -arch=sm_90a reverse.cu
extern "C" __global__ void reverse(const float *x, float *y) {
    __shared__ float tile[64];
    x += 64 * blockIdx.x, y += 64 * blockIdx.x;
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
}

extern "C" __global__ void reverse_racy(const float *x, float *y) {
    __shared__ float tile[64];
    x += 64 * blockIdx.x, y += 64 * blockIdx.x;
    tile[threadIdx.x] = 0;
    __syncthreads();
    tile[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = tile[63 - threadIdx.x];
}
