// Kernels that write into pinned memory, which the program reads after each wait: one large block and many small ones.
//
//   mapped_steps [STEPS [MIB]]
#include "steps.h"

#include <vector>

constexpr int SMALL = 40;
constexpr int WORDS = 512;

struct Blocks {
    unsigned *of[SMALL];
};

__global__ void mark(unsigned *large, size_t count, Blocks small, unsigned step) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    // Writes one word of each MiB, and all small blocks.
    if (i << 18 < count) large[(i << 18) + step] = unsigned(i) * 2654435761u + step;
    if (i < WORDS)
        for (int block = 0; block < SMALL; block++) small.of[block][i] = unsigned(block * WORDS + i) ^ step;
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 3);
    const size_t mebibytes = argc > 2 ? atoi(argv[2]) : 16, count = mebibytes << 18;
    unsigned *large;
    Blocks small;
    OK(cudaMallocHost(&large, count * sizeof(unsigned)));
    for (unsigned *&block : small.of) OK(cudaMallocHost(&block, WORDS * sizeof(unsigned)));
    for (int step = 0; step < steps; step++) {
        mark<<<WORDS / 128, 128>>>(large, count, small, step);
        OK(cudaGetLastError());
        OK(cudaDeviceSynchronize());
        Checksum sum;
        for (size_t i = 0; i < mebibytes; i++) sum.add(large[(i << 18) + step]);
        for (const unsigned *block : small.of) sum.bytes(block, WORDS * sizeof(unsigned));
        told(step, sum);
        for (size_t i = 0; i < mebibytes; i++)
            CHECK(large[(i << 18) + step] == unsigned(i) * 2654435761u + step, "MiB %zu of step %d", i, step);
        for (int block = 0; block < SMALL; block++)
            CHECK(small.of[block][WORDS - 1] == (unsigned(block * WORDS + WORDS - 1) ^ unsigned(step)), "block %d", block);
    }
    for (unsigned *block : small.of) OK(cudaFreeHost(block));
    OK(cudaFreeHost(large));
    return finish("mapped_steps");
}
