// Two programs of one server that share memory and events: one exports, the other opens what it was sent; by handles of 64
// bytes, by file descriptors, and from pools.
#include <cuda.h>

#include <vector>

#include "check.h"
#include "first_device.h"
#include "two_programs.h"

// The header names the form of CUDA 11 by this name; both forms are called here.
#undef cuIpcOpenMemHandle
extern "C" CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags);

constexpr size_t WORDS = 1 << 18, BYTES = 4 * WORDS;

static CUdevice device;

static void begin() {
    CUcontext context;
    begin_on_first(&device, &context);
}

// Whether memory of `cuMemAlloc` has handles here: a software device without Katydid has none.
static bool has_handles() {
    CUdeviceptr at;
    unsigned capable = 0;
    OK(cuMemAlloc(&at, 4096));
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
    OK(cuMemFree(at));
    CHECK(capable || !getenv("KATYDID_SERVER"), "no handles");
    return capable;
}

static void lend_memory() {
    CUdeviceptr before, at;
    CUipcMemHandle handle;
    OK(cuMemAlloc(&before, 1000));
    OK(cuMemAlloc(&at, BYTES));
    OK(cuMemsetD32(at, 11, WORDS));
    OK(cuCtxSynchronize());
    OK(cuIpcGetMemHandle(&handle, at));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, 16));
    OK(cuIpcGetMemHandle(&handle, at));
    tell(handle);
    meet();
    CHECK(all_are(at, WORDS / 2, 11) && all_are(at + BYTES / 2, WORDS / 2, 22), "other contents");
    OK(cuMemsetD32(at, 33, WORDS));
    OK(cuCtxSynchronize());
    meet();
    meet();
    OK(cuMemFree(at));
    OK(cuMemFree(before));
}

static void open_memory() {
    CUdeviceptr at, again, mine;
    CUipcMemHandle handle = hear<CUipcMemHandle>(), own;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle_v2(&at, handle, 0));
    OK(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(all_are(at, WORDS, 11), "other contents by the older form");
    OK(cuIpcCloseMemHandle(at));
    OK(cuIpcOpenMemHandle_v2(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(at == again, "two addresses");
    EXPECT(CUDA_ERROR_ALREADY_MAPPED, cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(all_are(at, WORDS, 11), "other contents");
    OK(cuMemsetD32(at + BYTES / 2, 22, WORDS / 2));
    OK(cuCtxSynchronize());
    meet();
    meet();
    CHECK(all_are(at, WORDS, 33), "not what was written last");
    OK(cuMemAlloc(&mine, BYTES));
    OK(cuMemcpyDtoD(mine, at, BYTES));
    CHECK(all_are(mine, WORDS, 33), "copied wrongly");
    OK(cuIpcGetMemHandle(&own, mine));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&again, own, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcCloseMemHandle(at));
    OK(cuIpcCloseMemHandle(at));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(at));
    OK(cuMemFree(mine));
    meet();
}

static void lend_event() {
    CUevent event, plain;
    CUipcEventHandle handle;
    CUstream stream;
    CUdeviceptr at;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&at, BYTES));
    OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, CU_EVENT_INTERPROCESS));
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CHECK(cuIpcGetEventHandle(&handle, plain) != CUDA_SUCCESS, "a handle of any event");
    OK(cuIpcGetEventHandle(&handle, event));
    tell(handle);
    meet();
    OK(cuMemsetD32Async(at, 5, WORDS, stream));
    OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
    meet();
    meet();
    OK(cuEventQuery(event));
    OK(cuEventDestroy(event));
    OK(cuEventDestroy(plain));
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(at));
}

static void open_event() {
    CUipcEventHandle handle = hear<CUipcEventHandle>();
    CUevent event;
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuIpcOpenEventHandle(&event, handle));
    meet();
    meet();
    // Recorded by the other program before it came here.
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
    OK(cuStreamWaitEvent(stream, event, 0));
    OK(cuStreamSynchronize(stream));
    // And the other way round.
    OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
    meet();
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
}

static CUmemAllocationProp properties_for(unsigned types) {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    request.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    return request;
}

constexpr size_t BLOCK = 4 << 20;

