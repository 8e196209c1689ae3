// Conditional nodes: if, while and switch bodies that run by a value which kernels of the graph set.
#include "check.h"

__global__ void count(int *cell) { ++*cell; }
__global__ void decide(cudaGraphConditionalHandle handle, const int *cell, int below) {
    cudaGraphSetConditional(handle, *cell < below);
}
__global__ void choose(cudaGraphConditionalHandle handle, unsigned value) { cudaGraphSetConditional(handle, value); }
__global__ void add(int *cell, int by) { *cell += by; }

static cudaGraphNode_t conditional(cudaGraph_t graph, cudaGraphNode_t *before, cudaGraphConditionalHandle handle,
                                   cudaGraphConditionalNodeType type, unsigned size, cudaGraph_t *bodies) {
    cudaGraphNodeParams params = {cudaGraphNodeTypeConditional};
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    cudaGraphNode_t node;
    OK(cudaGraphAddNode(&node, graph, before, nullptr, before ? 1 : 0, &params));
    for (unsigned i = 0; i < size; i++) bodies[i] = params.conditional.phGraph_out[i];
    return node;
}

// Captures the work that `body` puts into a stream into `graph`.
template <typename Body>
static void captured(cudaGraph_t graph, Body body) {
    cudaStream_t stream;
    cudaGraph_t back;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
    body(stream);
    OK(cudaStreamEndCapture(stream, &back));
    CHECK(back == graph, "captured into another graph");
    OK(cudaStreamDestroy(stream));
}

static int value_of(int *cell) {
    int value = -1;
    OK(cudaMemcpy(&value, cell, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

static void while_runs_until_the_value_is_zero(int *cell) {
    cudaGraph_t graph, body;
    cudaGraphExec_t exec;
    cudaGraphConditionalHandle handle;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    conditional(graph, nullptr, handle, cudaGraphCondTypeWhile, 1, &body);
    captured(body, [&](cudaStream_t stream) {
        count<<<1, 1, 0, stream>>>(cell);
        decide<<<1, 1, 0, stream>>>(handle, cell, 10);
    });
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 2; round++) {
        OK(cudaMemset(cell, 0, sizeof *cell));
        OK(cudaGraphLaunch(exec, nullptr));
        OK(cudaDeviceSynchronize());
        CHECK(value_of(cell) == 10, "round %d: %d", round, value_of(cell));
    }
    EXPECT(cudaErrorInvalidValue, cudaGraphDestroy(body));
    (void)cudaGetLastError();
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    printf("a body ran 10 times in each of 2 launches\n");
}

static void if_runs_one_of_two(int *cell) {
    for (unsigned value = 0; value < 2; value++) {
        cudaGraph_t graph, bodies[2];
        cudaGraphExec_t exec;
        cudaGraphConditionalHandle handle;
        OK(cudaMemset(cell, 0, sizeof *cell));
        OK(cudaGraphCreate(&graph, 0));
        OK(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
        void *arguments[] = {&handle, &value};
        cudaKernelNodeParams params = {};
        params.func = (void *)choose;
        params.gridDim = params.blockDim = dim3(1);
        params.kernelParams = arguments;
        cudaGraphNode_t first;
        OK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &params));
        conditional(graph, &first, handle, cudaGraphCondTypeIf, 2, bodies);
        captured(bodies[0], [&](cudaStream_t stream) { add<<<1, 1, 0, stream>>>(cell, 100); });
        captured(bodies[1], [&](cudaStream_t stream) { add<<<1, 1, 0, stream>>>(cell, 7); });
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphLaunch(exec, nullptr));
        OK(cudaDeviceSynchronize());
        CHECK(value_of(cell) == (value ? 100 : 7), "value %u: %d", value, value_of(cell));
        OK(cudaGraphExecDestroy(exec));
        OK(cudaGraphDestroy(graph));
    }
    printf("one of two bodies ran\n");
}

