// Three programs with memory, a block, a pool allocation and an event of each other open over all steps: the first has those of
// both others, and they have its. In each step, each writes where another reads, in an order that only the events give.
#include <cuda.h>

#include <vector>

#include "first_device.h"
#include "steps.h"
#include "two_programs.h"

constexpr size_t WORDS = 1 << 14, BYTES = 4 * WORDS, BLOCK = 8 << 20;
constexpr unsigned OTHERS = 2, THREADS = 256;

static CUdevice device;
static CUfunction add;
static CUstream stream;

// Handles that the other side gets; the descriptors come after them.
struct Handles {
    bool has_handles, has_pools;
    CUipcMemHandle memory;
    CUipcEventHandle event;
    CUmemPoolPtrExportData pooled;
};

// Memory of one program, as it sees it, or another one.
struct View {
    CUdeviceptr memory, block, pooled;
    CUevent event;
};

// What a program exports, and the same of another.
struct Exported {
    View own = {};
    Handles handles = {};
    CUmemGenericAllocationHandle block;
    CUmemoryPool pool;
    int of_block = -1, of_pool = -1;
};

struct Imported {
    View theirs = {};
    Handles handles = {};
    CUmemoryPool pool;
};

static void begin() {
    CUcontext context;
    begin_on_first(&device, &context);
    add = load_add();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void make_pool(Exported &exported, const CUmemLocation &place) {
    int types = 0;
    OK(cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, device));
    exported.handles.has_pools = types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (!exported.handles.has_pools) return;
    CUmemPoolProps kind = {};
    kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = place;
    kind.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemPoolCreate(&exported.pool, &kind));
    OK(cuMemAllocFromPoolAsync(&exported.own.pooled, BYTES, exported.pool, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolExportToShareableHandle(&exported.of_pool, exported.pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolExportPointer(&exported.handles.pooled, exported.own.pooled));
}

// Where a kind is not supported, as on softcuda without Katydid, parts of the block take its place.
static void make(Exported &exported) {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    request.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&exported.block, BLOCK, &request, 0));
    exported.own.block = mapped(exported.block, BLOCK, device);
    OK(cuMemExportToShareableHandle(&exported.of_block, exported.block, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemAlloc(&exported.own.memory, BLOCK));
    unsigned capable = 0;
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, exported.own.memory));
    exported.handles.has_handles = capable;
    if (capable) OK(cuIpcGetMemHandle(&exported.handles.memory, exported.own.memory));
    else exported.own.memory = exported.own.block + BLOCK / 4;
    make_pool(exported, request.location);
    if (!exported.handles.has_pools) exported.own.pooled = exported.own.block + BLOCK / 2;
    OK(cuEventCreate(&exported.own.event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(&exported.handles.event, exported.own.event));
    for (CUdeviceptr at : {exported.own.block, exported.own.memory, exported.own.pooled}) OK(cuMemsetD32(at, 1, WORDS));
    OK(cuCtxSynchronize());
}

static void give(const Exported &exported) {
    tell(exported.handles);
    send_descriptor(exported.of_block);
    if (exported.handles.has_pools) send_descriptor(exported.of_pool);
}

