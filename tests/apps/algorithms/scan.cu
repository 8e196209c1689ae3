// An inclusive prefix sum in three kernels with dynamic shared memory, some of it above the default limit of 48 KiB.
#include "check.h"

#include <vector>

constexpr int BLOCK = 256;

// Scans each block's part in place (two rows of shared memory in turn) and leaves the block's total.
__global__ void scan_blocks(unsigned *data, unsigned *totals, int n) {
    extern __shared__ unsigned rows[];
    int i = blockIdx.x * BLOCK + threadIdx.x, from = 0;
    rows[threadIdx.x] = i < n ? data[i] : 0;
    __syncthreads();
    for (int distance = 1; distance < BLOCK; distance *= 2) {
        unsigned *old = rows + from * BLOCK, *fresh = rows + (1 - from) * BLOCK;
        fresh[threadIdx.x] = old[threadIdx.x] + (int(threadIdx.x) >= distance ? old[threadIdx.x - distance] : 0);
        from = 1 - from;
        __syncthreads();
    }
    unsigned mine = rows[from * BLOCK + threadIdx.x];
    if (i < n) data[i] = mine;
    if (threadIdx.x == BLOCK - 1) totals[blockIdx.x] = mine;
}

__global__ void add_before(unsigned *data, const unsigned *totals, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (blockIdx.x > 0 && i < n) data[i] += totals[blockIdx.x - 1];
}

// Reverses through a large piece of dynamic shared memory, given in bytes.
__global__ void reverse(unsigned *data, int n) {
    extern __shared__ unsigned rows[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) rows[i] = data[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) data[i] = rows[n - 1 - i];
}

int main() {
    const int n = 50001, blocks = (n + BLOCK - 1) / BLOCK;
    static_assert(blocks <= BLOCK, "the blocks' totals are scanned by one block");
    Numbers source(19);
    std::vector<unsigned> data(n), result(n);
    for (unsigned &x : data) x = source.below(100000);
    unsigned *device_data, *device_totals, *device_last;
    OK(cudaMalloc(&device_data, n * sizeof(unsigned)));
    OK(cudaMalloc(&device_totals, blocks * sizeof(unsigned)));
    OK(cudaMalloc(&device_last, sizeof(unsigned)));
    OK(cudaMemcpy(device_data, data.data(), n * sizeof(unsigned), cudaMemcpyHostToDevice));
    size_t shared = 2 * BLOCK * sizeof(unsigned);
    scan_blocks<<<blocks, BLOCK, shared>>>(device_data, device_totals, n);
    scan_blocks<<<1, BLOCK, shared>>>(device_totals, device_last, blocks);
    add_before<<<blocks, BLOCK>>>(device_data, device_totals, n);
    OK(cudaGetLastError());
    OK(cudaMemcpy(result.data(), device_data, n * sizeof(unsigned), cudaMemcpyDeviceToHost));
    unsigned sum = 0, last;
    for (int i = 0; i < n; i++) {
        sum += data[i];
        CHECK_QUIETLY(result[i] == sum, "element %d: %u, wanted %u", i, result[i], sum);
    }
    OK(cudaMemcpy(&last, device_last, sizeof last, cudaMemcpyDeviceToHost));
    CHECK(last == sum, "the total is %u, wanted %u", last, sum);

    // 64 KiB of shared memory: refused until the kernel's limit is raised.
    const int piece = 16384;
    reverse<<<1, 512, piece * sizeof(unsigned)>>>(device_data, piece);
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    OK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, piece * sizeof(unsigned)));
    reverse<<<1, 512, piece * sizeof(unsigned)>>>(device_data, piece);
    OK(cudaGetLastError());
    std::vector<unsigned> reversed(piece);
    OK(cudaMemcpy(reversed.data(), device_data, piece * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (int i = 0; i < piece; i++) CHECK_QUIETLY(reversed[i] == result[piece - 1 - i], "reversed element %d", i);
    OK(cudaFree(device_data));
    OK(cudaFree(device_totals));
    OK(cudaFree(device_last));
    printf("%d numbers scanned; %d reversed in 64 KiB of shared memory\n", n, piece);
    return finish("scan");
}
