// Pools with memory on the host: the program's processor and kernels use the same address, without copies.
#include <cuda.h>

#include <vector>

#include "check.h"
#include "first_device.h"

constexpr unsigned COUNT = 5000;
constexpr size_t BYTES = COUNT * 4;

static CUstream stream;
static CUfunction add;

static CUmemPoolProps on(CUmemLocationType kind) {
    CUmemPoolProps request = {};
    request.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location.type = kind;
    return request;
}

static void grant(CUmemoryPool pool) {
    CUmemAccessDesc device = {};
    device.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    device.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemPoolSetAccess(pool, &device, 1));
}

// A kernel reads what the program writes, and the other way round.
static void both_sides(CUdeviceptr memory) {
    unsigned *words = reinterpret_cast<unsigned *>(memory);
    for (unsigned at = 0; at < COUNT; at++) words[at] = at;
    int count = COUNT, term = 7;
    void *parameters[] = {&memory, &count, &memory, &term};
    OK(cuLaunchKernel(add, (COUNT + 127) / 128, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr));
    OK(cuStreamSynchronize(stream));
    unsigned wrong = 0;
    for (unsigned at = 0; at < COUNT; at++) wrong += words[at] != at * 3 + 7;
    CHECK(wrong == 0, "%u words are wrong, the second is %u", wrong, words[1]);
}

// Copies and fills reach this memory like any other.
static void copies(CUdeviceptr memory) {
    std::vector<unsigned> sent(COUNT), got(COUNT);
    Numbers numbers(5);
    for (unsigned &number : sent) number = numbers.next();
    CUdeviceptr device;
    OK(cuMemAlloc(&device, BYTES));
    OK(cuMemcpyHtoD(device, sent.data(), BYTES));
    OK(cuMemcpyAsync(memory, device, BYTES, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(reinterpret_cast<unsigned *>(memory)[COUNT - 1] == sent[COUNT - 1], "copied %u", *reinterpret_cast<unsigned *>(memory));
    OK(cuMemsetD32Async(device, 0, COUNT, stream));
    OK(cuMemcpyAsync(device, memory, BYTES, stream));
    OK(cuMemcpyDtoHAsync(got.data(), device, BYTES, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(sent == got, "came back as %u", got[0]);
    OK(cuMemFree(device));
}

static void pool_on(CUmemLocationType kind, const char *name) {
    CUmemPoolProps request = on(kind);
    CUmemoryPool pool, of = nullptr;
    OK(cuMemPoolCreate(&pool, &request));
    grant(pool);
    CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(cuMemPoolGetAccess(&flags, pool, &device));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access %d", flags);
    CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    OK(cuMemPoolGetAccess(&flags, pool, &host));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "the host has %d", flags);
    CUdeviceptr memory, second;
    OK(cuMemAllocFromPoolAsync(&memory, BYTES, pool, stream));
    OK(cuMemAllocFromPoolAsync(&second, 100, pool, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
    CHECK(of == pool && memory != second, "of another pool");
    both_sides(memory);
    copies(memory);
    cuuint64_t used = 0;
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used >= BYTES + 100, "%llu bytes in use", (unsigned long long)used);
    OK(cuMemFreeAsync(memory, stream));
    OK(cuMemFreeAsync(second, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(memory, stream));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 0, "%llu bytes in use", (unsigned long long)used);
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemPoolDestroy(pool));
    printf("a pool on %s\n", name);
}

int main() {
    CUdevice device;
    CUcontext context;
    int node = 0, host = 0;
    begin_on_first(&device, &context);
    add = load_add();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, device));
    OK(cuDeviceGetAttribute(&host, CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, device));
    CHECK(node == 1 && host == 1, "supported: %d, %d", node, host);
    pool_on(CU_MEM_LOCATION_TYPE_HOST, "the host");
    pool_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, "a node of the host");
    return finish("host_pools");
}
