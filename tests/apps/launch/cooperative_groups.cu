// Cooperative groups below the grid: tiles, coalesced lanes, partitions by label, collectives over each of them, and a
// barrier of a block in two halves.
#include "buffer.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <algorithm>
#include <numeric>

namespace cg = cooperative_groups;

constexpr int BLOCK = 128, OUTS = 10;

__global__ void groups(const int *in, int *out) {
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    auto eight = cg::tiled_partition<8>(warp);
    int value = in[block.thread_rank()], *o = out + block.thread_rank() * OUTS;
    o[0] = cg::reduce(eight, value, cg::plus<int>());
    o[1] = cg::reduce(warp, value, cg::greater<int>());
    o[2] = cg::inclusive_scan(warp, value);
    o[3] = cg::exclusive_scan(eight, value, cg::plus<int>());
    o[4] = eight.shfl(value, 7 - int(eight.thread_rank()));
    o[5] = int(eight.meta_group_rank()) * 100 + int(eight.meta_group_size());
    auto label = cg::labeled_partition(warp, value % 3);
    o[6] = cg::reduce(label, value, cg::plus<int>()) * 100 + int(label.size());
    auto half = cg::binary_partition(warp, value % 2 == 0);
    o[7] = int(half.size()) * 100 + int(half.thread_rank());
    o[8] = o[9] = 0;
    if (value % 5 == 0) {
        cg::coalesced_group here = cg::coalesced_threads();
        o[8] = int(here.size()) * 100 + int(here.thread_rank());
        o[9] = here.shfl(value, 0);
    }
}

// Each thread fills a place, arrives at the barrier, does other work, and only then waits for the others.
__global__ void split_barrier(int *out) {
    __shared__ int places[BLOCK];
    cg::thread_block block = cg::this_thread_block();
    for (int round = 0; round < 3; round++) {
        places[threadIdx.x] = int(threadIdx.x) * (round + 1);
        auto token = block.barrier_arrive();
        int between = round * 1000;
        block.barrier_wait(std::move(token));
        out[threadIdx.x] += places[BLOCK - 1 - threadIdx.x] + between;
        block.sync();
    }
}

static void check(const std::vector<int> &in, const std::vector<int> &out) {
    for (int t = 0; t < BLOCK; t++) {
        int warp = t / 32 * 32, eight = t / 8 * 8, wanted[OUTS] = {};
        wanted[0] = std::accumulate(&in[eight], &in[eight] + 8, 0);
        wanted[1] = *std::max_element(&in[warp], &in[warp] + 32);
        wanted[2] = std::accumulate(&in[warp], &in[t] + 1, 0);
        wanted[3] = std::accumulate(&in[eight], &in[t], 0);
        wanted[4] = in[eight + 7 - (t - eight)];
        wanted[5] = (t - warp) / 8 * 100 + 4;
        int sum = 0, size = 0, half = 0, rank = 0, fives = 0, five_rank = 0, first_five = -1;
        for (int other = warp; other < warp + 32; other++) {
            bool same = in[other] % 3 == in[t] % 3, even = in[other] % 2 == in[t] % 2;
            sum += same ? in[other] : 0, size += same, half += even, rank += even && other < t;
            if (in[other] % 5 != 0) continue;
            fives++, five_rank += other < t;
            if (first_five < 0) first_five = in[other];
        }
        wanted[6] = sum * 100 + size, wanted[7] = half * 100 + rank;
        if (in[t] % 5 == 0) wanted[8] = fives * 100 + five_rank, wanted[9] = first_five;
        for (int k = 0; k < OUTS; k++) CHECK_QUIETLY(out[t * OUTS + k] == wanted[k], "thread %d, result %d: %d, wanted %d", t, k, out[t * OUTS + k], wanted[k]);
    }
}

int main() {
    Numbers numbers(99);
    std::vector<int> in(BLOCK);
    for (int &value : in) value = int(numbers.below(100));
    Buffer<int> device_in(in), out(BLOCK * OUTS), sums(BLOCK);
    groups<<<1, BLOCK>>>(device_in, out);
    RAN();
    check(in, out.read());
    split_barrier<<<1, BLOCK>>>(sums);
    RAN();
    std::vector<int> s = sums.read();
    for (int t = 0; t < BLOCK; t++) CHECK(s[t] == (BLOCK - 1 - t) * 6 + 3000, "thread %d: %d", t, s[t]);
    printf("%d results of groups in %d threads; a barrier in two halves, three times\n", OUTS, BLOCK);
    return finish("cooperative_groups");
}
