// A table of wrong calls and their codes: null handles, handles of another context or of none, freed memory, sizes that
// overflow. The output must be the same natively and through Katydid; the kept output is that of an H200. Left out: handles
// of destroyed contexts, and fills whose bytes overflow, which a driver accepts by chance.
#include <cuda.h>

#include <cstdint>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.h"
#include "embedded_ptx.h"
#include "first_device.h"

// A line of the table: the call as it stands here, and its code.
#define ROW(call) printf("%3d  %s\n", int(call), #call)

constexpr size_t HUGE_SIZE = SIZE_MAX, BYTES = 4096;

static CUdevice device;
static CUcontext primary;

static void start() {
    begin_on_first(&device, &primary);
}

// One object of every kind in one context.
struct Things {
    CUdeviceptr memory;
    CUstream stream;
    CUevent event;
    CUmodule module;
    CUfunction add;

    Things() {
        OK(cuMemAlloc(&memory, BYTES));
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
        OK(cuModuleLoadData(&module, MODULE_PTX));
        OK(cuModuleGetFunction(&add, module, "add"));
    }

    // A launch that adds to no element.
    CUresult launch(CUfunction function, CUstream where, unsigned blocks = 1, unsigned threads = 1, unsigned shared = 0) {
        int count = 0, term = 0;
        void *parameters[] = {&memory, &count, &memory, &term};
        return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, where, parameters, nullptr);
    }
};

