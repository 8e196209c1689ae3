// A program with two devices: copies between them, peer access to memory, events, blocks, pools and managed memory for both;
// and two programs with a device each. With a single device, two of its contexts take their places as far as possible.
#include <cuda.h>

#include <vector>

#include "check.h"
#include "embedded_ptx.h"
#include "two_programs.h"

constexpr int WORDS = 1 << 16;
constexpr size_t BYTES = 4 * WORDS;

// Two devices that reach each other's memory.
static bool are_peers;
static bool are_two;

// A device as this program uses it.
struct Side {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction add;
    CUdeviceptr memory;

    void begin() {
        OK(cuCtxSetCurrent(context));
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuModuleLoadData(&module, MODULE_PTX));
        OK(cuModuleGetFunction(&add, module, "add"));
        OK(cuMemAlloc(&memory, BYTES));
    }

    void fill(unsigned value) {
        OK(cuCtxSetCurrent(context));
        OK(cuMemsetD32Async(memory, value, WORDS, stream));
        OK(cuStreamSynchronize(stream));
    }

    // to = 3 * from + term, by a kernel of this device.
    void adds(CUdeviceptr to, CUdeviceptr from, int term) {
        int count = WORDS;
        void *parameters[] = {&to, &count, &from, &term};
        OK(cuCtxSetCurrent(context));
        OK(cuLaunchKernel(add, WORDS / 256, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
        OK(cuStreamSynchronize(stream));
    }

    // Whether every word is `value`, as this context sees it.
    void has(CUdeviceptr at, unsigned value, const char *what) {
        std::vector<unsigned> host(WORDS);
        OK(cuCtxSetCurrent(context));
        OK(cuMemcpyDtoH(host.data(), at, BYTES));
        for (int i = 0; i < WORDS; i++) CHECK_QUIETLY(host[i] == value, "%s: word %d is %u, not %u", what, i, host[i], value);
    }

    void end() {
        OK(cuCtxSetCurrent(context));
        OK(cuMemFree(memory));
        OK(cuModuleUnload(module));
        OK(cuStreamDestroy(stream));
    }
};

static Side first, second;

// The last device's side is the second; with one device it is a context of the program's own.
static void begin() {
    int count = 0, there = 0, back = 0;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    OK(cuDeviceGet(&first.device, 0));
    OK(cuDeviceGet(&second.device, count - 1));
    are_two = count > 1;
    OK(cuDevicePrimaryCtxRetain(&first.context, first.device));
    if (are_two) {
        OK(cuDevicePrimaryCtxRetain(&second.context, second.device));
        OK(cuDeviceCanAccessPeer(&there, first.device, second.device));
        OK(cuDeviceCanAccessPeer(&back, second.device, first.device));
    } else {
        OK(cuCtxCreate(&second.context, nullptr, 0, second.device));
    }
    are_peers = there && back;
    first.begin();
    second.begin();
}

static void copies() {
    first.fill(5);
    second.fill(6);
    OK(cuMemcpyPeer(second.memory, second.context, first.memory, first.context, BYTES));
    // The host waits for no copy between devices, and the next one belongs to another context.
    OK(cuStreamSynchronize(nullptr));
    second.has(second.memory, 5, "a copy to a peer");
    second.fill(7);
    OK(cuMemcpyPeerAsync(first.memory, first.context, second.memory, second.context, BYTES, second.stream));
    OK(cuStreamSynchronize(second.stream));
    first.has(first.memory, 7, "a copy from a peer");
    // Half of each row, in eight layers.
    CUDA_MEMCPY3D_PEER part = {};
    part.srcMemoryType = part.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    part.srcContext = second.context, part.dstContext = first.context;
    part.srcDevice = second.memory, part.dstDevice = first.memory;
    part.srcPitch = part.dstPitch = 1024, part.srcHeight = part.dstHeight = BYTES / 1024 / 8;
    part.WidthInBytes = 1024, part.Height = BYTES / 1024 / 8, part.Depth = 8;
    second.fill(8);
    OK(cuMemcpy3DPeer(&part));
    OK(cuStreamSynchronize(nullptr));
    first.has(first.memory, 8, "a copy of layers");
    if (are_two) {
        second.fill(9);
        OK(cuMemcpyDtoD(first.memory, second.memory, BYTES));
        OK(cuStreamSynchronize(nullptr));
        first.has(first.memory, 9, "a copy by addresses");
        OK(cuMemcpy(second.memory, first.memory, BYTES));
        OK(cuStreamSynchronize(nullptr));
        second.has(second.memory, 9, "a copy by addresses");
    }
    printf("copies\n");
}

// Kernels of `here` read and write memory of `there`.
static void reaches(Side &here, Side &there) {
    OK(cuCtxSetCurrent(here.context));
    EXPECT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(there.context));
    OK(cuCtxEnablePeerAccess(there.context, 0));
    EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(there.context, 0));
    there.fill(10);
    here.adds(here.memory, there.memory, 1);
    here.has(here.memory, 31, "read of a peer");
    here.adds(there.memory, here.memory, 2);
    there.has(there.memory, 95, "written by a peer");
    // What is allocated later can be reached too.
    CUdeviceptr later;
    OK(cuCtxSetCurrent(there.context));
    OK(cuMemAlloc(&later, BYTES));
    here.adds(later, here.memory, 3);
    there.has(later, 96, "allocated later, written by a peer");
    OK(cuCtxSetCurrent(there.context));
    OK(cuMemFree(later));
    OK(cuCtxSetCurrent(here.context));
    OK(cuCtxDisablePeerAccess(there.context));
}

