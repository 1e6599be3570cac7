// Kernels that fail, one a run. Argument: which. Prints what the launch, the synchronisation and a later call say.
#include "check.h"

#include <cstring>

__global__ void store_at(char *address) { *reinterpret_cast<volatile int *>(address) = 1; }
__global__ void store_shared(int index) {
    extern __shared__ int words[];
    reinterpret_cast<volatile int *>(words)[index] = 1;
}
__global__ void stop() { asm volatile("trap;"); }
__global__ void wait_for_nobody() {
    __shared__ unsigned long long barrier;
    const unsigned address = unsigned(__cvta_generic_to_shared(&barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address) : "memory");
    int done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.s32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(address)
            : "memory");
}

int main(int count, char **arguments) {
    const char *which = count > 1 ? arguments[1] : "beyond";
    char *buffer;
    CHECK(cudaMalloc(&buffer, 1 << 20));
    if (!std::strcmp(which, "beyond")) store_at<<<1, 1>>>(buffer + (1ll << 34));
    else if (!std::strcmp(which, "just-beyond")) store_at<<<1, 1>>>(buffer + (1 << 20));
    else if (!std::strcmp(which, "null")) store_at<<<1, 1>>>(nullptr);
    else if (!std::strcmp(which, "misaligned")) store_at<<<1, 1>>>(buffer + 2);
    else if (!std::strcmp(which, "shared")) store_shared<<<1, 1, 1024>>>(1 << 20);
    else if (!std::strcmp(which, "trap")) stop<<<1, 1>>>();
    else if (!std::strcmp(which, "deadlock")) wait_for_nobody<<<1, 1>>>();
    else {
        std::printf("no kernel '%s'\n", which);
        return 2;
    }
    const cudaError_t launched = cudaGetLastError();
    const cudaError_t error = cudaDeviceSynchronize();
    const cudaError_t last = cudaGetLastError();
    const cudaError_t later = cudaMemset(buffer, 0, 16);
    std::printf("%s\nlaunch: %s\nsynchronize: %s (%d): %s\nlast error: %s\nlater: %s\n", which, cudaGetErrorName(launched),
                cudaGetErrorName(error), int(error), cudaGetErrorString(error), cudaGetErrorName(last),
                cudaGetErrorName(later));
    return error == cudaSuccess ? 0 : 1;
}
