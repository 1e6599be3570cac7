// printf of a kernel: every conversion, several blocks one after the other.
#include "check.h"

__global__ void print_formats() {
    std::printf("integers %d %5d|%-5d|%05d %u %x %#X %o %lld %llu %hd\n", -7, 42, 42, 42, 4000000000u, 48879, 48879, 8,
                -9000000000ll, 18000000000000000000ull, short(-3));
    std::printf("floats %f %.2f %10.3f|%-10.1f| %e %.3E %g %G\n", 3.25, 2.718281828, -1.5, 2.0, 12345.678, 0.00012, 1e-7, 1e20);
    std::printf("text %s %10s|%-6s|%.2s %c%c 100%%\n", "plain", "right", "left", "cut", 'o', 'k');
    std::printf("sizes %*d %.*f\n", 6, 12, 1, 0.55);
    std::printf("no arguments\n");
}

__global__ void print_block(int first) {
    if (threadIdx.x == 0) std::printf("block %d of %d\n", first + int(blockIdx.x), int(gridDim.x));
}

int main() {
    print_formats<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 3; ++i) {
        print_block<<<1, 32>>>(i);
        CHECK(cudaDeviceSynchronize());
    }
    std::printf("done\n");
    return 0;
}
