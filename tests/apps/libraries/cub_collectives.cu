// CUB: collectives of a warp and a block (sums, scans, sorts, exchanges, histograms), and algorithms over the device
// (radix sort, selection, segmented sums, run lengths) with storage from the program.
#include "buffer.h"

#include <algorithm>
#include <cub/cub.cuh>
#include <map>
#include <numeric>

constexpr int THREADS = 128, ITEMS = 4, TILE = THREADS * ITEMS;

__global__ void in_block(const int *in, int *out, int *histogram) {
    using Scan = cub::BlockScan<int, THREADS>;
    using Sort = cub::BlockRadixSort<unsigned, THREADS, ITEMS>;
    using Reduce = cub::BlockReduce<int, THREADS>;
    using Histogram = cub::BlockHistogram<unsigned char, THREADS, ITEMS, 16>;
    using Warp = cub::WarpReduce<int>;
    __shared__ union {
        Scan::TempStorage scan;
        Sort::TempStorage sort;
        Reduce::TempStorage reduce;
        Histogram::TempStorage histogram;
        Warp::TempStorage warp[THREADS / 32];
    } room;
    __shared__ unsigned counts[16];
    int values[ITEMS], sums[ITEMS];
    unsigned keys[ITEMS];
    unsigned char bins[ITEMS];
    int base = int(threadIdx.x) * ITEMS;
    for (int i = 0; i < ITEMS; i++) values[i] = in[base + i], keys[i] = unsigned(values[i]), bins[i] = (unsigned char)(values[i] % 16);
    int total, highest;
    Scan(room.scan).InclusiveSum(values, sums, total);
    __syncthreads();
    highest = Reduce(room.reduce).Reduce(values, [] __device__(int a, int b) { return a > b ? a : b; });
    __syncthreads();
    Sort(room.sort).Sort(keys);
    __syncthreads();
    Histogram(room.histogram).Histogram(bins, counts);
    __syncthreads();
    int of_warp = Warp(room.warp[threadIdx.x / 32]).Sum(values[0]);
    for (int i = 0; i < ITEMS; i++) out[base + i] = sums[i], out[TILE + base + i] = int(keys[i]);
    if (threadIdx.x % 32 == 0) out[2 * TILE + threadIdx.x / 32] = of_warp;
    if (threadIdx.x == 0) out[2 * TILE + 4] = total, out[2 * TILE + 5] = highest;
    if (threadIdx.x < 16) histogram[threadIdx.x] = int(counts[threadIdx.x]);
}

static void check_block(std::vector<int> in) {
    Buffer<int> device_in(in), out(2 * TILE + 6), histogram(16);
    in_block<<<1, THREADS>>>(device_in, out, histogram);
    RAN();
    std::vector<int> o = out.read(), h = histogram.read(), sums(TILE);
    std::partial_sum(in.begin(), in.begin() + TILE, sums.begin());
    CHECK(std::equal(sums.begin(), sums.end(), o.begin()), "the scan of a block");
    for (int warp = 0; warp < 4; warp++) {
        int wanted = 0;
        for (int lane = 0; lane < 32; lane++) wanted += in[(warp * 32 + lane) * ITEMS];
        CHECK(o[2 * TILE + warp] == wanted, "sum of warp %d", warp);
    }
    for (int bin = 0; bin < 16; bin++)
        CHECK(h[bin] == std::count_if(in.begin(), in.begin() + TILE, [=](int x) { return x % 16 == bin; }), "bin %d", bin);
    in.resize(TILE);
    CHECK(o[2 * TILE + 4] == sums.back() && o[2 * TILE + 5] == *std::max_element(in.begin(), in.end()), "total and highest");
    std::sort(in.begin(), in.end());
    CHECK(std::equal(in.begin(), in.end(), o.begin() + TILE), "the sort of a block");
}

// Calls `algorithm` twice: for the size of its storage, then with it.
template <class F> static void with_storage(F algorithm) {
    size_t bytes = 0;
    OK(algorithm(nullptr, bytes));
    Buffer<char> storage(bytes);
    OK(algorithm(static_cast<void *>(storage.data), bytes));
    RAN();
}

struct IsOdd {
    __device__ bool operator()(int x) const { return x % 2 != 0; }
};

static void check_device(const std::vector<int> &in) {
    const int n = int(in.size());
    Buffer<int> device_in(in), out(n), more(n), count(1);
    with_storage([&](void *storage, size_t &bytes) { return cub::DeviceRadixSort::SortKeysDescending(storage, bytes, device_in.data, out.data, n); });
    std::vector<int> sorted = in;
    std::sort(sorted.rbegin(), sorted.rend());
    CHECK(out.read() == sorted, "the sort of the device");
    with_storage([&](void *storage, size_t &bytes) { return cub::DeviceRunLengthEncode::Encode(storage, bytes, out.data, more.data, device_in.data, count.data, n); });
    std::map<int, int, std::greater<int>> lengths;
    for (int x : in) lengths[x]++;
    std::vector<int> values = more.read(), runs = device_in.read();
    CHECK(count.read()[0] == int(lengths.size()), "%d runs", count.read()[0]);
    int at = 0;
    for (auto [value, length] : lengths) {
        CHECK_QUIETLY(values[at] == value && runs[at] == length, "run %d: %d times %d", at, runs[at], values[at]);
        at++;
    }
    device_in.write(in);
    with_storage([&](void *storage, size_t &bytes) { return cub::DeviceSelect::If(storage, bytes, device_in.data, out.data, count.data, n, IsOdd()); });
    std::vector<int> odd, got = out.read();
    for (int x : in)
        if (x % 2) odd.push_back(x);
    got.resize(count.read()[0]);
    CHECK(got == odd, "%zu odd numbers", got.size());
    std::vector<int> offsets = {0, 10, 10, 500, n};
    Buffer<int> device_offsets(offsets), sums(4);
    with_storage([&](void *storage, size_t &bytes) {
        return cub::DeviceSegmentedReduce::Sum(storage, bytes, device_in.data, sums.data, 4, device_offsets.data, device_offsets.data + 1);
    });
    for (int s = 0; s < 4; s++) CHECK(sums.read()[s] == std::accumulate(&in[0] + offsets[s], &in[0] + offsets[s + 1], 0), "segment %d", s);
}

int main() {
    Numbers source(31);
    std::vector<int> numbers(2000);
    for (int &x : numbers) x = int(source.below(300));
    check_block(numbers);
    check_device(numbers);
    printf("6 collectives of a block, 4 algorithms over %zu numbers\n", numbers.size());
    return finish("cub_collectives");
}
