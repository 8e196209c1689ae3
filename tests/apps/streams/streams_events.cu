// Several streams with asynchronous copies, and events that order work across them.
#include "check.h"

#include <atomic>
#include <thread>

constexpr int STREAMS = 4;
constexpr int N = 20000;

__global__ void scale_and_add(const int *in, int *out, int n, int factor, int term) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factor + term;
}

static const unsigned BLOCKS = (N + 127) / 128;

// Each stream copies up, computes and copies down on its own.
static void independent_streams() {
    cudaStream_t streams[STREAMS];
    int *host[STREAMS], *device[STREAMS];
    for (int s = 0; s < STREAMS; s++) {
        OK(cudaStreamCreateWithFlags(&streams[s], s % 2 ? cudaStreamNonBlocking : cudaStreamDefault));
        OK(cudaMallocHost(&host[s], N * sizeof(int)));
        OK(cudaMalloc(&device[s], N * sizeof(int)));
        for (int i = 0; i < N; i++) host[s][i] = i * (s + 1);
    }
    for (int s = 0; s < STREAMS; s++) {
        OK(cudaMemcpyAsync(device[s], host[s], N * sizeof(int), cudaMemcpyHostToDevice, streams[s]));
        scale_and_add<<<BLOCKS, 128, 0, streams[s]>>>(device[s], device[s], N, 3, s);
        OK(cudaMemcpyAsync(host[s], device[s], N * sizeof(int), cudaMemcpyDeviceToHost, streams[s]));
    }
    for (int s = 0; s < STREAMS; s++) {
        OK(cudaStreamSynchronize(streams[s]));
        EXPECT(cudaSuccess, cudaStreamQuery(streams[s]));
        for (int i = 0; i < N; i++) CHECK_QUIETLY(host[s][i] == i * (s + 1) * 3 + s, "stream %d, element %d", s, i);
        OK(cudaStreamDestroy(streams[s]));
        OK(cudaFreeHost(host[s]));
        OK(cudaFree(device[s]));
    }
    printf("%d streams, each with its own copies and kernel\n", STREAMS);
}

// A chain that crosses streams at every link: each waits for an event of the one before.
static void chain_across_streams() {
    const int links = 12;
    cudaStream_t streams[STREAMS];
    cudaEvent_t done[links];
    int *data, *result;
    OK(cudaMalloc(&data, N * sizeof(int)));
    OK(cudaMallocHost(&result, N * sizeof(int)));
    for (cudaStream_t &stream : streams) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemset(data, 0, N * sizeof(int)));
    OK(cudaDeviceSynchronize());
    int wanted = 0;
    for (int link = 0; link < links; link++) {
        cudaStream_t stream = streams[link % STREAMS];
        OK(cudaEventCreateWithFlags(&done[link], cudaEventDisableTiming));
        if (link > 0) OK(cudaStreamWaitEvent(stream, done[link - 1], 0));
        scale_and_add<<<BLOCKS, 128, 0, stream>>>(data, data, N, 2, link);
        OK(cudaEventRecord(done[link], stream));
        wanted = wanted * 2 + link;
    }
    cudaStream_t last = streams[0];
    OK(cudaStreamWaitEvent(last, done[links - 1], 0));
    OK(cudaMemcpyAsync(result, data, N * sizeof(int), cudaMemcpyDeviceToHost, last));
    OK(cudaStreamSynchronize(last));
    for (int i = 0; i < N; i++) CHECK_QUIETLY(result[i] == wanted, "element %d: %d, wanted %d", i, result[i], wanted);
    for (cudaEvent_t &event : done) {
        EXPECT(cudaSuccess, cudaEventQuery(event));
        OK(cudaEventDestroy(event));
    }
    for (cudaStream_t &stream : streams) OK(cudaStreamDestroy(stream));
    OK(cudaFree(data));
    OK(cudaFreeHost(result));
    printf("a chain of %d kernels over %d streams\n", links, STREAMS);
}

