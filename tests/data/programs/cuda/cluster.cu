// Clusters: each CTA adds up its part in shared memory, then reads the sums of all CTAs of its cluster.
// Arguments: CTAs of a cluster, clusters.
#include "check.h"

#include <cooperative_groups.h>
#include <vector>

namespace cg = cooperative_groups;

constexpr int THREADS = 128;

__global__ void cluster_sums(const int *values, int *sums) {
    __shared__ int sum;
    const cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, values[blockIdx.x * THREADS + threadIdx.x]);
    cluster.sync();
    if (threadIdx.x == 0) {
        int total = 0;
        for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
            total += (rank + 1) * *cluster.map_shared_rank(&sum, rank);
        sums[blockIdx.x] = total;
    }
    cluster.sync();
}

int main(int count, char **arguments) {
    const int size = count > 1 ? std::atoi(arguments[1]) : 4;
    const int clusters = count > 2 ? std::atoi(arguments[2]) : 3;
    const int ctas = size * clusters;
    std::vector<int> values(ctas * THREADS), sums(ctas);
    for (size_t i = 0; i < values.size(); ++i) values[i] = int(i * 7 % 101) - 50;
    int *device_values, *device_sums;
    CHECK(cudaMalloc(&device_values, values.size() * sizeof(int)));
    CHECK(cudaMalloc(&device_sums, sums.size() * sizeof(int)));
    CHECK(cudaMemcpy(device_values, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice));

    if (size > 8) CHECK(cudaFuncSetAttribute(cluster_sums, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {unsigned(size), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(ctas);
    config.blockDim = dim3(THREADS);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int resident = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&resident, cluster_sums, &config));
    CHECK(cudaLaunchKernelEx(&config, cluster_sums, static_cast<const int *>(device_values), device_sums));
    CHECK(cudaMemcpy(sums.data(), device_sums, sums.size() * sizeof(int), cudaMemcpyDeviceToHost));

    int wrong = 0;
    for (int cta = 0; cta < ctas; ++cta) {
        int expected = 0;
        for (int rank = 0; rank < size; ++rank)
            for (int i = 0; i < THREADS; ++i)
                expected += (rank + 1) * values[(cta / size * size + rank) * THREADS + i];
        wrong += sums[cta] != expected;
    }
    std::printf("%d clusters of %d CTAs, some resident: %s, %d wrong\n", clusters, size, resident ? "yes" : "no", wrong);
    return wrong != 0;
}
