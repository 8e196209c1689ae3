// Eight host threads with their own streams and buffers work at the same time; each has its own last error.
//
// Built twice: with the legacy default stream, and with `--default-stream per-thread`, where launches of different
// threads without a stream are independent too.
#include "check.h"

#include <atomic>
#include <thread>
#include <vector>

constexpr int THREADS = 8;
constexpr int N = 5000;
constexpr int ROUNDS = 6;

__global__ void mix(int *data, int n, int salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * 5 + salt + i % 3;
}

static int mixed(int start, int i, int salt) {
    for (int round = 0; round < ROUNDS; round++) start = start * 5 + (salt + round) + i % 3;
    return start;
}

// What went wrong in all threads; only the main thread prints.
static std::atomic<int> wrong{0};

static void need(cudaError_t got) {
    if (got != cudaSuccess) wrong += 1000000;
}

// One thread's work; `stream` null means the default stream, whichever one this build has.
static void work(int thread, cudaStream_t stream) {
    int *device;
    std::vector<int> host(N);
    need(cudaMalloc(&device, N * sizeof(int)));
    for (int i = 0; i < N; i++) host[i] = thread * 100 + i;
    need(cudaMemcpyAsync(device, host.data(), N * sizeof(int), cudaMemcpyHostToDevice, stream));
    for (int round = 0; round < ROUNDS; round++) mix<<<(N + 127) / 128, 128, 0, stream>>>(device, N, thread + round);
    need(cudaGetLastError());
    need(cudaMemcpyAsync(host.data(), device, N * sizeof(int), cudaMemcpyDeviceToHost, stream));
    need(cudaStreamSynchronize(stream));
    for (int i = 0; i < N; i++) wrong += host[i] != mixed(thread * 100 + i, i, thread);
    need(cudaFree(device));
}

static void thread_body(int thread) {
    int device = -1;
    need(cudaGetDevice(&device));
    wrong += device != 0;
    // Odd threads make an error of their own; no other thread may see it.
    if (thread % 2) wrong += cudaFree(&device) != cudaErrorInvalidValue;
    wrong += cudaPeekAtLastError() != (thread % 2 ? cudaErrorInvalidValue : cudaSuccess);
    (void)cudaGetLastError();
    work(thread, nullptr);
    cudaStream_t stream;
    need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    work(thread, stream);
    need(cudaStreamDestroy(stream));
    work(thread, cudaStreamPerThread);
    wrong += cudaGetLastError() != cudaSuccess;
}

// What one thread allocated and filled is usable in another after it was told so.
static void hand_over() {
    int *device, *host;
    OK(cudaMallocHost(&host, N * sizeof(int)));
    std::thread([&] {
        need(cudaMalloc(&device, N * sizeof(int)));
        need(cudaMemset(device, 0, N * sizeof(int)));
        mix<<<(N + 127) / 128, 128>>>(device, N, 9);
        need(cudaStreamSynchronize(nullptr));
    }).join();
    std::thread([&] {
        mix<<<(N + 127) / 128, 128>>>(device, N, 10);
        need(cudaMemcpyAsync(host, device, N * sizeof(int), cudaMemcpyDeviceToHost));
        need(cudaStreamSynchronize(nullptr));
        need(cudaFree(device));
    }).join();
    for (int i = 0; i < N; i++) CHECK_QUIETLY(host[i] == (9 + i % 3) * 5 + 10 + i % 3, "element %d: %d", i, host[i]);
    OK(cudaFreeHost(host));
}

int main() {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(thread_body, thread);
    for (std::thread &thread : threads) thread.join();
    CHECK(wrong == 0, "%d (each failed call counts a million)", wrong.load());
    hand_over();
    CHECK(wrong == 0, "%d after the hand-over", wrong.load());
    OK(cudaDeviceSynchronize());
    printf("%d threads, %d rounds each on 3 streams; work handed from thread to thread\n", THREADS, ROUNDS);
    return finish("host_threads");
}
