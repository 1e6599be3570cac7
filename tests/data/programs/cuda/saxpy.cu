// y = a * x + y over more elements than the grid has threads. Argument: how many.
#include "check.h"

#include <vector>

__global__ void saxpy(int n, float a, const float *x, float *y) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
}

int main(int count, char **arguments) {
    const int n = count > 1 ? std::atoi(arguments[1]) : 10007;
    std::vector<float> x(n), y(n), result(n);
    for (int i = 0; i < n; ++i) {
        x[i] = float(i % 1013);
        y[i] = float(i % 17) - 8;
    }
    float *device_x, *device_y;
    CHECK(cudaMalloc(&device_x, n * sizeof(float)));
    CHECK(cudaMalloc(&device_y, n * sizeof(float)));
    CHECK(cudaMemcpy(device_x, x.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(device_y, y.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    saxpy<<<8, 256>>>(n, 2.5f, device_x, device_y);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(result.data(), device_y, n * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device_x));
    CHECK(cudaFree(device_y));
    int wrong = 0;
    for (int i = 0; i < n; ++i) wrong += result[i] != 2.5f * x[i] + y[i];
    std::printf("saxpy of %d elements: %d wrong\n", n, wrong);
    return wrong != 0;
}
