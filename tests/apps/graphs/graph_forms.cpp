// Graphs by the older and rarer forms of their calls: parameters of every kind of node, read and changed in the graph
// and in its executable, edges, user objects.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <unistd.h>

#include <cstring>

#include "check.h"
#include "embedded_ptx.h"
#include "first_device.h"

static CUcontext context;
static CUstream stream;
static CUmodule module;
static CUfunction add, bump;
static CUdeviceptr counter, memory;

static unsigned word(CUdeviceptr at) {
    unsigned value = 0;
    OK(cuMemcpyDtoH_v2(&value, at, 4));
    return value;
}

static void run(CUgraphExec exec) {
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
}

static CUDA_KERNEL_NODE_PARAMS_v1 kernel(CUfunction function, void **parameters) {
    return {function, 1, 1, 1, 1, 1, 1, 0, parameters, nullptr};
}

// Kernel nodes without a context of their own, and edges without data.
static void kernels() {
    CUgraph graph;
    CUgraphNode first, second, from[4], to[4], error = nullptr;
    OK(cuGraphCreate(&graph, 0));
    CUDA_KERNEL_NODE_PARAMS_v1 once = kernel(bump, nullptr), told = {};
    OK(cuGraphAddKernelNode(&first, graph, nullptr, 0, &once));
    OK(cuGraphAddKernelNode(&second, graph, nullptr, 0, &once));
    OK(cuGraphKernelNodeGetParams(first, &told));
    CHECK(told.func == bump && told.gridDimX == 1, "another kernel, or %u blocks", told.gridDimX);
    once.gridDimX = 3;
    OK(cuGraphKernelNodeSetParams(first, &once));
    CUDA_KERNEL_NODE_PARAMS_v2 with_context = {};
    OK(cuGraphKernelNodeGetParams_v2(first, &with_context));
    CHECK(with_context.gridDimX == 3, "%u blocks", with_context.gridDimX);
    with_context.gridDimX = 1;
    OK(cuGraphKernelNodeSetParams_v2(first, &with_context));
    OK(cuGraphAddDependencies(graph, &first, &second, 1));
    size_t count = 4;
    OK(cuGraphGetEdges(graph, from, to, &count));
    CHECK(count == 1 && from[0] == first && to[0] == second, "%zu edges", count);
    OK(cuGraphNodeGetDependencies(second, from, &(count = 4)));
    CHECK(count == 1 && from[0] == first, "%zu nodes before", count);
    OK(cuGraphNodeGetDependentNodes(first, to, &(count = 4)));
    CHECK(count == 1 && to[0] == second, "%zu nodes after", count);
    OK(cuGraphRemoveDependencies(graph, &first, &second, 1));
    OK(cuGraphGetEdges(graph, nullptr, nullptr, &(count = 0)));
    CHECK(count == 0, "%zu edges are left", count);
    OK(cuGraphAddDependencies(graph, &first, &second, 1));
    CUgraphExec exec;
    char log[64];
    unsigned before = word(counter);
    OK(cuGraphInstantiate(&exec, graph, &error, log, sizeof log));
    run(exec);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0));
    run(exec);
    CHECK(word(counter) == before + 4, "counted from %u to %u", before, word(counter));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    printf("kernel nodes and edges\n");
}

