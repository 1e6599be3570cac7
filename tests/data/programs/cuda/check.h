// What every program here does when a call of the runtime fails: say so and end with exit code 1.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

inline void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    std::printf("%s: %s (%d): %s\n", what, cudaGetErrorName(error), int(error), cudaGetErrorString(error));
    std::exit(1);
}

#define CHECK(call) check((call), #call)
