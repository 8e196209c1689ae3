// Copies and fills by the rarer forms of their calls: between arrays, devices and the host, in batches, in rows; captures
// by the older forms.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <cstring>

#include "check.h"
#include "first_device.h"

#ifdef PER_THREAD
// The same calls with each thread's own default stream, under their plain names. Headers declare few of them.
#define OWN(name, form) extern "C" decltype(name) name##form; namespace forms { static auto &name = ::name##form; }
OWN(cuMemcpyHtoA_v2, _ptds)
OWN(cuMemcpyAtoH_v2, _ptds)
OWN(cuMemcpyAtoA_v2, _ptds)
OWN(cuMemcpyAtoD_v2, _ptds)
OWN(cuMemcpyDtoA_v2, _ptds)
OWN(cuMemcpyHtoD_v2, _ptds)
OWN(cuMemcpyDtoH_v2, _ptds)
OWN(cuMemcpyPeer, _ptds)
OWN(cuMemcpy3DPeer, _ptds)
OWN(cuMemsetD8_v2, _ptds)
OWN(cuMemsetD2D16_v2, _ptds)
OWN(cuMemsetD2D32_v2, _ptds)
OWN(cuMemcpyHtoAAsync_v2, _ptsz)
OWN(cuMemcpyAtoHAsync_v2, _ptsz)
OWN(cuMemcpy3DAsync_v2, _ptsz)
OWN(cuMemcpyPeerAsync, _ptsz)
OWN(cuMemcpy3DPeerAsync, _ptsz)
OWN(cuMemcpyDtoHAsync_v2, _ptsz)
OWN(cuMemcpyBatchAsync, _ptsz)
OWN(cuMemcpyBatchAsync_v2, _ptsz)
OWN(cuMemcpy3DBatchAsync, _ptsz)
OWN(cuMemcpy3DBatchAsync_v2, _ptsz)
OWN(cuMemsetD8Async, _ptsz)
OWN(cuMemsetD16Async, _ptsz)
OWN(cuMemsetD2D8Async, _ptsz)
OWN(cuMemsetD2D16Async, _ptsz)
OWN(cuMemsetD2D32Async, _ptsz)
OWN(cuMemPrefetchAsync, _ptsz)
OWN(cuStreamSynchronize, _ptsz)
OWN(cuStreamGetCaptureInfo, _ptsz)
OWN(cuStreamGetCaptureInfo_v2, _ptsz)
OWN(cuStreamBeginCapture, _ptsz)
OWN(cuStreamUpdateCaptureDependencies, _ptsz)
OWN(cuStreamEndCapture, _ptsz)
OWN(cuGraphLaunch, _ptsz)
OWN(cuStreamGetDevice, _ptsz)
OWN(cuEventRecordWithFlags, _ptsz)
#endif

namespace forms {

constexpr size_t COUNT = 64, BYTES = COUNT * 4;

static CUcontext context;
static CUstream stream;
static CUdeviceptr memory, other;
static unsigned sent[COUNT], got[COUNT];

static void wait() { OK(cuStreamSynchronize(stream)); }

// Whether `got` equals what was sent; clears it.
static bool is_whole() {
    bool same = memcmp(sent, got, BYTES) == 0;
    memset(got, 0, BYTES);
    return same;
}

static CUarray line() {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR request = {COUNT, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1}, told = {};
    OK(cuArrayCreate_v2(&array, &request));
    OK(cuArrayGetDescriptor_v2(&told, array));
    CHECK(told.Width == COUNT && told.Format == CU_AD_FORMAT_UNSIGNED_INT32, "%zu wide", told.Width);
    return array;
}

static void arrays() {
    CUarray first = line(), second = line(), plane;
    OK(cuMemcpyHtoA_v2(first, 0, sent, BYTES));
    OK(cuMemcpyAtoH_v2(got, first, 0, BYTES));
    CHECK(is_whole(), "host, array, host");
    OK(cuMemcpyAtoA_v2(second, 0, first, 0, BYTES));
    OK(cuMemcpyAtoD_v2(memory, second, 0, BYTES));
    OK(cuMemcpyDtoH_v2(got, memory, BYTES));
    CHECK(is_whole(), "array, array, device");
    OK(cuMemcpyHtoAAsync_v2(first, 0, got, BYTES, stream));
    wait();
    OK(cuMemcpyDtoA_v2(first, 0, memory, BYTES));
    OK(cuMemcpyAtoHAsync_v2(got, first, 0, BYTES, stream));
    wait();
    CHECK(is_whole(), "device, array, host");
    OK(cuMemcpyAtoH_v2(got, first, 16, 32));
    CHECK(memcmp(got, sent + 4, 32) == 0, "a part begins with %u", got[0]);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoH_v2(got, first, 16, BYTES));
    CHECK(cuArrayGetPlane(&plane, first, 0) != CUDA_SUCCESS, "an array without planes has one");
    OK(cuArrayDestroy(first));
    OK(cuArrayDestroy(second));
    printf("arrays\n");
}

