// Graphs built node by node: every kind of node, queries about them, clones, children, and changes of graphs.
#include "check.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <unistd.h>

static const int n = 128;

__global__ void add(int *cell, int by) { cell[threadIdx.x] += by; }
__global__ void take(int *cell, int by) { cell[threadIdx.x] -= by; }

static cudaGraphNode_t kernel_node(cudaGraph_t graph, cudaGraphNode_t *before, int *cell, int by,
                                   void (*kernel)(int *, int) = add) {
    void *arguments[] = {&cell, &by};
    cudaKernelNodeParams params = {};
    params.func = (void *)kernel;
    params.gridDim = dim3(1);
    params.blockDim = dim3(n);
    params.kernelParams = arguments;
    cudaGraphNode_t node;
    OK(cudaGraphAddKernelNode(&node, graph, before, before ? 1 : 0, &params));
    return node;
}

static cudaGraphNode_t fill_node(cudaGraph_t graph, cudaGraphNode_t *before, int *cell, int value) {
    cudaMemsetParams params = {};
    params.dst = cell;
    params.value = value;
    params.elementSize = 4;
    params.width = n;
    params.height = 1;
    cudaGraphNode_t node;
    OK(cudaGraphAddMemsetNode(&node, graph, before, before ? 1 : 0, &params));
    return node;
}

static void run(cudaGraphExec_t exec) {
    OK(cudaGraphLaunch(exec, nullptr));
    OK(cudaDeviceSynchronize());
}

static int first_of(const int *cell) {
    int value = -1;
    OK(cudaMemcpy(&value, cell, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

static void CUDART_CB note(void *data) { ++*static_cast<std::atomic<int> *>(data); }

static void every_kind_of_node() {
    int *cell, host[n], *pinned;
    std::atomic<int> called{0};
    cudaGraph_t graph, child, inside;
    cudaGraphExec_t exec;
    cudaEvent_t event;
    OK(cudaMalloc(&cell, sizeof host));
    OK(cudaMallocHost(&pinned, sizeof host));
    OK(cudaEventCreate(&event));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphCreate(&child, 0));
    cudaGraphNode_t inner = kernel_node(child, nullptr, cell, 40);
    cudaGraphNode_t fill = fill_node(graph, nullptr, cell, 2), added = kernel_node(graph, &fill, cell, 100);
    cudaGraphNode_t nested, empty, called_node, record, waits, back, own;
    OK(cudaGraphAddChildGraphNode(&nested, graph, &added, 1, child));
    OK(cudaGraphChildGraphNodeGetGraph(nested, &inside));
    CHECK(inside != child, "the child graph was not copied");
    OK(cudaGraphNodeFindInClone(&own, inner, inside));
    EXPECT(cudaErrorInvalidValue, cudaGraphDestroy(inside));
    OK(cudaGraphAddEmptyNode(&empty, graph, &nested, 1));
    cudaHostNodeParams params = {note, &called};
    OK(cudaGraphAddHostNode(&called_node, graph, &empty, 1, &params));
    OK(cudaGraphAddEventRecordNode(&record, graph, &called_node, 1, event));
    OK(cudaGraphAddEventWaitNode(&waits, graph, &record, 1, event));
    OK(cudaGraphAddMemcpyNode1D(&back, graph, &waits, 1, host, cell, sizeof host, cudaMemcpyDeviceToHost));
    OK(cudaGraphAddMemcpyNode1D(&own, graph, &back, 1, pinned, host, sizeof host, cudaMemcpyHostToHost));
    cudaGraphNodeType types[9];
    cudaGraphNode_t nodes[16];
    size_t count = 16;
    OK(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count && i < 9; i++) OK(cudaGraphNodeGetType(nodes[i], &types[i]));
    const cudaGraphNodeType wanted[] = {cudaGraphNodeTypeMemset, cudaGraphNodeTypeKernel,      cudaGraphNodeTypeGraph,
                                        cudaGraphNodeTypeEmpty,  cudaGraphNodeTypeHost,        cudaGraphNodeTypeEventRecord,
                                        cudaGraphNodeTypeWaitEvent, cudaGraphNodeTypeMemcpy,   cudaGraphNodeTypeMemcpy};
    CHECK(count == 9 && memcmp(types, wanted, sizeof types) == 0, "%zu nodes", count);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(child));
    OK(cudaGraphDestroy(graph));
    for (int round = 1; round <= 3; round++) {
        memset(host, 0, sizeof host);
        run(exec);
        CHECK(host[0] == 142 && host[n - 1] == 142 && pinned[7] == 142, "round %d: %d", round, host[0]);
        CHECK(called == round, "round %d: %d calls", round, called.load());
    }
    OK(cudaEventQuery(event));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaEventDestroy(event));
    OK(cudaFree(cell));
    OK(cudaFreeHost(pinned));
    printf("9 nodes of all kinds, 3 launches\n");
}

