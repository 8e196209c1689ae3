// Copies that overlap with work: pipelines of two stages by primitives and by groups, barriers in shared memory with
// tokens, parities, drop-outs and counted bytes, and bulk copies in both directions.
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>
#include <cuda_pipeline.h>
#include <vector>

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

constexpr int BLOCK = 128, TILES = 6;

// Sums tiles while the next one is on its way; the last one is shorter, and its rest is filled with zeroes.
__global__ void staged(const int *data, int count, int *sums) {
    __shared__ alignas(16) int stages[2][BLOCK];
    int sum = 0;
    auto fetch = [&](int tile) {
        int at = tile * BLOCK + int(threadIdx.x);
        int missing = at < count ? 0 : 4;
        __pipeline_memcpy_async(&stages[tile % 2][threadIdx.x], data + (missing ? 0 : at), 4, missing);
        __pipeline_commit();
    };
    fetch(0);
    for (int tile = 0; tile < TILES; tile++) {
        if (tile + 1 < TILES) fetch(tile + 1);
        __pipeline_wait_prior(tile + 1 < TILES ? 1 : 0);
        __syncthreads();
        sum += stages[tile % 2][BLOCK - 1 - threadIdx.x];
        __syncthreads();
    }
    sums[threadIdx.x] = sum;
}

// The same by a pipeline of the block, and then by a group's copy.
__global__ void piped(const int *data, int *sums) {
    __shared__ int stages[2][BLOCK];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipeline = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int ahead = 0, tile = 0; tile < TILES; tile++) {
        for (; ahead < TILES && ahead < tile + 2; ahead++) {
            pipeline.producer_acquire();
            cuda::memcpy_async(block, stages[ahead % 2], data + ahead * BLOCK, cuda::aligned_size_t<16>(BLOCK * 4), pipeline);
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        sum += stages[tile % 2][BLOCK - 1 - threadIdx.x];
        pipeline.consumer_release();
    }
    cg::memcpy_async(block, stages[0], data, BLOCK * 4);
    cg::wait(block);
    sums[threadIdx.x] = sum + stages[0][(threadIdx.x + 1) % BLOCK];
}

// A barrier whose threads leave one warp after the other.
__global__ void leaving(int *counts) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ int phases;
    if (threadIdx.x == 0) {
        init(&barrier, blockDim.x);
        phases = 0;
    }
    __syncthreads();
    int warp = threadIdx.x / 32;
    for (int round = 0; round < warp; round++) {
        auto token = barrier.arrive();
        barrier.wait(std::move(token));
        if (threadIdx.x == blockDim.x - 1) phases++;
    }
    barrier.arrive_and_drop();
    __syncthreads();
    counts[threadIdx.x] = phases * 10 + warp;
}

// One thread fetches all tiles in bulk; a barrier counts the bytes; the result goes back in bulk, and once more added.
__global__ void bulk(const int *data, int *out, int *added) {
    __shared__ alignas(128) int tile[BLOCK * 2];
    __shared__ alignas(8) uint64_t bar;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&bar, blockDim.x);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    for (int round = 0; round < 2; round++) {
        if (threadIdx.x == 0) {
            ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, tile, data + round * BLOCK, BLOCK * 4, &bar);
            ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, tile + BLOCK, data + 512 + round * BLOCK, BLOCK * 4, &bar);
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bar, BLOCK * 8);
        } else {
            ptx::mbarrier_arrive(&bar);
        }
        while (!ptx::mbarrier_try_wait_parity(&bar, round % 2)) {
        }
        tile[threadIdx.x] = tile[threadIdx.x] * 2 + tile[BLOCK + threadIdx.x];
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (threadIdx.x == 0) {
            ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + round * BLOCK, tile, BLOCK * 4);
            ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, added, tile, BLOCK * 4);
            ptx::cp_async_bulk_commit_group();
            ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
        }
        __syncthreads();
    }
}

int main() {
    const int count = TILES * BLOCK;
    std::vector<int> data(count), result(BLOCK * 2), added(BLOCK);
    Numbers numbers(5);
    for (int &value : data) value = int(numbers.below(1000));
    int *device_data, *device_result, *device_added;
    OK(cudaMalloc(&device_data, count * 4));
    OK(cudaMalloc(&device_result, BLOCK * 8));
    OK(cudaMalloc(&device_added, BLOCK * 4));
    OK(cudaMemcpy(device_data, data.data(), count * 4, cudaMemcpyHostToDevice));

    for (int shorter : {0, 50}) {
        staged<<<1, BLOCK>>>(device_data, count - shorter, device_result);
        OK(cudaMemcpy(result.data(), device_result, BLOCK * 4, cudaMemcpyDeviceToHost));
        for (int at = 0; at < BLOCK; at++) {
            int sum = 0;
            for (int tile = 0; tile < TILES; tile++) {
                int from = tile * BLOCK + BLOCK - 1 - at;
                sum += from < count - shorter ? data[from] : 0;
            }
            CHECK_QUIETLY(result[at] == sum, "staged %d: %d, not %d", at, result[at], sum);
        }
    }

    piped<<<1, BLOCK>>>(device_data, device_result);
    OK(cudaMemcpy(result.data(), device_result, BLOCK * 4, cudaMemcpyDeviceToHost));
    for (int at = 0; at < BLOCK; at++) {
        int sum = data[(at + 1) % BLOCK];
        for (int tile = 0; tile < TILES; tile++) sum += data[tile * BLOCK + BLOCK - 1 - at];
        CHECK_QUIETLY(result[at] == sum, "piped %d: %d, not %d", at, result[at], sum);
    }

    leaving<<<1, BLOCK>>>(device_result);
    OK(cudaMemcpy(result.data(), device_result, BLOCK * 4, cudaMemcpyDeviceToHost));
    for (int at = 0; at < BLOCK; at++) CHECK_QUIETLY(result[at] == 30 + at / 32, "leaving %d: %d", at, result[at]);

    OK(cudaMemset(device_added, 0, BLOCK * 4));
    bulk<<<1, BLOCK>>>(device_data, device_result, device_added);
    OK(cudaMemcpy(result.data(), device_result, BLOCK * 8, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(added.data(), device_added, BLOCK * 4, cudaMemcpyDeviceToHost));
    for (int at = 0; at < BLOCK * 2; at++) {
        int wanted = data[at] * 2 + data[512 + at];
        CHECK_QUIETLY(result[at] == wanted, "bulk %d: %d, not %d", at, result[at], wanted);
    }
    for (int at = 0; at < BLOCK; at++) CHECK_QUIETLY(added[at] == result[at] + result[BLOCK + at], "added %d: %d", at, added[at]);
    OK(cudaFree(device_data));
    OK(cudaFree(device_result));
    OK(cudaFree(device_added));
    return finish("async_copy");
}
