// Which CTAs run at the same time, and in which order they start.

// Every CTA takes a ticket when it starts.
extern "C" __global__ void tickets(unsigned* counter, unsigned* ticket_of_cta) {
    if (threadIdx.x == 0) ticket_of_cta[blockIdx.x] = atomicAdd(counter, 1u);
}

// Every thread writes down its CTA and nothing else; `spread` words lie between two CTAs.
extern "C" __global__ void names(unsigned* out, unsigned spread) {
    out[blockIdx.x * spread + threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
}

// The threads of a CTA take tickets in shared memory and write down the sum.
extern "C" __global__ void tickets_in_shared_memory(unsigned* out) {
    __shared__ unsigned sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, threadIdx.x + blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Counts the CTAs that run, and keeps the most there were. `stay` makes a CTA last.
extern "C" __global__ void most_at_once(int* running, int* most, int stay) {
    if (threadIdx.x != 0) return;
    atomicMax(most, atomicAdd(running, 1) + 1);
    for (int i = 0; i < stay; ++i) atomicAdd(running, 0);
    atomicSub(running, 1);
}

// A barrier of all CTAs of the grid: nobody leaves before all have come.
extern "C" __global__ void grid_barrier(unsigned* arrived, unsigned* seen) {
    if (threadIdx.x != 0) return;
    __threadfence();
    atomicAdd(arrived, 1u);
    while (*static_cast<volatile unsigned*>(arrived) < gridDim.x) {
    }
    __threadfence();
    seen[blockIdx.x] = *static_cast<volatile unsigned*>(arrived);
}
