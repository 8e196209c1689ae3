// Blocks of host memory that the program maps: its processor and kernels use the same address.
#include <cuda.h>

#include <vector>

#include "check.h"
#include "first_device.h"

static CUfunction add;

static CUmemAccessDesc all_access(CUmemLocationType kind) {
    CUmemAccessDesc grant = {};
    grant.location.type = kind;
    grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return grant;
}

// A kernel reads what the program writes, and the other way round, across the border of two mappings.
static void both_sides(CUdeviceptr memory, int count) {
    unsigned *words = reinterpret_cast<unsigned *>(memory);
    int term = 9;
    for (int round = 0; round < 3; round++) {
        for (int at = 0; at < count; at++) words[at] = at + round;
        void *parameters[] = {&memory, &count, &memory, &term};
        OK(cuLaunchKernel(add, (count + 127) / 128, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr));
        OK(cuCtxSynchronize());
        int wrong = 0;
        for (int at = 0; at < count; at++) wrong += words[at] != unsigned(at + round) * 3 + 9;
        CHECK(wrong == 0, "%d words are wrong in round %d, the second is %u", wrong, round, words[1]);
    }
}

static void copies(CUdeviceptr memory) {
    std::vector<unsigned> sent(1000), got(1000);
    Numbers numbers(6);
    for (unsigned &number : sent) number = numbers.next();
    OK(cuMemcpyHtoD(memory + 64, sent.data(), 4000));
    OK(cuMemcpyDtoH(got.data(), memory + 64, 4000));
    CHECK(sent == got, "came back as %u", got[0]);
    CHECK(reinterpret_cast<unsigned *>(memory)[16 + 999] == sent[999], "the program sees another word");
}

// A grant that is refused changes nothing. What the program wrote before it gave its own access away, where a driver lets it,
// is in the memory.
static void access(CUdeviceptr start, size_t size) {
    volatile unsigned *words = reinterpret_cast<unsigned *>(start);
    CUmemAccessDesc grants[] = {all_access(CU_MEM_LOCATION_TYPE_HOST), all_access(CU_MEM_LOCATION_TYPE_DEVICE)};
    unsigned got[2] = {};
    words[0] = 41;
    grants[0].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    grants[1].flags = static_cast<CUmemAccess_flags>(8);
    CHECK(cuMemSetAccess(start, size, grants, 2) != CUDA_SUCCESS, "access of kind 8 was granted");
    CHECK(words[0] == 41, "the program's word is %u now", words[0]);
    words[1] = 42;
    if (cuMemSetAccess(start, size, grants, 1) != CUDA_SUCCESS) return;
    OK(cuMemcpyDtoH(got, start, 8));
    CHECK(got[0] == 41 && got[1] == 42, "%u and %u are left", got[0], got[1]);
    OK(cuMemsetD32(start + 8, 43, 1));
    OK(cuCtxSynchronize());
    grants[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemSetAccess(start, size, grants, 1));
    CHECK(words[0] == 41 && words[1] == 42 && words[2] == 43, "%u, %u, %u", words[0], words[1], words[2]);
}

static void blocks_on(CUmemLocationType kind, const char *name) {
    CUmemAllocationProp request = {}, told;
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location.type = kind;
    size_t piece = 0;
    OK(cuMemGetAllocationGranularity(&piece, &request, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    piece = (piece + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    CUdeviceptr start;
    CUmemGenericAllocationHandle block;
    OK(cuMemAddressReserve(&start, 2 * piece, 0, 0, 0));
    CUmemAccessDesc grants[] = {all_access(CU_MEM_LOCATION_TYPE_DEVICE), all_access(CU_MEM_LOCATION_TYPE_HOST)};
    for (int at = 0; at < 2; at++) {
        OK(cuMemCreate(&block, piece, &request, 0));
        OK(cuMemGetAllocationPropertiesFromHandle(&told, block));
        CHECK(told.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA, "at a location of kind %d", told.location.type);
        OK(cuMemMap(start + at * piece, piece, 0, block, 0));
        OK(cuMemRelease(block));
    }
    OK(cuMemSetAccess(start, 2 * piece, grants, 2));
    unsigned long long flags = 0;
    OK(cuMemGetAccess(&flags, &grants[0].location, start + piece));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "the device has %llu", flags);
    both_sides(start + piece - 4096, 2048);
    copies(start + piece - 4096);
    access(start, 2 * piece);
    OK(cuMemUnmap(start, 2 * piece));
    OK(cuMemAddressFree(start, 2 * piece));
    printf("blocks on %s\n", name);
}

int main() {
    CUdevice device;
    CUcontext context;
    int node = 0, host = 0;
    begin_on_first(&device, &context);
    add = load_add();
    OK(cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    OK(cuDeviceGetAttribute(&host, CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    CHECK(node == 1 && host == 1, "supported: %d, %d", node, host);
    blocks_on(CU_MEM_LOCATION_TYPE_HOST, "the host");
    blocks_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, "a node of the host");
    return finish("host_blocks");
}
