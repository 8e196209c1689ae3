// Steps over one field of integers, for programs that change their process in the first step and check it after the last.
#pragma once

#include "steps.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int N = 1024, STEPS = 40;

static __global__ void mix(unsigned *field, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    field[i] = field[i] * 2654435761u + salt + i;
}

// Ends the program with a reason unless `held` is true.
inline void must(bool held, const char *what) {
    const char *reason = strerror(errno);
    CHECK(held, "%s: %s", what, reason);
    if (!held) exit(1);
}

// Calls `change` in the first step, once the field is on the host, and `look` while the field still exists.
template <class Change, class Look> void all_steps(Change change, Look look) {
    std::vector<unsigned> host(N);
    unsigned *field;
    OK(cudaMalloc(&field, N * sizeof(unsigned)));
    OK(cudaMemset(field, 0, N * sizeof(unsigned)));
    for (int step = 0; step < STEPS; step++) {
        mix<<<N / 128, 128>>>(field, step);
        OK(cudaGetLastError());
        OK(cudaMemcpy(host.data(), field, N * sizeof(unsigned), cudaMemcpyDeviceToHost));
        if (step == 0) change();
        Checksum sum;
        sum.bytes(host.data(), N * sizeof(unsigned));
        told(step, sum);
    }
    look();
    OK(cudaFree(field));
}
