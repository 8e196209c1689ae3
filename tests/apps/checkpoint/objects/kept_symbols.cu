// Variables of a module over all steps: constant memory, globals with external and internal names, variables
// inside functions, a pointer from one to another, and tables too large for anything but a global.
#include "steps.h"

__constant__ unsigned factors[8] = {3, 5, 7, 11, 13, 17, 19, 23};
__device__ unsigned counter = 10;
__device__ unsigned large[20000];
__device__ unsigned *chosen;
static __device__ unsigned hidden[16] = {1, 2, 3};

namespace {
__device__ unsigned nameless = 77;
}

// A variable that only this function can name.
__device__ unsigned calls_so_far() {
    static unsigned calls = 5;
    return atomicAdd(&calls, 1);
}

__global__ void choose(int which) { chosen = which % 2 ? &hidden[which % 16] : &large[which * 97 % 20000]; }

__global__ void work(unsigned salt, unsigned *out) {
    counter = counter * factors[salt % 8] + salt;
    nameless ^= counter >> 3;
    for (int i = 0; i < 16; i++) hidden[i] = hidden[i] * 31 + nameless + factors[i % 8];
    for (int i = 0; i < 50; i++) large[(salt * 50 + i) * 7 % 20000] += hidden[i % 16];
    *chosen += salt;
    out[0] = counter;
    out[1] = nameless;
    out[2] = calls_so_far();
    out[3] = *chosen;
    for (int i = 0; i < 16; i++) out[4 + i] = hidden[i];
    unsigned total = 0;
    for (int i = 0; i < 20000; i += 7) total = total * 31 + large[i];
    out[20] = total;
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 20);
    unsigned *out, host[21];
    OK(cudaMalloc(&out, sizeof host));
    void *address_at_first;
    OK(cudaGetSymbolAddress(&address_at_first, large));
    for (int step = 0; step < steps; step++) {
        if (step % 4 == 0) choose<<<1, 1>>>(step / 2);
        work<<<1, 1>>>(step, out);
        OK(cudaGetLastError());
        OK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
        Checksum sum;
        sum.add(host);
        told(step, sum);
        // The host changes constant memory and a global, and reads one back.
        unsigned factor = host[0] | 1, kept = 0;
        OK(cudaMemcpyToSymbol(factors, &factor, sizeof factor, step % 8 * sizeof factor));
        OK(cudaMemcpyFromSymbol(&kept, counter, sizeof kept));
        CHECK(kept == host[0], "step %d: %u, wanted %u", step, kept, host[0]);
        void *address;
        OK(cudaGetSymbolAddress(&address, large));
        CHECK(address == address_at_first, "step %d: the variable has moved", step);
    }
    OK(cudaFree(out));
    return finish("kept_symbols");
}
