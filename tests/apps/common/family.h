// Helpers for families of processes that all use the device: each has its own memory, they communicate through pipes,
// step by step, and each starts from the result of the one before.
#pragma once

#include "steps.h"

#include <sys/wait.h>
#include <unistd.h>

constexpr int N = 1000;

__global__ void mix(unsigned *data, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) data[i] = data[i] * 1664525u + salt + i;
}

struct Field {
    unsigned *data;
    explicit Field(int seed) {
        OK(cudaMalloc(&data, N * sizeof(unsigned)));
        OK(cudaMemset(data, seed, N * sizeof(unsigned)));
    }
    uint64_t step(unsigned salt) {
        unsigned host[N];
        mix<<<(N + 127) / 128, 128>>>(data, salt);
        OK(cudaGetLastError());
        OK(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
        Checksum sum;
        sum.add(host);
        return sum.value;
    }
};

static void must(bool so, const char *what) {
    if (so) return;
    printf("%s failed\n", what);
    exit(1);
}

// A child: reads a number, takes a step with it and writes a number, until its input ends.
static int child(int seed, int in, int out) {
    Field field(seed);
    uint64_t number;
    while (read(in, &number, sizeof number) == ssize_t(sizeof number)) {
        number = field.step(unsigned(number));
        must(write(out, &number, sizeof number) == ssize_t(sizeof number), "write");
    }
    OK(cudaFree(field.data));
    return 0;
}

struct Child {
    pid_t pid;
    int to, from;
};

// The parent: a step of its own and one of each child, each with the number that came before, as often as wanted; then
// their end.
static void lead(const Child (&children)[2], int steps) {
    Field field(9);
    uint64_t number = 1;
    for (int step = 0; step < steps; step++) {
        number = field.step(unsigned(number));
        for (const Child &one : children) {
            must(write(one.to, &number, sizeof number) == ssize_t(sizeof number), "write");
            must(read(one.from, &number, sizeof number) == ssize_t(sizeof number), "read");
        }
        Checksum sum;
        sum.add(number);
        told(step, sum);
    }
    for (const Child &one : children) {
        int status = -1;
        close(one.to);
        must(waitpid(one.pid, &status, 0) == one.pid, "waitpid");
        CHECK(status == 0, "a child ended with %x", status);
    }
    OK(cudaFree(field.data));
}
