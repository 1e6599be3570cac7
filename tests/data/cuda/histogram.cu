// A histogram whose bins are spread over the shared memories of a cluster of four CTAs.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

constexpr int BINS = 64;

extern "C" __global__ void __cluster_dims__(4, 1, 1) histogram(const unsigned *data, int count, unsigned *bins) {
  __shared__ unsigned mine[BINS];
  cg::cluster_group cluster = cg::this_cluster();
  int rank = cluster.block_rank();
  for (int i = threadIdx.x; i < BINS; i += blockDim.x) mine[i] = 0;
  cluster.sync();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    unsigned bin = data[i] % (4 * BINS);
    unsigned *theirs = cluster.map_shared_rank(mine, bin / BINS);
    atomicAdd(theirs + bin % BINS, 1u);
  }
  cluster.sync();
  for (int i = threadIdx.x; i < BINS; i += blockDim.x) atomicAdd(bins + rank * BINS + i, mine[i]);
}
