// Virtual memory management: reserved addresses, blocks mapped into them piece by piece, access, use across neighbours.
#include <cuda.h>

#include <cstring>
#include <vector>

#include "check.h"

static CUmemAllocationProp properties() {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return request;
}

static CUmemAccessDesc all_access() {
    CUmemAccessDesc grant = {};
    grant.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return grant;
}

static size_t granule() {
    CUmemAllocationProp request = properties();
    size_t least = 0, best = 0;
    OK(cuMemGetAllocationGranularity(&least, &request, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemGetAllocationGranularity(&best, &request, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    CHECK(least > 0 && best % least == 0, "granularities %zu and %zu", least, best);
    return best;
}

// Grows a range by one block at a time, as allocators with expandable segments do.
static void grow(CUdeviceptr start, size_t piece, int pieces) {
    CUmemAllocationProp request = properties();
    CUmemAccessDesc grant = all_access();
    for (int index = 0; index < pieces; index++) {
        CUmemGenericAllocationHandle block;
        OK(cuMemCreate(&block, piece, &request, 0));
        OK(cuMemMap(start + index * piece, piece, 0, block, 0));
        OK(cuMemSetAccess(start + index * piece, piece, &grant, 1));
        OK(cuMemRelease(block));
    }
}

// Copies and fills that begin in one mapping and end in another.
static void across(CUdeviceptr start, size_t piece) {
    std::vector<unsigned> sent(1024), got(1024);
    for (unsigned index = 0; index < 1024; index++) sent[index] = index * 2654435761u;
    CUdeviceptr border = start + piece - 2048;
    OK(cuMemcpyHtoD(border, sent.data(), 4096));
    OK(cuMemcpyDtoH(got.data(), border, 4096));
    CHECK(sent == got, "copied over the border, %u came back first", got[0]);
    OK(cuMemsetD32(border, 7, 1024));
    OK(cuMemcpyDtoH(got.data(), border, 4096));
    CHECK(got[0] == 7 && got[1023] == 7, "filled %u and %u", got[0], got[1023]);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(start + 3 * piece - 4, sent.data(), 8));
    printf("across\n");
}

static void questions(CUdeviceptr start, size_t piece) {
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    unsigned long long flags = 0;
    OK(cuMemGetAccess(&flags, &here, start));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access %llu", flags);
    CUmemGenericAllocationHandle block;
    OK(cuMemRetainAllocationHandle(&block, reinterpret_cast<void *>(start + piece)));
    CUmemAllocationProp got;
    OK(cuMemGetAllocationPropertiesFromHandle(&got, block));
    CHECK(got.location.type == CU_MEM_LOCATION_TYPE_DEVICE && got.location.id == 0, "on device %d", got.location.id);
    OK(cuMemRelease(block));
    unsigned kind = 0;
    OK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, start + 5));
    CHECK(kind == CU_MEMORYTYPE_DEVICE, "memory of type %u", kind);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(start));
    printf("questions\n");
}

// One block at two addresses: what is written at one is read at the other.
static void alias(size_t piece) {
    CUmemAllocationProp request = properties();
    CUmemAccessDesc grant = all_access();
    CUdeviceptr start;
    CUmemGenericAllocationHandle block;
    OK(cuMemAddressReserve(&start, 2 * piece, 0, 0, 0));
    OK(cuMemCreate(&block, piece, &request, 0));
    OK(cuMemMap(start, piece, 0, block, 0));
    OK(cuMemMap(start + piece, piece, 0, block, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(start, piece, 0, block, 0));
    OK(cuMemSetAccess(start, 2 * piece, &grant, 1));
    unsigned value = 4711, got = 0;
    OK(cuMemcpyHtoD(start + 256, &value, 4));
    OK(cuMemcpyDtoH(&got, start + piece + 256, 4));
    CHECK(got == value, "the other address has %u", got);
    OK(cuMemRelease(block));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(start, 2 * piece));
    OK(cuMemUnmap(start, 2 * piece));
    OK(cuMemAddressFree(start, 2 * piece));
    printf("alias\n");
}

int main() {
    OK(cuInit(0));
    CUdevice device;
    CUcontext context;
    int supported = 0;
    OK(cuDeviceGet(&device, 0));
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    CHECK(supported == 1, "not supported");
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    size_t piece = granule();
    CUdeviceptr start;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&start, 12345, 0, 0, 0));
    OK(cuMemAddressReserve(&start, 1024 * piece, 0, 0, 0));
    grow(start, piece, 3);
    across(start, piece);
    questions(start, piece);
    OK(cuMemUnmap(start, 3 * piece));
    OK(cuMemAddressFree(start, 1024 * piece));
    alias(piece);
    return finish("virtual_memory");
}
