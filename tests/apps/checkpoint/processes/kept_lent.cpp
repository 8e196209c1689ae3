// Memory, an event, a block and an allocation of a pool that other programs were told of and have not opened yet: over all
// steps. Then one opens them that has used the device since before, and one that begins only now; what was freed
// meanwhile leads to nothing.
#include <cuda.h>

#include <vector>

#include "first_device.h"
#include "steps.h"
#include "two_programs.h"

constexpr size_t WORDS = 1 << 18, BYTES = 4 * WORDS, BLOCK = 8 << 20;

static CUdevice device;

// What a borrower is told; the descriptors come after it.
struct Told {
    bool has_handles, has_pools;
    CUipcMemHandle memory, freed;
    CUipcEventHandle event;
    CUmemPoolPtrExportData pooled;
};

// One of each kind that is lent, and what was made for it.
struct Lent {
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

// Whether every word from `first` on is `value`.
static bool all_are(CUdeviceptr first, size_t words, uint32_t value) {
    std::vector<uint32_t> host(words);
    OK(cuMemcpyDtoH(host.data(), first, 4 * words));
    for (uint32_t word : host)
        if (word != value) return false;
    return true;
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

// Large ones, which share nothing with each other on any driver.
static void make(Lent &lent, Told &told) {
    CUmemAllocationProp wish = {};
    wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wish.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    wish.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemAlloc(&lent.memory, BLOCK));
    OK(cuMemAlloc(&lent.freed, BLOCK));
    OK(cuMemCreate(&lent.block, BLOCK, &wish, 0));
    lent.block_at = mapped(lent.block, BLOCK, device);
    OK(cuMemExportToShareableHandle(&lent.of_block, lent.block, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuEventCreate(&lent.event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(&told.event, lent.event));
    told.has_handles = has_handles(lent.memory);
    if (told.has_handles) {
        OK(cuIpcGetMemHandle(&told.memory, lent.memory));
        OK(cuIpcGetMemHandle(&told.freed, lent.freed));
    }
    told.has_pools = has_pools();
    if (!told.has_pools) return;
    CUmemPoolProps kind = {};
    kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = wish.location;
    kind.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemPoolCreate(&lent.pool, &kind));
    OK(cuMemAllocFromPoolAsync(&lent.pooled, BYTES, lent.pool, nullptr));
    OK(cuMemsetD32Async(lent.pooled, 66, WORDS, nullptr));
    OK(cuStreamSynchronize(nullptr));
    OK(cuMemPoolExportToShareableHandle(&lent.of_pool, lent.pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolExportPointer(&told.pooled, lent.pooled));
}

static void give(int to, const Lent &lent, const Told &told) {
    peer = to;
    tell(told);
    send_descriptor(lent.of_block);
    if (told.has_pools) send_descriptor(lent.of_pool);
}

static void open_pooled(const Told &told, int descriptor) {
    CUmemoryPool pool;
    CUdeviceptr at;
    CUmemPoolPtrExportData data = told.pooled;
    OK(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void *>(intptr_t(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolImportPointer(&at, pool, &data));
    CHECK(all_are(at, WORDS, 66), "other contents of a pool");
    OK(cuMemFreeAsync(at, nullptr));
    OK(cuStreamSynchronize(nullptr));
    OK(cuMemPoolDestroy(pool));
}

// `number` is what this borrower writes, and where.
static void open_memory(const Told &told, unsigned steps, unsigned number) {
    CUdeviceptr at, none;
    OK(cuIpcOpenMemHandle(&at, told.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(all_are(at, 16, steps), "other contents");
    CHECK(cuIpcOpenMemHandle(&none, told.freed, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS, "opened what was freed");
    OK(cuMemsetD32(at + number * BYTES, number, WORDS));
    OK(cuCtxSynchronize());
    OK(cuIpcCloseMemHandle(at));
}

static void open_all(const Told &told, unsigned steps, unsigned number, int of_block, int of_pool) {
    CUevent event;
    CUmemGenericAllocationHandle block;
    if (told.has_handles) open_memory(told, steps, number);
    OK(cuIpcOpenEventHandle(&event, told.event));
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
    OK(cuEventDestroy(event));
    OK(cuMemImportFromShareableHandle(&block, reinterpret_cast<void *>(intptr_t(of_block)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr at = mapped(block, BLOCK, device);
    CHECK(all_are(at, 16, steps + 1), "other contents of a block");
    OK(cuMemsetD32(at + number * BYTES, number, WORDS));
    OK(cuCtxSynchronize());
    unmapped(at, BLOCK, block);
    if (told.has_pools) open_pooled(told, of_pool);
}

// It has heard of everything before it waits to be let.
static int borrow(bool is_early, unsigned number) {
    if (is_early) begin();
    meet();
    Told told = hear<Told>();
    int of_block = receive_descriptor(), of_pool = told.has_pools ? receive_descriptor() : -1;
    meet();
    unsigned steps = hear<unsigned>();
    if (!is_early) begin();
    open_all(told, steps, number, of_block, of_pool);
    meet();
    return failures != 0;
}

static int early() { return borrow(true, 1); }
static int late() { return borrow(false, 2); }

// Everything that is lent changes in each step, and no other program sees it.
static void work(const Lent &lent, int steps) {
    for (int step = 1; step <= steps; step++) {
        Checksum sum;
        uint32_t words[64];
        OK(cuMemsetD32(lent.memory, step, 16 + step % 8));
        OK(cuMemsetD32(lent.block_at, step + 1, 16 + step % 8));
        OK(cuMemcpyDtoH(words, lent.memory, sizeof words / 2));
        OK(cuMemcpyDtoH(words + 32, lent.block_at, sizeof words / 2));
        sum.add(words);
        ::told(step, sum);
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
    Lent lent;
    Told told = {};
    make(lent, told);
    OK(cuMemsetD32(lent.memory, 0, BLOCK / 4));
    OK(cuMemsetD32(lent.block_at, 0, BLOCK / 4));
    for (int way : ways) {
        peer = way;
        meet();
        give(way, lent, told);
        meet();
    }
    close(lent.of_block);
    work(lent, steps);
    OK(cuMemFree(lent.freed));
    OK(cuEventRecord(lent.event, nullptr));
    for (unsigned number : {1u, 2u}) {
        peer = ways[number - 1];
        tell(unsigned(steps));
        meet();
        end_other(children[number - 1]);
        CHECK(!told.has_handles || all_are(lent.memory + number * BYTES, WORDS, number), "not what borrower %u has written", number);
        CHECK(all_are(lent.block_at + number * BYTES, WORDS, number), "not what borrower %u has written to the block", number);
        printf("borrower %u\n", number);
        fflush(stdout);
    }
    return finish("kept_lent");
}
