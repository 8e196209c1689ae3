// Every function in its form for each thread's own default stream (`_ptsz`, `_ptds`), by name: work given to the null stream
// goes there. Prints each form that it has called; a test compares the list with the spec.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "embedded_ptx.h"
#include "first_device.h"

static const unsigned COUNT = 256, BYTES = COUNT * 4;

static std::set<std::string> called;

template <class Function>
static Function *find(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    CHECK(found, "there is no %s", name);
    if (!found) exit(finish("own_streams"));
    called.insert(name);
    return reinterpret_cast<Function *>(found);
}

#define PTSZ(name) find<decltype(::name)>(#name "_ptsz")
#define PTDS(name) find<decltype(::name)>(#name "_ptds")

static CUdevice device;
static CUcontext context;
static CUfunction add;
static CUdeviceptr memory, other;
static unsigned sent[COUNT], got[COUNT];

static void fetch(CUdeviceptr from) { OK(PTDS(cuMemcpyDtoH_v2)(got, from, BYTES)); }

// Whether `got` is what was sent.
static bool is_whole() { return memcmp(got, sent, BYTES) == 0; }

static void clear(CUdeviceptr where) {
    OK(PTDS(cuMemsetD8_v2)(where, 0, BYTES));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
}

// What the body gives to the null stream becomes nodes of a graph that the thread's own stream is captured into; the legacy
// stream would refuse. Then the graph runs there.
template <class Body>
static void captured(size_t wanted, const char *what, Body body) {
    CUgraph graph = nullptr;
    CUgraphExec exec;
    size_t nodes = 0;
    OK(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    body();
    OK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
    OK(cuGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == wanted, "%s: %zu nodes", what, nodes);
    require(cuGraphInstantiateWithFlags(&exec, graph, 0), what, __FILE__, __LINE__);
    OK(PTSZ(cuGraphUpload)(exec, nullptr));
    OK(PTSZ(cuGraphLaunch)(exec, nullptr));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void CUDA_CB count_up(void *counter) { ++*static_cast<int *>(counter); }
static void CUDA_CB stream_done(CUstream, CUresult, void *counter) { ++*static_cast<int *>(counter); }

static void launches() {
    unsigned count = COUNT;
    int term = 1, calls = 0;
    void *parameters[] = {&other, &count, &memory, &term};
    CUlaunchConfig config = {};
    config.gridDimX = 2, config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 128, config.blockDimY = config.blockDimZ = 1;
    auto check = [&](const char *what) {
        fetch(other);
        for (unsigned i = 0; i < COUNT; i++) CHECK_QUIETLY(got[i] == sent[i] * 3 + term, "%s: %u: %u", what, i, got[i]);
        term++;
    };
    captured(1, "a launch", [&] { OK(PTSZ(cuLaunchKernel)(add, 2, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr)); });
    check("a launch");
    captured(1, "a launch by its shape", [&] { OK(PTSZ(cuLaunchKernelEx)(&config, add, parameters, nullptr)); });
    check("a launch by its shape");
    captured(1, "a cooperative launch", [&] { OK(PTSZ(cuLaunchCooperativeKernel)(add, 2, 1, 1, 128, 1, 1, 0, nullptr, parameters)); });
    check("a cooperative launch");
    captured(1, "a function", [&] { OK(PTSZ(cuLaunchHostFunc)(nullptr, count_up, &calls)); });
    CHECK(calls == 1, "%d calls", calls);
    OK(PTSZ(cuStreamAddCallback)(nullptr, stream_done, &calls, 0));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
    CHECK(calls == 2, "%d calls", calls);
}

static CUDA_MEMCPY2D rows() {
    CUDA_MEMCPY2D it = {};
    it.srcMemoryType = it.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    it.srcDevice = memory, it.dstDevice = other;
    it.srcPitch = it.dstPitch = it.WidthInBytes = 64;
    it.Height = BYTES / 64;
    return it;
}

static CUDA_MEMCPY3D planes() {
    CUDA_MEMCPY3D it = {};
    it.srcMemoryType = it.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    it.srcDevice = memory, it.dstDevice = other;
    it.srcPitch = it.dstPitch = it.WidthInBytes = 64;
    it.srcHeight = it.dstHeight = it.Height = 4;
    it.Depth = BYTES / 256;
    return it;
}

static CUDA_MEMCPY3D_PEER planes_of_peers() {
    CUDA_MEMCPY3D_PEER it = {};
    it.srcMemoryType = it.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    it.srcDevice = memory, it.dstDevice = other;
    it.srcContext = it.dstContext = context;
    it.srcPitch = it.dstPitch = it.WidthInBytes = 64;
    it.srcHeight = it.dstHeight = it.Height = 4;
    it.Depth = BYTES / 256;
    return it;
}

static void copies_that_wait() {
    CUDA_MEMCPY2D flat = rows();
    CUDA_MEMCPY3D deep = planes();
    CUDA_MEMCPY3D_PEER peers = planes_of_peers();
    auto check = [](const char *what, CUresult result) {
        EXPECT(CUDA_SUCCESS, result);
        fetch(other);
        CHECK(is_whole(), "%s", what);
        clear(other);
    };
    check("HtoD", PTDS(cuMemcpyHtoD_v2)(other, sent, BYTES));
    check("DtoD", PTDS(cuMemcpyDtoD_v2)(other, memory, BYTES));
    check("a copy", PTDS(cuMemcpy)(other, memory, BYTES));
    check("peers", PTDS(cuMemcpyPeer)(other, context, memory, context, BYTES));
    check("planes of peers", PTDS(cuMemcpy3DPeer)(&peers));
    check("rows", PTDS(cuMemcpy2D_v2)(&flat));
    check("rows anyhow", PTDS(cuMemcpy2DUnaligned_v2)(&flat));
    check("planes", PTDS(cuMemcpy3D_v2)(&deep));
}

static void copies_that_do_not() {
    CUDA_MEMCPY2D flat = rows();
    CUDA_MEMCPY3D deep = planes();
    CUDA_MEMCPY3D_PEER peers = planes_of_peers();
    unsigned *pinned;
    OK(cuMemAllocHost_v2(reinterpret_cast<void **>(&pinned), BYTES));
    memcpy(pinned, sent, BYTES);
    auto check = [](const char *what, auto call) {
        captured(1, what, [&] { EXPECT(CUDA_SUCCESS, call()); });
        fetch(other);
        CHECK(is_whole(), "%s", what);
        clear(other);
    };
    check("HtoD", [&] { return PTSZ(cuMemcpyHtoDAsync_v2)(other, pinned, BYTES, nullptr); });
    check("DtoD", [&] { return PTSZ(cuMemcpyDtoDAsync_v2)(other, memory, BYTES, nullptr); });
    check("a copy", [&] { return PTSZ(cuMemcpyAsync)(other, memory, BYTES, nullptr); });
    check("rows", [&] { return PTSZ(cuMemcpy2DAsync_v2)(&flat, nullptr); });
    check("planes", [&] { return PTSZ(cuMemcpy3DAsync_v2)(&deep, nullptr); });
    memset(pinned, 0, BYTES);
    captured(1, "DtoH", [&] { OK(PTSZ(cuMemcpyDtoHAsync_v2)(pinned, memory, BYTES, nullptr)); });
    CHECK(memcmp(pinned, sent, BYTES) == 0, "DtoH");
    OK(cuMemFreeHost(pinned));
    OK(PTSZ(cuMemcpyPeerAsync)(other, context, memory, context, BYTES, nullptr));
    fetch(other);
    CHECK(is_whole(), "peers");
    clear(other);
    OK(PTSZ(cuMemcpy3DPeerAsync)(&peers, nullptr));
    fetch(other);
    CHECK(is_whole(), "planes of peers");
    clear(other);
}

// Batches are not for the legacy default stream; the thread's own takes them, which the forms without an index do not know as null.
static void batches() {
    CUdeviceptr targets[1] = {other}, sources[1] = {memory};
    size_t sizes[1] = {BYTES}, kinds[1] = {0}, failed = 0;
    CUmemcpyAttributes how = {};
    how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    CUDA_MEMCPY3D_BATCH_OP block = {};
    block.src.type = block.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    block.src.op.ptr.ptr = memory, block.dst.op.ptr.ptr = other;
    block.extent = {BYTES, 1, 1};
    block.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    auto check = [&](const char *what, CUresult of_null, auto call) {
        auto in = [&](CUresult wanted, CUstream where) {
            expect_code(wanted, call(where), what, __FILE__, __LINE__);
            OK(cuStreamSynchronize(where ? where : CU_STREAM_PER_THREAD));
            fetch(other);
            CHECK(is_whole() == (wanted == CUDA_SUCCESS), "%s", what);
            clear(other);
        };
        in(CUDA_ERROR_INVALID_VALUE, CU_STREAM_LEGACY);
        in(of_null, nullptr);
        in(CUDA_SUCCESS, CU_STREAM_PER_THREAD);
        in(CUDA_SUCCESS, stream);
    };
    CUresult no = CUDA_ERROR_INVALID_VALUE;
    check("a batch", CUDA_SUCCESS, [&](CUstream in) { return PTSZ(cuMemcpyBatchAsync)(targets, sources, sizes, 1, &how, kinds, 1, &failed, in); });
    check("a shorter batch", no, [&](CUstream in) { return PTSZ(cuMemcpyBatchAsync_v2)(targets, sources, sizes, 1, &how, kinds, 1, in); });
    check("a batch of blocks", CUDA_SUCCESS, [&](CUstream in) { return PTSZ(cuMemcpy3DBatchAsync)(1, &block, &failed, 0, in); });
    check("a shorter batch of blocks", no, [&](CUstream in) { return PTSZ(cuMemcpy3DBatchAsync_v2)(1, &block, 0, in); });
    OK(cuStreamDestroy_v2(stream));
}

static void arrays() {
    CUDA_ARRAY3D_DESCRIPTOR request = {};
    request.Width = COUNT, request.Format = CU_AD_FORMAT_UNSIGNED_INT32, request.NumChannels = 1;
    CUarray array, second;
    OK(cuArray3DCreate_v2(&array, &request));
    OK(cuArray3DCreate_v2(&second, &request));
    OK(PTDS(cuMemcpyHtoA_v2)(array, 0, sent, BYTES));
    OK(PTDS(cuMemcpyAtoA_v2)(second, 0, array, 0, BYTES));
    OK(PTDS(cuMemcpyAtoD_v2)(other, second, 0, BYTES));
    fetch(other);
    CHECK(is_whole(), "through two arrays");
    clear(other);
    OK(PTDS(cuMemcpyDtoA_v2)(array, 0, other, BYTES));
    OK(PTDS(cuMemcpyAtoH_v2)(got, array, 0, BYTES));
    CHECK(got[0] == 0 && got[COUNT - 1] == 0, "%u", got[0]);
    OK(PTSZ(cuMemcpyHtoAAsync_v2)(array, 0, sent, BYTES, nullptr));
    OK(PTSZ(cuMemcpyAtoHAsync_v2)(got, array, 0, BYTES, nullptr));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
    CHECK(is_whole(), "there and back");
    OK(cuArrayDestroy(second));
    OK(cuArrayDestroy(array));
}

// A tile of a sparse array.
static void sparse_arrays() {
    CUDA_ARRAY3D_DESCRIPTOR request = {};
    request.Width = request.Height = 1024, request.Format = CU_AD_FORMAT_FLOAT, request.NumChannels = 1;
    request.Flags = CUDA_ARRAY3D_SPARSE;
    CUarray array;
    CUDA_ARRAY_SPARSE_PROPERTIES has;
    OK(cuArray3DCreate_v2(&array, &request));
    OK(cuArrayGetSparseProperties(&has, array));
    CUmemAllocationProp kind = {};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    kind.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    CUmemGenericAllocationHandle block;
    OK(cuMemCreate(&block, 2 << 20, &kind, 0));
    CUarrayMapInfo map = {};
    map.resourceType = CU_RESOURCE_TYPE_ARRAY;
    map.resource.array = array;
    map.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    map.subresource.sparseLevel.extentWidth = has.tileExtent.width;
    map.subresource.sparseLevel.extentHeight = has.tileExtent.height;
    map.subresource.sparseLevel.extentDepth = 1;
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    map.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    map.memHandle.memHandle = block;
    map.deviceBitMask = 1;
    OK(PTSZ(cuMemMapArrayAsync)(&map, 1, nullptr));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
    CUDA_MEMCPY2D in = {};
    in.srcMemoryType = CU_MEMORYTYPE_HOST, in.srcHost = sent, in.srcPitch = 64;
    in.dstMemoryType = CU_MEMORYTYPE_ARRAY, in.dstArray = array;
    in.WidthInBytes = 64, in.Height = BYTES / 64;
    OK(PTDS(cuMemcpy2D_v2)(&in));
    CUDA_MEMCPY2D out = {};
    out.dstMemoryType = CU_MEMORYTYPE_HOST, out.dstHost = got, out.dstPitch = 64;
    out.srcMemoryType = CU_MEMORYTYPE_ARRAY, out.srcArray = array;
    out.WidthInBytes = 64, out.Height = BYTES / 64;
    OK(PTDS(cuMemcpy2D_v2)(&out));
    CHECK(is_whole(), "a tile");
    map.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    map.memHandle.memHandle = 0;
    OK(PTSZ(cuMemMapArrayAsync)(&map, 1, nullptr));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
    OK(cuMemRelease(block));
    OK(cuArrayDestroy(array));
}

// Each fill, in rows of 64 bytes of which the first 16 are filled, or in one go.
static void fills() {
    auto check = [](const char *what, unsigned wanted, bool in_rows, auto call) {
        OK(PTDS(cuMemcpyHtoD_v2)(other, sent, BYTES));
        EXPECT(CUDA_SUCCESS, call());
        fetch(other);
        for (unsigned i = 0; i < COUNT; i++) {
            bool filled = !in_rows || i % 16 < 4;
            CHECK_QUIETLY(got[i] == (filled ? wanted : sent[i]), "%s: %u: %x", what, i, got[i]);
        }
    };
    auto check_async = [&](const char *what, unsigned wanted, bool in_rows, auto call) {
        check(what, wanted, in_rows, [&] {
            CUresult result = CUDA_SUCCESS;
            captured(1, what, [&] { result = call(); });
            return result;
        });
    };
    size_t height = BYTES / 64;
    check("D8", 0x11111111, false, [&] { return PTDS(cuMemsetD8_v2)(other, 0x11, BYTES); });
    check("D16", 0x12131213, false, [&] { return PTDS(cuMemsetD16_v2)(other, 0x1213, BYTES / 2); });
    check("D32", 0x14151617, false, [&] { return PTDS(cuMemsetD32_v2)(other, 0x14151617, COUNT); });
    check("D2D8", 0x21212121, true, [&] { return PTDS(cuMemsetD2D8_v2)(other, 64, 0x21, 16, height); });
    check("D2D16", 0x22232223, true, [&] { return PTDS(cuMemsetD2D16_v2)(other, 64, 0x2223, 8, height); });
    check("D2D32", 0x24252627, true, [&] { return PTDS(cuMemsetD2D32_v2)(other, 64, 0x24252627, 4, height); });
    check_async("D8", 0x31313131, false, [&] { return PTSZ(cuMemsetD8Async)(other, 0x31, BYTES, nullptr); });
    check_async("D16", 0x32333233, false, [&] { return PTSZ(cuMemsetD16Async)(other, 0x3233, BYTES / 2, nullptr); });
    check_async("D32", 0x34353637, false, [&] { return PTSZ(cuMemsetD32Async)(other, 0x34353637, COUNT, nullptr); });
    check_async("D2D8", 0x41414141, true, [&] { return PTSZ(cuMemsetD2D8Async)(other, 64, 0x41, 16, height, nullptr); });
    check_async("D2D16", 0x42434243, true, [&] { return PTSZ(cuMemsetD2D16Async)(other, 64, 0x4243, 8, height, nullptr); });
    check_async("D2D32", 0x44454647, true, [&] { return PTSZ(cuMemsetD2D32Async)(other, 64, 0x44454647, 4, height, nullptr); });
}

static void pools() {
    CUmemoryPool pool;
    CUdeviceptr first, second;
    OK(cuDeviceGetDefaultMemPool(&pool, device));
    OK(PTSZ(cuMemAllocAsync)(&first, BYTES, nullptr));
    OK(PTSZ(cuMemAllocFromPoolAsync)(&second, BYTES, pool, nullptr));
    OK(PTSZ(cuMemcpyAsync)(first, memory, BYTES, nullptr));
    OK(PTSZ(cuMemcpyAsync)(second, first, BYTES, nullptr));
    fetch(second);
    CHECK(is_whole(), "through memory of the stream");
    OK(PTSZ(cuMemFreeAsync)(first, nullptr));
    OK(PTSZ(cuMemFreeAsync)(second, nullptr));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
}

static void managed() {
    CUdeviceptr block;
    size_t sizes[1] = {65536}, from[1] = {0};
    CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    OK(cuMemAllocManaged(&block, 65536, CU_MEM_ATTACH_GLOBAL));
    unsigned *words = reinterpret_cast<unsigned *>(block);
    OK(PTDS(cuMemsetD32_v2)(block, 7, 16384));
    OK(PTSZ(cuMemPrefetchAsync)(block, 65536, device, nullptr));
    OK(PTSZ(cuMemPrefetchAsync_v2)(block, 65536, place, 0, nullptr));
    OK(PTSZ(cuStreamAttachMemAsync)(nullptr, block, 0, CU_MEM_ATTACH_GLOBAL));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
    CHECK(words[16383] == 7, "%u", words[16383]);
    OK(PTSZ(cuMemPrefetchBatchAsync)(&block, sizes, 1, &place, from, 1, 0, nullptr));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
    CHECK(words[16383] == 7, "%u", words[16383]);
    OK(PTSZ(cuMemDiscardBatchAsync)(&block, sizes, 1, 0, nullptr));
    OK(PTSZ(cuMemDiscardAndPrefetchBatchAsync)(&block, sizes, 1, &place, from, 1, 0, CU_STREAM_PER_THREAD));
    OK(PTSZ(cuMemsetD32Async)(block, 8, 16384, nullptr));
    OK(PTSZ(cuStreamSynchronize)(nullptr));
    CHECK(words[16383] == 8, "%u", words[16383]);
    OK(cuMemFree_v2(block));
}

static void properties() {
    unsigned long long legacy = 0, named = 0, id = 0;
    unsigned flags = 9;
    int priority = 9;
    CUdevice of = -1;
    CUcontext here = nullptr;
    CUgreenCtx green = reinterpret_cast<CUgreenCtx>(1);
    OK(cuStreamGetId(nullptr, &legacy));
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &named));
    OK(PTSZ(cuStreamGetId)(nullptr, &id));
    CHECK(id == named && id != legacy, "stream %llu of %llu and %llu", id, named, legacy);
    OK(PTSZ(cuStreamGetFlags)(nullptr, &flags));
    OK(PTSZ(cuStreamGetPriority)(nullptr, &priority));
    CHECK(flags == 0 && priority == 0, "flags %u, priority %d", flags, priority);
    OK(PTSZ(cuStreamGetDevice)(nullptr, &of));
    CHECK(of == device, "device %d", of);
    OK(PTSZ(cuStreamGetCtx)(nullptr, &here));
    CHECK(here == context, "another context");
    here = nullptr;
    OK(PTSZ(cuStreamGetCtx_v2)(nullptr, &here, &green));
    CHECK(here == context && !green, "another context");
    CUstreamAttrValue request = {}, told = {};
    request.syncPolicy = CU_SYNC_POLICY_YIELD;
    OK(PTSZ(cuStreamSetAttribute)(nullptr, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &request));
    OK(PTSZ(cuStreamGetAttribute)(nullptr, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &told));
    CHECK(told.syncPolicy == CU_SYNC_POLICY_YIELD, "policy %d", int(told.syncPolicy));
    CUstream copy;
    OK(cuStreamCreate(&copy, CU_STREAM_DEFAULT));
    OK(PTSZ(cuStreamCopyAttributes)(copy, nullptr));
    told = {};
    OK(cuStreamGetAttribute(copy, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &told));
    CHECK(told.syncPolicy == CU_SYNC_POLICY_YIELD, "policy %d", int(told.syncPolicy));
    OK(cuStreamDestroy_v2(copy));
}

