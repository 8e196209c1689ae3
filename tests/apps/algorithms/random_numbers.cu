// Random number generators: Philox with a key per thread, a Mersenne-like shift register in shared memory, Box-Muller
// pairs. The integers are exact; an estimate of pi and moments have bounds far outside chance.
#include "buffer.h"

#include <cmath>

constexpr int THREADS = 256, EACH = 64;

struct Four {
    unsigned v[4];
};

// Philox 4x32 with ten rounds.
__host__ __device__ inline Four philox(Four counter, unsigned key0, unsigned key1) {
    for (int round = 0; round < 10; round++) {
        unsigned long long p = 0xD2511F53ull * counter.v[0], q = 0xCD9E8D57ull * counter.v[2];
        counter = {{unsigned(q >> 32) ^ counter.v[1] ^ key0, unsigned(q), unsigned(p >> 32) ^ counter.v[3] ^ key1, unsigned(p)}};
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return counter;
}

__global__ void draw(unsigned *out, int *inside, float *moments) {
    __shared__ int hits;
    if (threadIdx.x == 0) hits = 0;
    __syncthreads();
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    int mine = 0;
    float sum = 0, squares = 0;
    for (unsigned i = 0; i < EACH / 4; i++) {
        Four r = philox({{i, 0, thread, 7}}, 2026, thread);
        for (int k = 0; k < 4; k++) out[thread * EACH + i * 4 + k] = r.v[k];
        for (int k = 0; k < 4; k += 2) {
            float x = r.v[k] * 0x1p-32f, y = r.v[k + 1] * 0x1p-32f;
            mine += x * x + y * y < 1;
            float radius = sqrtf(-2 * logf(x + 0x1p-33f)), normal = radius * cospif(2 * y), other = radius * sinpif(2 * y);
            sum += normal + other, squares += normal * normal + other * other;
        }
    }
    atomicAdd(&hits, mine), atomicAdd(moments, sum), atomicAdd(moments + 1, squares);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(inside, hits);
}

constexpr int STATE = 351, SHIFT = 175;

// A lagged register of a block: each step makes as many words as there are threads, from words further back.
__global__ void shift_register(unsigned *out, int steps) {
    __shared__ unsigned state[STATE];
    for (int i = int(threadIdx.x); i < STATE; i += int(blockDim.x)) state[i] = unsigned(i) * 1812433253u + 5;
    __syncthreads();
    int head = 0;
    for (int step = 0; step < steps; step++) {
        int at = (head + int(threadIdx.x)) % STATE;
        unsigned x = state[at], y = state[(at + SHIFT) % STATE];
        __syncthreads();
        x = (x ^ (x << 13)) ^ (y >> 9) ^ (y << 5);
        state[at] = x;
        out[step * int(blockDim.x) + int(threadIdx.x)] = x;
        head = (head + int(blockDim.x)) % STATE;
        __syncthreads();
    }
}

int main() {
    Buffer<unsigned> out(2 * THREADS * EACH), words(128 * 20);
    Buffer<int> inside(1);
    Buffer<float> moments(2);
    draw<<<2, THREADS>>>(out, inside, moments);
    RAN();
    std::vector<unsigned> o = out.read();
    for (unsigned thread = 0; thread < 2 * THREADS; thread++) {
        for (unsigned i = 0; i < EACH / 4; i++) {
            Four r = philox({{i, 0, thread, 7}}, 2026, thread);
            for (int k = 0; k < 4; k++) CHECK_QUIETLY(o[thread * EACH + i * 4 + k] == r.v[k], "thread %u, number %u", thread, i * 4 + k);
        }
    }
    // Known answer of the generator's authors: counter and key all zero.
    Four zero = philox({{0, 0, 0, 0}}, 0, 0);
    CHECK(zero.v[0] == 0x6627e8d5u && zero.v[3] == 0x9b00dbd8u, "%x %x", zero.v[0], zero.v[3]);
    double n = 2.0 * THREADS * EACH, pi = 4 * inside.read()[0] / (n / 2), mean = moments.read()[0] / n, variance = moments.read()[1] / n;
    CHECK(std::fabs(pi - 3.14159) < 0.1 && std::fabs(mean) < 0.05 && std::fabs(variance - 1) < 0.1, "pi %g, mean %g, variance %g", pi, mean, variance);
    shift_register<<<1, 128>>>(words, 20);
    RAN();
    std::vector<unsigned> w = words.read(), state(STATE);
    for (unsigned i = 0; i < STATE; i++) state[i] = i * 1812433253u + 5;
    for (int step = 0, head = 0; step < 20; step++, head = (head + 128) % STATE) {
        std::vector<unsigned> before = state;
        for (int t = 0; t < 128; t++) {
            int at = (head + t) % STATE;
            unsigned x = before[at], y = before[(at + SHIFT) % STATE];
            state[at] = (x ^ (x << 13)) ^ (y >> 9) ^ (y << 5);
            CHECK_QUIETLY(w[step * 128 + t] == state[at], "step %d, thread %d", step, t);
        }
    }
    printf("%d random numbers of 2 generators are exact\n", int(n) + 128 * 20);
    return finish("random_numbers");
}
