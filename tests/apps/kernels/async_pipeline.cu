// Copies into shared memory that run beside computation: cuda::memcpy_async with a barrier and with a two-stage
// pipeline, cooperative_groups' version, and the primitives below them.
#include "buffer.h"

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

constexpr int THREADS = 64, TILES = 12;

#pragma nv_diag_suppress static_var_with_dynamic_init // the objects below are made by `init` and `make_pipeline`

__global__ void with_barrier(const float4 *in, float4 *out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    __shared__ alignas(16) float4 tile[THREADS];
    auto block = cg::this_thread_block();
    if (block.thread_rank() == 0) init(&ready, THREADS);
    block.sync();
    for (int t = 0; t < TILES; t++) {
        cuda::memcpy_async(block, tile, in + t * THREADS, cuda::aligned_size_t<16>(sizeof tile), ready);
        ready.arrive_and_wait();
        float4 other = tile[THREADS - 1 - threadIdx.x];
        out[t * THREADS + threadIdx.x] = make_float4(other.w, other.z, other.y, other.x);
        block.sync();
    }
}

__global__ void with_pipeline(const int *in, int *out) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ int tiles[2][THREADS];
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int fetched = 0;
    for (int t = 0; t < TILES; t++) {
        for (; fetched < TILES && fetched < t + 2; fetched++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, tiles[fetched % 2], in + fetched * THREADS, sizeof tiles[0], pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        int sum = tiles[t % 2][threadIdx.x] + tiles[t % 2][(threadIdx.x + 1) % THREADS];
        out[t * THREADS + threadIdx.x] = sum;
        pipe.consumer_release();
    }
}

__global__ void with_group(const int *in, int *out) {
    extern __shared__ int staged[];
    auto block = cg::this_thread_block();
    for (int t = 0; t < TILES; t += 2) {
        cg::memcpy_async(block, staged, in + t * THREADS, sizeof(int) * THREADS);
        cg::memcpy_async(block, staged + THREADS, in + (t + 1) * THREADS, sizeof(int) * THREADS);
        cg::wait_prior<1>(block);
        int first = staged[THREADS - 1 - threadIdx.x];
        cg::wait(block);
        out[t * THREADS + threadIdx.x] = first;
        out[(t + 1) * THREADS + threadIdx.x] = staged[THREADS + (threadIdx.x ^ 1)];
        block.sync();
    }
}

// A thread copies for itself, so that no barrier is needed; the last copy is short, and the rest is filled with zeros.
__global__ void with_primitives(const int4 *in, int *out) {
    __shared__ int4 own[THREADS][3];
    for (int k = 0; k < 3; k++) {
        __pipeline_memcpy_async(&own[threadIdx.x][k], in + threadIdx.x * 3 + k, sizeof(int4), k == 2 ? 8 : 0);
        __pipeline_commit();
    }
    __pipeline_wait_prior(1);
    int sum = own[threadIdx.x][0].x + own[threadIdx.x][1].w;
    __pipeline_wait_prior(0);
    out[threadIdx.x] = sum * 1000 + own[threadIdx.x][2].y + own[threadIdx.x][2].z + own[threadIdx.x][2].w;
}

int main() {
    const int n = THREADS * TILES;
    std::vector<int> in(n);
    for (int i = 0; i < n; i++) in[i] = i * 7 % 1009;
    std::vector<float4> floats(n);
    for (int i = 0; i < n; i++) floats[i] = make_float4(i, i + 0.25f, -i, 1);
    Buffer<int> device_in(in), out(n);
    Buffer<float4> device_floats(floats), float_out(n);
    with_barrier<<<1, THREADS>>>(device_floats, float_out);
    RAN();
    std::vector<float4> f = float_out.read();
    for (int i = 0; i < n; i++) {
        float4 w = floats[i / THREADS * THREADS + THREADS - 1 - i % THREADS];
        CHECK_QUIETLY(f[i].x == w.w && f[i].y == w.z && f[i].z == w.y && f[i].w == w.x, "barrier, %d", i);
    }
    with_pipeline<<<1, THREADS>>>(device_in, out);
    RAN();
    std::vector<int> o = out.read();
    for (int i = 0; i < n; i++) CHECK_QUIETLY(o[i] == in[i] + in[i / THREADS * THREADS + (i + 1) % THREADS], "pipeline, %d: %d", i, o[i]);
    with_group<<<1, THREADS, 2 * THREADS * sizeof(int)>>>(device_in, out);
    RAN();
    o = out.read();
    for (int i = 0; i < n; i++) {
        int tile = i / THREADS * THREADS, t = i % THREADS, from = i / THREADS % 2 == 0 ? THREADS - 1 - t : t ^ 1;
        CHECK_QUIETLY(o[i] == in[tile + from], "group, %d: %d, wanted %d", i, o[i], in[tile + from]);
    }
    with_primitives<<<1, THREADS>>>(reinterpret_cast<int4 *>(device_in.data), out);
    RAN();
    o = out.read();
    for (int t = 0; t < THREADS; t++) {
        const int *own = &in[t * 12];
        CHECK_QUIETLY(o[t] == (own[0] + own[7]) * 1000 + own[9], "primitives, %d: %d", t, o[t]);
    }
    printf("%d tiles came through 4 kinds of asynchronous copies\n", TILES);
    return finish("async_pipeline");
}
