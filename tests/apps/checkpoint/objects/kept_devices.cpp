// Several devices over all steps: memory, kernels and streams of each, a ring of copies between devices, peer access to memory,
// and blocks that all devices may use. Three places are spread over the existing devices, so the output does not depend on
// their number.
#include <cuda.h>

#include <vector>

#include "check.h"
#include "embedded_ptx.h"
#include "steps.h"

constexpr int PLACES = 3, WORDS = 4096;
constexpr size_t BYTES = 4 * WORDS;

struct Place {
    CUdevice device;
    CUcontext context;
    CUfunction add;
    CUstream stream;
    CUevent done;
    // The ring goes from `held` to the next place's `got`.
    CUdeviceptr held, got;
    // What a kernel of this device has read of the next place's memory, where it may: where access was switched on before the
    // first step, or no place has to.
    CUdeviceptr beside;
    bool reaches;
    CUdeviceptr block;

    void begin(int number, int devices) {
        OK(cuDeviceGet(&device, number % devices));
        OK(cuDevicePrimaryCtxRetain(&context, device));
        OK(cuCtxSetCurrent(context));
        CUmodule module;
        OK(cuModuleLoadData(&module, MODULE_PTX));
        OK(cuModuleGetFunction(&add, module, "add"));
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
        for (CUdeviceptr *memory : {&held, &got, &beside}) OK(cuMemAlloc(memory, BYTES));
        OK(cuMemsetD32(held, unsigned(number + 1), WORDS));
        OK(cuMemsetD32(got, 0, WORDS));
        OK(cuStreamSynchronize(nullptr));
    }

    // to = 3 * from + term
    void adds(CUdeviceptr to, CUdeviceptr from, int term) {
        int count = WORDS;
        void *parameters[] = {&to, &count, &from, &term};
        OK(cuLaunchKernel(add, WORDS / 256, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
    }
};

static Place places[PLACES];

// Returns a block in the memory of one device, which every device that reaches it may use.
static CUdeviceptr shared_block(const Place &owner, int devices) {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, owner.device};
    size_t size = 0;
    CUdeviceptr start;
    CUmemGenericAllocationHandle block;
    OK(cuMemGetAllocationGranularity(&size, &request, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    OK(cuMemAddressReserve(&start, size, 0, 0, 0));
    OK(cuMemCreate(&block, size, &request, 0));
    OK(cuMemMap(start, size, 0, block, 0));
    std::vector<CUmemAccessDesc> grants;
    for (int device = 0; device < devices; device++) {
        int reaches = device == owner.device;
        if (!reaches) OK(cuDeviceCanAccessPeer(&reaches, device, owner.device));
        if (reaches) grants.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
    OK(cuMemSetAccess(start, size, grants.data(), grants.size()));
    OK(cuMemRelease(block));
    OK(cuCtxSetCurrent(owner.context));
    OK(cuMemsetD32(start, 1, WORDS));
    OK(cuStreamSynchronize(nullptr));
    return start;
}

// Each place works on its memory and passes it on; a place waits only for the events of the previous one.
static void ring(int step) {
    for (int i = 0; i < PLACES; i++) {
        OK(cuCtxSetCurrent(places[i].context));
        places[i].adds(places[i].held, places[i].held, step * 10 + i);
        places[i].adds(places[i].block, places[i].block, step + i);
        Place &next = places[(i + 1) % PLACES];
        OK(cuMemcpyPeerAsync(next.got, next.context, places[i].held, places[i].context, BYTES, places[i].stream));
        OK(cuEventRecord(places[i].done, places[i].stream));
    }
    for (int i = 0; i < PLACES; i++) {
        OK(cuCtxSetCurrent(places[i].context));
        OK(cuStreamWaitEvent(places[i].stream, places[(i + PLACES - 1) % PLACES].done, 0));
        places[i].adds(places[i].held, places[i].got, i);
    }
}

// Access is permanent, in every context. Places of one device need none to each other.
static void let_reach(Place &place, const Place &next) {
    int can = place.device == next.device;
    OK(cuCtxSetCurrent(place.context));
    if (!can) {
        OK(cuDeviceCanAccessPeer(&can, place.device, next.device));
        if (can) OK(cuCtxEnablePeerAccess(next.context, 0));
    }
    place.reaches = can;
}

// Each place reads the next one's memory while all are idle.
static void read_beside(int step) {
    for (const Place &place : places) OK(cuStreamSynchronize(place.stream));
    for (int i = 0; i < PLACES; i++) {
        Place &place = places[i], &next = places[(i + 1) % PLACES];
        OK(cuCtxSetCurrent(place.context));
        if (!place.reaches) OK(cuMemcpyPeerAsync(place.beside, place.context, next.held, next.context, BYTES, place.stream));
        place.adds(place.beside, place.reaches ? next.held : place.beside, step);
    }
}

static void look(Checksum &sum) {
    std::vector<unsigned> host(WORDS);
    for (Place &place : places) {
        OK(cuCtxSetCurrent(place.context));
        OK(cuStreamSynchronize(place.stream));
        for (CUdeviceptr memory : {place.held, place.got, place.beside, place.block}) {
            OK(cuMemcpyDtoH(host.data(), memory, BYTES));
            sum.bytes(host.data(), BYTES);
        }
    }
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 12);
    int devices = 0;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&devices));
    for (int i = 0; i < PLACES; i++) places[i].begin(i, devices);
    for (Place &place : places) place.block = shared_block(place, devices);
    for (int i = 0; i < PLACES; i++) let_reach(places[i], places[(i + 1) % PLACES]);
    for (int step = 0; step < steps; step++) {
        ring(step);
        read_beside(step);
        Checksum sum;
        look(sum);
        told(step, sum);
    }
    for (Place &place : places) {
        OK(cuCtxSetCurrent(place.context));
        for (CUdeviceptr memory : {place.held, place.got, place.beside}) OK(cuMemFree(memory));
        OK(cuStreamDestroy(place.stream));
        OK(cuEventDestroy(place.done));
        OK(cuDevicePrimaryCtxRelease(place.device));
    }
    return finish("kept_devices");
}
