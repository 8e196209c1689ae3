// Calls after the end of `main`: as in many programs, static objects free device memory while the runtime shuts down.
#include "check.h"

#include <thread>

__global__ void raise(int *cell) { *cell += 1; }

// Made before CUDA starts, so it ends after CUDA's own clean-up: its calls fail, and nothing hangs.
struct Late {
    int *device = nullptr;
    ~Late() {
        cudaError_t got = cudaFree(device);
        printf("after the end: %s\n", got == cudaErrorCudartUnloading ? "the runtime is gone" : cudaGetErrorName(got));
    }
};
static Late late;

int main() {
    OK(cudaMalloc(&late.device, sizeof(int)));
    OK(cudaMemset(late.device, 0, sizeof(int)));
    int host = 0;
    // A thread that used CUDA and has ended while its work still runs.
    std::thread([] { raise<<<1, 1, 0, cudaStreamPerThread>>>(late.device); }).join();
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&host, late.device, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(host == 1, "%d", host);
    raise<<<1, 1>>>(late.device);
    return finish("late_calls");
}
