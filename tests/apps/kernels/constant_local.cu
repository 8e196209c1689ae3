// Constant memory read at uniform and at divergent addresses, tables that the host changes between launches, and
// arrays of a thread that are indexed by data, so that they live in local memory.
#include "buffer.h"

#include <algorithm>

__constant__ int squares[64] = {0, 1, 4, 9, 16, 25, 36, 49, 64, 81};
struct alignas(16) Colour {
    double x, y, z, w;
};
__constant__ Colour colours[4];
__constant__ unsigned char letters[] = "softly, the katydid";
struct Settings {
    int factor;
    short offset;
    const int *more;
};
__constant__ Settings settings;

__global__ void from_constant(const int *index, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = squares[index[i]] * settings.factor + settings.offset + settings.more[0] + letters[i % 19];
}

__global__ void mix(double *out) {
    Colour c = colours[threadIdx.x % 4];
    out[threadIdx.x] = c.x + 10 * c.y + 100 * c.z + 1000 * c.w;
}

// Sorts 24 numbers a thread in an array of its own.
__global__ void sort_own(const int *in, int *out, int *median) {
    int own[24];
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = 0; i < 24; i++) own[i] = in[t * 24 + i];
    for (int i = 1; i < 24; i++) {
        int value = own[i], at = i;
        for (; at > 0 && own[at - 1] > value; at--) own[at] = own[at - 1];
        own[at] = value;
    }
    for (int i = 0; i < 24; i++) out[t * 24 + i] = own[i];
    median[t] = own[11 + t % 2];
}

// A histogram a thread, bytes wide; then a pointer into it goes to a function that is not inlined.
__device__ __noinline__ int sum_of(const unsigned char *counts, int from, int to) {
    int sum = 0;
    for (int i = from; i < to; i++) sum += counts[i] * i;
    return sum;
}

__global__ void own_histogram(const int *in, int *out) {
    unsigned char counts[256] = {};
    for (int i = 0; i < 200; i++) counts[(in[i] + threadIdx.x) & 255]++;
    out[threadIdx.x] = sum_of(counts, int(threadIdx.x), 256);
}

int main() {
    const int n = 960;
    Numbers numbers(8);
    std::vector<int> in(n), index(n);
    for (int i = 0; i < n; i++) in[i] = int(numbers.below(1000)), index[i] = i < 32 ? 7 : int(numbers.below(10));
    Buffer<int> device_in(in), device_index(index), out(n), more(std::vector<int>{100000}), median(40);
    for (int round = 1; round <= 2; round++) {
        Settings s{round * 3, short(-round), more.data};
        OK(cudaMemcpyToSymbol(settings, &s, sizeof s));
        from_constant<<<(n + 127) / 128, 128>>>(device_index, out, n);
        RAN();
        std::vector<int> o = out.read();
        for (int i = 0; i < n; i++) {
            int wanted = index[i] * index[i] * round * 3 - round + 100000 + "softly, the katydid"[i % 19];
            CHECK_QUIETLY(o[i] == wanted, "round %d, %d: %d, wanted %d", round, i, o[i], wanted);
        }
    }
    double table[16];
    for (int i = 0; i < 16; i++) table[i] = i;
    OK(cudaMemcpyToSymbol(colours, table, sizeof table));
    Buffer<double> mixed(32);
    mix<<<1, 32>>>(mixed);
    RAN();
    std::vector<double> m = mixed.read();
    for (int i = 0; i < 32; i++) CHECK(m[i] == (i % 4) * 4 * 1111 + 3210, "colour %d: %g", i, m[i]);
    sort_own<<<2, 20>>>(device_in, out, median);
    RAN();
    std::vector<int> o = out.read(), middle = median.read();
    for (int t = 0; t < 40; t++) {
        std::vector<int> wanted(in.begin() + t * 24, in.begin() + t * 24 + 24);
        std::sort(wanted.begin(), wanted.end());
        CHECK(std::equal(wanted.begin(), wanted.end(), o.begin() + t * 24), "thread %d sorted otherwise", t);
        CHECK(middle[t] == wanted[11 + t % 2], "median of thread %d", t);
    }
    own_histogram<<<1, 64>>>(device_in, out);
    RAN();
    o = out.read();
    for (int t = 0; t < 64; t++) {
        int counts[256] = {}, wanted = 0;
        for (int i = 0; i < 200; i++) counts[(in[i] + t) & 255]++;
        for (int i = t; i < 256; i++) wanted += counts[i] * i;
        CHECK_QUIETLY(o[t] == wanted, "histogram of thread %d: %d, wanted %d", t, o[t], wanted);
    }
    printf("constants read %d times twice, 40 threads sorted, 64 counted\n", n);
    return finish("constant_local");
}
