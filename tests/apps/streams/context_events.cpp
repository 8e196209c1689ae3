// Events of whole contexts, groups of operations on words, prefetching and discarding in groups.
#include <cuda.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "first_device.h"

static CUcontext context;
static CUstream first, second;
static CUdeviceptr words, data;

static unsigned word(CUdeviceptr at) {
    unsigned value = 0;
    OK(cuMemcpyDtoH(&value, at, 4));
    return value;
}

// A stream that is held back holds the event back; the other stream's work after a wait comes after both.
static void events() {
    CUevent event, of_stream;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&of_stream, CU_EVENT_DISABLE_TIMING));
    OK(cuMemsetD32(words, 0, 16));
    OK(cuMemsetD32(data, 0, 16));
    OK(cuStreamSynchronize(nullptr));
    OK(cuStreamWaitValue32(first, words, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemsetD32Async(data, 5, 1, first));
    OK(cuCtxRecordEvent(context, event));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    OK(cuStreamWriteValue32(second, words, 1, 0));
    OK(cuEventSynchronize(event));
    CHECK(word(data) == 5, "%u", word(data));
    // Both streams wait for an event of one.
    OK(cuStreamWaitValue32(first, words + 4, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuEventRecord(of_stream, first));
    OK(cuCtxWaitEvent(context, of_stream));
    OK(cuMemcpyDtoDAsync(data + 8, data, 4, second));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    // Only another context could open the gate by a stream, so the host does.
    CUcontext other;
    CUstream opener;
    CUdevice device;
    OK(cuCtxGetDevice(&device));
    OK(cuCtxCreate(&other, nullptr, 0, device));
    OK(cuStreamCreate(&opener, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWriteValue32(opener, words + 4, 1, 0));
    OK(cuStreamSynchronize(opener));
    OK(cuCtxPopCurrent(nullptr));
    OK(cuStreamSynchronize(second));
    CHECK(word(data + 8) == 5, "%u", word(data + 8));
    OK(cuCtxDestroy(other));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxRecordEvent(nullptr, event));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxWaitEvent(nullptr, event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(context, nullptr));
    OK(cuEventDestroy(event));
    OK(cuEventDestroy(of_stream));
    printf("events of a context\n");
}

static CUstreamBatchMemOpParams write32(CUdeviceptr at, unsigned value) {
    CUstreamBatchMemOpParams operation = {};
    operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = at, operation.writeValue.value = value;
    return operation;
}

static CUstreamBatchMemOpParams wait32(CUdeviceptr at, unsigned value) {
    CUstreamBatchMemOpParams operation = {};
    operation.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operation.waitValue.address = at, operation.waitValue.value = value;
    operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    return operation;
}

static void groups() {
    OK(cuMemsetD32(words, 0, 16));
    OK(cuStreamSynchronize(nullptr));
    CUstreamBatchMemOpParams waits[] = {wait32(words, 3), wait32(words + 4, 4), write32(words + 8, 9)};
    CUstreamBatchMemOpParams writes[] = {write32(words, 3), write32(words + 4, 4)};
    OK(cuStreamBatchMemOp(first, 3, waits, 0));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(first));
    OK(cuStreamBatchMemOp(second, 2, writes, 0));
    OK(cuStreamSynchronize(first));
    CHECK(word(words + 8) == 9, "%u", word(words + 8));
    CUstreamBatchMemOpParams wide = {};
    wide.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    wide.writeValue.address = words + 16, wide.writeValue.value64 = 0x100000002ull;
    OK(cuStreamBatchMemOp(first, 1, &wide, 0));
    OK(cuStreamSynchronize(first));
    CHECK(word(words + 16) == 2 && word(words + 20) == 1, "%u", word(words + 20));
    waits[0].operation = static_cast<CUstreamBatchMemOpType>(77);
    // No operations at all (null) are not tried: NVIDIA's driver 580 ended the program in one of many runs.
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(first, 3, waits, 0));
    // Captured, a group is one node.
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes = 0;
    OK(cuMemsetD32(words, 0, 16));
    OK(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamBatchMemOp(first, 2, writes, 0));
    OK(cuStreamEndCapture(first, &graph));
    OK(cuGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 1, "%zu nodes", nodes);
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, first));
    OK(cuStreamSynchronize(first));
    CHECK(word(words) == 3 && word(words + 4) == 4, "%u", word(words));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    printf("groups of words\n");
}

static void prefetches() {
    CUdeviceptr blocks[2];
    size_t sizes[2] = {8192, 4096}, from[1] = {0};
    CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    for (CUdeviceptr &block : blocks) OK(cuMemAllocManaged(&block, 8192, CU_MEM_ATTACH_GLOBAL));
    for (CUdeviceptr &block : blocks) OK(cuMemsetD32(block, 1, 2048));
    OK(cuMemPrefetchBatchAsync(blocks, sizes, 2, &place, from, 1, 0, first));
    OK(cuStreamSynchronize(first));
    CHECK(reinterpret_cast<unsigned *>(blocks[0])[2047] == 1, "prefetching changed the memory");
    OK(cuMemDiscardBatchAsync(blocks + 1, sizes + 1, 1, 0, first));
    OK(cuMemDiscardAndPrefetchBatchAsync(blocks, sizes, 1, &place, from, 1, 0, first));
    OK(cuMemsetD32Async(blocks[0], 2, 2048, first));
    OK(cuStreamSynchronize(first));
    CHECK(reinterpret_cast<unsigned *>(blocks[0])[5] == 2, "not written");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(blocks, sizes, 0, &place, from, 1, 0, first));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemDiscardBatchAsync(blocks, sizes, 2, 5, first));
    for (CUdeviceptr block : blocks) OK(cuMemFree(block));
    printf("prefetching in groups\n");
}

static void CUDA_CB wait_until_open(void *gate) {
    while (!*static_cast<std::atomic<bool> *>(gate)) std::this_thread::yield();
}

// A copy belongs to its stream's context, whichever is current, even after a host function.
static void copies_in_streams_of_other_contexts() {
    CUcontext other;
    CUstream theirs;
    CUdevice device;
    CUdeviceptr far;
    unsigned *near;
    std::atomic<bool> is_open{false};
    OK(cuCtxGetDevice(&device));
    OK(cuCtxCreate(&other, nullptr, 0, device));
    OK(cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&far, 64));
    OK(cuMemHostAlloc(reinterpret_cast<void **>(&near), 64, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemsetD32(far, 7, 16));
    OK(cuCtxSynchronize());
    OK(cuLaunchHostFunc(theirs, wait_until_open, &is_open));
    OK(cuCtxPopCurrent(nullptr));
    for (int i = 0; i < 16; i++) {
        near[i] = 0;
        OK(cuMemcpyDtoHAsync(near + i, far + 4 * i, 4, theirs));
    }
    is_open = true;
    OK(cuStreamSynchronize(theirs));
    for (int i = 0; i < 16; i++) CHECK(near[i] == 7, "copy %d: %u", i, near[i]);
    OK(cuCtxPushCurrent(other));
    OK(cuMemFreeHost(near));
    OK(cuMemFree(far));
    OK(cuCtxPopCurrent(nullptr));
    OK(cuCtxDestroy(other));
    OK(cuCtxSynchronize());
    printf("copies in streams of other contexts\n");
}

int main() {
    CUdevice device;
    begin_on_first(&device, &context);
    OK(cuMemAlloc(&words, 64));
    OK(cuMemAlloc(&data, 64));
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    events();
    groups();
    prefetches();
    copies_in_streams_of_other_contexts();
    return finish("context_events");
}