static void what_is_asked_about_nodes_and_edges() {
    int *cell;
    OK(cudaMalloc(&cell, n * sizeof(int)));
    cudaGraph_t graph, clone;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t one = fill_node(graph, nullptr, cell, 1), two = kernel_node(graph, &one, cell, 2);
    cudaGraphNode_t three = kernel_node(graph, &one, cell, 3), four = fill_node(graph, nullptr, cell, 4), found[4];
    EXPECT(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, &one, &two, nullptr, 1));
    EXPECT(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, &one, &one, nullptr, 1));
    OK(cudaGraphAddDependencies(graph, &four, &three, nullptr, 1));
    size_t count = 4;
    OK(cudaGraphNodeGetDependencies(three, found, nullptr, &count));
    CHECK(count == 2 && found[0] == one && found[1] == four, "%zu dependencies", count);
    count = 4;
    OK(cudaGraphNodeGetDependentNodes(one, found, nullptr, &count));
    CHECK(count == 2 && found[0] == two && found[1] == three, "%zu dependents", count);
    count = 4;
    OK(cudaGraphGetRootNodes(graph, found, &count));
    CHECK(count == 2 && found[0] == four && found[1] == one, "%zu roots", count);
    count = 1;
    OK(cudaGraphGetNodes(graph, found, &count));
    CHECK(count == 1 && found[0] == one, "%zu nodes", count);
    cudaKernelNodeParams params;
    OK(cudaGraphKernelNodeGetParams(two, &params));
    CHECK(params.func == (void *)add && params.blockDim.x == n && *(int *)params.kernelParams[1] == 2, "params");
    EXPECT(cudaErrorInvalidValue, cudaGraphKernelNodeGetParams(one, &params));
    OK(cudaGraphClone(&clone, graph));
    OK(cudaGraphNodeFindInClone(&found[0], three, clone));
    OK(cudaGraphDestroyNode(found[0]));
    EXPECT(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found[0], three, clone));
    OK(cudaGraphRemoveDependencies(graph, &four, &three, nullptr, 1));
    EXPECT(cudaErrorInvalidValue, cudaGraphRemoveDependencies(graph, &four, &three, nullptr, 1));
    OK(cudaGraphAddDependencies(graph, &two, &four, nullptr, 1));
    OK(cudaGraphAddDependencies(graph, &four, &one, nullptr, 1));
    cudaGraphExec_t exec;
    EXPECT(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 0));
    (void)cudaGetLastError();
    OK(cudaGraphDestroy(clone));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(cell));
    printf("nodes, edges, clones and a cycle\n");
}

