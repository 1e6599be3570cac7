// Persistent CTAs that take tiles of a scale-and-shift from a counter until none is left.

// atomicAdd gives every tile out once.
extern "C" __global__ void tiles_by_atomic(unsigned* counter, unsigned tiles, const int* input, int* output,
                                           unsigned* times_done) {
    __shared__ unsigned taken;
    while (true) {
        if (threadIdx.x == 0) taken = atomicAdd(counter, 1u);
        __syncthreads();
        const unsigned tile = taken;
        __syncthreads();
        if (tile >= tiles) return;
        const unsigned i = tile * blockDim.x + threadIdx.x;
        output[i] = 3 * input[i] + 1;
        if (threadIdx.x == 0) atomicAdd(&times_done[tile], 1u);
    }
}

// Broken: read, then write. Two CTAs may read the same number.
extern "C" __global__ void tiles_by_load_and_store(unsigned* counter, unsigned tiles, const int* input, int* output,
                                                   unsigned* times_done) {
    __shared__ unsigned taken;
    while (true) {
        if (threadIdx.x == 0) taken = *static_cast<volatile unsigned*>(counter);
        __syncthreads();
        const unsigned tile = taken;
        if (tile >= tiles) return;
        if (threadIdx.x == 0) *static_cast<volatile unsigned*>(counter) = tile + 1;
        __syncthreads();
        const unsigned i = tile * blockDim.x + threadIdx.x;
        output[i] = 3 * input[i] + 1;
        if (threadIdx.x == 0) atomicAdd(&times_done[tile], 1u);
    }
}

// Broken in the same way, with nothing at all between the two.
extern "C" __global__ void tickets_by_load_and_store(unsigned* counter, unsigned* tickets) {
    if (threadIdx.x == 0) {
        const unsigned ticket = *static_cast<volatile unsigned*>(counter);
        *static_cast<volatile unsigned*>(counter) = ticket + 1;
        tickets[blockIdx.x] = ticket;
    }
}
