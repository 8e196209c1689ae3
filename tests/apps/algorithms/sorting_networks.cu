// Sorts without any library: a bitonic network over shared memory and across blocks, a radix sort of signed numbers by
// ranks in a warp, an odd-even sort in registers by shuffles, and the k-th largest by a histogram of digits.
#include "buffer.h"

#include <algorithm>

constexpr int N = 2048, BLOCK = 256;

// Steps of the network that stay within 512 elements.
__global__ void bitonic_inside(int *data, int first_size, int last_size) {
    __shared__ int part[2 * BLOCK];
    int base = blockIdx.x * 2 * BLOCK, t = int(threadIdx.x);
    part[t] = data[base + t], part[t + BLOCK] = data[base + t + BLOCK];
    for (int size = first_size; size <= last_size; size *= 2)
        for (int stride = min(size / 2, BLOCK); stride > 0; stride /= 2) {
            __syncthreads();
            int at = 2 * t - (t & (stride - 1));
            bool up = ((base + at) & size) == 0;
            int low = part[at], high = part[at + stride];
            if ((low > high) == up) part[at] = high, part[at + stride] = low;
        }
    __syncthreads();
    data[base + t] = part[t], data[base + t + BLOCK] = part[t + BLOCK];
}

__global__ void bitonic_across(int *data, int size, int stride) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, at = 2 * t - (t & (stride - 1));
    int low = data[at], high = data[at + stride];
    if ((low > high) == ((at & size) == 0)) data[at] = high, data[at + stride] = low;
}

static void bitonic(int *data) {
    bitonic_inside<<<N / (2 * BLOCK), BLOCK>>>(data, 2, 2 * BLOCK);
    for (int size = 4 * BLOCK; size <= N; size *= 2) {
        for (int stride = size / 2; stride > BLOCK; stride /= 2) bitonic_across<<<N / (2 * BLOCK), BLOCK>>>(data, size, stride);
        bitonic_inside<<<N / (2 * BLOCK), BLOCK>>>(data, size, size);
    }
}

// One warp sorts by four bits at a time: equal digits are ranked by a ballot for each bit.
__global__ void radix(int *data, int *other, int n) {
    __shared__ int counts[16];
    int lane = int(threadIdx.x);
    for (int shift = 0; shift < 32; shift += 4) {
        if (lane < 16) counts[lane] = 0;
        __syncwarp();
        auto digit_of = [=](int value) { return (unsigned(value) ^ 0x80000000u) >> shift & 15; };
        for (int i = lane; i < n; i += 32) atomicAdd(&counts[digit_of(data[i])], 1);
        __syncwarp();
        int mine = lane < 16 ? counts[lane] : 0, sum = mine;
        for (int distance = 1; distance < 16; distance *= 2) {
            int below = __shfl_up_sync(0xffffffffu, sum, distance);
            if (lane >= distance) sum += below;
        }
        if (lane < 16) counts[lane] = sum - mine;
        __syncwarp();
        for (int i = lane; i - lane < n; i += 32) {
            unsigned here = __ballot_sync(0xffffffffu, i < n);
            if (i < n) {
                unsigned digit = digit_of(data[i]), same = here;
                for (int bit = 0; bit < 4; bit++) {
                    unsigned votes = __ballot_sync(here, digit >> bit & 1);
                    same &= digit >> bit & 1 ? votes : ~votes;
                }
                int rank = __popc(same & ((1u << lane) - 1)), start = counts[digit];
                __syncwarp(here);
                if (rank == 0) counts[digit] = start + __popc(same);
                other[start + rank] = data[i];
            }
            __syncwarp();
        }
        int *swap = data;
        data = other, other = swap;
    }
}

// Each row of 32 in a warp's registers.
__global__ void odd_even(int *data) {
    int lane = int(threadIdx.x % 32), i = blockIdx.x * blockDim.x + threadIdx.x, value = data[i];
    for (int step = 0; step < 32; step++) {
        int partner = (lane + step) % 2 ? lane - 1 : lane + 1;
        bool paired = partner >= 0 && partner < 32;
        int theirs = __shfl_sync(0xffffffffu, value, paired ? partner : lane);
        if (paired) value = partner > lane ? min(value, theirs) : max(value, theirs);
    }
    data[i] = value;
}

__global__ void kth_largest(const int *data, int n, int k, int *out) {
    __shared__ int counts[256];
    unsigned prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        counts[threadIdx.x] = 0;
        __syncthreads();
        for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) {
            unsigned value = unsigned(data[i]) ^ 0x80000000u;
            if (shift == 24 || value >> (shift + 8) == prefix >> (shift + 8)) atomicAdd(&counts[value >> shift & 255], 1);
        }
        __syncthreads();
        int digit = 255;
        for (; counts[digit] < k; digit--) k -= counts[digit];
        prefix |= unsigned(digit) << shift;
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = int(prefix ^ 0x80000000u);
}

int main() {
    Numbers numbers(64);
    std::vector<int> in(N), sorted;
    for (int i = 0; i < N; i++) in[i] = i % 10 == 0 ? int(numbers.below(5)) - 2 : int(numbers.next());
    sorted = in;
    std::sort(sorted.begin(), sorted.end());
    Buffer<int> data(in), other(N), result(1);
    kth_largest<<<1, 256>>>(data, N, 777, result);
    bitonic(data);
    RAN();
    CHECK(data.read() == sorted, "the bitonic network");
    CHECK(result.read()[0] == sorted[N - 777], "the 777th largest");
    data.write(in);
    radix<<<1, 32>>>(data, other, N - 5);
    RAN();
    std::vector<int> by_radix = data.read(), wanted(in.begin(), in.end() - 5);
    std::sort(wanted.begin(), wanted.end());
    by_radix.resize(N - 5);
    CHECK(by_radix == wanted, "the radix sort");
    data.write(in);
    odd_even<<<N / BLOCK, BLOCK>>>(data);
    RAN();
    std::vector<int> rows = data.read();
    for (int row = 0; row < N; row += 32) std::sort(&in[row], &in[row] + 32);
    CHECK(rows == in, "rows sorted by shuffles");
    printf("%d numbers sorted by 3 networks, and the 777th found\n", N);
    return finish("sorting_networks");
}
