// Steps like those of a framework in which the calls dominate: small kernels, events, small uploads, a stream that waits for
// another one, and at the end of each step a result that the program waits for.
//
//   launch_bound [STEPS]
#include "steps.h"

#include <vector>

constexpr int N = 256;
constexpr int KERNELS = 24;

__global__ void scale(unsigned *data, unsigned factor, unsigned offset) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = data[i] * factor + offset;
}

__global__ void add(unsigned *data, const unsigned *other) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] += other[i];
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 20);
    unsigned *data, *batch, *result;
    cudaStream_t compute, upload;
    cudaEvent_t uploaded, done;
    OK(cudaMalloc(&data, N * sizeof(unsigned)));
    OK(cudaMalloc(&batch, N * sizeof(unsigned)));
    OK(cudaMallocHost(&result, N * sizeof(unsigned)));
    OK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&upload, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&uploaded, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    OK(cudaMemsetAsync(data, 0, N * sizeof(unsigned), compute));
    std::vector<unsigned> host(N);
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < N; i++) host[i] = unsigned(step * N + i);
        OK(cudaStreamWaitEvent(upload, done, 0));
        OK(cudaMemcpyAsync(batch, host.data(), N * sizeof(unsigned), cudaMemcpyHostToDevice, upload));
        OK(cudaEventRecord(uploaded, upload));
        OK(cudaStreamWaitEvent(compute, uploaded, 0));
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            scale<<<N / 64, 64, 0, compute>>>(data, 2654435761u, unsigned(kernel));
            OK(cudaGetLastError());
            add<<<N / 64, 64, 0, compute>>>(data, batch);
            OK(cudaGetLastError());
        }
        OK(cudaEventRecord(done, compute));
        OK(cudaMemcpyAsync(result, data, N * sizeof(unsigned), cudaMemcpyDeviceToHost, compute));
        OK(cudaStreamSynchronize(compute));
        Checksum sum;
        sum.bytes(result, N * sizeof(unsigned));
        told(step, sum);
    }
    OK(cudaEventDestroy(uploaded));
    OK(cudaEventDestroy(done));
    OK(cudaStreamDestroy(compute));
    OK(cudaStreamDestroy(upload));
    OK(cudaFreeHost(result));
    OK(cudaFree(batch));
    OK(cudaFree(data));
    return finish("launch_bound");
}
