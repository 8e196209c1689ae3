// Clusters of blocks: a histogram spread over the shared memory of a cluster, a ring of pointers, a cluster size
// fixed by the code, the barrier in two halves, and cluster sizes that launches and occupancy report.
#include "check.h"

#include <cooperative_groups.h>
#include <vector>

namespace cg = cooperative_groups;

constexpr int BINS = 256, SIZE = 4;

// Each block of a cluster holds a part of the bins.
__global__ void histogram(const unsigned *data, int count, unsigned *bins) {
    __shared__ unsigned mine[BINS / SIZE];
    cg::cluster_group cluster = cg::this_cluster();
    for (int at = threadIdx.x; at < BINS / SIZE; at += blockDim.x) mine[at] = 0;
    cluster.sync();
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) {
        unsigned bin = data[at] % BINS;
        unsigned *part = cluster.map_shared_rank(mine, bin / (BINS / SIZE));
        atomicAdd(&part[bin % (BINS / SIZE)], 1u);
    }
    cluster.sync();
    for (int at = threadIdx.x; at < BINS / SIZE; at += blockDim.x)
        atomicAdd(&bins[cluster.block_rank() * (BINS / SIZE) + at], mine[at]);
}

// Every block tells the next one where its own word is, without mapping it, and reads through what it was told.
__global__ void __cluster_dims__(2, 2, 1) ring(unsigned *result) {
    __shared__ unsigned word;
    __shared__ unsigned *told;
    cg::cluster_group cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank(), blocks = cluster.num_blocks();
    if (threadIdx.x == 0) {
        word = 1000 * (blockIdx.y * gridDim.x + blockIdx.x) + rank;
        *cluster.map_shared_rank(&told, (rank + 1) % blocks) = &word;
    }
    auto token = cluster.barrier_arrive();
    cluster.barrier_wait(std::move(token));
    if (threadIdx.x == 0) {
        unsigned from = cluster.query_shared_rank(told);
        result[blockIdx.y * gridDim.x + blockIdx.x] = *told * 10 + from;
    }
    cluster.sync();
}

// The dimensions as the code sees them.
__global__ void shape(unsigned *result) {
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1) {
        result[0] = cluster.num_blocks();
        result[1] = cluster.block_rank();
        result[2] = cluster.num_threads();
        result[3] = cluster.dim_blocks().x;
    }
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), int blocks, int threads, int size, Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = size;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = blocks;
    config.blockDim = threads;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

int main() {
    const int count = 20000;
    Numbers numbers(3);
    std::vector<unsigned> data(count), expected(BINS), bins(BINS);
    for (unsigned &value : data) value = numbers.next(), expected[value % BINS]++;
    unsigned *device_data, *device_bins;
    OK(cudaMalloc(&device_data, count * sizeof(unsigned)));
    OK(cudaMalloc(&device_bins, BINS * sizeof(unsigned)));
    OK(cudaMemcpy(device_data, data.data(), count * sizeof(unsigned), cudaMemcpyHostToDevice));
    OK(cudaMemset(device_bins, 0, BINS * sizeof(unsigned)));
    OK(launch(histogram, 8, 128, SIZE, (const unsigned *)device_data, count, device_bins));
    OK(cudaMemcpy(bins.data(), device_bins, BINS * sizeof(unsigned), cudaMemcpyDeviceToHost));
    CHECK(bins == expected, "the histogram differs");

    unsigned words[16];
    ring<<<dim3(4, 4), 32>>>(device_bins);
    OK(cudaMemcpy(words, device_bins, sizeof words, cudaMemcpyDeviceToHost));
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 4; x++) {
            unsigned before = (y % 2 * 2 + x % 2 + 3) % 4;
            unsigned from = (y / 2 * 2 + before / 2) * 4 + x / 2 * 2 + before % 2;
            unsigned wanted = (1000 * from + before) * 10 + before;
            CHECK(words[y * 4 + x] == wanted, "%d %d: %u, not %u", x, y, words[y * 4 + x], wanted);
        }

    for (int size : {1, 2, 8}) {
        OK(launch(shape, 16, 64, size, device_bins));
        OK(cudaMemcpy(words, device_bins, sizeof words, cudaMemcpyDeviceToHost));
        printf("size %d: %u blocks, rank %u, %u threads, %u along x\n", size, words[0], words[1], words[2], words[3]);
    }
    shape<<<4, 64>>>(device_bins);
    OK(cudaMemcpy(words, device_bins, sizeof words, cudaMemcpyDeviceToHost));
    printf("without: %u blocks, rank %u, %u threads\n", words[0], words[1], words[2]);

    // Invalid sizes, and valid ones.
    EXPECT(cudaErrorInvalidClusterSize, launch(shape, 16, 64, 3, device_bins));
    EXPECT(cudaErrorInvalidClusterSize, launch(shape, 64, 64, 16, device_bins));
    cudaGetLastError();
    OK(cudaFuncSetAttribute(shape, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    OK(launch(shape, 64, 64, 16, device_bins));
    OK(cudaDeviceSynchronize());
    cudaLaunchConfig_t config = {};
    config.gridDim = 63;
    config.blockDim = 64;
    int most = 0, active = 0;
    EXPECT(cudaErrorInvalidClusterSize, cudaOccupancyMaxPotentialClusterSize(&most, ring, &config));
    cudaGetLastError();
    config.gridDim = dim3(8, 8);
    OK(cudaOccupancyMaxPotentialClusterSize(&most, ring, &config));
    OK(cudaOccupancyMaxActiveClusters(&active, ring, &config));
    CHECK(most == 8 && active >= 1, "%d %d", most, active);
    OK(cudaOccupancyMaxPotentialClusterSize(&most, shape, &config));
    OK(cudaOccupancyMaxActiveClusters(&active, shape, &config));
    CHECK(most == 16 && active == 0, "%d %d", most, active);
    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, ring));
    printf("fixed by the code: %d x %d x %d\n", attributes.requiredClusterWidth, attributes.requiredClusterHeight,
           attributes.requiredClusterDepth);
    OK(cudaFree(device_data));
    OK(cudaFree(device_bins));
    return finish("clusters");
}
