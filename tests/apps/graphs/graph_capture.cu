// Stream capture: forks and joins, the resulting graph, calls that a capture forbids, and repeated launches of a graph.
#include "check.h"

#include <thread>
#include <vector>

static const int n = 256;

__global__ void add(int *cell, int by) { cell[threadIdx.x] += by; }
__global__ void times(int *cell, int by) { cell[threadIdx.x] *= by; }
__global__ void sum(int *to, const int *one, const int *other) { to[threadIdx.x] = one[threadIdx.x] + other[threadIdx.x]; }

struct Streams {
    cudaStream_t first, second;
    Streams() {
        OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
        OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    }
    ~Streams() {
        OK(cudaStreamDestroy(first));
        OK(cudaStreamDestroy(second));
    }
};

static size_t nodes_of(cudaGraph_t graph) {
    size_t count = 99;
    OK(cudaGraphGetNodes(graph, nullptr, &count));
    return count;
}

static void a_captured_chain_runs_each_time_it_is_launched() {
    Streams streams;
    int *device, host[n];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaMalloc(&device, sizeof host));
    OK(cudaMemset(device, 0, sizeof host));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeGlobal));
    add<<<1, n, 0, streams.first>>>(device, 3);
    times<<<1, n, 0, streams.first>>>(device, 2);
    OK(cudaStreamEndCapture(streams.first, &graph));
    CHECK(nodes_of(graph) == 2, "%zu nodes", nodes_of(graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(host[0] == 0, "capturing ran the kernels: %d", host[0]);
    for (int i = 0; i < 4; i++) OK(cudaGraphLaunch(exec, i % 2 ? streams.first : streams.second));
    OK(cudaStreamSynchronize(streams.first));
    OK(cudaStreamSynchronize(streams.second));
    OK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) CHECK(host[i] == 90, "cell %d: %d", i, host[i]);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(device));
    printf("a chain of 2 kernels, 4 launches\n");
}

static void forks_join_and_copies_read_the_programs_memory_at_each_launch() {
    Streams streams;
    cudaEvent_t forked, joined;
    int *one, *other, *total, source[n], result[n], *pinned;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaEventCreate(&forked));
    OK(cudaEventCreate(&joined));
    OK(cudaMalloc(&one, sizeof source));
    OK(cudaMalloc(&other, sizeof source));
    OK(cudaMalloc(&total, sizeof source));
    OK(cudaMallocHost(&pinned, sizeof source));
    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemcpyAsync(one, source, sizeof source, cudaMemcpyHostToDevice, streams.first));
    OK(cudaEventRecord(forked, streams.first));
    OK(cudaStreamWaitEvent(streams.second, forked, 0));
    OK(cudaMemsetAsync(other, 0, sizeof source, streams.second));
    add<<<1, n, 0, streams.second>>>(other, 1000);
    add<<<1, n, 0, streams.first>>>(one, 1);
    OK(cudaEventRecord(joined, streams.second));
    OK(cudaStreamWaitEvent(streams.first, joined, 0));
    sum<<<1, n, 0, streams.first>>>(total, one, other);
    OK(cudaMemcpyAsync(result, total, sizeof result, cudaMemcpyDeviceToHost, streams.first));
    OK(cudaMemcpyAsync(pinned, total, sizeof result, cudaMemcpyDeviceToHost, streams.first));
    cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    OK(cudaStreamGetCaptureInfo(streams.second, &status, &id));
    CHECK(status == cudaStreamCaptureStatusActive && id != 0, "status %d, id %llu", int(status), id);
    OK(cudaStreamEndCapture(streams.first, &graph));
    OK(cudaStreamIsCapturing(streams.second, &status));
    CHECK(status == cudaStreamCaptureStatusNone, "status %d", int(status));
    cudaGraphNode_t from[16], to[16], roots[16];
    size_t edges = 16, starts = 16;
    OK(cudaGraphGetEdges(graph, from, to, nullptr, &edges));
    OK(cudaGraphGetRootNodes(graph, roots, &starts));
    CHECK(nodes_of(graph) == 7 && edges == 7 && starts == 1, "%zu nodes, %zu edges", nodes_of(graph), edges);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphUpload(exec, streams.first));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < n; i++) source[i] = i * (round + 1);
        OK(cudaGraphLaunch(exec, streams.first));
        OK(cudaStreamSynchronize(streams.first));
        for (int i = 0; i < n; i++) {
            int wanted = i * (round + 1) + 1001;
            CHECK(result[i] == wanted && pinned[i] == wanted, "round %d, %d: %d", round, i, result[i]);
        }
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(one));
    OK(cudaFree(other));
    OK(cudaFree(total));
    OK(cudaFreeHost(pinned));
    OK(cudaEventDestroy(forked));
    OK(cudaEventDestroy(joined));
    printf("a fork and a join, %zu edges, 3 launches with other inputs\n", edges);
}

