// Memory, an event, a block and a pool allocation that are exported over all steps but not opened yet. Then a program
// that has used the device since before opens them, and one that starts only now. Handles of freed memory lead to
// nothing.
#include <cuda.h>

#include <vector>

#include "first_device.h"
#include "steps.h"
#include "two_programs.h"

constexpr size_t WORDS = 1 << 18, BYTES = 4 * WORDS, BLOCK = 8 << 20;

static CUdevice device;

// Handles that an importer gets; the descriptors come after them.
struct Handles {
    bool has_handles, has_pools;
    CUipcMemHandle memory, freed;
    CUipcEventHandle event;
    CUmemPoolPtrExportData pooled;
};

// One object of each exported kind, with what it was made of.
struct Exported {
    CUdeviceptr memory, freed, pooled, block_at;
    CUmemGenericAllocationHandle block;
    CUmemoryPool pool;
    CUevent event;
    int of_block = -1, of_pool = -1;
};

static void begin() {
    CUcontext context;
    begin_on_first(&device, &context);
}

static bool has_pools() {
    int types = 0;
    OK(cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, device));
    return types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

static bool has_handles(CUdeviceptr memory) {
    unsigned capable = 0;
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory));
    return capable;
}

// Makes large objects, which share nothing with each other on any driver.
static void make(Exported &exported, Handles &handles) {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    request.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemAlloc(&exported.memory, BLOCK));
    OK(cuMemAlloc(&exported.freed, BLOCK));
    OK(cuMemCreate(&exported.block, BLOCK, &request, 0));
    exported.block_at = mapped(exported.block, BLOCK, device);
    OK(cuMemExportToShareableHandle(&exported.of_block, exported.block, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuEventCreate(&exported.event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(&handles.event, exported.event));
    handles.has_handles = has_handles(exported.memory);
    if (handles.has_handles) {
        OK(cuIpcGetMemHandle(&handles.memory, exported.memory));
        OK(cuIpcGetMemHandle(&handles.freed, exported.freed));
    }
    handles.has_pools = has_pools();
    if (!handles.has_pools) return;
    CUmemPoolProps kind = {};
    kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = request.location;
    kind.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemPoolCreate(&exported.pool, &kind));
    OK(cuMemAllocFromPoolAsync(&exported.pooled, BYTES, exported.pool, nullptr));
    OK(cuMemsetD32Async(exported.pooled, 66, WORDS, nullptr));
    OK(cuStreamSynchronize(nullptr));
    OK(cuMemPoolExportToShareableHandle(&exported.of_pool, exported.pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolExportPointer(&handles.pooled, exported.pooled));
}

static void give(int to, const Exported &exported, const Handles &handles) {
    peer = to;
    tell(handles);
    send_descriptor(exported.of_block);
    if (handles.has_pools) send_descriptor(exported.of_pool);
}

static void open_pooled(const Handles &handles, int descriptor) {
    CUmemoryPool pool;
    CUdeviceptr at;
    CUmemPoolPtrExportData data = handles.pooled;
    OK(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void *>(intptr_t(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolImportPointer(&at, pool, &data));
    CHECK(all_are(at, WORDS, 66), "other contents of a pool");
    OK(cuMemFreeAsync(at, nullptr));
    OK(cuStreamSynchronize(nullptr));
    OK(cuMemPoolDestroy(pool));
}

// Opens the memory. `number` is the number and place of this importer's words.
static void open_memory(const Handles &handles, unsigned steps, unsigned number) {
    CUdeviceptr at, none;
    OK(cuIpcOpenMemHandle(&at, handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(all_are(at, 16, steps), "other contents");
    CHECK(cuIpcOpenMemHandle(&none, handles.freed, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS, "opened what was freed");
    OK(cuMemsetD32(at + number * BYTES, number, WORDS));
    OK(cuCtxSynchronize());
    OK(cuIpcCloseMemHandle(at));
}

static void open_all(const Handles &handles, unsigned steps, unsigned number, int of_block, int of_pool) {
    CUevent event;
    CUmemGenericAllocationHandle block;
    if (handles.has_handles) open_memory(handles, steps, number);
    OK(cuIpcOpenEventHandle(&event, handles.event));
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
    OK(cuEventDestroy(event));
    OK(cuMemImportFromShareableHandle(&block, reinterpret_cast<void *>(intptr_t(of_block)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr at = mapped(block, BLOCK, device);
    CHECK(all_are(at, 16, steps + 1), "other contents of a block");
    OK(cuMemsetD32(at + number * BYTES, number, WORDS));
    OK(cuCtxSynchronize());
    unmapped(at, BLOCK, block);
    if (handles.has_pools) open_pooled(handles, of_pool);
}

// Receives all handles before it waits for permission to open them.
static int import_all(bool is_early, unsigned number) {
    if (is_early) begin();
    meet();
    Handles handles = hear<Handles>();
    int of_block = receive_descriptor(), of_pool = handles.has_pools ? receive_descriptor() : -1;
    meet();
    unsigned steps = hear<unsigned>();
    if (!is_early) begin();
    open_all(handles, steps, number, of_block, of_pool);
    meet();
    return failures != 0;
}

static int early() { return import_all(true, 1); }
static int late() { return import_all(false, 2); }

// Everything exported changes in each step, and no other program sees it.
static void work(const Exported &exported, int steps) {
    for (int step = 1; step <= steps; step++) {
        Checksum sum;
        uint32_t words[64];
        OK(cuMemsetD32(exported.memory, step, 16 + step % 8));
        OK(cuMemsetD32(exported.block_at, step + 1, 16 + step % 8));
        OK(cuMemcpyDtoH(words, exported.memory, sizeof words / 2));
        OK(cuMemcpyDtoH(words + 32, exported.block_at, sizeof words / 2));
        sum.add(words);
        told(step, sum);
    }
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 30);
    pid_t children[2];
    int ways[2];
    children[0] = begin_other(early);
    ways[0] = peer;
    children[1] = begin_other(late);
    ways[1] = peer;
    begin();
    Exported exported;
    Handles handles = {};
    make(exported, handles);
    OK(cuMemsetD32(exported.memory, 0, BLOCK / 4));
    OK(cuMemsetD32(exported.block_at, 0, BLOCK / 4));
    for (int way : ways) {
        peer = way;
        meet();
        give(way, exported, handles);
        meet();
    }
    close(exported.of_block);
    work(exported, steps);
    OK(cuMemFree(exported.freed));
    OK(cuEventRecord(exported.event, nullptr));
    for (unsigned number : {1u, 2u}) {
        peer = ways[number - 1];
        tell(unsigned(steps));
        meet();
        end_other(children[number - 1]);
        CHECK(!handles.has_handles || all_are(exported.memory + number * BYTES, WORDS, number), "not what importer %u has written", number);
        CHECK(all_are(exported.block_at + number * BYTES, WORDS, number), "not what importer %u has written to the block", number);
        printf("importer %u\n", number);
        fflush(stdout);
    }
    return finish("kept_exports");
}