static void events() {
    CUevent first, second;
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&first, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&second, CU_EVENT_DEFAULT));
    clear(other);
    OK(PTSZ(cuMemcpyAsync)(other, memory, BYTES, nullptr));
    OK(PTSZ(cuEventRecord)(first, nullptr));
    OK(PTSZ(cuEventRecordWithFlags)(second, nullptr, CU_EVENT_RECORD_DEFAULT));
    OK(cuStreamWaitEvent(stream, first, 0));
    OK(cuStreamWaitEvent(stream, second, 0));
    OK(cuMemcpyDtoHAsync_v2(got, other, BYTES, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(is_whole(), "the other stream did not wait");
    OK(cuMemsetD32Async(other, 5, COUNT, stream));
    OK(cuEventRecord(first, stream));
    OK(PTSZ(cuStreamWaitEvent)(nullptr, first, 0));
    fetch(other);
    CHECK(got[0] == 5 && got[COUNT - 1] == 5, "the own stream did not wait: %u", got[0]);
    OK(PTSZ(cuStreamQuery)(nullptr));
    OK(cuEventDestroy_v2(second));
    OK(cuEventDestroy_v2(first));
    OK(cuStreamDestroy_v2(stream));
}

// Words in the first versions of these functions have been refused since 11.7; and no device here decompresses.
static void words() {
    CUstreamBatchMemOpParams both[2] = {};
    both[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    both[0].writeValue.address = other + 16, both[0].writeValue.value = 3;
    both[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    both[1].waitValue.address = other + 16, both[1].waitValue.value = 3;
    clear(other);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, PTSZ(cuStreamWriteValue32)(nullptr, other, 1, 0));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, PTSZ(cuStreamWaitValue32)(nullptr, other, 0, 0));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, PTSZ(cuStreamWriteValue64)(nullptr, other, 1, 0));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, PTSZ(cuStreamWaitValue64)(nullptr, other, 0, 0));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, PTSZ(cuStreamBatchMemOp)(nullptr, 2, both, 0));
    CUmemDecompressParams packed = {};
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, PTSZ(cuMemBatchDecompressAsync)(&packed, 1, 0, nullptr, nullptr));
    OK(PTSZ(cuStreamWriteValue32_v2)(nullptr, other, 1, 0));
    OK(PTSZ(cuStreamWaitValue32_v2)(nullptr, other, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(PTSZ(cuStreamWriteValue64_v2)(nullptr, other + 8, 2, 0));
    OK(PTSZ(cuStreamWaitValue64_v2)(nullptr, other + 8, 2, CU_STREAM_WAIT_VALUE_EQ));
    OK(PTSZ(cuStreamBatchMemOp_v2)(nullptr, 2, both, 0));
    fetch(other);
    CHECK(got[0] == 1 && got[2] == 2 && got[4] == 3, "%u, %u, %u", got[0], got[2], got[4]);
}

static void fill(unsigned value) { OK(PTSZ(cuMemsetD32Async)(other, value, 1, nullptr)); }

static void captures() {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    cuuint64_t id = 0, again = 0;
    CUgraph graph = nullptr, back = nullptr;
    const CUgraphNode *last = nullptr;
    const CUgraphEdgeData *edges = nullptr;
    size_t count = 0;
    OK(PTSZ(cuStreamBeginCapture)(nullptr));
    fill(1);
    OK(PTSZ(cuStreamIsCapturing)(nullptr, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "status %d", int(status));
    OK(PTSZ(cuStreamGetCaptureInfo)(nullptr, &status, &id));
    OK(PTSZ(cuStreamGetCaptureInfo_v2)(nullptr, &status, &again, &graph, &last, &count));
    CHECK(id == again && count == 1, "%zu nodes", count);
    CUgraphNode first = last[0];
    OK(PTSZ(cuStreamUpdateCaptureDependencies)(nullptr, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    OK(PTSZ(cuStreamGetCaptureInfo_v3)(nullptr, &status, &again, &graph, &last, &edges, &count));
    CHECK(id == again && count == 0, "%zu nodes", count);
    OK(PTSZ(cuStreamUpdateCaptureDependencies_v2)(nullptr, &first, nullptr, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    fill(2);
    OK(PTSZ(cuStreamEndCapture)(nullptr, &back));
    OK(cuGraphGetEdges(back, nullptr, nullptr, &count));
    CHECK(back == graph && count == 1, "%zu edges", count);
    OK(cuGraphDestroy(back));
    OK(cuGraphCreate(&graph, 0));
    OK(PTSZ(cuStreamBeginCaptureToGraph)(nullptr, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    fill(3);
    OK(PTSZ(cuStreamEndCapture)(nullptr, &back));
    CHECK(back == graph, "another graph");
    OK(cuGraphDestroy(graph));
    OK(PTSZ(cuStreamBeginCapture_v2)(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fill(4);
    OK(PTSZ(cuStreamEndCapture)(nullptr, &graph));
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS request = {};
    request.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    OK(PTSZ(cuGraphInstantiateWithParams)(&exec, graph, &request));
    OK(PTSZ(cuGraphLaunch)(exec, nullptr));
    fetch(other);
    CHECK(got[0] == 4, "%u", got[0]);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

int main() {
    begin_on_first(&device, &context);
    add = load_add();
    OK(cuMemAlloc_v2(&memory, BYTES));
    OK(cuMemAlloc_v2(&other, BYTES));
    Numbers numbers(11);
    for (unsigned &number : sent) number = numbers.next();
    OK(PTDS(cuMemcpyHtoD_v2)(memory, sent, BYTES));
    launches();
    copies_that_wait();
    copies_that_do_not();
    batches();
    arrays();
    sparse_arrays();
    fills();
    pools();
    managed();
    properties();
    events();
    words();
    captures();
    OK(cuMemFree_v2(other));
    OK(cuMemFree_v2(memory));
    for (const std::string &name : called) printf("%s\n", name.c_str());
    return finish("own_streams");
}
