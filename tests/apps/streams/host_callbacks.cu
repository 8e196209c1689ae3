// Host functions and callbacks in streams: they run in stream order, see the data copied before them, and delay the
// work after them.
#include "check.h"

#include <atomic>
#include <thread>

__global__ void raise(int *cell, int by) { *cell += by; }

struct Step {
    int *copied;
    int *seen;
    std::atomic<int> *order;
    int position;
    std::thread::id caller;
};

// Runs between two copies: notes what the first one brought, and when it came.
static void CUDART_CB note(void *data) {
    Step *step = static_cast<Step *>(data);
    *step->seen = *step->copied;
    step->position = ++*step->order;
    step->caller = std::this_thread::get_id();
}

static void functions_in_order() {
    const int steps = 6;
    cudaStream_t stream;
    int *device, *copied, seen[steps];
    std::atomic<int> order{0};
    Step step[steps];
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&device, sizeof(int)));
    OK(cudaMallocHost(&copied, sizeof(int)));
    *copied = -1;
    OK(cudaMemsetAsync(device, 0, sizeof(int), stream));
    for (int i = 0; i < steps; i++) {
        step[i] = {copied, &seen[i], &order, 0, {}};
        raise<<<1, 1, 0, stream>>>(device, i + 1);
        OK(cudaMemcpyAsync(copied, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
        OK(cudaLaunchHostFunc(stream, note, &step[i]));
    }
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < steps; i++) {
        CHECK(seen[i] == (i + 1) * (i + 2) / 2, "step %d saw %d", i, seen[i]);
        CHECK(step[i].position == i + 1, "step %d came as number %d", i, step[i].position);
        CHECK(step[i].caller != std::this_thread::get_id(), "step %d ran on the thread that queued it", i);
    }
    OK(cudaFree(device));
    OK(cudaFreeHost(copied));
    OK(cudaStreamDestroy(stream));
    printf("%d host functions, each between its copies\n", steps);
}

struct Called {
    std::atomic<int> times{0};
    cudaStream_t stream = nullptr;
    cudaError_t status = cudaErrorUnknown;
};

static void CUDART_CB called(cudaStream_t stream, cudaError_t status, void *data) {
    Called *what = static_cast<Called *>(data);
    what->stream = stream;
    what->status = status;
    what->times++;
}

static void callbacks_on_streams() {
    cudaStream_t streams[3] = {nullptr, nullptr, nullptr};
    Called what[3];
    for (int s = 1; s < 3; s++) OK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    for (int s = 0; s < 3; s++) {
        for (int i = 0; i < 4; i++) OK(cudaStreamAddCallback(streams[s], called, &what[s], 0));
    }
    OK(cudaDeviceSynchronize());
    for (int s = 0; s < 3; s++) {
        CHECK(what[s].times == 4, "stream %d: %d calls", s, what[s].times.load());
        CHECK(what[s].status == cudaSuccess, "stream %d: status %d", s, int(what[s].status));
        CHECK(s == 0 || what[s].stream == streams[s], "stream %d: another stream was named", s);
    }
    for (int s = 1; s < 3; s++) OK(cudaStreamDestroy(streams[s]));
    printf("callbacks on 3 streams, 4 on each\n");
}

// The host function waits for the main thread; the kernel behind it must not have run until then.
static void holds_back_what_follows() {
    cudaStream_t stream, other;
    int *device, before = -1, after = -1;
    std::atomic<bool> go{false};
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaMalloc(&device, sizeof(int)));
    OK(cudaMemset(device, 0, sizeof(int)));
    OK(cudaDeviceSynchronize());
    OK(cudaLaunchHostFunc(
        stream, [](void *flag) { while (!*static_cast<std::atomic<bool> *>(flag)) std::this_thread::yield(); }, &go));
    raise<<<1, 1, 0, stream>>>(device, 5);
    EXPECT(cudaErrorNotReady, cudaStreamQuery(stream));
    OK(cudaMemcpyAsync(&before, device, sizeof(int), cudaMemcpyDeviceToHost, other));
    OK(cudaStreamSynchronize(other));
    go = true;
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(&after, device, sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(before == 0 && after == 5, "before: %d, after: %d", before, after);
    OK(cudaFree(device));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    printf("a host function holds back its stream, and no other\n");
}

int main() {
    functions_in_order();
    callbacks_on_streams();
    holds_back_what_follows();
    return finish("host_callbacks");
}
