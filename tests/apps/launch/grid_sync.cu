// Cooperative launches: blocks that wait for each other, up to the device's limit; occupancy computes it.
#include "check.h"

#include <cooperative_groups.h>
#include <vector>

namespace groups = cooperative_groups;

// A sum over rounds: every block adds its part, then all read the whole.
__global__ void rounds(unsigned *totals, unsigned *seen, int n) {
    groups::grid_group grid = groups::this_grid();
    for (int round = 0; round < n; round++) {
        if (threadIdx.x == 0) atomicAdd(&totals[round], blockIdx.x + round);
        grid.sync();
        if (threadIdx.x == 0 && totals[round] == gridDim.x * (gridDim.x - 1) / 2 + gridDim.x * round)
            atomicAdd(seen, 1);
        grid.sync();
    }
}

__global__ void nothing() {}

int main() {
    constexpr int ROUNDS = 5, THREADS = 64;
    int multiprocessors, each, supported = 0;
    OK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    OK(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, rounds, THREADS, 0));
    CHECK(each >= 1 && each <= 32, "%d blocks of a multiprocessor", each);
    unsigned *totals, *seen, result = 0;
    OK(cudaMalloc(&totals, ROUNDS * sizeof *totals));
    OK(cudaMalloc(&seen, sizeof *seen));
    OK(cudaMemset(totals, 0, ROUNDS * sizeof *totals));
    OK(cudaMemset(seen, 0, sizeof *seen));
    int n = ROUNDS, blocks = multiprocessors < 16 ? multiprocessors * 2 : 32;
    void *arguments[] = {&totals, &seen, &n};
    OK(cudaLaunchCooperativeKernel(rounds, blocks, THREADS, arguments));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&result, seen, sizeof result, cudaMemcpyDeviceToHost));
    CHECK(result == unsigned(blocks * ROUNDS), "%u of %d", result, blocks * ROUNDS);

    // One block more than fits is too large; so is a block with too much shared memory.
    int most = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&most, nothing, 1024, 0));
    OK(cudaLaunchCooperativeKernel(nothing, most * multiprocessors, 1024, nullptr));
    EXPECT(cudaErrorCooperativeLaunchTooLarge, cudaLaunchCooperativeKernel(nothing, most * multiprocessors + 1, 1024, nullptr));
    EXPECT(cudaErrorCooperativeLaunchTooLarge, cudaLaunchCooperativeKernel(nothing, 1, 32, nullptr, 50000));
    cudaGetLastError();

    // The best size of a block fills the device.
    int grid = 0, block = 0;
    size_t available = 0;
    OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, nothing));
    CHECK(block == 1024 && grid == 2 * multiprocessors, "%d blocks of %d", grid, block);
    OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, nothing, 0, 100));
    CHECK(block == 64 && grid == 32 * multiprocessors, "%d blocks of %d", grid, block);
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&available, nothing, 8, 128));
    CHECK(available == 29184, "%zu", available);
    OK(cudaDeviceSynchronize());
    printf("cooperative launches supported: %d\n", supported);
    return finish("grid_sync");
}
