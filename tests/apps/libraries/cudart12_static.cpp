// A program of CUDA 12, with its headers, and its runtime linked in. The runtime starts, loads a module, launches, captures and
// replays, and its errors are right.
#include <cuda_runtime_api.h>

#include <vector>

#include "check.h"
#include "embedded_ptx.h"

static const unsigned COUNT = 20000;

static cudaKernel_t add;
static void *in, *out;
static cudaStream_t stream;

static void launch(int term) {
    unsigned count = COUNT;
    void *parameters[] = {&out, &count, &in, &term};
    OK(cudaLaunchKernel(add, dim3((COUNT + 127) / 128), dim3(128), parameters, 0, stream));
}

static void expect_results(int term, const char *when) {
    std::vector<int> values(COUNT);
    OK(cudaMemcpyAsync(values.data(), out, COUNT * 4, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (unsigned i = 0; i < COUNT; i++) CHECK_QUIETLY(values[i] == int(i) * 3 + term, "%s: %u: %d", when, i, values[i]);
}

int main() {
    static_assert(CUDART_VERSION / 1000 == 12, "headers of another CUDA");
    int version = 0, driver = 0;
    cudaLibrary_t library;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float milliseconds = -1;
    std::vector<int> values(COUNT);
    for (unsigned i = 0; i < COUNT; i++) values[i] = int(i);
    OK(cudaRuntimeGetVersion(&version));
    OK(cudaDriverGetVersion(&driver));
    CHECK(version == CUDART_VERSION && driver >= version, "runtime %d, driver %d", version, driver);
    OK(cudaLibraryLoadData(&library, MODULE_PTX, nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cudaLibraryGetKernel(&add, library, "add"));
    OK(cudaMalloc(&in, COUNT * 4));
    OK(cudaMallocAsync(&out, COUNT * 4, nullptr));
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaMemcpy(in, values.data(), COUNT * 4, cudaMemcpyHostToDevice));
    OK(cudaEventRecord(begin, stream));
    launch(5);
    OK(cudaEventRecord(end, stream));
    expect_results(5, "launched");
    OK(cudaEventElapsedTime(&milliseconds, begin, end));
    CHECK(milliseconds >= 0, "%f ms", double(milliseconds));
    printf("launched\n");
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    launch(-9);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaMemset(out, 0, COUNT * 4));
    OK(cudaGraphLaunch(exec, stream));
    expect_results(-9, "replayed");
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    printf("captured and replayed\n");
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(in, values.data(), COUNT * 4 + 1, cudaMemcpyHostToDevice));
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    EXPECT(cudaErrorSymbolNotFound, cudaLibraryGetKernel(&add, library, "no such kernel"));
    EXPECT(cudaErrorSymbolNotFound, cudaGetLastError());
    EXPECT(cudaErrorInvalidDevice, cudaSetDevice(99));
    printf("errors\n");
    OK(cudaEventDestroy(end));
    OK(cudaEventDestroy(begin));
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeAsync(out, nullptr));
    OK(cudaFree(in));
    OK(cudaLibraryUnload(library));
    return finish("cudart12_static");
}
