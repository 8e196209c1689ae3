// Memory that begins and ends in graphs: by nodes and by capture, freed inside, by the program, or by the next launch.
#include "check.h"

static const int n = 256;

__global__ void fill(int *cell, int value) { cell[threadIdx.x] = value + threadIdx.x; }
__global__ void add(int *to, const int *from) { to[threadIdx.x] += from[threadIdx.x]; }

static cudaGraphNode_t alloc_node(cudaGraph_t graph, cudaGraphNode_t *before, int **memory) {
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    params.bytesize = n * sizeof(int);
    cudaGraphNode_t node;
    OK(cudaGraphAddMemAllocNode(&node, graph, before, before ? 1 : 0, &params));
    *memory = static_cast<int *>(params.dptr);
    return node;
}

static cudaGraphNode_t fill_node(cudaGraph_t graph, cudaGraphNode_t *before, int *cell, int value) {
    void *arguments[] = {&cell, &value};
    cudaKernelNodeParams params = {};
    params.func = (void *)fill;
    params.gridDim = dim3(1);
    params.blockDim = dim3(n);
    params.kernelParams = arguments;
    cudaGraphNode_t node;
    OK(cudaGraphAddKernelNode(&node, graph, before, 1, &params));
    return node;
}

static void memory_that_lives_inside_a_graph() {
    int *inside, host[n];
    cudaGraph_t graph, clone;
    cudaGraphExec_t exec, second;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t begun = alloc_node(graph, nullptr, &inside), filled = fill_node(graph, &begun, inside, 5), copied, ended;
    OK(cudaGraphAddMemcpyNode1D(&copied, graph, &filled, 1, host, inside, sizeof host, cudaMemcpyDeviceToHost));
    OK(cudaGraphAddMemFreeNode(&ended, graph, &copied, 1, inside));
    EXPECT(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&ended, graph, &copied, 1, inside));
    EXPECT(cudaErrorNotSupported, cudaGraphClone(&clone, graph));
    EXPECT(cudaErrorNotSupported, cudaGraphDestroyNode(begun));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    EXPECT(cudaErrorNotSupported, cudaGraphInstantiate(&second, graph, 0));
    (void)cudaGetLastError();
    for (int round = 0; round < 3; round++) {
        host[n - 1] = 0;
        OK(cudaGraphLaunch(exec, nullptr));
        OK(cudaDeviceSynchronize());
        CHECK(host[n - 1] == 5 + n - 1, "round %d: %d", round, host[n - 1]);
    }
    unsigned long long used = 0;
    OK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &used));
    CHECK(used >= sizeof host, "%llu bytes used at most", used);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceGraphMemTrim(0));
    OK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &used));
    CHECK(used == 0, "%llu bytes after the last graph", used);
    printf("memory inside a graph, 3 launches\n");
}

static void memory_that_outlives_its_launch() {
    int *memory, host[n];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t begun = alloc_node(graph, nullptr, &memory);
    fill_node(graph, &begun, memory, 100);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, nullptr));
    EXPECT(cudaErrorInvalidValue, cudaGraphLaunch(exec, nullptr));
    (void)cudaGetLastError();
    OK(cudaMemcpy(host, memory, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(host[3] == 103, "%d", host[3]);
    OK(cudaFree(memory));
    OK(cudaGraphLaunch(exec, nullptr));
    OK(cudaFreeAsync(memory, nullptr));
    OK(cudaDeviceSynchronize());
    EXPECT(cudaErrorInvalidValue, cudaFree(memory));
    (void)cudaGetLastError();
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(exec, nullptr));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(memory));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    printf("memory that outlives its launch is freed by the program, or by the next launch\n");
}

