// A device is reset, and used again: modules are loaded anew; managed memory has one address for both sides.
#include <cstdio>

__device__ int calls = 100;

__global__ void add(int *a) {
    a[threadIdx.x] += 10 * threadIdx.x;
    if (threadIdx.x == 0) calls++;
}

int main() {
    for (int round = 0; round < 2; round++) {
        int *a, last = 0, counted = 0;
        cudaMalloc(&a, 32 * sizeof(int));
        cudaMemset(a, 0, 32 * sizeof(int));
        for (int n = 0; n <= round; n++) add<<<1, 32>>>(a);
        cudaMemcpy(&last, a + 31, sizeof last, cudaMemcpyDeviceToHost);
        cudaMemcpyFromSymbol(&counted, calls, sizeof counted);
        printf("%s, last %d, calls %d\n", cudaGetErrorString(cudaGetLastError()), last, counted);
        if (round == 0) printf("reset: %s\n", cudaGetErrorString(cudaDeviceReset()));
    }
    int *managed;
    printf("managed: %s\n", cudaGetErrorString(cudaMallocManaged(&managed, 32 * sizeof(int))));
    for (int n = 0; n < 32; n++) managed[n] = n;
    add<<<1, 32>>>(managed);
    cudaDeviceSynchronize();
    cudaPointerAttributes about;
    cudaPointerGetAttributes(&about, managed);
    printf("%d %d, type %d\n", managed[1], managed[31], about.type);
    printf("free: %s\n", cudaGetErrorString(cudaFree(managed)));
}