static void access() {
    OK(cuCtxSetCurrent(first.context));
    if (are_peers) {
        int linked = 0;
        OK(cuDeviceGetP2PAttribute(&linked, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, first.device, second.device));
        CHECK(linked == 1, "no access over a link");
        unsigned capability = ~0u;
        CUatomicOperation operation = CU_ATOMIC_OPERATION_INTEGER_ADD;
        OK(cuDeviceGetP2PAtomicCapabilities(&capability, &operation, 1, first.device, second.device));
        CHECK(capability != ~0u, "nothing told of atomic additions");
        reaches(first, second);
        reaches(second, first);
    } else {
        CHECK(cuCtxEnablePeerAccess(second.context, 0) != CUDA_SUCCESS, "access without a link");
    }
    printf("access\n");
}

// Work of each device waits for the other's event.
static void events() {
    CUevent done, back;
    OK(cuCtxSetCurrent(first.context));
    OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxSetCurrent(second.context));
    OK(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
    second.fill(0);
    for (unsigned round = 1; round <= 50; round++) {
        OK(cuCtxSetCurrent(first.context));
        OK(cuMemsetD32Async(first.memory, round, WORDS, first.stream));
        OK(cuEventRecord(done, first.stream));
        OK(cuCtxSetCurrent(second.context));
        OK(cuStreamWaitEvent(second.stream, done, 0));
        OK(cuMemcpyPeerAsync(second.memory, second.context, first.memory, first.context, BYTES, second.stream));
        OK(cuEventRecord(back, second.stream));
        OK(cuCtxSetCurrent(first.context));
        OK(cuStreamWaitEvent(first.stream, back, 0));
    }
    OK(cuStreamSynchronize(second.stream));
    second.has(second.memory, 50, "the last round");
    OK(cuEventDestroy(done));
    OK(cuEventDestroy(back));
    printf("events\n");
}

