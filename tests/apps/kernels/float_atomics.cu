// Atomic operations beyond integer sums: floats of every width and in pairs, extremes, exchanges, wrapping counters, a
// compare-and-swap loop for an operation without an instruction, on global, shared and generic addresses.
#include "buffer.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Totals {
    double sum;
    float fsum;
    __half2 halves;
    __nv_bfloat162 brains;
    __half half;
    unsigned short word;
    int lowest, highest;
    unsigned long long low, high, bits, taken;
    unsigned wrapped, counted_down, shared_sum, exchanged, product;
};

__device__ void multiply(unsigned *at, unsigned factor) {
    unsigned old = *at, seen;
    do {
        seen = old;
        old = atomicCAS(at, seen, seen * factor);
    } while (old != seen);
}

__global__ void update(Totals *t, const int *in) {
    __shared__ unsigned shared_sum;
    __shared__ float shared_float;
    if (threadIdx.x == 0) shared_sum = 0, shared_float = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = in[i];
    atomicAdd(&t->sum, x * 0.25);
    atomicAdd(&t->fsum, float(x));
    if (i < 64) {
        // Small whole numbers, so that the sums are exact in any order.
        atomicAdd(&t->halves, __floats2half2_rn(1.0f, 2.0f));
        atomicAdd(&t->brains, __floats2bfloat162_rn(1.0f, -1.0f));
        atomicAdd(&t->half, __float2half(1.0f));
    }
    atomicMin(&t->lowest, x), atomicMax(&t->highest, x);
    atomicMin(&t->low, (unsigned long long)(x + 5000)), atomicMax(&t->high, (unsigned long long)(x + 5000));
    atomicOr(&t->bits, 1ull << (x & 63)), atomicXor(&t->taken, (unsigned long long)(unsigned)x << 20);
    atomicInc(&t->wrapped, 9), atomicDec(&t->counted_down, 100);
    atomicAdd(&shared_sum, unsigned(x + 1000)), atomicAdd(&shared_float, float(x));
    // Some lanes on shared, some on global memory, in one instruction.
    unsigned dummy_sum = 0;
    unsigned *either = threadIdx.x % 2 ? &shared_sum : &t->exchanged;
    atomicAdd(either, 0u), dummy_sum = atomicOr(either, 0u);
    if (dummy_sum == 0xffffffffu) t->product = 0;
    if (i < 20) multiply(&t->product, 3);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&t->shared_sum, shared_sum + unsigned(int(shared_float)));
        atomicExch(&t->exchanged, blockIdx.x + 1000);
    }
    if (i < 7) {
        unsigned short old = t->word, seen;
        do {
            seen = old;
            old = atomicCAS(&t->word, seen, (unsigned short)(seen + 111));
        } while (old != seen);
    }
}

int main() {
    const int n = 512;
    Numbers numbers(21);
    std::vector<int> in(n);
    double sum = 0;
    int lowest = 9999, highest = -9999;
    unsigned long long bits = 0, taken = 0;
    unsigned all = 0;
    for (int &x : in) {
        x = int(numbers.below(2000)) - 1000;
        sum += x * 0.25, lowest = std::min(lowest, x), highest = std::max(highest, x);
        bits |= 1ull << (x & 63), taken ^= (unsigned long long)(unsigned)x << 20, all += unsigned(x + 1000) + unsigned(x);
    }
    Totals start{};
    start.lowest = INT32_MAX, start.highest = INT32_MIN, start.low = ~0ull, start.counted_down = 50, start.product = 1;
    Buffer<int> device_in(in);
    Buffer<Totals> device_totals(std::vector<Totals>{start});
    update<<<n / 128, 128>>>(device_totals, device_in);
    RAN();
    Totals t = device_totals.read()[0];
    CHECK(t.sum == sum && t.fsum == float(sum * 4), "sums %g, %g, wanted %g", t.sum, t.fsum, sum);
    CHECK(__low2float(t.halves) == 64 && __high2float(t.halves) == 128, "halves %g, %g", __low2float(t.halves), __high2float(t.halves));
    CHECK(__low2float(t.brains) == 64 && __high2float(t.brains) == -64, "brains %g, %g", __low2float(t.brains), __high2float(t.brains));
    CHECK(__half2float(t.half) == 64, "half %g", __half2float(t.half));
    CHECK(t.word == 777, "halfword %u", t.word);
    CHECK(t.lowest == lowest && t.highest == highest, "%d to %d", t.lowest, t.highest);
    CHECK(t.low == (unsigned long long)(lowest + 5000) && t.high == (unsigned long long)(highest + 5000), "%llu to %llu", t.low, t.high);
    CHECK(t.bits == bits && t.taken == taken, "bits %llx, %llx", t.bits, t.taken);
    CHECK(t.wrapped == n % 10 && t.counted_down == (50 + 101 * 6 - n) % 101, "counters %u, %u", t.wrapped, t.counted_down);
    CHECK(t.shared_sum == all, "shared %u, wanted %u", t.shared_sum, all);
    CHECK(t.exchanged >= 1000 && t.exchanged < 1004, "exchanged %u", t.exchanged);
    CHECK(t.product == 3486784401u, "product %u", t.product);
    printf("%d threads updated 17 totals\n", n);
    return finish("float_atomics");
}
