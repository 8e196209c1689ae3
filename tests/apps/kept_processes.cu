// A tree of processes that all use the device: the first starts two of its own kind and speaks with them through
// pipes, step by step; each has memory of its own, and what one computes is where the next begins.
#include "steps.h"

#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

constexpr int N = 1000, CHILDREN = 2;

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

// A child: a number comes in, it takes a step with it, a number goes out; until nothing comes.
static int child(int seed) {
    Field field(seed);
    uint64_t number;
    while (read(0, &number, sizeof number) == ssize_t(sizeof number)) {
        number = field.step(unsigned(number));
        must(write(3, &number, sizeof number) == ssize_t(sizeof number), "write");
    }
    OK(cudaFree(field.data));
    return 0;
}

struct Child {
    pid_t pid;
    int to, from;
};

// Started anew by exec, as a launcher does: nothing of CUDA is carried over.
static Child start(const char *self, int seed) {
    int to[2], from[2];
    must(pipe(to) == 0 && pipe(from) == 0, "pipe");
    char number[16];
    snprintf(number, sizeof number, "%d", seed);
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        // In an order that overwrites none of the ends that are still needed.
        int out = dup(from[1]), in = dup(to[0]);
        for (int end : {to[0], to[1], from[0], from[1]}) close(end);
        dup2(in, 0);
        dup2(out, 3);
        for (int end = 4; end < 32; end++) close(end);
        execl(self, self, "child", number, nullptr);
        _exit(1);
    }
    close(to[0]);
    close(from[1]);
    return {pid, to[1], from[0]};
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "child") == 0) return child(atoi(argv[2]));
    const int steps = steps_wanted(argc, argv, 12);
    Child children[CHILDREN];
    for (int c = 0; c < CHILDREN; c++) children[c] = start("/proc/self/exe", c + 1);
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
    return finish("kept_processes");
}