static CUDA_MEMCPY3D rows_out() {
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = memory;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 32;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = got;
    copy.srcHeight = copy.dstHeight = copy.Height = BYTES / 32;
    copy.Depth = 1;
    return copy;
}

static void rows_and_peers() {
    CUDA_MEMCPY3D copy = rows_out();
    OK(cuMemcpyHtoD_v2(memory, sent, BYTES));
    OK(cuMemcpy3DAsync_v2(&copy, stream));
    wait();
    CHECK(is_whole(), "rows");
    OK(cuMemcpyPeer(other, context, memory, context, BYTES));
    OK(cuMemcpyDtoH_v2(got, other, BYTES));
    CHECK(is_whole(), "from a context to itself");
    OK(cuMemsetD8_v2(other, 0, BYTES));
    OK(cuMemcpyPeerAsync(other, context, memory, context, BYTES, stream));
    OK(cuMemcpyDtoHAsync_v2(got, other, BYTES, stream));
    wait();
    CHECK(is_whole(), "the same in a stream");
    CUDA_MEMCPY3D_PEER peers = {};
    peers.srcMemoryType = peers.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    peers.srcDevice = memory;
    peers.dstDevice = other;
    peers.srcContext = peers.dstContext = context;
    peers.srcPitch = peers.dstPitch = peers.WidthInBytes = BYTES;
    peers.srcHeight = peers.dstHeight = peers.Height = peers.Depth = 1;
    OK(cuMemsetD8_v2(other, 0, BYTES));
    OK(cuMemcpy3DPeer(&peers));
    OK(cuMemcpyDtoH_v2(got, other, BYTES));
    CHECK(is_whole(), "rows from a context to itself");
    OK(cuMemsetD8_v2(other, 0, BYTES));
    OK(cuMemcpy3DPeerAsync(&peers, stream));
    OK(cuMemcpyDtoHAsync_v2(got, other, BYTES, stream));
    wait();
    CHECK(is_whole(), "the same in a stream");
    printf("rows and peers\n");
}

static void batches() {
    CUdeviceptr targets[2] = {other, other + BYTES / 2}, sources[2] = {memory, memory + BYTES / 2};
    size_t sizes[2] = {BYTES / 2, BYTES / 2}, kinds[1] = {0}, failed = 0;
    CUmemcpyAttributes how = {};
    how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    // Batches do not support default streams.
    CUstream own;
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    auto clear = [] {
        OK(cuMemsetD8_v2(other, 0, BYTES));
        OK(cuCtxSynchronize());
    };
    auto fetch = [&] {
        OK(cuStreamSynchronize(own));
        OK(cuMemcpyDtoH_v2(got, other, BYTES));
    };
    clear();
    OK(cuMemcpyBatchAsync(targets, sources, sizes, 2, &how, kinds, 1, &failed, own));
    fetch();
    CHECK(is_whole(), "a batch");
    clear();
    OK(cuMemcpyBatchAsync_v2(targets, sources, sizes, 2, &how, kinds, 1, own));
    fetch();
    CHECK(is_whole(), "a batch without a word of failures");
    CUDA_MEMCPY3D_BATCH_OP block = {};
    block.src.type = block.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    block.src.op.ptr.ptr = memory;
    block.dst.op.ptr.ptr = other;
    block.extent = {BYTES, 1, 1};
    block.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    clear();
    OK(cuMemcpy3DBatchAsync(1, &block, &failed, 0, own));
    fetch();
    CHECK(is_whole(), "a batch of blocks");
    clear();
    OK(cuMemcpy3DBatchAsync_v2(1, &block, 0, own));
    fetch();
    CHECK(is_whole(), "the same without a word of failures");
    OK(cuStreamDestroy_v2(own));
    printf("batches\n");
}

// Each fill leaves a frame around its area.
static void fills() {
    const unsigned char *bytes = reinterpret_cast<unsigned char *>(got);
    auto filled = [&](const char *what, size_t unit, unsigned value) {
        OK(cuMemcpyDtoHAsync_v2(got, memory, BYTES, stream));
        wait();
        int wrong = 0;
        for (size_t i = 0; i < BYTES; i++) {
            bool inside = i / 32 < 2 && i % 32 < 2 * unit;
            wrong += bytes[i] != (inside ? (value >> i % unit * 8 & 0xff) : 0xee);
        }
        CHECK(wrong == 0, "%s: %d bytes are wrong", what, wrong);
        OK(cuMemsetD8_v2(memory, 0xee, BYTES));
    };
    OK(cuMemsetD8_v2(memory, 0xee, BYTES));
    OK(cuMemsetD2D8Async(memory, 32, 0x11, 2, 2, stream));
    filled("rows of bytes, in a stream", 1, 0x11);
    OK(cuMemsetD2D16Async(memory, 32, 0x2211, 2, 2, stream));
    filled("rows of halves, in a stream", 2, 0x2211);
    OK(cuMemsetD2D32Async(memory, 32, 0x44332211, 2, 2, stream));
    filled("rows of words, in a stream", 4, 0x44332211);
    OK(cuMemsetD2D16_v2(memory, 32, 0x6655, 2, 2));
    filled("rows of halves", 2, 0x6655);
    OK(cuMemsetD2D32_v2(memory, 32, 0x88776655, 2, 2));
    filled("rows of words", 4, 0x88776655);
    OK(cuMemsetD16Async(memory, 0x1234, COUNT * 2, stream));
    OK(cuMemcpyDtoHAsync_v2(got, memory, BYTES, stream));
    wait();
    CHECK(got[0] == 0x12341234 && got[COUNT - 1] == 0x12341234, "halves: %x", got[0]);
    printf("fills\n");
}

