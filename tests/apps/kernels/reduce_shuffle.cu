// Reduces through warp shuffles, votes and matches, then across warps through shared memory, then across blocks.
#include "check.h"

#include <algorithm>
#include <vector>

constexpr unsigned ALL = 0xffffffffu;

__device__ long long warp_sum(long long value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(ALL, value, distance);
    return value;
}

// Sums `n` numbers into `total`: a grid-stride loop, a shuffle tree in each warp, one more over the warps' sums.
__global__ void sum(const int *numbers, int n, unsigned long long *total) {
    __shared__ long long of_warp[32];
    long long mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mine += numbers[i];
    mine = warp_sum(mine);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) of_warp[warp] = mine;
    __syncthreads();
    if (warp == 0) {
        mine = lane < int(blockDim.x / 32) ? of_warp[lane] : 0;
        mine = warp_sum(mine);
        if (lane == 0) atomicAdd(total, (unsigned long long)mine);
    }
}

constexpr int WORDS = 12;

// One warp; every lane writes what each warp operation gave it.
__global__ void warp_operations(const int *numbers, unsigned *out) {
    int lane = threadIdx.x;
    int mine = numbers[lane];
    unsigned *o = out + lane * WORDS;
    o[0] = __shfl_xor_sync(ALL, mine, 5);
    o[1] = __shfl_up_sync(ALL, mine, 3);
    o[2] = __shfl_down_sync(ALL, mine, 4, 8);
    o[3] = __shfl_sync(ALL, mine, lane * 7 + 1);
    o[4] = __ballot_sync(ALL, mine & 1);
    o[5] = __any_sync(ALL, mine > 990) * 2 + __all_sync(ALL, mine >= 0);
    o[6] = __match_any_sync(ALL, mine % 4);
    int same = 0;
    o[7] = __match_all_sync(ALL, mine / 1000, &same) + unsigned(same);
    o[8] = __reduce_add_sync(ALL, unsigned(mine));
    o[9] = __reduce_max_sync(ALL, mine);
    o[10] = __reduce_xor_sync(ALL, unsigned(mine));
    // Only the even lanes meet here.
    o[11] = lane % 2 == 0 ? __shfl_xor_sync(0x55555555u, mine, 2) + __popc(__activemask() & 0x55555555u) : 0;
}

static void check_warp(const std::vector<int> &n, const std::vector<unsigned> &out) {
    unsigned ballot = 0, total = 0, bits = 0;
    int most = 0;
    bool any = false;
    for (int lane = 0; lane < 32; lane++) {
        ballot |= unsigned(n[lane] & 1) << lane;
        total += n[lane];
        bits ^= n[lane];
        most = std::max(most, n[lane]);
        any = any || n[lane] > 990;
    }
    for (int lane = 0; lane < 32; lane++) {
        const unsigned *o = &out[lane * WORDS];
        unsigned peers = 0;
        for (int other = 0; other < 32; other++) peers |= unsigned(n[other] % 4 == n[lane] % 4) << other;
        CHECK(o[0] == unsigned(n[lane ^ 5]), "shuffle by xor, lane %d", lane);
        CHECK(o[1] == unsigned(n[lane < 3 ? lane : lane - 3]), "shuffle up, lane %d", lane);
        CHECK(o[2] == unsigned(n[lane % 8 < 4 ? lane + 4 : lane]), "shuffle down in eights, lane %d", lane);
        CHECK(o[3] == unsigned(n[(lane * 7 + 1) % 32]), "shuffle from a lane, lane %d", lane);
        CHECK(o[4] == ballot, "ballot, lane %d: %x, wanted %x", lane, o[4], ballot);
        CHECK(o[5] == unsigned(any) * 2 + 1, "any and all, lane %d: %u", lane, o[5]);
        CHECK(o[6] == peers, "match any, lane %d: %x, wanted %x", lane, o[6], peers);
        CHECK(o[7] == ALL + 1, "match all, lane %d: %x", lane, o[7]);
        CHECK(o[8] == total, "reduced sum, lane %d: %u, wanted %u", lane, o[8], total);
        CHECK(o[9] == unsigned(most), "reduced maximum, lane %d: %u, wanted %d", lane, o[9], most);
        CHECK(o[10] == bits, "reduced xor, lane %d: %x, wanted %x", lane, o[10], bits);
        CHECK(o[11] == (lane % 2 == 0 ? unsigned(n[lane ^ 2]) + 16 : 0), "half a warp, lane %d: %u", lane, o[11]);
    }
}

int main() {
    const int n = 65537;
    Numbers source(5);
    std::vector<int> numbers(n);
    long long wanted = 0;
    for (int &x : numbers) wanted += x = int(source.below(1000));
    int *device_numbers;
    unsigned long long *device_total, total;
    unsigned *device_out;
    OK(cudaMalloc(&device_numbers, n * sizeof(int)));
    OK(cudaMalloc(&device_total, sizeof total));
    OK(cudaMalloc(&device_out, 32 * WORDS * sizeof(unsigned)));
    OK(cudaMemcpy(device_numbers, numbers.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    OK(cudaMemset(device_total, 0, sizeof total));
    sum<<<24, 256>>>(device_numbers, n, device_total);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&total, device_total, sizeof total, cudaMemcpyDeviceToHost));
    CHECK((long long)total == wanted, "%lld, wanted %lld", (long long)total, wanted);
    warp_operations<<<1, 32>>>(device_numbers, device_out);
    OK(cudaGetLastError());
    std::vector<unsigned> out(32 * WORDS);
    OK(cudaMemcpy(out.data(), device_out, out.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    check_warp(numbers, out);
    OK(cudaFree(device_numbers));
    OK(cudaFree(device_total));
    OK(cudaFree(device_out));
    printf("%d numbers sum to %lld; %d warp operations agree in 32 lanes\n", n, wanted, WORDS);
    return finish("reduce_shuffle");
}
