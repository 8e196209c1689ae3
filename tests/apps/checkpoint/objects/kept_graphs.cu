// Graphs that are captured or built once and launched in every step: with new parameters, an executable graph
// updated in place, a child graph, clones, and a capture that begins in one step and ends in the next.
#include "steps.h"

constexpr int N = 512;

__global__ void mix(unsigned *data, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = data[i] * 1664525u + salt + i;
}

__global__ void fold(const unsigned *data, unsigned *sum) {
    unsigned total = 0;
    for (int i = 0; i < N; i++) total = total * 31 + data[i];
    *sum = total;
}

static cudaStream_t stream, captured;
static unsigned *data, *sum;

static void mixing(cudaStream_t on, unsigned salt, int times) {
    for (int i = 0; i < times; i++) mix<<<N / 64, 64, 0, on>>>(data, salt + i);
    OK(cudaGetLastError());
}

static cudaGraphExec_t executable(cudaGraph_t graph) {
    cudaGraphExec_t made;
    OK(cudaGraphInstantiate(&made, graph, 0));
    return made;
}

// Three kernels and a fold, captured.
static cudaGraph_t by_capture() {
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    mixing(stream, 7, 3);
    fold<<<1, 1, 0, stream>>>(data, sum);
    OK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

static cudaKernelNodeParams kernel(void *function, dim3 grid, dim3 block, void **arguments) {
    cudaKernelNodeParams parameters = {};
    parameters.func = function;
    parameters.gridDim = grid;
    parameters.blockDim = block;
    parameters.kernelParams = arguments;
    return parameters;
}

// Builds a graph by hand: a fill, the child, and a kernel whose parameter every step sets anew.
static cudaGraph_t by_hand(cudaGraph_t child, cudaGraphNode_t *kernel_node) {
    cudaGraph_t graph;
    cudaGraphNode_t fill, inner;
    cudaMemsetParams memset = {};
    memset.dst = data + 16;
    memset.elementSize = 4;
    memset.value = 99;
    memset.width = 8;
    memset.height = 1;
    unsigned salt = 0;
    void *arguments[] = {&data, &salt};
    cudaKernelNodeParams parameters = kernel(reinterpret_cast<void *>(mix), N / 64, 64, arguments);
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &memset));
    OK(cudaGraphAddChildGraphNode(&inner, graph, &fill, 1, child));
    OK(cudaGraphAddKernelNode(kernel_node, graph, &inner, 1, &parameters));
    return graph;
}

// Updates the executable graph from another graph of the same shape with other parameters.
static void update(cudaGraphExec_t into, unsigned salt) {
    cudaGraph_t other;
    cudaGraphExecUpdateResultInfo result;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    mixing(stream, salt, 3);
    fold<<<1, 1, 0, stream>>>(data, sum);
    OK(cudaStreamEndCapture(stream, &other));
    OK(cudaGraphExecUpdate(into, other, &result));
    OK(cudaGraphDestroy(other));
}

static void begin_long_capture(int step) {
    OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed));
    mixing(captured, step, 2);
}

static void end_long_capture(int step) {
    cudaGraph_t graph;
    mixing(captured, step, 1);
    OK(cudaStreamEndCapture(captured, &graph));
    cudaGraphExec_t made = executable(graph);
    OK(cudaGraphLaunch(made, stream));
    OK(cudaGraphExecDestroy(made));
    OK(cudaGraphDestroy(graph));
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 16);
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    OK(cudaMalloc(&data, N * sizeof(unsigned)));
    OK(cudaMalloc(&sum, sizeof *sum));
    OK(cudaMemsetAsync(data, 1, N * sizeof(unsigned), stream));
    cudaGraphNode_t node;
    cudaGraph_t first = by_capture(), second = by_hand(first, &node), copy;
    OK(cudaGraphClone(&copy, second));
    cudaGraphExec_t runs[] = {executable(first), executable(second), executable(copy)};
    for (int step = 0; step < steps; step++) {
        if (step % 3 == 1) end_long_capture(step);
        if (step % 4 == 2) update(runs[0], step);
        unsigned salt = step * 1000;
        void *arguments[] = {&data, &salt};
        cudaKernelNodeParams parameters = kernel(reinterpret_cast<void *>(mix), N / 64, 64, arguments);
        OK(cudaGraphExecKernelNodeSetParams(runs[1], node, &parameters));
        for (cudaGraphExec_t run : {runs[1], runs[2], runs[0]}) OK(cudaGraphLaunch(run, stream));
        unsigned host = 0;
        OK(cudaMemcpyAsync(&host, sum, sizeof host, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        if (step % 3 == 0 && step + 1 < steps) begin_long_capture(step);
        Checksum line;
        line.add(host);
        told(step, line);
    }
    for (cudaGraphExec_t run : runs) OK(cudaGraphExecDestroy(run));
    for (cudaGraph_t graph : {first, second, copy}) OK(cudaGraphDestroy(graph));
    OK(cudaFree(data));
    OK(cudaFree(sum));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(captured));
    return finish("kept_graphs");
}