// A library's kernel in place of a function: launches take it, nothing else does, and nodes return its function.
static void library_kernels() {
    CUlibrary library;
    CUkernel named;
    CUfunction own, cast;
    CUgraph graph;
    CUgraphNode node;
    CUstream stream;
    size_t count = 1;
    const char *name = "";
    const char *text = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry none() { ret; }\n";
    OK(cuLibraryLoadData(&library, text, nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cuLibraryGetKernel(&named, library, "none"));
    cast = reinterpret_cast<CUfunction>(named);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuLaunchKernel(cast, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, &node, &count));
    CUDA_KERNEL_NODE_PARAMS told = {};
    OK(cuGraphKernelNodeGetParams_v2(node, &told));
    OK(cuKernelGetFunction(&own, named));
    OK(cuFuncGetName(&name, told.func));
    CHECK(told.func == own && told.kern == named && !strcmp(name, "none"), "another function, called %s", name);
    CUDA_KERNEL_NODE_PARAMS asked = {};
    asked.gridDimX = asked.gridDimY = asked.gridDimZ = asked.blockDimX = asked.blockDimY = asked.blockDimZ = 1;
    asked.func = cast;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &asked));
    asked.func = nullptr;
    asked.kern = named;
    OK(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &asked));
    OK(cuGraphKernelNodeGetParams_v2(node, &told));
    CHECK(told.func == own && told.kern == named, "another function or kernel");
    int value;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, cast));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuFuncSetAttribute(cast, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuFuncSetCacheConfig(cast, CU_FUNC_CACHE_PREFER_L1));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuFuncGetName(&name, cast));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, cast, 32, 0));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    OK(cuLibraryUnload(library));
    printf("nodes tell the functions of kernels\n");
}

// Changes parameters of a kernel in an executable graph.
static void changes() {
    CUdeviceptr in = memory, out = memory + 4;
    int count = 1, term = 7;
    void *parameters[] = {&out, &count, &in, &term};
    CUgraph graph;
    CUgraphNode node, other, error = nullptr;
    CUgraphExec exec;
    OK(cuMemsetD32_v2(in, 5, 1));
    OK(cuGraphCreate(&graph, 0));
    CUDA_KERNEL_NODE_PARAMS_v1 made = kernel(add, parameters);
    OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &made));
    OK(cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0));
    run(exec);
    CHECK(word(out) == 22, "%u", word(out));
    term = 9;
    OK(cuGraphExecKernelNodeSetParams(exec, node, &made));
    run(exec);
    CHECK(word(out) == 24, "changed to %u", word(out));
    term = 11;
    OK(cuGraphKernelNodeSetParams(node, &made));
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR;
    OK(cuGraphExecUpdate(exec, graph, &error, &result));
    run(exec);
    CHECK(result == CU_GRAPH_EXEC_UPDATE_SUCCESS && word(out) == 26, "updated with %d to %u", int(result), word(out));
    OK(cuGraphAddKernelNode(&other, graph, nullptr, 0, &made));
    CUlaunchAttributeValue value = {}, told = {};
    value.cooperative = 1;
    OK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
    OK(cuGraphKernelNodeCopyAttributes(other, node));
    OK(cuGraphKernelNodeGetAttribute(other, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &told));
    CHECK(told.cooperative == 1, "cooperative is %d", told.cooperative);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    printf("changed parameters\n");
}

static void note(void *place) { *static_cast<int *>(place) += 1; }

// A fill, a copy to the host, and a function of the host, one after the other.
static void data_and_host() {
    unsigned got[2] = {};
    int calls[3] = {};
    CUgraph graph;
    CUgraphNode fill, copy, call;
    OK(cuGraphCreate(&graph, 0));
    CUDA_MEMSET_NODE_PARAMS filled = {memory, 0, 17, 4, 2, 1}, told_fill = {};
    OK(cuGraphAddMemsetNode(&fill, graph, nullptr, 0, &filled, context));
    filled.value = 19;
    OK(cuGraphMemsetNodeSetParams(fill, &filled));
    OK(cuGraphMemsetNodeGetParams(fill, &told_fill));
    CHECK(told_fill.value == 19 && told_fill.dst == memory, "the fill is of %u", told_fill.value);
    CUDA_MEMCPY3D copied = {}, told_copy = {};
    copied.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copied.srcDevice = memory;
    copied.dstMemoryType = CU_MEMORYTYPE_HOST;
    copied.dstHost = got;
    copied.WidthInBytes = 4;
    copied.Height = copied.Depth = 1;
    OK(cuGraphAddMemcpyNode(&copy, graph, &fill, 1, &copied, context));
    copied.WidthInBytes = 8;
    OK(cuGraphMemcpyNodeSetParams(copy, &copied));
    OK(cuGraphMemcpyNodeGetParams(copy, &told_copy));
    CHECK(told_copy.WidthInBytes == 8 && told_copy.dstHost == got, "the copy is of %zu bytes", told_copy.WidthInBytes);
    CUDA_HOST_NODE_PARAMS called = {note, &calls[0]}, told_call = {};
    OK(cuGraphAddHostNode(&call, graph, &copy, 1, &called));
    called.userData = &calls[1];
    OK(cuGraphHostNodeSetParams(call, &called));
    OK(cuGraphHostNodeGetParams(call, &told_call));
    CHECK(told_call.fn == note && told_call.userData == &calls[1], "another call");
    CUgraphExec exec;
    OK(cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0));
    run(exec);
    called.userData = &calls[2];
    OK(cuGraphExecHostNodeSetParams(exec, call, &called));
    run(exec);
    run(exec);
    CHECK(got[0] == 19 && got[1] == 19, "copied %u, %u", got[0], got[1]);
    CHECK(calls[0] == 0 && calls[1] == 1 && calls[2] == 2, "called %d, %d, %d", calls[0], calls[1], calls[2]);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    printf("fill, copy and call\n");
}