static void memory_allocated_in_a_capture() {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *one, *two, *result, host[n];
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc(&result, sizeof host));
    OK(cudaMemset(result, 0, sizeof host));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMallocAsync(&one, sizeof host, stream));
    OK(cudaMallocAsync(&two, sizeof host, stream));
    CHECK(one != two, "two allocations at one address");
    fill<<<1, n, 0, stream>>>(one, 1);
    fill<<<1, n, 0, stream>>>(two, 10);
    add<<<1, n, 0, stream>>>(one, two);
    add<<<1, n, 0, stream>>>(result, one);
    OK(cudaFreeAsync(one, stream));
    OK(cudaFreeAsync(two, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(host, result, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(host[0] == 22 && host[4] == 22 + 16, "%d, %d", host[0], host[4]);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(result));
    printf("stream-ordered memory captured, 2 launches\n");
}

static unsigned long long figure(cudaGraphMemAttributeType which) {
    unsigned long long bytes = 0;
    OK(cudaDeviceGetGraphMemAttribute(0, which, &bytes));
    return bytes;
}

static cudaGraphNode_t large_node(cudaGraph_t graph, cudaGraphNode_t *before, char **memory) {
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    params.bytesize = 64 << 20;
    cudaGraphNode_t node;
    OK(cudaGraphAddMemAllocNode(&node, graph, before, before ? 1 : 0, &params));
    *memory = static_cast<char *>(params.dptr);
    return node;
}

// Memory that graphs keep: as much as overlapping launches need, and after trimming only what is still in use.
static void memory_is_given_back() {
    constexpr unsigned long long large = 64 << 20;
    const auto reserved = cudaGraphMemAttrReservedMemCurrent;
    char *memory[4], *again;
    cudaGraph_t graph;
    cudaGraphExec_t execs[4];
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaDeviceGraphMemTrim(0));
    // What a node has freed before another one allocates is used again, in one graph.
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t node = large_node(graph, nullptr, &memory[0]), freed;
    OK(cudaGraphAddMemFreeNode(&freed, graph, &node, 1, memory[0]));
    node = large_node(graph, &freed, &again);
    OK(cudaGraphAddMemFreeNode(&freed, graph, &node, 1, again));
    CHECK(memory[0] == again, "two addresses");
    OK(cudaGraphInstantiate(&execs[0], graph, 0));
    OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 2; i++) OK(cudaGraphLaunch(execs[0], stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(figure(reserved) == large, "%llu bytes", figure(reserved));
    OK(cudaDeviceGraphMemTrim(0));
    CHECK(figure(reserved) == 0, "%llu bytes after trimming, while the graph can be launched", figure(reserved));
    OK(cudaGraphExecDestroy(execs[0]));
    // Consecutive graphs in a stream use the same memory, if they free it.
    for (bool frees : {true, false}) {
        for (int i = 0; i < 4; i++) {
            OK(cudaGraphCreate(&graph, 0));
            node = large_node(graph, nullptr, &memory[i]);
            if (frees) OK(cudaGraphAddMemFreeNode(&freed, graph, &node, 1, memory[i]));
            OK(cudaGraphInstantiate(&execs[i], graph, 0));
            OK(cudaGraphDestroy(graph));
        }
        CHECK(figure(reserved) == 0, "%llu bytes before a launch", figure(reserved));
        for (int i = 0; i < 4; i++) {
            OK(cudaGraphLaunch(execs[i], stream));
            OK(cudaStreamSynchronize(stream));
            CHECK(figure(reserved) == (frees ? 1 : i + 1) * large, "%llu bytes after launch %d", figure(reserved), i);
        }
        if (!frees) {
            OK(cudaDeviceGraphMemTrim(0));
            CHECK(figure(reserved) == 4 * large, "%llu bytes that live", figure(reserved));
            for (char *left : memory) OK(cudaFree(left));
            CHECK(figure(reserved) == 4 * large, "%llu bytes once freed", figure(reserved));
        }
        OK(cudaDeviceGraphMemTrim(0));
        CHECK(figure(reserved) == 0, "%llu bytes after trimming", figure(reserved));
        for (cudaGraphExec_t exec : execs) OK(cudaGraphExecDestroy(exec));
    }
    OK(cudaStreamDestroy(stream));
    printf("memory of graphs is given back\n");
}

int main() {
    memory_that_lives_inside_a_graph();
    memory_that_outlives_its_launch();
    memory_allocated_in_a_capture();
    memory_is_given_back();
    return finish("graph_memory");
}
