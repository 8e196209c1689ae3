// Available device memory in all, in KiB: in blocks of one size, of mixed sizes, and with gaps between them.
//
// Not a test by itself: the output depends on the device. The program touches none of the memory.
#include "check.h"

#include <cuda_runtime.h>

#include <cmath>
#include <vector>

static const size_t KIB = 1 << 10, MIB = 1 << 20;

struct Block {
    void *place;
    size_t size;
};

static bool take(std::vector<Block> &blocks, size_t size) {
    void *place = nullptr;
    cudaError_t got = cudaMalloc(&place, size);
    if (got == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return false;
    }
    OK(got);
    blocks.push_back({place, size});
    return true;
}

static size_t sum(const std::vector<Block> &blocks) {
    size_t bytes = 0;
    for (const Block &block : blocks) bytes += block.size;
    return bytes;
}

static void give(std::vector<Block> &blocks) {
    for (const Block &block : blocks) OK(cudaFree(block.place));
    blocks.clear();
}

static void say(const char *what, size_t bytes) { printf("%s %zu\n", what, bytes / KIB); }

int main() {
    std::vector<Block> blocks;
    for (size_t size : {64 * MIB, 3 * MIB}) {
        while (take(blocks, size)) {}
        say(size == 3 * MIB ? "threes" : "large", sum(blocks));
        give(blocks);
    }
    // Each power of two is as likely as any other; what does not fit is tried with half of it, down to the last.
    Numbers numbers(7);
    for (bool is_full = false; !is_full;) {
        size_t size = size_t(4 * KIB * exp2(14 * (numbers.unit() + 1) / 2));
        for (; !is_full && !take(blocks, size); size /= 2) is_full = size <= 4 * KIB;
    }
    say("mixed", sum(blocks));
    // What of the freed blocks fills no whole 2 MiB may share those with blocks that stay: a GPU gives out no less.
    std::vector<Block> kept;
    size_t scraps = 0;
    for (size_t i = 0; i < blocks.size(); i++) {
        if (i % 2 == 0) kept.push_back(blocks[i]);
        else scraps += blocks[i].size % (2 * MIB);
        if (i % 2 != 0) OK(cudaFree(blocks[i].place));
    }
    while (take(kept, 20 * MIB)) {}
    say("gaps", sum(kept));
    say("scraps", scraps);
    give(kept);
    return failures == 0 ? 0 : 1;
}