static void events() {
    CUevent first, second, found = nullptr;
    CUgraph graph;
    CUgraphNode record, wait;
    CUgraphExec exec;
    OK(cuEventCreate(&first, 0));
    OK(cuEventCreate(&second, 0));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEventRecordNode(&record, graph, nullptr, 0, first));
    OK(cuGraphEventRecordNodeSetEvent(record, second));
    OK(cuGraphEventRecordNodeGetEvent(record, &found));
    CHECK(found == second, "records another event");
    OK(cuGraphAddEventWaitNode(&wait, graph, &record, 1, first));
    OK(cuGraphEventWaitNodeSetEvent(wait, second));
    OK(cuGraphEventWaitNodeGetEvent(wait, &found));
    CHECK(found == second, "waits for another event");
    OK(cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0));
    OK(cuGraphExecEventRecordNodeSetEvent(exec, record, first));
    OK(cuGraphExecEventWaitNodeSetEvent(exec, wait, first));
    run(exec);
    OK(cuEventQuery(first));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuEventDestroy(first));
    OK(cuEventDestroy_v2(second));
    printf("events\n");
}

static CUstreamBatchMemOpParams writing(unsigned value) {
    CUstreamBatchMemOpParams operation = {};
    operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = memory;
    operation.writeValue.value = value;
    return operation;
}

static void batches() {
    CUstreamBatchMemOpParams operations[2] = {writing(1), writing(2)};
    CUDA_BATCH_MEM_OP_NODE_PARAMS made = {context, 1, operations, 0}, told = {};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &made));
    made.paramArray = &operations[1];
    OK(cuGraphBatchMemOpNodeSetParams(node, &made));
    OK(cuGraphBatchMemOpNodeGetParams(node, &told));
    CHECK(told.count == 1 && told.paramArray[0].writeValue.value == 2, "%u operations", told.count);
    OK(cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0));
    run(exec);
    CHECK(word(memory) == 2, "wrote %u", word(memory));
    operations[1] = writing(3);
    OK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &made));
    run(exec);
    CHECK(word(memory) == 3, "then wrote %u", word(memory));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    printf("batches of writes\n");
}

static void memory_nodes() {
    CUgraph graph;
    CUgraphNode taken, given;
    CUDA_MEM_ALLOC_NODE_PARAMS made = {}, told = {};
    made.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    made.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    made.bytesize = 4096;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&taken, graph, nullptr, 0, &made));
    OK(cuGraphMemAllocNodeGetParams(taken, &told));
    CHECK(told.dptr == made.dptr && told.bytesize == 4096, "%zu bytes elsewhere", told.bytesize);
    OK(cuGraphAddMemFreeNode(&given, graph, &taken, 1, made.dptr));
    CUdeviceptr freed = 0;
    OK(cuGraphMemFreeNodeGetParams(given, &freed));
    CHECK(freed == made.dptr, "another place is freed");
    CUDA_GRAPH_INSTANTIATE_PARAMS request = {};
    request.flags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    CUgraphExec exec;
    OK(cuGraphInstantiateWithParams(&exec, graph, &request));
    cuuint64_t flags = 0;
    OK(cuGraphExecGetFlags(exec, &flags));
    CHECK(request.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS && flags == request.flags, "result %d, flags %llu",
          int(request.result_out), (unsigned long long)flags);
    run(exec);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    printf("memory of a graph\n");
}

