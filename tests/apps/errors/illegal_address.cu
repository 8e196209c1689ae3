// A kernel that writes to an unmapped address: the error comes with the next synchronisation, and stays with the context.
#include "check.h"

__global__ void stray(int *nowhere) { *nowhere = 1; }

int main() {
    int *device, host = 0;
    void *more;
    OK(cudaMalloc(&device, sizeof(int)));
    stray<<<1, 1>>>(device);
    OK(cudaDeviceSynchronize());
    stray<<<1, 1>>>(reinterpret_cast<int *>(0x40));
    EXPECT(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    // Every further call reports it, and asking for the last error does not clear it.
    for (int round = 0; round < 2; round++) {
        EXPECT(cudaErrorIllegalAddress, cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
        EXPECT(cudaErrorIllegalAddress, cudaMalloc(&more, 16));
        EXPECT(cudaErrorIllegalAddress, cudaDeviceSynchronize());
        EXPECT(cudaErrorIllegalAddress, cudaStreamSynchronize(nullptr));
        EXPECT(cudaErrorIllegalAddress, cudaGetLastError());
    }
    stray<<<1, 1>>>(device);
    EXPECT(cudaErrorIllegalAddress, cudaGetLastError());
    CHECK(host == 0, "a copy was made all the same");
    printf("an illegal address is reported by every call from then on\n");
    return finish("illegal_address");
}