static void switch_runs_the_one_that_is_named(int *cell) {
    cudaGraph_t graph, bodies[3];
    cudaGraphExec_t exec;
    cudaGraphConditionalHandle handle;
    unsigned value = 0;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphConditionalHandleCreate(&handle, graph, 0, cudaGraphCondAssignDefault));
    void *arguments[] = {&handle, &value};
    cudaKernelNodeParams params = {};
    params.func = (void *)choose;
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = arguments;
    cudaGraphNode_t first;
    OK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &params));
    conditional(graph, &first, handle, cudaGraphCondTypeSwitch, 3, bodies);
    for (int i = 0; i < 3; i++) {
        captured(bodies[i], [&](cudaStream_t stream) { add<<<1, 1, 0, stream>>>(cell, i + 1); });
    }
    OK(cudaGraphInstantiate(&exec, graph, 0));
    int wanted = 0;
    OK(cudaMemset(cell, 0, sizeof *cell));
    for (value = 0; value < 4; value++) {
        OK(cudaGraphExecKernelNodeSetParams(exec, first, &params));
        OK(cudaGraphLaunch(exec, nullptr));
        OK(cudaDeviceSynchronize());
        wanted += value < 3 ? value + 1 : 0;
        CHECK(value_of(cell) == wanted, "value %u: %d", value, value_of(cell));
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    printf("a switch over 3 bodies\n");
}

static void handles_and_sizes_are_checked() {
    cudaGraph_t graph, clone, bodies[1];
    cudaGraphConditionalHandle handle;
    cudaGraphExec_t exec;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    EXPECT(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 0));
    cudaGraphNodeParams params = {cudaGraphNodeTypeConditional};
    params.conditional.handle = handle;
    params.conditional.type = cudaGraphCondTypeWhile;
    params.conditional.size = 2;
    cudaGraphNode_t node;
    EXPECT(cudaErrorInvalidValue, cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    conditional(graph, nullptr, handle, cudaGraphCondTypeWhile, 1, bodies);
    params.conditional.size = 1;
    EXPECT(cudaErrorInvalidValue, cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    EXPECT(cudaErrorNotSupported, cudaGraphClone(&clone, graph));
    (void)cudaGetLastError();
    OK(cudaGraphDestroy(graph));
    printf("handles and sizes are checked\n");
}

static void CUDART_CB nothing(void *) {}

// Which handles a graph knows, and what may be inside a conditional node (the codes of driver 580.159.04).
static void handles_are_those_of_the_outermost_graph(int *cell) {
    cudaGraph_t graph, other, bodies[1], inner[1];
    cudaGraphConditionalHandle handle, foreign, of_body, of_outermost;
    cudaGraphExec_t exec;
    cudaGraphNode_t node;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphCreate(&other, 0));
    OK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    OK(cudaGraphConditionalHandleCreate(&foreign, other, 1, cudaGraphCondAssignDefault));
    cudaGraphNodeParams params = {cudaGraphNodeTypeGraph};
    params.graph.graph = other;
    params.graph.ownership = cudaGraphChildGraphOwnershipMove;
    EXPECT(cudaErrorNotSupported, cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    EXPECT(cudaErrorNotSupported, cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, other));
    conditional(graph, nullptr, handle, cudaGraphCondTypeIf, 1, bodies);
    OK(cudaGraphConditionalHandleCreate(&of_body, bodies[0], 1, cudaGraphCondAssignDefault));
    EXPECT(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphConditionalHandleCreate(&of_outermost, graph, 1, cudaGraphCondAssignDefault));
    for (cudaGraphConditionalHandle each : {of_body, of_outermost}) {
        conditional(bodies[0], nullptr, each, cudaGraphCondTypeIf, 1, inner);
        captured(inner[0], [&](cudaStream_t stream) { count<<<1, 1, 0, stream>>>(cell); });
    }
    for (int round = 0; round < 2; round++) {
        OK(cudaMemset(cell, 0, sizeof *cell));
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphLaunch(exec, nullptr));
        OK(cudaDeviceSynchronize());
        CHECK(value_of(cell) == 2, "round %d: %d", round, value_of(cell));
        OK(cudaGraphExecDestroy(exec));
    }
    cudaHostNodeParams host = {nothing, nullptr};
    OK(cudaGraphAddHostNode(&node, bodies[0], nullptr, 0, &host));
    EXPECT(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphDestroy(other));
    (void)cudaGetLastError();
    printf("handles are those of the outermost graph\n");
}

int main() {
    int *cell;
    OK(cudaMalloc(&cell, sizeof *cell));
    while_runs_until_the_value_is_zero(cell);
    if_runs_one_of_two(cell);
    switch_runs_the_one_that_is_named(cell);
    handles_and_sizes_are_checked();
    handles_are_those_of_the_outermost_graph(cell);
    OK(cudaFree(cell));
    return finish("graph_conditional");
}
