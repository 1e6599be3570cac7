// Calls that the runtime or the driver refuses, each with what it says. Nothing of it is sticky.
#include "check.h"

__global__ void nothing(int *) {}
__global__ void __launch_bounds__(256) bounded(int *) {}
__global__ void dynamic(int *out) {
    extern __shared__ int words[];
    words[threadIdx.x] = threadIdx.x;
    out[0] = words[0];
}

static void say(const char *what, cudaError_t error) {
    std::printf("%-40s %s (%d)\n", what, cudaGetErrorName(error), int(error));
    cudaGetLastError();
}

template <typename Kernel>
static cudaError_t launch(Kernel kernel, dim3 grid, dim3 block, size_t shared, unsigned cluster = 0) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.attrs = &attribute;
    config.numAttrs = cluster ? 1 : 0;
    int *none = nullptr;
    return cudaLaunchKernelEx(&config, kernel, none);
}

int main() {
    int *buffer, host[64] = {};
    CHECK(cudaMalloc(&buffer, 256));
    say("grid of 0", launch(nothing, 0, 32, 0));
    say("block of 0", launch(nothing, 1, 0, 0));
    say("block of 1025", launch(nothing, 1, 1025, 0));
    say("block of 1 x 1 x 65", launch(nothing, 1, dim3(1, 1, 65), 0));
    say("grid of 1 x 65536", launch(nothing, dim3(1, 65536), 32, 0));
    say("257 threads of a kernel bounded by 256", launch(bounded, 1, 257, 0));
    say("49152 bytes of dynamic shared memory", launch(nothing, 1, 32, 49152));
    say("49153 bytes of dynamic shared memory", launch(nothing, 1, 32, 49153));
    say("attribute of 232449 bytes", cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449));
    say("attribute of 65536 bytes", cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    say("65537 bytes after that", launch(dynamic, 1, 32, 65537));
    say("cluster of 3 of 4", launch(nothing, 4, 32, 0, 3));
    say("cluster of 8", launch(nothing, 8, 32, 0, 8));
    say("cluster of 16", launch(nothing, 16, 32, 0, 16));
    CHECK(cudaFuncSetAttribute(nothing, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    say("cluster of 16, allowed", launch(nothing, 16, 32, 0, 16));
    say("cluster of 32, allowed", launch(nothing, 32, 32, 0, 32));
    CHECK(cudaDeviceSynchronize());
    say("allocation of 2^50 bytes", cudaMalloc(&buffer, size_t(1) << 50));
    CHECK(cudaMalloc(&buffer, 256));
    say("allocation of 0 bytes", cudaMalloc(&buffer, 0));
    CHECK(cudaMalloc(&buffer, 256));
    say("free of null", cudaFree(nullptr));
    say("free of a place inside", cudaFree(buffer + 1));
    say("free", cudaFree(buffer));
    say("free again", cudaFree(buffer));
    say("copy to what is no device memory", cudaMemcpy((void *)0x10, host, 256, cudaMemcpyHostToDevice));
    say("device 7", cudaSetDevice(7));
    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    float milliseconds;
    say("time of events that are not recorded", cudaEventElapsedTime(&milliseconds, start, stop));
    say("at last", cudaDeviceSynchronize());
    return 0;
}
