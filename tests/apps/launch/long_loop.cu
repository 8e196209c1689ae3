// A long loop over one state: a field of integers that every step mixes, and one line per step with its checksum.
//
//   long_loop [STEPS [PAUSE [BALLAST]]]    PAUSE in milliseconds between steps; BALLAST in MiB that stay as they are
#include "steps.h"

#include <chrono>
#include <thread>
#include <vector>

constexpr int N = 4096;

// Each cell takes in its neighbours of the step before.
__global__ void mix(const unsigned *from, unsigned *to, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned left = from[(i + N - 1) % N], right = from[(i + 1) % N];
    to[i] = from[i] * 2654435761u + (left ^ (right >> 3)) + salt;
}

// Incompressible numbers.
__global__ void fill(unsigned *data, size_t n) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = unsigned(i) * 2654435761u + 12345u;
    for (int turn = 0; turn < 4; turn++) x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    data[i] = x;
}

// Memory that is only ballast; at the end it must be unchanged.
struct Ballast {
    size_t count;
    unsigned *data = nullptr;
    explicit Ballast(size_t mebibytes) : count(mebibytes << 18) {
        if (count == 0) return;
        OK(cudaMalloc(&data, count * 4));
        fill<<<unsigned((count + 255) / 256), 256>>>(data, count);
        OK(cudaDeviceSynchronize());
    }
    uint64_t sum() const {
        Checksum sum;
        std::vector<unsigned> host(count);
        if (count > 0) OK(cudaMemcpy(host.data(), data, count * 4, cudaMemcpyDeviceToHost));
        sum.bytes(host.data(), count * 4);
        return sum.value;
    }
};

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 60), pause = argc > 2 ? atoi(argv[2]) : 0;
    const Ballast ballast(argc > 3 ? atoi(argv[3]) : 0);
    const uint64_t at_first = ballast.sum();
    unsigned *field[2];
    std::vector<unsigned> host(N);
    for (unsigned i = 0; i < N; i++) host[i] = i * i;
    for (unsigned *&half : field) OK(cudaMalloc(&half, N * sizeof(unsigned)));
    OK(cudaMemcpy(field[0], host.data(), N * sizeof(unsigned), cudaMemcpyHostToDevice));
    for (int step = 0; step < steps; step++) {
        mix<<<N / 128, 128>>>(field[step % 2], field[(step + 1) % 2], step);
        OK(cudaGetLastError());
        OK(cudaMemcpy(host.data(), field[(step + 1) % 2], N * sizeof(unsigned), cudaMemcpyDeviceToHost));
        Checksum sum;
        sum.bytes(host.data(), N * sizeof(unsigned));
        told(step, sum);
        if (pause > 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause));
    }
    CHECK(ballast.sum() == at_first, "the ballast has changed");
    for (unsigned *half : field) OK(cudaFree(half));
    if (ballast.data) OK(cudaFree(ballast.data));
    return finish("long_loop");
}
