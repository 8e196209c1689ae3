// CUDA_LAUNCH_BLOCKING=1: a launch ends with its kernel, and returns the kernel's error.
#include "check.h"

#include <cooperative_groups.h>
#include <unistd.h>

__global__ void raise(int *cell) { atomicAdd(cell, 1); }
__global__ void bad(int *p) { *p = 1; }

int main(int, char **arguments) {
    // The runtime and the driver read it when they start.
    if (getenv("CUDA_LAUNCH_BLOCKING") == nullptr) {
        setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
        execv("/proc/self/exe", arguments);
        return 1;
    }
    int *device, host = 0;
    cudaStream_t stream;
    OK(cudaMalloc(&device, sizeof(int)));
    OK(cudaMemset(device, 0, sizeof(int)));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    raise<<<1000, 64, 0, stream>>>(device);
    OK(cudaGetLastError());
    EXPECT(cudaSuccess, cudaStreamQuery(stream));
    void *parameters[] = {&device};
    OK(cudaLaunchCooperativeKernel(raise, dim3(1), dim3(32), parameters, 0, stream));
    EXPECT(cudaSuccess, cudaStreamQuery(stream));
    // A launch that is captured runs later.
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    raise<<<1, 32, 0, stream>>>(device);
    OK(cudaGetLastError());
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphLaunch(executable, stream));
    EXPECT(cudaSuccess, cudaStreamQuery(stream));
    OK(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(host == 64000 + 32 + 32, "%d", host);
    printf("launches wait for their kernels\n");
    bad<<<1, 1, 0, stream>>>(reinterpret_cast<int *>(8));
    EXPECT(cudaErrorIllegalAddress, cudaGetLastError());
    EXPECT(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    printf("a launch tells of its fault\n");
    return finish("launch_blocking");
}