static void event_times() {
    cudaEvent_t start, stop, untimed;
    int *data;
    float milliseconds = -1;
    OK(cudaMalloc(&data, N * sizeof(int)));
    OK(cudaEventCreate(&start));
    OK(cudaEventCreateWithFlags(&stop, cudaEventBlockingSync));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    EXPECT(cudaSuccess, cudaEventQuery(start));
    EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, start, stop));
    OK(cudaEventRecord(start));
    scale_and_add<<<BLOCKS, 128>>>(data, data, N, 1, 0);
    OK(cudaEventRecord(stop));
    OK(cudaEventRecord(untimed));
    OK(cudaEventSynchronize(stop));
    OK(cudaEventSynchronize(untimed));
    OK(cudaEventElapsedTime(&milliseconds, start, stop));
    CHECK(milliseconds > 0 && milliseconds < 60000, "%g ms", milliseconds);
    float same = -1;
    OK(cudaEventElapsedTime(&same, start, start));
    CHECK(same == 0, "from an event to itself: %g ms", same);
    EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, start, untimed));
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(stop));
    OK(cudaEventDestroy(untimed));
    OK(cudaFree(data));
    printf("events measure time, and say when they cannot\n");
}

static void hold(void *opened) {
    while (!static_cast<std::atomic<bool> *>(opened)->load()) std::this_thread::yield();
}

// An event that is done is done however often it is asked, and is not once it is recorded again, by a call or by a graph.
static void asked_again() {
    cudaStream_t stream, other;
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaGraphExec_t launched;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&launched, graph, 0));
    for (int round = 0; round < 20; round++) {
        std::atomic<bool> opened(false);
        for (int again = 0; again < 3; again++) EXPECT(cudaSuccess, cudaEventQuery(event));
        for (int again = 0; again < 3; again++) EXPECT(cudaSuccess, cudaEventSynchronize(event));
        OK(cudaLaunchHostFunc(stream, hold, &opened));
        EXPECT(cudaSuccess, cudaEventQuery(event));
        OK(round % 2 ? cudaGraphLaunch(launched, stream) : cudaEventRecord(event, stream));
        for (int again = 0; again < 3; again++) EXPECT(cudaErrorNotReady, cudaEventQuery(event));
        EXPECT(cudaSuccess, cudaStreamQuery(other));
        EXPECT(cudaErrorNotReady, cudaEventQuery(event));
        opened = true;
        OK(cudaEventSynchronize(event));
    }
    OK(cudaGraphExecDestroy(launched));
    OK(cudaGraphDestroy(graph));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    printf("an event is done until it is recorded again\n");
}

static void properties_of_streams() {
    int least, greatest, priority = 99;
    unsigned flags = 99;
    unsigned long long first_id, second_id;
    cudaStream_t first, second;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(least == 0 && greatest <= -1, "priorities from %d to %d", least, greatest);
    OK(cudaStreamCreateWithPriority(&first, cudaStreamNonBlocking, greatest));
    OK(cudaStreamCreate(&second));
    OK(cudaStreamGetPriority(first, &priority));
    CHECK(priority == greatest, "priority %d, wanted %d", priority, greatest);
    OK(cudaStreamGetFlags(first, &flags));
    CHECK(flags == cudaStreamNonBlocking, "flags %u", flags);
    OK(cudaStreamGetFlags(second, &flags));
    CHECK(flags == cudaStreamDefault, "flags %u", flags);
    OK(cudaStreamGetId(first, &first_id));
    OK(cudaStreamGetId(second, &second_id));
    CHECK(first_id != second_id, "both streams have the id %llu", first_id);
    OK(cudaStreamDestroy(first));
    OK(cudaStreamDestroy(second));
    printf("streams tell their flags, priorities and ids\n");
}

// A kernel on the legacy default stream waits for blocking streams, and they for it, without any event.
static void legacy_default_stream() {
    cudaStream_t blocking;
    int *data, result = -1;
    OK(cudaMalloc(&data, sizeof(int)));
    OK(cudaStreamCreate(&blocking));
    OK(cudaMemset(data, 0, sizeof(int)));
    for (int i = 0; i < 8; i++) scale_and_add<<<1, 32, 0, i % 2 ? blocking : cudaStreamLegacy>>>(data, data, 1, 2, 1);
    OK(cudaMemcpy(&result, data, sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(result == 255, "%d, wanted 255", result);
    OK(cudaStreamDestroy(blocking));
    OK(cudaFree(data));
    printf("the legacy default stream keeps its order\n");
}

int main() {
    independent_streams();
    chain_across_streams();
    event_times();
    asked_again();
    properties_of_streams();
    legacy_default_stream();
    OK(cudaDeviceSynchronize());
    return finish("streams_events");
}
