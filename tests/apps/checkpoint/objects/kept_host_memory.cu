// Memory that both host and device see, over all steps: pinned, mapped, managed and registered. The host and
// kernels write it, and a pointer to the managed part lies in device memory.
#include "steps.h"

#include <cstring>
#include <vector>

constexpr int N = 3000;
constexpr int KINDS = 4;

// A table in device memory leads to managed and device memory. The launch itself names pinned memory, since a
// network link synchronises only what is named.
__global__ void mix(unsigned *pinned, unsigned *mapped, unsigned *const *others, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    unsigned *kinds[KINDS] = {pinned, mapped, others[0], others[1]};
    unsigned carried = salt;
    for (int kind = 0; kind < KINDS; kind++) {
        unsigned value = kinds[kind][i] * 2654435761u + carried;
        kinds[kind][i] = value;
        carried ^= value >> 5;
    }
}

struct Kind {
    unsigned *host;
    unsigned *device;
};

static Kind pinned() {
    Kind kind;
    OK(cudaMallocHost(&kind.host, N * sizeof(unsigned)));
    kind.device = kind.host;
    return kind;
}

static Kind mapped() {
    Kind kind;
    OK(cudaHostAlloc(&kind.host, N * sizeof(unsigned), cudaHostAllocMapped | cudaHostAllocPortable));
    OK(cudaHostGetDevicePointer(&kind.device, kind.host, 0));
    return kind;
}

static Kind managed() {
    Kind kind;
    OK(cudaMallocManaged(&kind.host, N * sizeof(unsigned)));
    kind.device = kind.host;
    return kind;
}

static Kind plain() {
    Kind kind;
    OK(cudaMalloc(&kind.device, N * sizeof(unsigned)));
    OK(cudaMemset(kind.device, 0, N * sizeof(unsigned)));
    kind.host = nullptr;
    return kind;
}

// Changes the memory on the host between two kernels.
static void touch(const Kind *kinds, int step) {
    for (int kind = 0; kind < KINDS; kind++) {
        if (kinds[kind].host) kinds[kind].host[(step * 37 + kind) % N] += step;
    }
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 20);
    const Kind kinds[KINDS] = {pinned(), mapped(), managed(), plain()};
    unsigned **table, *pointers[2] = {kinds[2].device, kinds[3].device};
    for (int kind = 0; kind < KINDS; kind++) {
        if (kinds[kind].host) memset(kinds[kind].host, kind + 1, N * sizeof(unsigned));
    }
    OK(cudaMalloc(&table, sizeof pointers));
    OK(cudaMemcpy(table, pointers, sizeof pointers, cudaMemcpyHostToDevice));
    // Ordinary memory of the program, registered: asynchronous copies go to and from it.
    std::vector<unsigned> ordinary(N);
    OK(cudaHostRegister(ordinary.data(), N * sizeof(unsigned), cudaHostRegisterDefault));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int step = 0; step < steps; step++) {
        touch(kinds, step);
        mix<<<(N + 127) / 128, 128, 0, stream>>>(kinds[0].device, kinds[1].device, table, step);
        OK(cudaGetLastError());
        OK(cudaMemcpyAsync(ordinary.data(), kinds[3].device, N * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        Checksum sum;
        for (int kind = 0; kind < 3; kind++) sum.bytes(kinds[kind].host, N * sizeof(unsigned));
        sum.bytes(ordinary.data(), N * sizeof(unsigned));
        told(step, sum);
        ordinary[step] ^= 0x55u;
        OK(cudaMemcpyAsync(kinds[3].device, ordinary.data(), N * sizeof(unsigned), cudaMemcpyHostToDevice, stream));
        OK(cudaStreamSynchronize(stream));
    }
    OK(cudaHostUnregister(ordinary.data()));
    OK(cudaFreeHost(kinds[0].host));
    OK(cudaFreeHost(kinds[1].host));
    OK(cudaFree(kinds[2].host));
    OK(cudaFree(kinds[3].device));
    OK(cudaFree(table));
    OK(cudaStreamDestroy(stream));
    return finish("kept_host_memory");
}
