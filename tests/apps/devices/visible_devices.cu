// CUDA_VISIBLE_DEVICES is the program's own setting: CUDA reads it where the program runs, when it starts.
#include "check.h"

int main() {
    int count = -1;
    void *memory;
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    EXPECT(cudaErrorNoDevice, cudaGetDeviceCount(&count));
    EXPECT(cudaErrorNoDevice, cudaMalloc(&memory, 16));
    EXPECT(cudaErrorNoDevice, cudaGetLastError());
    printf("no device is visible\n");
    return finish("visible_devices");
}