// Checks what invalidates a capture, and which code its end then returns.
static void captures_are_spoilt_by_what_they_forbid() {
    Streams streams;
    cudaGraph_t graph = nullptr;
    cudaEvent_t event;
    void *memory;
    OK(cudaEventCreate(&event));
    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeGlobal));
    EXPECT(cudaErrorStreamCaptureUnsupported, cudaMalloc(&memory, 16));
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(streams.first, &graph));
    CHECK(graph == nullptr, "a spoilt capture left a graph");

    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeRelaxed));
    OK(cudaMalloc(&memory, 16));
    OK(cudaFree(memory));
    OK(cudaStreamEndCapture(streams.first, &graph));
    OK(cudaGraphDestroy(graph));

    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeRelaxed));
    EXPECT(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(streams.first));
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(streams.first, &graph));

    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(event, streams.first));
    EXPECT(cudaErrorCapturedEvent, cudaEventQuery(event));
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(streams.first, &graph));
    OK(cudaEventRecord(event, streams.first));

    OK(cudaStreamBeginCapture(streams.second, cudaStreamCaptureModeGlobal));
    EXPECT(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(streams.second, event, 0));
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(streams.second, &graph));

    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(event, streams.first));
    OK(cudaStreamWaitEvent(streams.second, event, 0));
    int *cell;
    EXPECT(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(streams.second, &graph));
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(streams.first, &graph));
    OK(cudaMalloc(&cell, n * sizeof(int)));
    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(event, streams.first));
    OK(cudaStreamWaitEvent(streams.second, event, 0));
    add<<<1, n, 0, streams.second>>>(cell, 1);
    EXPECT(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(streams.first, &graph));

    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeGlobal));
    OK(cudaStreamBeginCapture(streams.second, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(event, streams.first));
    EXPECT(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(streams.second, event, 0));
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(streams.first, &graph));
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(streams.second, &graph));
    EXPECT(cudaErrorIllegalState, cudaStreamEndCapture(streams.second, &graph));
    (void)cudaGetLastError();
    OK(cudaFree(cell));
    OK(cudaEventDestroy(event));
    printf("captures are spoilt as the driver spoils them\n");
}

static void blocking_streams_forbid_the_legacy_stream() {
    cudaStream_t stream;
    cudaGraph_t graph = nullptr;
    cudaStreamCaptureStatus status;
    int *cell;
    OK(cudaMalloc(&cell, n * sizeof(int)));
    OK(cudaStreamCreate(&stream));
    EXPECT(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeGlobal));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    EXPECT(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(cudaStreamLegacy, &status));
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusActive, "status %d", int(status));
    add<<<1, n, 0, cudaStreamLegacy>>>(cell, 1);
    EXPECT(cudaErrorStreamCaptureImplicit, cudaGetLastError());
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    (void)cudaGetLastError();
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(cell));
    printf("the legacy stream waits for no captured stream\n");
}

static void other_threads_are_bound_by_the_modes() {
    Streams streams;
    cudaGraph_t graph = nullptr;
    auto elsewhere = [&](cudaStreamCaptureMode mode, auto call) {
        cudaError_t got = cudaErrorUnknown;
        std::thread([&] {
            OK(cudaThreadExchangeStreamCaptureMode(&mode));
            got = call();
        }).join();
        return got;
    };
    auto allocate = [] {
        void *memory = nullptr;
        cudaError_t got = cudaMalloc(&memory, 16);
        if (got == cudaSuccess) OK(cudaFree(memory));
        return got;
    };
    auto end = [&] { return cudaStreamEndCapture(streams.first, &graph); };
    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeGlobal));
    EXPECT(cudaSuccess, elsewhere(cudaStreamCaptureModeThreadLocal, allocate));
    EXPECT(cudaErrorStreamCaptureUnsupported, elsewhere(cudaStreamCaptureModeGlobal, allocate));
    EXPECT(cudaErrorStreamCaptureInvalidated, end());
    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeThreadLocal));
    EXPECT(cudaSuccess, elsewhere(cudaStreamCaptureModeGlobal, allocate));
    EXPECT(cudaErrorStreamCaptureWrongThread, elsewhere(cudaStreamCaptureModeGlobal, end));
    EXPECT(cudaErrorIllegalState, end());
    OK(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeRelaxed));
    EXPECT(cudaSuccess, elsewhere(cudaStreamCaptureModeGlobal, end));
    OK(cudaGraphDestroy(graph));
    (void)cudaGetLastError();
    printf("threads are bound by the modes of both\n");
}

static void CUDART_CB note(void *data) { ++*static_cast<int *>(data); }

static void a_graph_can_be_captured_into_and_its_dependencies_changed() {
    Streams streams;
    cudaGraph_t graph, back;
    cudaGraphExec_t exec;
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t *before;
    size_t count;
    int called = 0;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t first, extra;
    cudaHostNodeParams params = {note, &called};
    OK(cudaGraphAddHostNode(&first, graph, nullptr, 0, &params));
    OK(cudaStreamBeginCaptureToGraph(streams.first, graph, &first, nullptr, 1, cudaStreamCaptureModeGlobal));
    OK(cudaLaunchHostFunc(streams.first, note, &called));
    OK(cudaGraphAddHostNode(&extra, graph, nullptr, 0, &params));
    OK(cudaStreamUpdateCaptureDependencies(streams.first, &extra, nullptr, 1, cudaStreamAddCaptureDependencies));
    OK(cudaStreamGetCaptureInfo(streams.first, &status, nullptr, nullptr, &before, nullptr, &count));
    CHECK(count == 2 && before[1] == extra, "%zu dependencies", count);
    OK(cudaLaunchHostFunc(streams.first, note, &called));
    OK(cudaStreamEndCapture(streams.first, &back));
    CHECK(back == graph, "the capture ended in another graph");
    size_t edges = 0;
    OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, streams.first));
    OK(cudaStreamSynchronize(streams.first));
    CHECK(called == 4 && edges == 3, "%d calls, %zu edges", called, edges);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    printf("4 host functions captured into a graph that was there\n");
}

int main() {
    a_captured_chain_runs_each_time_it_is_launched();
    forks_join_and_copies_read_the_programs_memory_at_each_launch();
    captures_are_spoilt_by_what_they_forbid();
    blocking_streams_forbid_the_legacy_stream();
    other_threads_are_bound_by_the_modes();
    a_graph_can_be_captured_into_and_its_dependencies_changed();
    return finish("graph_capture");
}