static void without_outputs() {
    Things it;
    size_t size = 0;
    CUdeviceptr address;
    CUmodule module;
    CUfunction function;
    ROW(cuDeviceGet(nullptr, 0));
    ROW(cuDeviceGetCount(nullptr));
    ROW(cuDeviceGetName(nullptr, 100, device));
    ROW(cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    ROW(cuDeviceTotalMem(nullptr, device));
    ROW(cuDevicePrimaryCtxRetain(nullptr, device));
    ROW(cuCtxGetCurrent(nullptr));
    ROW(cuCtxGetDevice(nullptr));
    ROW(cuCtxGetFlags(nullptr));
    ROW(cuMemAlloc(nullptr, BYTES));
    ROW(cuMemAllocPitch(nullptr, &size, 100, 100, 4));
    ROW(cuMemAllocManaged(nullptr, BYTES, CU_MEM_ATTACH_GLOBAL));
    ROW(cuMemHostAlloc(nullptr, BYTES, 0));
    ROW(cuStreamCreate(nullptr, 0));
    ROW(cuEventCreate(nullptr, 0));
    ROW(cuEventElapsedTime(nullptr, it.event, it.event));
    ROW(cuModuleLoadData(nullptr, MODULE_PTX));
    ROW(cuModuleLoadData(&module, nullptr));
    ROW(cuModuleGetFunction(nullptr, it.module, "add"));
    ROW(cuModuleGetFunction(&function, it.module, nullptr));
    ROW(cuModuleGetFunction(&function, it.module, "nowhere"));
    ROW(cuModuleGetGlobal(nullptr, nullptr, it.module, "counter"));
    ROW(cuModuleGetGlobal(&address, &size, it.module, "nowhere"));
    ROW(cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, it.add));
    ROW(cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, it.memory));
    ROW(cuMemGetAddressRange(nullptr, nullptr, it.memory));
    ROW(cuMemcpyHtoD(it.memory, nullptr, 4));
    ROW(cuMemcpyDtoH(nullptr, it.memory, 4));
    ROW(cuGraphCreate(nullptr, 0));
    ROW(cuMemAddressReserve(nullptr, 2 << 20, 0, 0, 0));
    ROW(cuMemCreate(nullptr, 2 << 20, nullptr, 0));
    ROW(cuMemPoolCreate(nullptr, nullptr));
    ROW(cuArrayCreate(nullptr, nullptr));
    ROW(cuTexObjectCreate(nullptr, nullptr, nullptr, nullptr));
    ROW(cuStreamGetFlags(it.stream, nullptr));
    ROW(cuStreamGetPriority(it.stream, nullptr));
    ROW(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static void without_handles() {
    Things it;
    CUfunction function;
    float time;
    int blocks;
    ROW(cuEventRecord(nullptr, nullptr));
    ROW(cuEventQuery(nullptr));
    ROW(cuEventSynchronize(nullptr));
    ROW(cuEventElapsedTime(&time, nullptr, nullptr));
    ROW(cuEventDestroy(nullptr));
    ROW(cuStreamDestroy(nullptr));
    ROW(cuStreamWaitEvent(it.stream, nullptr, 0));
    ROW(cuCtxPushCurrent(nullptr));
    ROW(cuCtxDestroy(nullptr));
    ROW(cuModuleUnload(nullptr));
    ROW(cuModuleGetFunction(&function, nullptr, "add"));
    ROW(cuFuncGetAttribute(&blocks, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr));
    ROW(cuFuncSetAttribute(nullptr, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
    ROW(it.launch(nullptr, nullptr));
    ROW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nullptr, 32, 0));
    ROW(cuLibraryUnload(nullptr));
    ROW(cuGraphInstantiate(nullptr, nullptr, 0));
    ROW(cuGraphLaunch(nullptr, nullptr));
    ROW(cuGraphDestroy(nullptr));
    ROW(cuGraphExecDestroy(nullptr));
    ROW(cuArrayDestroy(nullptr));
    ROW(cuMipmappedArrayDestroy(nullptr));
    ROW(cuMemPoolDestroy(nullptr));
    ROW(cuMemRelease(0));
    ROW(cuMemFree(0));
    ROW(cuMemFreeHost(nullptr));
    ROW(cuMemHostUnregister(nullptr));
    ROW(cuDeviceGet(&device, -1));
    ROW(cuDeviceGet(&device, 1000));
    ROW(cuDeviceGetAttribute(&blocks, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1000));
    ROW(cuDeviceGetAttribute(&blocks, CUdevice_attribute(0), 0));
    ROW(cuDeviceGetAttribute(&blocks, CUdevice_attribute(10000), 0));
}

static void freed() {
    Things it;
    CUdeviceptr gone, start;
    void *pinned, *plain = malloc(BYTES);
    size_t size;
    unsigned type;
    char bytes[4] = {};
    OK(cuMemAlloc(&gone, BYTES));
    ROW(cuMemFree(gone + 1));
    ROW(cuMemFree(gone));
    ROW(cuMemFree(gone));
    ROW(cuMemcpyHtoD(gone, bytes, 4));
    ROW(cuMemcpyDtoH(bytes, gone, 4));
    ROW(cuMemcpyDtoD(it.memory, gone, 4));
    ROW(cuMemsetD8(gone, 0, 4));
    ROW(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, gone));
    ROW(cuMemGetAddressRange(&start, &size, gone));
    ROW(cuMemFree(reinterpret_cast<CUdeviceptr>(plain)));
    ROW(cuMemFreeHost(plain));
    ROW(cuMemFreeHost(reinterpret_cast<void *>(it.memory)));
    OK(cuMemHostAlloc(&pinned, BYTES, 0));
    ROW(cuMemFree(reinterpret_cast<CUdeviceptr>(pinned)));
    ROW(cuMemHostGetDevicePointer(&start, plain, 0));
    ROW(cuMemHostUnregister(pinned));
    ROW(cuMemHostUnregister(plain));
    ROW(cuMemHostRegister(plain, BYTES, 0));
    ROW(cuMemHostRegister(plain, BYTES, 0));
    ROW(cuMemHostUnregister(plain));
    ROW(cuMemHostUnregister(plain));
    ROW(cuMemFreeHost(pinned));
    ROW(cuMemFreeAsync(gone, nullptr));
    free(plain);
}