static void lend_block() {
    CUmemGenericAllocationHandle block, closed;
    CUmemAllocationProp request = properties_for(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), other = properties_for(0);
    int descriptor = -1;
    OK(cuMemCreate(&block, BLOCK, &request, 0));
    OK(cuMemCreate(&closed, BLOCK, &other, 0));
    CHECK(cuMemExportToShareableHandle(&descriptor, closed, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS, "exported");
    OK(cuMemRelease(closed));
    OK(cuMemExportToShareableHandle(&descriptor, block, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CUmemAllocationProp told;
    OK(cuMemGetAllocationPropertiesFromHandle(&told, block));
    CHECK(told.location.id == device && told.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "%d", told.location.id);
    CUdeviceptr at = mapped(block, BLOCK, device);
    OK(cuMemsetD32(at, 44, BLOCK / 4));
    OK(cuCtxSynchronize());
    // The program itself can import it too, and maps the same memory a second time.
    CUmemGenericAllocationHandle again;
    OK(cuMemImportFromShareableHandle(&again, reinterpret_cast<void *>(intptr_t(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr second = mapped(again, BLOCK, device);
    CHECK(second != at && all_are(second, BLOCK / 4, 44), "other contents");
    unmapped(second, BLOCK, again);
    send_descriptor(descriptor);
    close(descriptor);
    meet();
    CHECK(all_are(at, BLOCK / 4, 55), "other contents");
    unmapped(at, BLOCK, block);
    meet();
    meet();
}

static void open_block() {
    CUmemGenericAllocationHandle block;
    CUmemAllocationProp told;
    int descriptor = receive_descriptor();
    OK(cuMemImportFromShareableHandle(&block, reinterpret_cast<void *>(intptr_t(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    // A driver chooses what it reports of an imported block: 580 does not repeat the properties of its maker.
    OK(cuMemGetAllocationPropertiesFromHandle(&told, block));
    CHECK(told.type == CU_MEM_ALLOCATION_TYPE_PINNED, "%d", told.type);
    CUdeviceptr at = mapped(block, BLOCK, device);
    CHECK(all_are(at, BLOCK / 4, 44), "other contents");
    OK(cuMemsetD32(at, 55, BLOCK / 4));
    OK(cuCtxSynchronize());
    meet();
    meet();
    // The exporter has freed its block; this one still holds it.
    CHECK(all_are(at, BLOCK / 4, 55), "gone with the exporter's");
    unmapped(at, BLOCK, block);
    meet();
}

// Whether pools can be for other programs too: a software device without Katydid has none.
static bool has_shared_pools() {
    int types = 0;
    OK(cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, device));
    bool capable = types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CHECK(capable || !getenv("KATYDID_SERVER"), "%d", types);
    return capable;
}

static CUmemoryPool pool_for(unsigned types) {
    CUmemoryPool pool;
    CUmemPoolProps request = {};
    request.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    request.handleTypes = static_cast<CUmemAllocationHandleType>(types);
    OK(cuMemPoolCreate(&pool, &request));
    return pool;
}

// Sends the pool by its descriptor, and its allocations by data; the importer frees first.
static void lend_pool() {
    CUmemoryPool pool = pool_for(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), own = pool_for(0);
    CUmemPoolPtrExportData data;
    CUdeviceptr at, other;
    int descriptor = -1;
    OK(cuMemAllocFromPoolAsync(&at, BYTES, pool, nullptr));
    OK(cuMemAllocFromPoolAsync(&other, BYTES, own, nullptr));
    OK(cuMemsetD32Async(at, 66, WORDS, nullptr));
    OK(cuStreamSynchronize(nullptr));
    CHECK(cuMemPoolExportToShareableHandle(&descriptor, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS, "exported");
    CHECK(cuMemPoolExportPointer(&data, other) != CUDA_SUCCESS, "exported");
    OK(cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_descriptor(descriptor);
    close(descriptor);
    OK(cuMemPoolExportPointer(&data, at));
    tell(data);
    meet();
    CHECK(all_are(at, WORDS / 2, 66) && all_are(at + BYTES / 2, WORDS / 2, 77), "other contents");
    meet();
    OK(cuMemFreeAsync(at, nullptr));
    OK(cuMemFreeAsync(other, nullptr));
    OK(cuStreamSynchronize(nullptr));
    OK(cuMemPoolDestroy(pool));
    OK(cuMemPoolDestroy(own));
}

static void open_pool() {
    CUmemoryPool pool;
    CUdeviceptr at, none;
    int descriptor = receive_descriptor();
    OK(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void *>(intptr_t(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(descriptor);
    CUmemPoolPtrExportData data = hear<CUmemPoolPtrExportData>();
    OK(cuMemPoolImportPointer(&at, pool, &data));
    CHECK(cuMemAllocFromPoolAsync(&none, BYTES, pool, nullptr) != CUDA_SUCCESS, "allocated in another's pool");
    CHECK(all_are(at, WORDS, 66), "other contents");
    OK(cuMemsetD32Async(at + BYTES / 2, 77, WORDS / 2, nullptr));
    OK(cuStreamSynchronize(nullptr));
    meet();
    OK(cuMemFreeAsync(at, nullptr));
    OK(cuStreamSynchronize(nullptr));
    OK(cuMemPoolDestroy(pool));
    meet();
}

static int importer() {
    begin();
    if (has_handles()) open_memory();
    open_event();
    open_block();
    if (has_shared_pools()) open_pool();
    return failures != 0;
}

int main() {
    pid_t child = begin_other(importer);
    begin();
    if (has_handles()) lend_memory();
    printf("memory by handles\n");
    lend_event();
    printf("an event\n");
    lend_block();
    printf("a block by its descriptor\n");
    if (has_shared_pools()) lend_pool();
    printf("a pool and what is in it\n");
    end_other(child);
    return finish("shared_memory");
}