// Maps a block of the second device at an address for both.
static void blocks() {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, second.device};
    size_t piece = 0;
    OK(cuMemGetAllocationGranularity(&piece, &request, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUmemGenericAllocationHandle block;
    CUdeviceptr at;
    CUmemAccessDesc grants[2] = {{{CU_MEM_LOCATION_TYPE_DEVICE, second.device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                 {{CU_MEM_LOCATION_TYPE_DEVICE, first.device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    OK(cuMemCreate(&block, piece, &request, 0));
    OK(cuMemAddressReserve(&at, piece, 0, 0, 0));
    OK(cuMemMap(at, piece, 0, block, 0));
    OK(cuMemSetAccess(at, piece, grants, are_peers ? 2 : 1));
    second.fill(4);
    second.adds(at, second.memory, 1);
    if (are_peers) {
        first.adds(first.memory, at, 0);
        first.has(first.memory, 39, "a block for both");
    }
    second.has(at, 13, "a block");
    OK(cuMemUnmap(at, piece));
    OK(cuMemAddressFree(at, piece));
    OK(cuMemRelease(block));
    printf("blocks\n");
}

static void pools() {
    CUmemoryPool pool;
    CUmemPoolProps request = {};
    request.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, second.device};
    OK(cuCtxSetCurrent(second.context));
    OK(cuMemPoolCreate(&pool, &request));
    CUmemLocation other = {CU_MEM_LOCATION_TYPE_DEVICE, first.device};
    if (are_peers) {
        CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        OK(cuMemPoolGetAccess(&flags, pool, &other));
        CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE, "access %d before it was granted", int(flags));
        CUmemAccessDesc grant = {other, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        OK(cuMemPoolSetAccess(pool, &grant, 1));
        OK(cuMemPoolGetAccess(&flags, pool, &other));
        CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access %d", int(flags));
    }
    CUdeviceptr at;
    OK(cuMemAllocFromPoolAsync(&at, BYTES, pool, second.stream));
    OK(cuMemsetD32Async(at, 20, WORDS, second.stream));
    OK(cuStreamSynchronize(second.stream));
    if (are_peers) {
        first.adds(first.memory, at, 2);
        first.has(first.memory, 62, "memory of a pool");
    }
    OK(cuCtxSetCurrent(second.context));
    OK(cuMemFreeAsync(at, second.stream));
    OK(cuStreamSynchronize(second.stream));
    OK(cuMemPoolDestroy(pool));
    printf("pools\n");
}

static void managed() {
    CUdeviceptr at;
    OK(cuCtxSetCurrent(first.context));
    OK(cuMemAllocManaged(&at, BYTES, CU_MEM_ATTACH_GLOBAL));
    volatile unsigned *words = reinterpret_cast<unsigned *>(at);
    for (int i = 0; i < WORDS; i++) words[i] = 1;
    first.adds(at, at, 1);
    // Except for contexts of one device, which do not share addresses of managed memory.
    Side &other = are_two ? second : first;
    other.adds(at, at, 2);
    for (int i = 0; i < WORDS; i++) CHECK_QUIETLY(words[i] == 14, "word %d is %u", i, words[i]);
    OK(cuCtxSetCurrent(first.context));
    OK(cuMemFree(at));
    printf("managed memory\n");
}

// Settings of a library's kernel are made for each device, and hold in its contexts alone.
static void kernels() {
    constexpr CUfunction_attribute MOST = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    constexpr int MORE = 50000;
    CUlibrary library;
    CUkernel add;
    int before = 0, here = 0, there = 0, count = WORDS, term = 1;
    OK(cuCtxSetCurrent(first.context));
    OK(cuLibraryLoadData(&library, MODULE_PTX, nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cuLibraryGetKernel(&add, library, "add"));
    OK(cuKernelGetAttribute(&before, MOST, add, first.device));
    CHECK(before < MORE, "%d bytes from the start", before);
    OK(cuKernelSetAttribute(MOST, MORE, add, second.device));
    OK(cuKernelGetAttribute(&here, MOST, add, first.device));
    OK(cuKernelGetAttribute(&there, MOST, add, second.device));
    CHECK(there == MORE && here == (are_two ? before : MORE), "%d and %d bytes", here, there);
    for (Side *side : {&first, &second}) {
        void *parameters[] = {&side->memory, &count, &side->memory, &term};
        OK(cuCtxSetCurrent(side->context));
        CUresult expected = are_two && side == &first ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        EXPECT(expected, cuLaunchKernel(CUfunction(add), WORDS / 256, 1, 1, 256, 1, 1, MORE, side->stream, parameters, nullptr));
        OK(cuStreamSynchronize(side->stream));
    }
    OK(cuKernelSetAttribute(MOST, before, add, second.device));
    OK(cuKernelGetAttribute(&there, MOST, add, second.device));
    CHECK(there == before, "%d bytes in the end", there);
    OK(cuLibraryUnload(library));
    printf("kernels\n");
}

// Whether memory of the first device can be opened by a program that uses the second.
static bool can_lend() {
    unsigned capable = 0;
    OK(cuCtxSetCurrent(first.context));
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, first.memory));
    return capable && are_peers;
}

static CUmemGenericAllocationHandle block_for_others(size_t *piece) {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, first.device};
    request.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemGetAllocationGranularity(piece, &request, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUmemGenericAllocationHandle block;
    OK(cuMemCreate(&block, *piece, &request, 0));
    return block;
}

// Exports the first device's memory, by a handle and by a descriptor, to the program that uses the second.
static void lend() {
    CUipcMemHandle handle;
    size_t piece = 0;
    int descriptor = -1;
    first.fill(30);
    OK(cuIpcGetMemHandle(&handle, first.memory));
    tell(handle);
    meet();
    first.has(first.memory, 92, "written by the other program");
    CUmemGenericAllocationHandle block = block_for_others(&piece);
    CUdeviceptr at = mapped(block, piece, first.device);
    first.fill(2);
    first.adds(at, first.memory, 1);
    OK(cuMemExportToShareableHandle(&descriptor, block, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_descriptor(descriptor);
    close(descriptor);
    tell(piece);
    meet();
    first.has(at, 23, "a block that the other program wrote to");
    unmapped(at, piece, block);
}

static void borrow() {
    CUipcMemHandle handle = hear<CUipcMemHandle>();
    CUdeviceptr at;
    OK(cuCtxSetCurrent(second.context));
    OK(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuMemcpyDtoD(second.memory, at, BYTES));
    second.has(second.memory, 30, "copied out of the other program's memory");
    second.adds(at, second.memory, 2);
    OK(cuIpcCloseMemHandle(at));
    meet();
    CUmemGenericAllocationHandle block;
    int descriptor = receive_descriptor();
    size_t piece = hear<size_t>();
    OK(cuMemImportFromShareableHandle(&block, reinterpret_cast<void *>(intptr_t(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    at = mapped(block, piece, second.device);
    second.adds(at, at, 2);
    unmapped(at, piece, block);
    meet();
}

// The other program, which reports whether this machine can export memory.
static int importer() {
    begin();
    bool borrows = can_lend();
    tell(borrows);
    if (borrows) borrow();
    return failures != 0;
}

int main() {
    pid_t other = begin_other(importer);
    bool lends = hear<bool>();
    if (!lends) end_other(other);
    begin();
    fprintf(stderr, "%s, %s\n", are_two ? "two devices" : "one device", are_peers ? "peers" : "no peers");
    copies();
    access();
    events();
    blocks();
    pools();
    managed();
    kernels();
    if (lends) {
        lend();
        end_other(other);
    }
    printf("two programs\n");
    first.end();
    second.end();
    if (!are_two) OK(cuCtxDestroy(second.context));
    OK(cuDevicePrimaryCtxRelease(first.device));
    if (are_two) OK(cuDevicePrimaryCtxRelease(second.device));
    return finish("several_devices");
}