static void sizes() {
    Things it;
    CUdeviceptr address;
    CUmemGenericAllocationHandle block;
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    void *pinned;
    size_t pitch;
    int blocks;
    std::vector<char> bytes(2 * BYTES);
    ROW(cuMemAlloc(&address, 0));
    ROW(cuMemAlloc(&address, HUGE_SIZE));
    ROW(cuMemAlloc(&address, size_t(1) << 62));
    ROW(cuMemAllocPitch(&address, &pitch, HUGE_SIZE, 2, 4));
    ROW(cuMemAllocPitch(&address, &pitch, size_t(1) << 40, size_t(1) << 40, 4));
    ROW(cuMemAllocPitch(&address, &pitch, 100, 100, 5));
    ROW(cuMemAllocManaged(&address, 0, CU_MEM_ATTACH_GLOBAL));
    ROW(cuMemAllocManaged(&address, BYTES, 0));
    ROW(cuMemHostAlloc(&pinned, 0, 0));
    ROW(cuMemHostAlloc(&pinned, HUGE_SIZE, 0));
    ROW(cuMemHostAlloc(&pinned, BYTES, 0x100));
    ROW(cuMemcpyHtoD(it.memory, bytes.data(), BYTES + 1));
    ROW(cuMemcpyDtoH(bytes.data(), it.memory + 1, BYTES));
    ROW(cuMemcpyDtoD(it.memory, it.memory, HUGE_SIZE));
    ROW(cuMemsetD8(it.memory, 0, BYTES + 1));
    ROW(cuMemsetD32(it.memory + 1, 0, 1));
    ROW(cuMemsetD2D8(it.memory, 64, 0, 65, 2));
    ROW(cuMemsetD2D8(it.memory, 1024, 0, 1024, 5));
    ROW(cuMemAddressReserve(&address, 0, 0, 0, 0));
    ROW(cuMemAddressReserve(&address, 12345, 0, 0, 0));
    ROW(cuMemAddressReserve(&address, HUGE_SIZE & ~size_t(0x1fffff), 0, 0, 0));
    ROW(cuMemCreate(&block, 0, &request, 0));
    ROW(cuMemCreate(&block, 12345, &request, 0));
    ROW(cuMemCreate(&block, size_t(1) << 50, &request, 0));
    ROW(cuMemMap(0, 2 << 20, 0, 0, 0));
    ROW(cuMemUnmap(it.memory, 2 << 20));
    ROW(it.launch(it.add, nullptr, 0));
    ROW(it.launch(it.add, nullptr, 1, 0));
    ROW(it.launch(it.add, nullptr, 1, 1025));
    ROW(it.launch(it.add, nullptr, 0x80000000u));
    ROW(it.launch(it.add, nullptr, 1, 1, 64 << 10));
    ROW(it.launch(it.add, nullptr, 1, 1, 1 << 30));
    ROW(cuLaunchKernel(it.add, 1, 1, 1, 1, 1, 65, 0, nullptr, nullptr, nullptr));
    ROW(cuFuncSetAttribute(it.add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30));
    ROW(cuFuncSetAttribute(it.add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1));
    ROW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, it.add, 0, 0));
    ROW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, it.add, -1, 0));
    ROW(cuStreamCreate(&it.stream, 0x100));
    ROW(cuEventCreate(&it.event, 0x100));
    ROW(cuEventCreate(&it.event, CU_EVENT_INTERPROCESS));
    ROW(cuStreamWaitEvent(nullptr, it.event, 7));
    ROW(cuCtxSetLimit(CUlimit(99), 1));
    ROW(cuCtxSetFlags(0x1000));
    CUDA_ARRAY_DESCRIPTOR flat = {0, 0, CU_AD_FORMAT_FLOAT, 1};
    CUarray array;
    ROW(cuArrayCreate(&array, &flat));
    flat = {HUGE_SIZE, HUGE_SIZE, CU_AD_FORMAT_FLOAT, 1};
    ROW(cuArrayCreate(&array, &flat));
    flat = {64, 64, CU_AD_FORMAT_FLOAT, 3};
    ROW(cuArrayCreate(&array, &flat));
    flat = {64, 64, CUarray_format(0x77), 1};
    ROW(cuArrayCreate(&array, &flat));
}

// Uses everything of one context while another is current.
static void other_context() {
    Things mine;
    CUcontext other;
    OK(cuCtxCreate(&other, nullptr, 0, device));
    Things theirs;
    char bytes[4];
    float time;
    CUfunction function;
    CUdeviceptr address;
    size_t size;
    ROW(cuMemcpyDtoH(bytes, mine.memory, 4));
    ROW(cuMemsetD8(mine.memory, 0, 4));
    ROW(cuStreamSynchronize(mine.stream));
    ROW(cuStreamQuery(mine.stream));
    ROW(cuEventRecord(mine.event, mine.stream));
    ROW(cuEventRecord(mine.event, theirs.stream));
    ROW(cuEventRecord(mine.event, nullptr));
    ROW(cuEventRecord(theirs.event, theirs.stream));
    ROW(cuEventSynchronize(mine.event));
    ROW(cuEventSynchronize(theirs.event));
    ROW(cuEventElapsedTime(&time, mine.event, theirs.event));
    ROW(cuStreamWaitEvent(theirs.stream, mine.event, 0));
    ROW(cuStreamWaitEvent(mine.stream, theirs.event, 0));
    ROW(cuModuleGetFunction(&function, mine.module, "bump"));
    ROW(cuModuleGetGlobal(&address, &size, mine.module, "counter"));
    ROW(mine.launch(mine.add, mine.stream));
    ROW(mine.launch(mine.add, theirs.stream));
    ROW(mine.launch(mine.add, nullptr));
    ROW(theirs.launch(theirs.add, mine.stream));
    ROW(cuMemFree(mine.memory));
    ROW(cuMemFree(mine.memory));
    ROW(cuModuleUnload(mine.module));
    ROW(cuStreamDestroy(mine.stream));
    ROW(cuEventDestroy(mine.event));
    ROW(cuCtxSynchronize());
    ROW(cuCtxDestroy(other));
}

