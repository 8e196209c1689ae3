// Code in two translation units, a module each. This one is small and always used. The one of used_code_other.cu is
// large, and one of its many kernels is used if the argument is `both`. The tests count the bytes sent.
#include "check.h"
#include "used_code.h"

#include <cstring>

__global__ void twice(unsigned *value) { *value *= 2; }

int main(int argc, char **argv) {
    unsigned *device, value = 21;
    OK(cudaMalloc(&device, sizeof *device));
    OK(cudaMemcpy(device, &value, sizeof value, cudaMemcpyHostToDevice));
    twice<<<1, 1>>>(device);
    if (argc > 1 && strcmp(argv[1], "both") == 0) stir_over_there(device);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
    OK(cudaFree(device));
    printf("%u\n", value);
    return finish("used_code");
}
