// Events and streams over all steps. The time measured between two events reads the same later, to the last digit.
// Events are waited for, queried and recorded again; streams keep priority and flags.
#include "steps.h"

#include <vector>

__global__ void mix(unsigned *data, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = data[i] * 1664525u + salt;
}

constexpr int N = 256, STREAMS = 4;

struct Measured {
    cudaEvent_t start, stop;
    float milliseconds;
};

static cudaStream_t streams[STREAMS];
static int priorities[STREAMS];
static unsigned *data[STREAMS];

static void make_streams() {
    int least, greatest;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    for (int s = 0; s < STREAMS; s++) {
        OK(cudaStreamCreateWithPriority(&streams[s], cudaStreamNonBlocking, s % 2 ? greatest : least));
        OK(cudaStreamGetPriority(streams[s], &priorities[s]));
        OK(cudaMalloc(&data[s], N * sizeof(unsigned)));
        OK(cudaMemsetAsync(data[s], s + 1, N * sizeof(unsigned), streams[s]));
    }
}

static Measured measure(int step) {
    Measured one;
    OK(cudaEventCreate(&one.start));
    OK(cudaEventCreateWithFlags(&one.stop, step % 2 ? cudaEventBlockingSync : cudaEventDefault));
    OK(cudaEventRecord(one.start, streams[0]));
    mix<<<N / 64, 64, 0, streams[0]>>>(data[0], step);
    OK(cudaEventRecord(one.stop, streams[0]));
    OK(cudaEventSynchronize(one.stop));
    OK(cudaEventElapsedTime(&one.milliseconds, one.start, one.stop));
    CHECK(one.milliseconds >= 0, "step %d took %g ms", step, one.milliseconds);
    return one;
}

// Checks that every pair measured so far still gives the same time.
static void measure_again(const std::vector<Measured> &all, int step) {
    for (size_t i = 0; i < all.size(); i++) {
        float again = -1, across = -1;
        OK(cudaEventQuery(all[i].stop));
        OK(cudaEventElapsedTime(&again, all[i].start, all[i].stop));
        CHECK(again == all[i].milliseconds, "step %d: pair %zu took %g ms, and now %g", step, i, all[i].milliseconds, again);
        OK(cudaEventElapsedTime(&across, all[0].start, all[i].stop));
        CHECK(across >= again || i == 0, "step %d: pair %zu ends %g ms after the first", step, i, across);
    }
}

// A chain through all streams, by events that are recorded again in every step.
static void chain(cudaEvent_t *links, int step) {
    for (int s = 0; s < STREAMS; s++) {
        if (s > 0) OK(cudaStreamWaitEvent(streams[s], links[s - 1], 0));
        if (s > 0) OK(cudaMemcpyAsync(data[s], data[s - 1], N * 2, cudaMemcpyDeviceToDevice, streams[s]));
        mix<<<N / 64, 64, 0, streams[s]>>>(data[s], step * 10 + s);
        OK(cudaEventRecord(links[s], streams[s]));
    }
}

static void check_streams(int step) {
    for (int s = 0; s < STREAMS; s++) {
        int priority;
        unsigned flags;
        OK(cudaStreamGetPriority(streams[s], &priority));
        OK(cudaStreamGetFlags(streams[s], &flags));
        CHECK(priority == priorities[s] && flags == cudaStreamNonBlocking, "step %d, stream %d: %d %u", step, s, priority, flags);
        OK(cudaStreamSynchronize(streams[s]));
        OK(cudaStreamQuery(streams[s]));
    }
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 12);
    make_streams();
    cudaEvent_t links[STREAMS], never, untimed;
    for (cudaEvent_t &link : links) OK(cudaEventCreateWithFlags(&link, cudaEventDisableTiming));
    OK(cudaEventCreate(&never));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    std::vector<Measured> all;
    for (int step = 0; step < steps; step++) {
        all.push_back(measure(step));
        chain(links, step);
        OK(cudaEventSynchronize(links[STREAMS - 1]));
        measure_again(all, step);
        check_streams(step);
        float none;
        OK(cudaEventQuery(never));
        EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&none, all[0].start, never));
        EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&none, all[0].start, untimed));
        (void)cudaGetLastError();
        unsigned host[N];
        OK(cudaMemcpy(host, data[STREAMS - 1], sizeof host, cudaMemcpyDeviceToHost));
        Checksum sum;
        sum.add(host);
        told(step, sum);
    }
    for (const Measured &one : all) {
        OK(cudaEventDestroy(one.start));
        OK(cudaEventDestroy(one.stop));
    }
    for (cudaEvent_t event : {links[0], links[1], links[2], links[3], never, untimed}) OK(cudaEventDestroy(event));
    for (int s = 0; s < STREAMS; s++) {
        OK(cudaStreamDestroy(streams[s]));
        OK(cudaFree(data[s]));
    }
    return finish("kept_events");
}