// Instantiates and uploads at once: the stream is checked first, and a caller that gets an error gets no executable graph.
static void uploaded() {
    CUgraph graph, other = nullptr;
    CUgraphNode node;
    CUgraphExec exec, untouched = (CUgraphExec)1;
    CUDA_MEMSET_NODE_PARAMS fill = {};
    fill.dst = memory;
    fill.value = 47;
    fill.elementSize = 4;
    fill.width = fill.height = 1;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context));
    CUDA_GRAPH_INSTANTIATE_PARAMS request = {};
    request.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    request.hUploadStream = stream;
    OK(cuGraphInstantiateWithParams(&exec, graph, &request));
    CHECK(request.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS, "result %d", int(request.result_out));
    run(exec);
    CHECK(word(memory) == 47, "the uploaded graph wrote %u", word(memory));
    OK(cuGraphExecDestroy(exec));
    exec = untouched;
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGraphInstantiateWithParams(&exec, graph, &request));
    CHECK(exec == untouched && request.result_out != CUDA_GRAPH_INSTANTIATE_SUCCESS, "result %d",
          int(request.result_out));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &other));
    OK(cuGraphDestroy(graph));
    printf("uploaded at once\n");
}

// A graph inside a graph, and nodes described by the one structure for all kinds.
static void general() {
    CUgraph graph, child, other;
    CUgraphNode node, inner;
    CUgraphExec exec;
    CUgraphNodeParams request = {};
    request.type = CU_GRAPH_NODE_TYPE_MEMSET;
    request.memset.dst = memory;
    request.memset.value = 31;
    request.memset.elementSize = 4;
    request.memset.width = request.memset.height = 1;
    request.memset.ctx = context;
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphAddNode(&inner, child, nullptr, 0, &request));
    OK(cuGraphClone(&other, child));
    OK(cuGraphNodeFindInClone(&node, inner, other));
    request.memset.value = 33;
    OK(cuGraphNodeSetParams(node, &request));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
    OK(cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0));
    run(exec);
    CHECK(word(memory) == 31, "the child wrote %u", word(memory));
    OK(cuGraphExecChildGraphNodeSetParams(exec, node, other));
    run(exec);
    CHECK(word(memory) == 33, "the other child wrote %u", word(memory));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphInstantiate_v2(&exec, child, nullptr, nullptr, 0));
    request.memset.value = 35;
    OK(cuGraphExecNodeSetParams(exec, inner, &request));
    run(exec);
    CHECK(word(memory) == 35, "changed to %u", word(memory));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(child));
    OK(cuGraphDestroy(other));
    printf("graphs in graphs, nodes of any kind\n");
}

