// Host functions and stream callbacks between the work of all steps. They read the device's results, and the next step's
// work depends on what they compute.
#include "steps.h"

#include <atomic>

constexpr int N = 128;

__global__ void mix(unsigned *data, const unsigned *from_host) {
    int i = threadIdx.x;
    data[i] = data[i] * 1664525u + from_host[i % 4];
}

// Data that the functions see: pinned memory with a copy of the device's, numbers of their own, and their count.
struct Shared {
    unsigned cells[4] = {0, 1, 2, 3};
    unsigned *copied;
    std::atomic<int> functions{0}, callbacks{0};
};

static void CUDART_CB between(void *data) {
    Shared *shared = static_cast<Shared *>(data);
    int count = ++shared->functions;
    for (int i = 0; i < 4; i++) shared->cells[i] = shared->cells[i] * 31 + shared->copied[i] + count;
}

static void CUDART_CB called(cudaStream_t, cudaError_t status, void *data) {
    if (status == cudaSuccess) static_cast<Shared *>(data)->callbacks++;
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 12);
    Shared shared;
    unsigned *data, *cells, host[N];
    cudaStream_t stream, other;
    OK(cudaMallocHost(&shared.copied, sizeof host));
    OK(cudaMalloc(&cells, sizeof shared.cells));
    OK(cudaMalloc(&data, sizeof host));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    // All of this is in the stream of the kernels, which does not wait for the default stream.
    OK(cudaMemsetAsync(data, 0, sizeof host, stream));
    for (int step = 0; step < steps; step++) {
        OK(cudaMemcpyAsync(cells, shared.cells, sizeof shared.cells, cudaMemcpyHostToDevice, stream));
        for (int i = 0; i < 3; i++) {
            mix<<<1, N, 0, stream>>>(data, cells);
            OK(cudaMemcpyAsync(shared.copied, data, sizeof host, cudaMemcpyDeviceToHost, stream));
            OK(cudaLaunchHostFunc(stream, between, &shared));
        }
        OK(cudaStreamAddCallback(other, called, &shared, 0));
        OK(cudaStreamSynchronize(stream));
        OK(cudaStreamSynchronize(other));
        OK(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
        int functions = shared.functions, callbacks = shared.callbacks;
        CHECK(functions == 3 * (step + 1) && callbacks == step + 1, "step %d: %d and %d", step, functions, callbacks);
        Checksum sum;
        sum.add(host);
        sum.add(shared.cells);
        told(step, sum);
    }
    OK(cudaFree(data));
    OK(cudaFree(cells));
    OK(cudaFreeHost(shared.copied));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    return finish("kept_callbacks");
}