static void executable_graphs_are_changed() {
    int *cell, *other, host[n];
    OK(cudaMalloc(&cell, sizeof host));
    OK(cudaMalloc(&other, sizeof host));
    OK(cudaMemset(other, 0, sizeof host));
    cudaGraph_t graph, changed;
    cudaGraphExec_t exec;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t fill = fill_node(graph, nullptr, cell, 1), kernel = kernel_node(graph, &fill, cell, 10), copy;
    OK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, host, cell, sizeof host, cudaMemcpyDeviceToHost));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    run(exec);
    CHECK(host[0] == 11, "%d", host[0]);

    int by = 30;
    void *arguments[] = {&cell, &by};
    cudaKernelNodeParams params;
    OK(cudaGraphKernelNodeGetParams(kernel, &params));
    params.kernelParams = arguments;
    OK(cudaGraphExecKernelNodeSetParams(exec, kernel, &params));
    run(exec);
    CHECK(host[0] == 31, "%d", host[0]);
    params.func = (void *)take;
    OK(cudaGraphExecKernelNodeSetParams(exec, kernel, &params));
    cudaMemsetParams value;
    OK(cudaGraphMemsetNodeGetParams(fill, &value));
    value.value = 100;
    OK(cudaGraphExecMemsetNodeSetParams(exec, fill, &value));
    run(exec);
    CHECK(host[0] == 70 && host[n - 1] == 70, "%d", host[0]);
    OK(cudaGraphNodeSetEnabled(exec, kernel, 0));
    unsigned enabled = 7;
    OK(cudaGraphNodeGetEnabled(exec, kernel, &enabled));
    run(exec);
    CHECK(host[0] == 100 && enabled == 0, "%d, enabled %u", host[0], enabled);
    OK(cudaGraphNodeSetEnabled(exec, kernel, 1));
    int elsewhere[n];
    OK(cudaGraphExecMemcpyNodeSetParams1D(exec, copy, elsewhere, cell, sizeof host, cudaMemcpyDeviceToHost));
    host[0] = -1;
    run(exec);
    CHECK(elsewhere[0] == 70 && host[0] == -1, "%d, %d", elsewhere[0], host[0]);
    EXPECT(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams1D(exec, copy, other, cell, 4, cudaMemcpyDeviceToDevice));
    (void)cudaGetLastError();

    // Updates the whole graph from another of the same shape.
    cudaGraphExecUpdateResultInfo info = {};
    OK(cudaGraphCreate(&changed, 0));
    cudaGraphNode_t a = fill_node(changed, nullptr, cell, 7), b = kernel_node(changed, &a, cell, 1), c;
    OK(cudaGraphAddMemcpyNode1D(&c, changed, &b, 1, host, cell, sizeof host, cudaMemcpyDeviceToHost));
    OK(cudaGraphExecUpdate(exec, changed, &info));
    CHECK(info.result == cudaGraphExecUpdateSuccess, "result %d", int(info.result));
    run(exec);
    CHECK(host[0] == 8, "%d", host[0]);
    kernel_node(changed, &b, cell, 1);
    EXPECT(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, changed, &info));
    CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged, "result %d", int(info.result));
    OK(cudaGraphDestroy(changed));
    OK(cudaGraphCreate(&changed, 0));
    a = fill_node(changed, nullptr, cell, 7);
    b = fill_node(changed, &a, cell, 7);
    OK(cudaGraphAddMemcpyNode1D(&c, changed, &b, 1, host, cell, sizeof host, cudaMemcpyDeviceToHost));
    EXPECT(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, changed, &info));
    CHECK(info.result == cudaGraphExecUpdateErrorNodeTypeChanged && info.errorNode == b, "result %d", int(info.result));
    (void)cudaGetLastError();
    run(exec);
    CHECK(host[0] == 8, "a refused update changed the graph: %d", host[0]);
    OK(cudaGraphDestroy(changed));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaFree(cell));
    OK(cudaFree(other));
    printf("parameters, functions, switches and whole graphs changed\n");
}

__global__ void raise(int *flag) { *flag = 1; }

static void CUDART_CB wait_for(void *data) {
    auto *go = static_cast<std::atomic<bool> *>(data);
    while (!*go) std::this_thread::yield();
}

// The host function ends only when the program has seen, through another stream, what the kernel beside it wrote. Pinned
// memory would not do: over a network it is made equal at synchronisations alone.
static void branches_run_side_by_side() {
    int *flag, seen = 0;
    std::atomic<bool> go{false};
    cudaStream_t stream, other;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaMalloc(&flag, sizeof *flag));
    OK(cudaMemset(flag, 0, sizeof *flag));
    for (auto *each : {&stream, &other}) OK(cudaStreamCreateWithFlags(each, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());
    OK(cudaGraphCreate(&graph, 0));
    void *arguments[] = {&flag};
    cudaKernelNodeParams params = {};
    params.func = (void *)raise;
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = arguments;
    cudaHostNodeParams waiting = {wait_for, &go};
    cudaGraphNode_t host, kernel;
    OK(cudaGraphAddHostNode(&host, graph, nullptr, 0, &waiting));
    OK(cudaGraphAddKernelNode(&kernel, graph, nullptr, 0, &params));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    while (seen == 0) {
        OK(cudaMemcpyAsync(&seen, flag, sizeof seen, cudaMemcpyDeviceToHost, other));
        OK(cudaStreamSynchronize(other));
    }
    go = true;
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    for (auto each : {stream, other}) OK(cudaStreamDestroy(each));
    OK(cudaFree(flag));
    printf("a host function waited for the kernel beside it\n");
}

