// A program with memory of its own where CUDA might place its memory: both work.
//
// Large programs, sanitizers and other runtimes are known to map memory at these addresses.
#include "check.h"

#include <sys/mman.h>

__global__ void raise(int *cell, int *pinned) {
    *cell += 1;
    *pinned += *cell;
}

// Takes `bytes` at exactly `address`, and writes to the first page; addresses that are taken already are fine.
static char *take(uintptr_t address, size_t bytes) {
    void *memory = mmap(reinterpret_cast<void *>(address), bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    *static_cast<char *>(memory) = 'x';
    return static_cast<char *>(memory);
}

int main() {
    char *taken[] = {take(0x200000000000, 1 << 20), take(0x300000000000, size_t(64) << 30),
                     take(0x500000000000, 4096), take(0x100000000000, 4096)};
    int *device, *pinned, host = 0;
    OK(cudaMalloc(&device, sizeof(int)));
    OK(cudaMallocHost(&pinned, sizeof(int)));
    OK(cudaMemset(device, 0, sizeof(int)));
    *pinned = 100;
    for (int round = 0; round < 4; round++) raise<<<1, 1>>>(device, pinned);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(host == 4 && *pinned == 110, "%d and %d", host, *pinned);
    for (char *memory : taken) {
        CHECK(memory == nullptr || *memory == 'x', "the program's own memory changed");
        CHECK(static_cast<void *>(device) != memory && static_cast<void *>(pinned) != memory, "the same memory twice");
    }
    OK(cudaFreeHost(pinned));
    OK(cudaFree(device));
    printf("CUDA found room beside what the program had taken\n");
    return finish("taken_addresses");
}
