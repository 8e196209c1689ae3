// Device code in two files, linked on the device: functions, variables, constants, a class with a virtual function and
// a function pointer are defined in one file and used in the other; a file-local variable exists in each.
#include "buffer.h"
#include "separate_math.h"

static __device__ int local_count = 1;

__global__ void use_other(float *out, int *counts) {
    int t = threadIdx.x;
    out[t] = scaled(float(t), t % 4) + shared_factors[t % 4];
    atomicAdd(&shared_total, choose(t));
    Counter counter;
    counter.value = t;
    counter.add(3);
    atomicAdd(&local_count, clamp_between(t, 5, 10));
    const Counter *hidden = &counter;
    counts[t] = hidden->twice() + chosen(t);
}

int main() {
    Buffer<float> out(32);
    Buffer<int> counts(32), others(2);
    const float factors[4] = {0.5f, 1, 2, -3};
    OK(cudaMemcpyToSymbol(shared_factors, factors, sizeof factors));
    use_other<<<1, 32>>>(out, counts);
    RAN();
    std::vector<float> o = out.read();
    std::vector<int> c = counts.read();
    int total = 1000, clamped = 1;
    for (int t = 0; t < 32; t++) {
        CHECK(o[t] == t * factors[t % 4] + factors[t % 4], "scaled %d: %g", t, o[t]);
        CHECK(c[t] == 2 * (t + 3) + t * t, "counter %d: %d", t, c[t]);
        total += t % 3 == 0 ? t : -1, clamped += clamp_between(t, 5, 10);
    }
    int got = 0;
    OK(cudaMemcpyFromSymbol(&got, shared_total, sizeof got));
    CHECK(got == total, "total %d, wanted %d", got, total);
    OK(cudaMemcpyFromSymbol(&got, local_count, sizeof got));
    CHECK(got == clamped, "clamped %d, wanted %d", got, clamped);
    launch_other(others);
    RAN();
    CHECK(others.read()[0] == total && others.read()[1] == 500, "the other file sees %d, %d", others.read()[0], others.read()[1]);
    printf("two files share functions, variables, constants and a class\n");
    return finish("separate_math");
}