static void user_objects() {
    static volatile int ended = 0;
    CUuserObject object;
    CUgraph graph;
    OK(cuGraphCreate(&graph, 0));
    OK(cuUserObjectCreate(&object, const_cast<int *>(&ended), [](void *place) { *static_cast<volatile int *>(place) = 1; }, 1,
                          CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuUserObjectRetain(object, 2));
    OK(cuUserObjectRelease(object, 2));
    OK(cuGraphRetainUserObject(graph, object, 1, 0));
    OK(cuUserObjectRelease(object, 1));
    usleep(1000);
    CHECK(ended == 0, "it ended while the graph kept it");
    OK(cuGraphReleaseUserObject(graph, object, 1));
    // The driver ends it at any time: a minute is far more than that takes.
    for (int i = 0; i < 60000 && ended == 0; i++) usleep(1000);
    CHECK(ended == 1, "no thread ended it");
    OK(cuGraphDestroy(graph));
    printf("user objects\n");
}

constexpr size_t CELLS = 64 << 10;

// A graph that copies the program's memory to the device and from there to other memory of the program.
static CUgraph there_and_back(CUcontext in, CUdeviceptr through, const unsigned *from, unsigned *to) {
    CUgraph graph;
    CUgraphNode there, back;
    OK(cuGraphCreate(&graph, 0));
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = through;
    copy.WidthInBytes = CELLS * 4;
    copy.Height = copy.Depth = 1;
    OK(cuGraphAddMemcpyNode(&there, graph, nullptr, 0, &copy, in));
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = through;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = to;
    OK(cuGraphAddMemcpyNode(&back, graph, &there, 1, &copy, in));
    return graph;
}

static unsigned from[CELLS], to[CELLS];

static void fill(unsigned round) {
    for (unsigned i = 0; i < CELLS; i++) from[i] = i * 7 + round;
    memset(to, 0, sizeof to);
}

// Contexts that graphs were in end one after the other; what one has left behind is nothing to the next. NVIDIA's driver does
// not return from destroying an executable graph whose context has ended.
static void ended_contexts(CUdevice device) {
    for (unsigned round = 0; round < 4; round++) {
        CUcontext own;
        CUdeviceptr through;
        CUgraphExec exec;
        OK(cuCtxCreate_v2(&own, 0, device));
        OK(cuMemAlloc_v2(&through, CELLS * 4));
        fill(round);
        CUgraph graph = there_and_back(own, through, from, to);
        OK(cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0));
        OK(cuGraphLaunch(exec, nullptr));
        OK(cuStreamSynchronize(nullptr));
        CHECK(memcmp(from, to, sizeof to) == 0, "other bytes in round %u", round);
        OK(cuGraphExecDestroy(exec));
        if (round % 2 == 0) OK(cuGraphDestroy(graph));
        OK(cuCtxDestroy_v2(own));
        OK(cuCtxSetCurrent(context));
        if (round % 2 != 0) OK(cuGraphDestroy(graph));
    }
    printf("contexts that end\n");
}

// A stream of one context takes graphs that were made in another one, and they may be destroyed while they run.
static void streams_of_others(CUdevice device) {
    CUcontext own;
    CUstream its_stream;
    CUdeviceptr through;
    CUgraphExec exec;
    OK(cuMemAlloc_v2(&through, CELLS * 4));
    OK(cuCtxCreate_v2(&own, 0, device));
    OK(cuStreamCreate(&its_stream, CU_STREAM_NON_BLOCKING));
    OK(cuCtxSetCurrent(context));
    fill(9);
    CUgraph graph = there_and_back(context, through, from, to);
    OK(cuGraphInstantiate_v2(&exec, graph, nullptr, nullptr, 0));
    OK(cuLaunchHostFunc(its_stream, [](void *) { usleep(20000); }, nullptr));
    OK(cuGraphLaunch(exec, its_stream));
    OK(cuGraphExecDestroy(exec));
    OK(cuStreamSynchronize(its_stream));
    CHECK(memcmp(from, to, sizeof to) == 0, "other bytes");
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy_v2(its_stream));
    OK(cuCtxDestroy_v2(own));
    OK(cuMemFree_v2(through));
    printf("streams of other contexts\n");
}

int main() {
    CUdevice device;
    begin_on_first(&device, &context);
    OK(cuModuleLoadData(&module, MODULE_PTX));
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuModuleGetFunction(&bump, module, "bump"));
    OK(cuModuleGetGlobal_v2(&counter, nullptr, module, "counter"));
    OK(cuMemAlloc_v2(&memory, 4096));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    kernels();
    library_kernels();
    changes();
    data_and_host();
    events();
    batches();
    memory_nodes();
    uploaded();
    general();
    user_objects();
    ended_contexts(device);
    streams_of_others(device);
    return finish("graph_forms");
}
