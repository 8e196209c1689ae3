// The second translation unit of multi_module.cu: the same hidden names, with other values.
#include "check.h"
#include "multi_module.h"

static __device__ int hidden = 500;
__constant__ int factor_there = 3;

static __global__ void bump(int *out) {
    *out = hidden * factor_there;
    hidden += 10;
}

int bump_over_there(int *device) {
    int out = 0;
    bump<<<1, 1>>>(device);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&out, device, sizeof out, cudaMemcpyDeviceToHost));
    return out;
}

int read_hidden_over_there() {
    int value = 0;
    OK(cudaMemcpyFromSymbol(&value, hidden, sizeof value));
    return value;
}

#ifdef __CUDACC_RDC__
__device__ int variable_over_there = 77;

__device__ __noinline__ int doubled_over_there(int x) { return x * 2; }

static __global__ void raise() { shared_counter += 5; }

void raise_shared_counter() {
    raise<<<1, 1>>>();
    OK(cudaGetLastError());
}
#endif