static void kinds_of_memory() {
    void *pinned = nullptr;
    CUdeviceptr managed;
    OK(cuMemAllocHost_v2(&pinned, BYTES));
    memcpy(pinned, sent, BYTES);
    OK(cuMemcpyHtoD_v2(memory, pinned, BYTES));
    OK(cuMemcpyDtoH_v2(got, memory, BYTES));
    CHECK(is_whole(), "pinned memory");
    OK(cuMemFreeHost(pinned));
    OK(cuMemAllocManaged(&managed, 65536, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAdvise(managed, 65536, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    OK(cuMemPrefetchAsync(managed, 65536, 0, stream));
    wait();
    int is_read = 0, where = -7;
    void *values[2] = {&is_read, &where};
    size_t sizes[2] = {4, 4};
    CUmem_range_attribute asked[2] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION};
    OK(cuMemRangeGetAttributes(values, sizes, asked, 2, managed, 65536));
    CHECK(is_read == 1 && where == 0, "read mostly %d, wanted at %d", is_read, where);
    OK(cuMemFree_v2(managed));
    CUipcMemHandle handle = {};
    CUdeviceptr same;
    // A driver without such handles refuses both.
    (void)cuIpcGetMemHandle(&handle, memory);
    CHECK(cuIpcOpenMemHandle(&same, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS, "opened where it was made");
    printf("kinds of memory\n");
}

// Captures as they were begun and asked about in CUDA 10 and 11.
static void captures() {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0, same_id = 0;
    CUgraph graph = nullptr, told = nullptr;
    const CUgraphNode *last = nullptr;
    size_t count = 9;
    OK(cuStreamGetCaptureInfo(stream, &status, nullptr));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE, "status %d", int(status));
    OK(cuStreamBeginCapture(stream));
    OK(cuMemsetD8Async(memory, 0x33, BYTES, stream));
    OK(cuStreamGetCaptureInfo(stream, &status, &id));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "status %d", int(status));
    OK(cuStreamGetCaptureInfo_v2(stream, &status, &same_id, &told, &last, &count));
    CHECK(id == same_id && told && count == 1, "%zu nodes before", count);
    CUgraphNode after = last[0];
    OK(cuStreamUpdateCaptureDependencies(stream, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    OK(cuStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &last, &count));
    CHECK(count == 0, "%zu nodes are left before", count);
    OK(cuStreamUpdateCaptureDependencies(stream, &after, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    OK(cuMemsetD8Async(memory, 0x44, 4, stream));
    OK(cuStreamEndCapture(stream, &graph));
    CHECK(graph == told, "another graph");
    OK(cuGraphGetEdges(graph, nullptr, nullptr, &count));
    CHECK(count == 1, "%zu edges", count);
    CUgraphExec exec;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuMemcpyDtoHAsync_v2(got, memory, BYTES, stream));
    wait();
    CHECK(got[0] == 0x44444444 && got[1] == 0x33333333, "%x, %x", got[0], got[1]);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    printf("captures\n");
}

static void streams() {
    CUstream own;
    CUevent event;
    CUdevice device = -1;
    OK(cuStreamCreate(&own, 0));
    OK(cuStreamGetDevice(own, &device));
    CHECK(device == 0, "device %d", device);
    OK(cuEventCreate(&event, 0));
    OK(cuEventRecordWithFlags(event, own, CU_EVENT_RECORD_DEFAULT));
    OK(cuEventSynchronize(event));
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(own));
    printf("streams\n");
}

static void all() {
    CUdevice device;
    begin_on_first(&device, &context);
    // In order with the calls that name no stream.
#ifdef PER_THREAD
    stream = CU_STREAM_PER_THREAD;
#else
    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
#endif
    OK(cuMemAlloc_v2(&memory, BYTES));
    OK(cuMemAlloc_v2(&other, BYTES));
    Numbers numbers(9);
    for (unsigned &number : sent) number = numbers.next();
    arrays();
    rows_and_peers();
    batches();
    fills();
    kinds_of_memory();
    captures();
    streams();
}

}  // namespace forms

int main() {
    forms::all();
    return finish("copy_forms");
}
