// Kernels and variables in two translation units; the second one is multi_module_other.cu.
//
// Built twice. As it is, each unit is a module of its own, with a variable and a kernel of the same hidden name. With
// `-rdc=true` the units are linked on the device as well, and call and read across.
#include "check.h"
#include "multi_module.h"

static __device__ int hidden = 100;
__constant__ int factor_here = 2;

static __global__ void bump(int *out) { *out = hidden++ * factor_here; }

#ifdef __CUDACC_RDC__
__device__ int shared_counter = 1000;

__global__ void across(int *out) {
    out[0] = doubled_over_there(21);
    out[1] = variable_over_there;
    out[2] = shared_counter;
}

static void check_linked(int *device) {
    int out[3];
    raise_shared_counter();
    across<<<1, 1>>>(device);
    OK(cudaGetLastError());
    OK(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    CHECK(out[0] == 42 && out[1] == 77 && out[2] == 1005, "%d, %d, %d", out[0], out[1], out[2]);
}
#else
static void check_linked(int *) {}
#endif

int main() {
    int *device, out = 0;
    OK(cudaMalloc(&device, 64));
    for (int round = 0; round < 3; round++) {
        bump<<<1, 1>>>(device);
        OK(cudaGetLastError());
        OK(cudaMemcpy(&out, device, sizeof out, cudaMemcpyDeviceToHost));
        CHECK(out == (100 + round) * 2, "here: %d in round %d", out, round);
        out = bump_over_there(device);
        CHECK(out == (500 + round * 10) * 3, "over there: %d in round %d", out, round);
    }
    int theirs = read_hidden_over_there(), ours = 0;
    OK(cudaMemcpyFromSymbol(&ours, hidden, sizeof ours));
    CHECK(ours == 103 && theirs == 530, "hidden variables: %d here, %d over there", ours, theirs);
    check_linked(device);
    OK(cudaFree(device));
    printf("two modules, each with its own hidden variable and kernel\n");
    return finish("multi_module");
}