// On a thread without a context, handles themselves determine the context.
static void no_context() {
    Things it;
    std::thread([&] {
        CUdeviceptr address;
        CUstream stream;
        CUevent event;
        CUmodule module;
        CUfunction function;
        CUcontext of_stream;
        void *pinned;
        char bytes[4];
        size_t size;
        unsigned number;
        int value;
        float time;
        ROW(cuMemAlloc(&address, BYTES));
        ROW(cuMemHostAlloc(&pinned, BYTES, 0));
        ROW(cuMemGetInfo(&size, &size));
        ROW(cuStreamCreate(&stream, 0));
        ROW(cuEventCreate(&event, 0));
        ROW(cuModuleLoadData(&module, MODULE_PTX));
        ROW(cuCtxSynchronize());
        ROW(cuCtxGetDevice(&value));
        ROW(cuEventQuery(it.event));
        ROW(cuEventSynchronize(it.event));
        ROW(cuEventRecord(it.event, it.stream));
        ROW(cuEventRecord(it.event, nullptr));
        ROW(cuEventSynchronize(it.event));
        ROW(cuEventElapsedTime(&time, it.event, it.event));
        ROW(cuStreamQuery(it.stream));
        ROW(cuStreamSynchronize(it.stream));
        ROW(cuStreamSynchronize(nullptr));
        ROW(cuStreamWaitEvent(it.stream, it.event, 0));
        ROW(cuStreamGetFlags(it.stream, &number));
        ROW(cuStreamGetCtx(it.stream, &of_stream));
        ROW(it.launch(it.add, it.stream));
        ROW(it.launch(it.add, nullptr));
        ROW(cuModuleGetFunction(&function, it.module, "bump"));
        ROW(cuModuleGetGlobal(&address, &size, it.module, "counter"));
        ROW(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, it.add));
        ROW(cuMemcpyDtoH(bytes, it.memory, 4));
        ROW(cuMemcpyHtoDAsync(it.memory, bytes, 4, it.stream));
        ROW(cuMemsetD8Async(it.memory, 0, 4, it.stream));
        ROW(cuMemsetD8(it.memory, 0, 4));
        ROW(cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, it.memory));
        ROW(cuMemGetAddressRange(&address, &size, it.memory));
        ROW(cuMemFree(it.memory));
        ROW(cuEventDestroy(it.event));
        ROW(cuStreamDestroy(it.stream));
        ROW(cuModuleUnload(it.module));
    }).join();
}

// Handles of ended objects. A driver's answer is a matter of chance; here it is defined.
static void ended() {
    Things it;
    CUgraph graph;
    OK(cuGraphCreate(&graph, 0));
    ROW(cuEventDestroy(it.event));
    ROW(cuStreamDestroy(it.stream));
    ROW(cuModuleUnload(it.module));
    ROW(cuGraphDestroy(graph));
    ROW(cuCtxSynchronize());
}

// Runs each part in a new process, so that a part that natively ends its process does not hide the others.
static void part(const char *name, void (*body)()) {
    printf("-- %s\n", name);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        start();
        body();
        fflush(stdout);
        _exit(failures == 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ended with %x", name, status);
}

int main() {
    part("outputs that are null", without_outputs);
    part("handles that are null", without_handles);
    part("memory that was freed", freed);
    part("sizes, flags, kinds", sizes);
    part("objects of another context", other_context);
    part("no context", no_context);
    part("ends", ended);
    return finish("bad_input");
}
