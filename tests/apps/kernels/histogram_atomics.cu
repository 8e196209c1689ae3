// A histogram with shared and global atomics, and each other kind of atomic once. The results do not depend on order.
#include "check.h"

#include <algorithm>
#include <vector>

constexpr int BINS = 64;

__global__ void histogram(const unsigned char *bytes, int n, unsigned *bins) {
    __shared__ unsigned mine[BINS];
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) mine[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&mine[bytes[i] % BINS], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) atomicAdd(&bins[i], mine[i]);
}

struct Cells {
    int least, most, swapped, minus;
    unsigned all, any, odd, wrapped, down;
    unsigned long long wide, wide_most;
    float sum, most_by_swap;
    double wide_sum;
};

// The maximum of floats by compare-and-swap on their bits: the loop that every lane must be able to win.
__device__ void max_by_swap(float *cell, float value) {
    unsigned *bits = reinterpret_cast<unsigned *>(cell);
    unsigned seen = *bits;
    while (__uint_as_float(seen) < value) {
        unsigned before = atomicCAS(bits, seen, __float_as_uint(value));
        if (before == seen) break;
        seen = before;
    }
}

__global__ void every_kind(const int *numbers, int n, Cells *cells) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = numbers[i];
    atomicMin(&cells->least, x);
    atomicMax(&cells->most, x);
    atomicExch(&cells->swapped, 42);
    atomicSub(&cells->minus, x);
    atomicAnd(&cells->all, unsigned(x) | 0xff00u);
    atomicOr(&cells->any, 1u << (x % 16));
    atomicXor(&cells->odd, unsigned(x));
    atomicInc(&cells->wrapped, 99);
    atomicDec(&cells->down, 99);
    atomicAdd(&cells->wide, (unsigned long long)x << 20);
    atomicMax(&cells->wide_most, (unsigned long long)x << 33);
    atomicAdd(&cells->sum, float(x % 8));
    max_by_swap(&cells->most_by_swap, float(x) * 0.5f);
    atomicAdd(&cells->wide_sum, double(x) * 0.125);
}

static Cells on_host(const std::vector<int> &numbers, Cells c) {
    for (int x : numbers) {
        c.least = std::min(c.least, x);
        c.most = std::max(c.most, x);
        c.swapped = 42;
        c.minus -= x;
        c.all &= unsigned(x) | 0xff00u;
        c.any |= 1u << (x % 16);
        c.odd ^= unsigned(x);
        c.wrapped = c.wrapped >= 99 ? 0 : c.wrapped + 1;
        c.down = c.down == 0 || c.down > 99 ? 99 : c.down - 1;
        c.wide += (unsigned long long)x << 20;
        c.wide_most = std::max(c.wide_most, (unsigned long long)x << 33);
        c.sum += float(x % 8);
        c.most_by_swap = std::max(c.most_by_swap, float(x) * 0.5f);
        c.wide_sum += double(x) * 0.125;
    }
    return c;
}

static void check_every_kind() {
    const int n = 3000;
    Numbers source(13);
    std::vector<int> numbers(n);
    for (int &x : numbers) x = 100 + int(source.below(10000));
    const Cells start = {1 << 30, -1, 0, 7, ~0u, 0, 5, 0, 50, 1, 0, 0, 0, 0};
    Cells cells, wanted = on_host(numbers, start);
    int *device_numbers;
    Cells *device_cells;
    OK(cudaMalloc(&device_numbers, n * sizeof(int)));
    OK(cudaMalloc(&device_cells, sizeof(Cells)));
    OK(cudaMemcpy(device_numbers, numbers.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(device_cells, &start, sizeof(Cells), cudaMemcpyHostToDevice));
    every_kind<<<(n + 127) / 128, 128>>>(device_numbers, n, device_cells);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&cells, device_cells, sizeof(Cells), cudaMemcpyDeviceToHost));
    CHECK(cells.least == wanted.least, "min: %d, wanted %d", cells.least, wanted.least);
    CHECK(cells.most == wanted.most, "max: %d, wanted %d", cells.most, wanted.most);
    CHECK(cells.swapped == wanted.swapped, "exchange: %d", cells.swapped);
    CHECK(cells.minus == wanted.minus, "subtract: %d, wanted %d", cells.minus, wanted.minus);
    CHECK(cells.all == wanted.all, "and: %x, wanted %x", cells.all, wanted.all);
    CHECK(cells.any == wanted.any, "or: %x, wanted %x", cells.any, wanted.any);
    CHECK(cells.odd == wanted.odd, "xor: %x, wanted %x", cells.odd, wanted.odd);
    CHECK(cells.wrapped == wanted.wrapped, "increment: %u, wanted %u", cells.wrapped, wanted.wrapped);
    CHECK(cells.down == wanted.down, "decrement: %u, wanted %u", cells.down, wanted.down);
    CHECK(cells.wide == wanted.wide, "64-bit add: %llu, wanted %llu", cells.wide, wanted.wide);
    CHECK(cells.wide_most == wanted.wide_most, "64-bit max: %llu, wanted %llu", cells.wide_most, wanted.wide_most);
    CHECK(cells.sum == wanted.sum, "float add: %g, wanted %g", cells.sum, wanted.sum);
    CHECK(cells.most_by_swap == wanted.most_by_swap, "compare and swap: %g", cells.most_by_swap);
    CHECK(cells.wide_sum == wanted.wide_sum, "double add: %g, wanted %g", cells.wide_sum, wanted.wide_sum);
    OK(cudaFree(device_numbers));
    OK(cudaFree(device_cells));
}

int main() {
    const int n = 100000;
    Numbers source(17);
    std::vector<unsigned char> bytes(n);
    std::vector<unsigned> wanted(BINS), bins(BINS);
    for (unsigned char &b : bytes) {
        b = (unsigned char)source.below(256);
        wanted[b % BINS]++;
    }
    unsigned char *device_bytes;
    unsigned *device_bins;
    OK(cudaMalloc(&device_bytes, n));
    OK(cudaMalloc(&device_bins, BINS * sizeof(unsigned)));
    OK(cudaMemcpy(device_bytes, bytes.data(), n, cudaMemcpyHostToDevice));
    OK(cudaMemset(device_bins, 0, BINS * sizeof(unsigned)));
    histogram<<<16, 192>>>(device_bytes, n, device_bins);
    OK(cudaGetLastError());
    OK(cudaMemcpy(bins.data(), device_bins, BINS * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (int i = 0; i < BINS; i++) CHECK(bins[i] == wanted[i], "bin %d: %u, wanted %u", i, bins[i], wanted[i]);
    OK(cudaFree(device_bytes));
    OK(cudaFree(device_bins));
    check_every_kind();
    printf("%d bytes in %d bins; 14 kinds of atomic agree\n", n, BINS);
    return finish("histogram_atomics");
}