static void launches_come_one_after_the_other() {
    int *cell;
    cudaStream_t streams[3];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaMalloc(&cell, n * sizeof(int)));
    OK(cudaMemset(cell, 0, n * sizeof(int)));
    for (auto &stream : streams) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t node = kernel_node(graph, nullptr, cell, 1);
    for (int i = 0; i < 4; i++) node = kernel_node(graph, &node, cell, i);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 30; i++) OK(cudaGraphLaunch(exec, streams[i % 3]));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaDeviceSynchronize());
    CHECK(first_of(cell) == 30 * 7, "%d", first_of(cell));
    for (auto &stream : streams) OK(cudaStreamDestroy(stream));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(cell));
    printf("30 launches in 3 streams, none beside another\n");
}

static void CUDART_CB gone(void *data) { ++*static_cast<std::atomic<int> *>(data); }

static void user_objects_live_as_long_as_their_graphs() {
    static std::atomic<int> ended{0};
    cudaGraph_t graph, clone;
    cudaGraphExec_t exec;
    cudaUserObject_t object;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t node;
    OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
    OK(cudaUserObjectCreate(&object, &ended, gone, 1, cudaUserObjectNoDestructorSync));
    OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphClone(&clone, graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphDestroy(clone));
    CHECK(ended == 0, "ended %d times before its last graph", ended.load());
    OK(cudaGraphExecDestroy(exec));
    // The driver ends it at any time: a minute is far more than that takes.
    for (int i = 0; i < 60000 && ended == 0; i++) usleep(1000);
    CHECK(ended == 1, "ended %d times", ended.load());
    printf("a user object ended with the last graph that held it\n");
}

static void graphs_are_drawn() {
    char path[] = "/tmp/graph_nodes.XXXXXX", text[4096] = {}, more[16384] = {};
    int file = mkstemp(path), by = 5, *cell = nullptr;
    void *arguments[] = {&cell, &by};
    cudaGraph_t graph;
    cudaGraphNode_t node, second, kernel;
    cudaKernelNodeParams params = {};
    params.func = (void *)add;
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = arguments;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
    OK(cudaGraphAddEmptyNode(&second, graph, &node, 1));
    OK(cudaGraphAddKernelNode(&kernel, graph, &second, 1, &params));
    OK(cudaGraphDebugDotPrint(graph, path, cudaGraphDebugDotFlagsVerbose));
    CHECK(read(file, more, sizeof more - 1) > 0 && strstr(more, "digraph") && strstr(more, "->"), "no drawing");
    CHECK(strstr(more, "3add"), "no name of the kernel in %s", more);
    CHECK(lseek(file, 0, SEEK_SET) == 0 && ftruncate(file, 0) == 0, "%s", path);
    OK(cudaGraphDebugDotPrint(graph, path, 0));
    CHECK(read(file, text, sizeof text - 1) > 0 && strstr(text, "3add"), "no name of the kernel in %s", text);
    CHECK(strlen(text) < strlen(more), "the flag adds nothing");
    EXPECT(cudaErrorOperatingSystem, cudaGraphDebugDotPrint(graph, "/nonexistent/folder/graph", 0));
    (void)cudaGetLastError();
    close(file);
    unlink(path);
    OK(cudaGraphDestroy(graph));
    printf("a graph was drawn\n");
}

int main() {
    every_kind_of_node();
    what_is_asked_about_nodes_and_edges();
    executable_graphs_are_changed();
    branches_run_side_by_side();
    launches_come_one_after_the_other();
    user_objects_live_as_long_as_their_graphs();
    graphs_are_drawn();
    return finish("graph_nodes");
}
