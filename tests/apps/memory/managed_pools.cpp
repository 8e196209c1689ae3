// Pools of managed memory: the program's processor and kernels use memory allocated in stream order.
#include <cuda.h>

#include "check.h"
#include "first_device.h"

constexpr unsigned COUNT = 5000;
constexpr size_t BYTES = COUNT * 4;

static CUstream stream;
static CUfunction add;

static CUmemLocation at(CUmemLocationType kind) {
    CUmemLocation location = {};
    location.type = kind;
    return location;
}

// A kernel works on the program's words; the program reads the result, and the next kernel works on that.
static void turns(CUdeviceptr memory) {
    unsigned *words = reinterpret_cast<unsigned *>(memory);
    for (unsigned i = 0; i < COUNT; i++) words[i] = i;
    for (unsigned turn = 0; turn < 3; turn++) {
        int count = COUNT, term = 7;
        void *parameters[] = {&memory, &count, &memory, &term};
        OK(cuLaunchKernel(add, (COUNT + 127) / 128, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr));
        OK(cuStreamSynchronize(stream));
        for (unsigned i = 0; i < COUNT; i++) words[i] -= 2 * i + 7;
    }
    unsigned wrong = 0;
    // Each turn makes 3x + 7 - (2i + 7) of x, which was i.
    for (unsigned i = 0; i < COUNT; i++) wrong += words[i] != i;
    CHECK(wrong == 0, "%u words are wrong, the second is %u", wrong, words[1]);
}

static void pool_at(CUmemLocationType kind, const char *name) {
    CUmemPoolProps request = {};
    request.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
    request.location = at(kind);
    CUmemoryPool pool, of = nullptr;
    OK(cuMemPoolCreate(&pool, &request));
    CUdeviceptr memory, second;
    OK(cuMemAllocFromPoolAsync(&memory, BYTES, pool, stream));
    OK(cuMemAllocFromPoolAsync(&second, 100, pool, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(memory != second, "twice the same place");
    unsigned is_managed = 0;
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory));
    OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
    CHECK(is_managed == 1 && of == pool, "managed %u, of the pool: %d", is_managed, of == pool);
    turns(memory);
    OK(cuMemsetD8Async(second, 0x5a, 100, stream));
    OK(cuMemcpyAsync(memory, second, 100, stream));
    OK(cuStreamSynchronize(stream));
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(memory);
    CHECK(bytes[0] == 0x5a && bytes[99] == 0x5a && bytes[100] == 25, "%u, %u, %u", bytes[0], bytes[99], bytes[100]);
    cuuint64_t used = 0;
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used >= BYTES + 100, "%llu bytes in use", (unsigned long long)used);
    OK(cuMemFreeAsync(memory, stream));
    OK(cuMemFreeAsync(second, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(memory, stream));
    OK(cuMemPoolDestroy(pool));
    printf("a pool wanted %s\n", name);
}

// The default pool for calls that name none.
static void chosen() {
    CUmemLocation device = at(CU_MEM_LOCATION_TYPE_DEVICE);
    CUmemoryPool first = nullptr, current = nullptr, own;
    OK(cuMemGetDefaultMemPool(&first, &device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    OK(cuMemGetMemPool(&current, &device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CHECK(first && current == first, "the default pool is not the current one");
    CUmemPoolProps request = {};
    request.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
    request.location = device;
    OK(cuMemPoolCreate(&own, &request));
    OK(cuMemSetMemPool(&device, CU_MEM_ALLOCATION_TYPE_MANAGED, own));
    OK(cuMemGetMemPool(&current, &device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CHECK(current == own, "the chosen pool is not the current one");
    CUdeviceptr memory;
    OK(cuMemAllocFromPoolAsync(&memory, BYTES, current, stream));
    turns(memory);
    OK(cuMemFree(memory));
    OK(cuMemPoolDestroy(own));
    OK(cuMemGetMemPool(&current, &device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CHECK(current == first, "a pool that is gone is the current one");
    printf("chosen\n");
}

int main() {
    CUdevice device;
    CUcontext context;
    begin_on_first(&device, &context);
    add = load_add();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pool_at(CU_MEM_LOCATION_TYPE_DEVICE, "on the device");
    pool_at(CU_MEM_LOCATION_TYPE_HOST, "on the host");
    chosen();
    return finish("managed_pools");
}
