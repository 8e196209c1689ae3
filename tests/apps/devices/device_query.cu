// The device's answers about itself must be sane and consistent on every device; none of them is printed.
#include "check.h"

#include <cstring>
#include <set>
#include <string>

static int attribute(cudaDeviceAttr which) {
    int value = -1;
    OK(cudaDeviceGetAttribute(&value, which, 0));
    return value;
}

static void limits(const cudaDeviceProp &p) {
    CHECK(p.warpSize == 32 && p.maxThreadsPerBlock == 1024, "%d lanes, %d threads", p.warpSize, p.maxThreadsPerBlock);
    CHECK(p.maxThreadsDim[0] == 1024 && p.maxThreadsDim[1] == 1024 && p.maxThreadsDim[2] == 64, "%d x %d x %d",
          p.maxThreadsDim[0], p.maxThreadsDim[1], p.maxThreadsDim[2]);
    CHECK(p.maxGridSize[0] == 2147483647 && p.maxGridSize[1] == 65535, "%d x %d", p.maxGridSize[0], p.maxGridSize[1]);
    CHECK(p.sharedMemPerBlock == 48 << 10, "%zu bytes of shared memory", p.sharedMemPerBlock);
    CHECK(p.sharedMemPerBlockOptin >= p.sharedMemPerBlock, "%zu bytes at most", p.sharedMemPerBlockOptin);
    CHECK(p.totalConstMem == 64 << 10, "%zu bytes of constant memory", p.totalConstMem);
    CHECK(p.multiProcessorCount > 0 && p.maxThreadsPerMultiProcessor >= 1024, "%d multiprocessors of %d threads",
          p.multiProcessorCount, p.maxThreadsPerMultiProcessor);
    CHECK(p.major >= 9, "compute capability %d.%d", p.major, p.minor);
    CHECK(p.unifiedAddressing == 1 && p.canMapHostMemory == 1, "no unified addressing");
}

// The same fact through the properties and through the attributes.
static void consistency(const cudaDeviceProp &p) {
    CHECK(p.major == attribute(cudaDevAttrComputeCapabilityMajor), "%d", p.major);
    CHECK(p.minor == attribute(cudaDevAttrComputeCapabilityMinor), "%d", p.minor);
    CHECK(p.warpSize == attribute(cudaDevAttrWarpSize), "%d", p.warpSize);
    CHECK(p.maxThreadsPerBlock == attribute(cudaDevAttrMaxThreadsPerBlock), "%d", p.maxThreadsPerBlock);
    CHECK(p.multiProcessorCount == attribute(cudaDevAttrMultiProcessorCount), "%d", p.multiProcessorCount);
    CHECK(p.pciBusID == attribute(cudaDevAttrPciBusId), "%d", p.pciBusID);
    CHECK(p.l2CacheSize == attribute(cudaDevAttrL2CacheSize), "%d", p.l2CacheSize);
    CHECK(int(p.sharedMemPerBlockOptin) == attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), "%zu",
          p.sharedMemPerBlockOptin);
    size_t available = 0, total = 0;
    OK(cudaMemGetInfo(&available, &total));
    CHECK(total == p.totalGlobalMem && available <= total, "%zu, %zu of %zu", available, total, p.totalGlobalMem);
    char bus_id[32] = "";
    int by_bus_id = -1;
    OK(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, 0));
    OK(cudaDeviceGetByPCIBusId(&by_bus_id, bus_id));
    CHECK(strlen(bus_id) == 12 && by_bus_id == 0, "%s is device %d", bus_id, by_bus_id);
}

static void all_devices(int count) {
    std::set<std::string> uuids;
    for (int device = 0; device < count; device++) {
        cudaDeviceProp p;
        int current = -1, peer = -1;
        OK(cudaGetDeviceProperties(&p, device));
        CHECK(p.name[0] != 0 && strlen(p.name) < sizeof p.name, "device %d has no name", device);
        uuids.insert(std::string(p.uuid.bytes, sizeof p.uuid.bytes));
        OK(cudaSetDevice(device));
        OK(cudaGetDevice(&current));
        CHECK(current == device, "device %d is current, not %d", current, device);
        OK(cudaDeviceCanAccessPeer(&peer, device, device));
        CHECK(peer == 0, "device %d is its own peer", device);
    }
    CHECK(int(uuids.size()) == count, "%zu different UUIDs", uuids.size());
    OK(cudaSetDevice(0));
}

static void limits_of_the_context() {
    size_t value = 0;
    OK(cudaDeviceGetLimit(&value, cudaLimitStackSize));
    CHECK(value >= 1024, "a stack of %zu", value);
    OK(cudaDeviceGetLimit(&value, cudaLimitMallocHeapSize));
    CHECK(value == 8 << 20, "a heap of %zu", value);
    OK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 2 << 20));
    OK(cudaDeviceGetLimit(&value, cudaLimitPrintfFifoSize));
    CHECK(value >= 2 << 20, "room for %zu bytes of printf", value);
}

int main() {
    int count = 0, driver = 0, runtime = 0;
    OK(cudaGetDeviceCount(&count));
    CHECK(count >= 1, "%d devices", count);
    OK(cudaDriverGetVersion(&driver));
    OK(cudaRuntimeGetVersion(&runtime));
    CHECK(driver >= 13000 && runtime / 1000 == 13, "driver %d, runtime %d", driver, runtime);
    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    limits(properties);
    consistency(properties);
    all_devices(count);
    limits_of_the_context();
    printf("the device's facts are sane and agree with each other\n");
    return finish("device_query");
}
