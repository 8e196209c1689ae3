// Divergent control flow in a warp: nested loops with breaks and continues, switches that fall through, jumps into the
// middle, early returns before a barrier of the remaining threads, and ballots inside branches.
#include "buffer.h"

// Falling through is the point here.
#pragma GCC diagnostic ignored "-Wimplicit-fallthrough"

constexpr int N = 256;

__host__ __device__ inline int collatz(unsigned n) {
    int steps = 0;
    while (n != 1) {
        n = n % 2 ? 3 * n + 1 : n / 2;
        steps++;
    }
    return steps;
}

// Two loops deep, left in four different ways.
__host__ __device__ inline int search(int seed) {
    int found = -1;
    for (int i = 1; i < 20; i++) {
        if (i % 7 == seed % 7) continue;
        for (int k = 0; k < 20; k++) {
            int value = (seed * 31 + i * 17 + k * 13) % 101;
            if (value == 3) break;
            if (value == 50) return i * 100 + k;
            if (value % 10 == seed % 10) {
                found = value;
                goto next;
            }
            found += value & 1;
        }
        found -= 2;
    next:
        if (found > 90) return found;
    }
    return found;
}

__host__ __device__ inline int fall_through(int n) {
    int sum = 0;
    switch (n % 9) {
    case 0: sum += 1;
    case 1: sum += 20;
    case 2: sum += 300; break;
    case 3: return -1;
    case 4: sum = n;
    case 7: sum *= 2; break;
    case 8:
        for (int i = 0; i < n; i += 9) sum += i;
        break;
    default: sum = 7;
    }
    return sum + 5;
}

// Duff's loop: a switch into the middle of a loop.
__host__ __device__ inline int duff(int count) {
    int sum = 0, rounds = (count + 3) / 4;
    switch (count % 4) {
    case 0:
        do {
            sum += 1;
        case 3: sum += 10;
        case 2: sum += 100;
        case 1: sum += 1000;
        } while (--rounds > 0);
    }
    return sum;
}

__global__ void all_ways(int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = collatz(unsigned(i + 1)), out[N + i] = search(i), out[2 * N + i] = fall_through(i), out[3 * N + i] = duff(i % 30 + 1);
}

// Threads leave one after the other; those left still meet at barriers and see each other's votes.
__global__ void leave_early(int *out) {
    __shared__ int counter;
    if (threadIdx.x == 0) counter = 0;
    __syncthreads();
    if (threadIdx.x % 4 == 3) return;
    atomicAdd(&counter, 1);
    __syncthreads();
    int at_first = counter;
    int votes = 0;
    if (threadIdx.x % 4 == 1) votes = __popc(__ballot_sync(0x22222222u, threadIdx.x % 8 == 1));
    else votes = -__popc(__ballot_sync(0x55555555u, threadIdx.x % 8 == 0));
    if (threadIdx.x >= 64) return;
    int below = __syncthreads_count(threadIdx.x < 10);
    out[threadIdx.x] = at_first * 10000 + votes * 100 + below;
}

int main() {
    Buffer<int> out(4 * N), left(128);
    all_ways<<<2, N / 2>>>(out);
    RAN();
    std::vector<int> o = out.read();
    for (int i = 0; i < N; i++) {
        CHECK_QUIETLY(o[i] == collatz(unsigned(i + 1)), "collatz %d: %d", i, o[i]);
        CHECK_QUIETLY(o[N + i] == search(i), "search %d: %d, wanted %d", i, o[N + i], search(i));
        CHECK_QUIETLY(o[2 * N + i] == fall_through(i), "switch %d: %d, wanted %d", i, o[2 * N + i], fall_through(i));
        CHECK_QUIETLY(o[3 * N + i] == duff(i % 30 + 1), "duff %d: %d, wanted %d", i, o[3 * N + i], duff(i % 30 + 1));
    }
    leave_early<<<1, 128>>>(left);
    RAN();
    std::vector<int> l = left.read();
    for (int t = 0; t < 128; t++) {
        int wanted = t % 4 == 3 || t >= 64 ? 0 : 96 * 10000 + (t % 4 == 1 ? 4 : -4) * 100 + 8;
        CHECK(l[t] == wanted, "thread %d: %d, wanted %d", t, l[t], wanted);
    }
    printf("%d threads went four ways each; 80 of 128 left early\n", N);
    return finish("divergence");
}