static void open_memory(Imported &other) {
    if (other.handles.has_handles) OK(cuIpcOpenMemHandle(&other.theirs.memory, other.handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    else other.theirs.memory = other.theirs.block + BLOCK / 4;
}

// Only its mapping holds the block.
static void take(Imported &other) {
    other.handles = hear<Handles>();
    CUmemGenericAllocationHandle block;
    int descriptor = receive_descriptor();
    OK(cuMemImportFromShareableHandle(&block, reinterpret_cast<void *>(intptr_t(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    other.theirs.block = mapped(block, BLOCK, device);
    OK(cuMemRelease(block));
    open_memory(other);
    other.theirs.pooled = other.theirs.block + BLOCK / 2;
    if (other.handles.has_pools) {
        descriptor = receive_descriptor();
        OK(cuMemPoolImportFromShareableHandle(&other.pool, reinterpret_cast<void *>(intptr_t(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        close(descriptor);
        OK(cuMemPoolImportPointer(&other.theirs.pooled, other.pool, &other.handles.pooled));
    }
    OK(cuIpcOpenEventHandle(&other.theirs.event, other.handles.event));
}

static void give_back(Imported &other) {
    if (other.handles.has_handles) OK(cuIpcCloseMemHandle(other.theirs.memory));
    if (other.handles.has_pools) {
        OK(cuMemFreeAsync(other.theirs.pooled, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuMemPoolDestroy(other.pool));
    }
    OK(cuMemUnmap(other.theirs.block, BLOCK));
    OK(cuMemAddressFree(other.theirs.block, BLOCK));
    OK(cuEventDestroy(other.theirs.event));
}

// to[i] = from[i] * 3 + term, behind all that is in the stream.
static void enqueue(CUdeviceptr to, CUdeviceptr from, int term) {
    unsigned words = WORDS;
    void *parameters[] = {&to, &words, &from, &term};
    OK(cuLaunchKernel(add, WORDS / THREADS, 1, 1, THREADS, 1, 1, 0, stream, parameters, nullptr));
}

// One of the other programs: copies from the first one's pooled memory to its own, and from its own to the first one's.
static int other(unsigned number) {
    begin();
    Exported exported;
    Imported first;
    make(exported);
    take(first);
    give(exported);
    for (int step = hear<int>(); step > 0; step = hear<int>()) {
        if (step % 8 == 4 && first.handles.has_handles) {
            OK(cuIpcCloseMemHandle(first.theirs.memory));
            open_memory(first);
        }
        OK(cuStreamWaitEvent(stream, first.theirs.event, 0));
        enqueue(exported.own.memory, first.theirs.pooled, step);
        enqueue(first.theirs.memory + number * BYTES, exported.own.memory, int(number));
        enqueue(exported.own.block, first.theirs.block, step);
        enqueue(exported.own.pooled, exported.own.pooled, step);
        OK(cuEventRecord(exported.own.event, stream));
        meet();
    }
    give_back(first);
    meet();
    return failures != 0;
}

static int second() { return other(1); }
static int third() { return other(2); }

// Returns one graph for all steps that copies what comes from the others.
static CUgraphExec gathering(const Imported (&others)[OTHERS], CUdeviceptr to) {
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (const Imported &other : others)
        for (CUdeviceptr from : {other.theirs.memory, other.theirs.block, other.theirs.pooled}) {
            OK(cuMemcpyDtoDAsync(to, from, BYTES, stream));
            to += BYTES;
        }
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static Checksum sum_of(CUdeviceptr gathered, const View &own) {
    Checksum sum;
    std::vector<uint32_t> host((3 * OTHERS + OTHERS) * WORDS);
    OK(cuMemcpyDtoH(host.data(), gathered, 3 * OTHERS * BYTES));
    OK(cuMemcpyDtoH(host.data() + 3 * OTHERS * WORDS, own.memory + BYTES, OTHERS * BYTES));
    for (size_t at = 0; at < host.size(); at += 257) sum.add(host[at]);
    return sum;
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 24);
    pid_t children[OTHERS];
    int ways[OTHERS];
    for (unsigned at = 0; at < OTHERS; at++) {
        children[at] = begin_other(at == 0 ? second : third);
        ways[at] = peer;
    }
    begin();
    Exported exported;
    Imported others[OTHERS];
    CUdeviceptr gathered;
    make(exported);
    OK(cuMemsetD32(exported.own.memory, 0, BLOCK / 16));
    OK(cuMemAlloc(&gathered, 3 * OTHERS * BYTES));
    for (unsigned at = 0; at < OTHERS; at++) {
        peer = ways[at];
        give(exported);
        take(others[at]);
    }
    CUgraphExec exec = gathering(others, gathered);
    for (int step = 1; step <= steps; step++) {
        enqueue(exported.own.pooled, exported.own.pooled, step);
        enqueue(exported.own.block, exported.own.block, -step);
        OK(cuEventRecord(exported.own.event, stream));
        for (int way : ways) {
            peer = way;
            tell(step);
        }
        for (unsigned at = 0; at < OTHERS; at++) {
            peer = ways[at];
            meet();
            OK(cuStreamWaitEvent(stream, others[at].theirs.event, 0));
        }
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        told(step, sum_of(gathered, exported.own));
    }
    OK(cuGraphExecDestroy(exec));
    for (unsigned at = 0; at < OTHERS; at++) {
        give_back(others[at]);
        peer = ways[at];
        tell(0);
        meet();
        end_other(children[at]);
    }
    return finish("kept_shared");
}
