// Virtual memory management over all steps: a range that grows block by block, a block at two addresses, blocks that
// leave the range and return at another address in it.
#include <cuda.h>

#include <vector>

#include "first_device.h"
#include "steps.h"

static CUmemAllocationProp properties() {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return request;
}

struct Range {
    CUdeviceptr start = 0;
    size_t piece = 0;
    std::vector<CUmemGenericAllocationHandle> blocks;

    CUdeviceptr at(size_t slot) const { return start + slot * piece; }
    void map(size_t slot, CUmemGenericAllocationHandle block) {
        CUmemAccessDesc grant = {};
        grant.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        OK(cuMemMap(at(slot), piece, 0, block, 0));
        OK(cuMemSetAccess(at(slot), piece, &grant, 1));
    }
    void grow() {
        CUmemAllocationProp request = properties();
        CUmemGenericAllocationHandle block;
        OK(cuMemCreate(&block, piece, &request, 0));
        map(blocks.size(), block);
        OK(cuMemsetD32(at(blocks.size()), unsigned(blocks.size() + 1), piece / 4));
        blocks.push_back(block);
    }
};

constexpr size_t SLOTS = 8, SECOND = 100;

// Changes a word at the start, in the middle and at the end of a mapped piece, and reads all of it.
static void use(CUdeviceptr piece, size_t size, unsigned salt, Checksum &sum) {
    std::vector<unsigned> host(size / 4);
    OK(cuMemsetD32(piece + salt % 1000 * 4, salt, 3));
    OK(cuMemsetD32(piece + size / 2, salt * 7, 5));
    OK(cuMemcpyDtoD(piece + size - 4096, piece, 4096));
    OK(cuMemcpyDtoH(host.data(), piece, size));
    for (size_t i = 0; i < host.size(); i += 509) sum.add(host[i]);
    sum.add(host[size / 8]);
    sum.bytes(&host[size / 4 - 1024], 4096);
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 12);
    CUdevice device;
    CUcontext context;
    begin_on_first(&device, &context);
    Range range;
    CUmemAllocationProp request = properties();
    OK(cuMemGetAllocationGranularity(&range.piece, &request, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    OK(cuMemAddressReserve(&range.start, 128 * range.piece, 0, 0, 0));
    range.grow();
    // The first block is also mapped at a second address.
    range.map(SECOND, range.blocks[0]);
    for (int step = 0; step < steps; step++) {
        if (range.blocks.size() < SLOTS && step % 2) range.grow();
        if (step == 5) {
            // The second block moves, with its contents.
            OK(cuMemUnmap(range.at(1), range.piece));
            range.map(SECOND + 10, range.blocks[1]);
        }
        Checksum sum;
        for (size_t slot = 0; slot < range.blocks.size(); slot++) {
            use(slot == 1 && step >= 5 ? range.at(SECOND + 10) : range.at(slot), range.piece, unsigned(step * 10 + slot), sum);
        }
        unsigned alias = 0, direct = 0;
        OK(cuMemcpyDtoH(&alias, range.at(SECOND) + range.piece / 2, 4));
        OK(cuMemcpyDtoH(&direct, range.at(0) + range.piece / 2, 4));
        CHECK(alias == direct, "step %d: %u and %u", step, alias, direct);
        told(step, sum);
    }
    OK(cuMemUnmap(range.at(SECOND), range.piece));
    for (size_t slot = 0; slot < range.blocks.size(); slot++) {
        OK(cuMemUnmap(slot == 1 && steps > 5 ? range.at(SECOND + 10) : range.at(slot), range.piece));
        OK(cuMemRelease(range.blocks[slot]));
    }
    OK(cuMemAddressFree(range.start, 128 * range.piece));
    OK(cuDevicePrimaryCtxRelease(device));
    return finish("kept_virtual");
}
