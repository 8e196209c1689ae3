// 32 host threads, each with its own stream, memory and event, work all the time. After every step all threads
// meet, and the main thread prints one line about their memory.
#include "meeting.h"
#include "steps.h"

#include <atomic>
#include <thread>
#include <vector>

constexpr int THREADS = 32, N = 64, ROUNDS = 3;

__global__ void mix(unsigned *data, unsigned salt) {
    int i = threadIdx.x;
    data[i] = data[i] * 1664525u + salt + i;
}

static std::atomic<int> wrong{0};

static void need(cudaError_t got) {
    if (got != cudaSuccess) wrong++;
}

// With the main thread.
static Meeting meeting(THREADS + 1);
static unsigned results[THREADS][N];

static void body(int thread, int steps) {
    cudaStream_t stream;
    cudaEvent_t done;
    unsigned *data;
    need(cudaStreamCreateWithFlags(&stream, thread % 2 ? cudaStreamNonBlocking : cudaStreamDefault));
    need(cudaEventCreateWithFlags(&done, thread % 4 < 2 ? cudaEventDisableTiming : cudaEventBlockingSync));
    need(cudaMalloc(&data, sizeof results[0]));
    need(cudaMemsetAsync(data, thread, sizeof results[0], stream));
    for (int step = 0; step < steps; step++) {
        for (int round = 0; round < ROUNDS; round++) {
            mix<<<1, N, 0, stream>>>(data, step * 100 + thread + round);
            if (thread % 3 == 0) need(cudaStreamSynchronize(stream));
        }
        need(cudaGetLastError());
        need(cudaMemcpyAsync(results[thread], data, sizeof results[0], cudaMemcpyDeviceToHost, stream));
        need(cudaEventRecord(done, stream));
        need(cudaEventSynchronize(done));
        meeting.wait();
        meeting.wait();
    }
    need(cudaFree(data));
    need(cudaEventDestroy(done));
    need(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 8);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(body, thread, steps);
    for (int step = 0; step < steps; step++) {
        meeting.wait();
        Checksum sum;
        sum.add(results);
        told(step, sum);
        meeting.wait();
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(wrong == 0, "%d calls failed", wrong.load());
    return finish("kept_threads");
}
