// A walk through the runtime: streams, events, asynchronous copies and allocations, symbols, pinned memory, attributes.
#include "check.h"

#include <cstring>
#include <vector>

__constant__ int factors[4];
__device__ int counter = 5;
__device__ float table[8];

__global__ void scale(const int *in, int *out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factors[i % 4];
    if (i == 0) atomicAdd(&counter, 1);
    if (i < 8) table[i] = i * 0.5f;
}

static void CUDART_CB note(void *text) { std::printf("host function: %s\n", static_cast<const char *>(text)); }

int main() {
    constexpr int N = 1000;
    int version = 0, count = 0, device = -1;
    CHECK(cudaRuntimeGetVersion(&version));
    CHECK(cudaGetDeviceCount(&count));
    CHECK(cudaGetDevice(&device));
    std::printf("runtime %d, device %d, at least one: %d\n", version / 1000, device, count >= 1);
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    std::printf("%s: %d.%d, warps of %d, %d SMs, shared %zu / %zu / %zu, registers %d / %d, threads %d / %d, blocks %d, L2 %d\n",
                properties.name, properties.major, properties.minor, properties.warpSize, properties.multiProcessorCount,
                properties.sharedMemPerBlock, properties.sharedMemPerBlockOptin, properties.sharedMemPerMultiprocessor,
                properties.regsPerBlock, properties.regsPerMultiprocessor, properties.maxThreadsPerBlock,
                properties.maxThreadsPerMultiProcessor, properties.maxBlocksPerMultiProcessor, properties.l2CacheSize);

    int *pinned, *in, *out, *pooled;
    CHECK(cudaMallocHost(&pinned, N * sizeof(int)));
    for (int i = 0; i < N; ++i) pinned[i] = i - 500;
    CHECK(cudaMalloc(&in, N * sizeof(int)));
    CHECK(cudaMalloc(&out, N * sizeof(int)));
    cudaStream_t stream, other;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    cudaStreamAttrValue waiting = {};
    waiting.syncPolicy = cudaSyncPolicyYield;
    CHECK(cudaStreamSetAttribute(other, cudaStreamAttributeSynchronizationPolicy, &waiting));
    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    const int values[4] = {3, -5, 7, 11};
    CHECK(cudaMemcpyToSymbol(factors, values, sizeof(values)));

    CHECK(cudaEventRecord(start, stream));
    CHECK(cudaMemcpyAsync(in, pinned, N * sizeof(int), cudaMemcpyHostToDevice, stream));
    scale<<<(N + 127) / 128, 128, 0, stream>>>(in, out, N);
    CHECK(cudaEventRecord(stop, stream));
    CHECK(cudaStreamWaitEvent(other, stop, 0));
    CHECK(cudaMallocAsync(&pooled, N * sizeof(int), other));
    CHECK(cudaMemcpyAsync(pooled, out, N * sizeof(int), cudaMemcpyDeviceToDevice, other));
    CHECK(cudaMemsetAsync(pooled + 10, 0xFF, 20 * sizeof(int), other));
    CHECK(cudaMemcpyAsync(pinned, pooled, N * sizeof(int), cudaMemcpyDeviceToHost, other));
    CHECK(cudaFreeAsync(pooled, other));
    static char text[] = "after the copies";
    CHECK(cudaLaunchHostFunc(other, note, text));
    CHECK(cudaStreamSynchronize(other));
    int wrong = 0;
    for (int i = 0; i < N; ++i) wrong += pinned[i] != (i >= 10 && i < 30 ? -1 : (i - 500) * values[i % 4]);
    float milliseconds = -1;
    CHECK(cudaEventSynchronize(stop));
    CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    std::printf("%d wrong, time is positive: %d, stream idle: %s\n", wrong, milliseconds > 0,
                cudaGetErrorName(cudaStreamQuery(stream)));

    int number = 0;
    float entries[8];
    void *address;
    size_t size;
    CHECK(cudaMemcpyFromSymbol(&number, counter, sizeof(number)));
    CHECK(cudaMemcpyFromSymbol(entries, table, sizeof(entries)));
    CHECK(cudaGetSymbolAddress(&address, table));
    CHECK(cudaGetSymbolSize(&size, table));
    std::printf("counter %d, table[7] %.1f, %zu bytes\n", number, entries[7], size);

    std::vector<unsigned char> grid(64 * 6), rows(40 * 6);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = (unsigned char)(i * 3);
    unsigned char *pitched;
    size_t pitch;
    CHECK(cudaMallocPitch(&pitched, &pitch, 40, 6));
    CHECK(cudaMemset2D(pitched, pitch, 9, 40, 6));
    CHECK(cudaMemcpy2D(pitched, pitch, rows.data(), 40, 40, 5, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2D(grid.data(), 64, pitched, pitch, 40, 6, cudaMemcpyDeviceToHost));
    bool good = true;
    for (int row = 0; row < 6; ++row)
        for (int column = 0; column < 40; ++column)
            good &= grid[row * 64 + column] == (row < 5 ? rows[row * 40 + column] : 9);
    std::printf("pitch %zu, rows right: %d\n", pitch, good);

    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, scale));
    int blocks = 0, least = 0, best = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 0));
    CHECK(cudaOccupancyMaxPotentialBlockSize(&least, &best, scale));
    std::printf("shared %zu, threads %d, binary %d, ptx %d, %d blocks of 256, best block %d\n", attributes.sharedSizeBytes,
                attributes.maxThreadsPerBlock, attributes.binaryVersion, attributes.ptxVersion, blocks, best);
    cudaPointerAttributes of_device, of_host, of_stack;
    CHECK(cudaPointerGetAttributes(&of_device, in));
    CHECK(cudaPointerGetAttributes(&of_host, pinned));
    CHECK(cudaPointerGetAttributes(&of_stack, entries));
    std::printf("pointers: %d %d %d, device %d\n", int(of_device.type), int(of_host.type), int(of_stack.type), of_device.device);
    size_t free_bytes, total;
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    std::printf("free of total: %d\n", free_bytes > total / 2 && free_bytes <= total);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(other));
    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(stop));
    CHECK(cudaFree(in));
    CHECK(cudaFree(out));
    CHECK(cudaFree(pitched));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaDeviceReset());
    return wrong != 0 || !good;
}
