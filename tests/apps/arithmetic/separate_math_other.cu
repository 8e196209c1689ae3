// Definitions that `separate_math.cu` uses.
#include "separate_math.h"

__device__ int shared_total = 1000;
__constant__ float shared_factors[4];
static __device__ int local_count = 500;

__device__ static int squared(int x) { return x * x; }

__device__ int (*chosen)(int) = squared;

__device__ float scaled(float x, int which) { return x * shared_factors[which]; }

__device__ int choose(int n) { return n % 3 == 0 ? n : -1; }

__device__ void Counter::add(int n) { value += n; }

__device__ int Counter::twice() const { return 2 * value; }

static __global__ void look(int *out) { out[0] = shared_total, out[1] = local_count; }

void launch_other(int *out) { look<<<1, 1>>>(out); }
