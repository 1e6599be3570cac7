// An assert that fails in one thread: the message, the error, and that the error stays.
#include "check.h"

#include <cassert>

__global__ void require_small(const int *values, int limit) {
    const int value = values[blockIdx.x * blockDim.x + threadIdx.x];
    assert(value < limit);
}

int main() {
    int host[64], *values;
    for (int i = 0; i < 64; ++i) host[i] = i == 37 ? 1000 : i;
    CHECK(cudaMalloc(&values, sizeof(host)));
    CHECK(cudaMemcpy(values, host, sizeof(host), cudaMemcpyHostToDevice));
    require_small<<<2, 32>>>(values, 64);
    const cudaError_t error = cudaDeviceSynchronize();
    std::printf("synchronize: %s (%d)\n", cudaGetErrorName(error), int(error));
    const cudaError_t later = cudaMalloc(&values, 16);
    std::printf("later: %s (%d)\n", cudaGetErrorName(later), int(later));
    return error == cudaSuccess ? 0 : 1;
}
