// Compares NVML's answers about the devices with CUDA's; the program opens both libraries by name. Without NVML, which happens
// only without Katydid, it asks nothing.
#include <cuda.h>
#include <dlfcn.h>

#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

#include "check.h"

static void *cuda, *nvml;

template <class F> static F *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    CHECK(found, "%s is not there", name);
    if (!found) exit(finish("nvml_queries"));
    return reinterpret_cast<F *>(found);
}

// A function of NVML: numbers and pointers in, a code out.
template <class... A> static int ask(const char *name, A... arguments) { return find<int(A...)>(nvml, name)(arguments...); }

using Device = struct NvmlDevice *;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct Memory {
    unsigned long long total, free, used;
};

struct MemoryV2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

// The newer of two structures, as its version says.
struct Fabric {
    unsigned version = sizeof(Fabric) | 2u << 24;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
};

struct Process {
    unsigned pid;
    unsigned long long bytes;
    unsigned instances[2];
};

struct Pci {
    char old[16];
    unsigned domain, bus, device, ids[2];
    char address[32];
};

static std::string uuid_of(CUdevice device) {
    CUuuid id;
    OK(find<CUresult(CUuuid *, CUdevice)>(cuda, "cuDeviceGetUuid")(&id, device));
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        char part[8];
        snprintf(part, sizeof part, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", static_cast<unsigned char>(id.bytes[i]));
        text += part;
    }
    return text;
}

static void identity(CUdevice device) {
    std::string uuid = uuid_of(device);
    Device handle = nullptr, again = nullptr;
    char name[96] = "", wanted[96] = "", text[96] = "", place[32] = "";
    int major, minor, wanted_major, wanted_minor;
    Pci pci = {};
    EXPECT(SUCCESS, ask("nvmlDeviceGetHandleByUUID", uuid.c_str(), &handle));
    EXPECT(SUCCESS, ask("nvmlDeviceGetName", handle, name, 96u));
    OK(find<CUresult(char *, int, CUdevice)>(cuda, "cuDeviceGetName")(wanted, sizeof wanted, device));
    CHECK(strcmp(name, wanted) == 0, "%s, not %s", name, wanted);
    EXPECT(INSUFFICIENT_SIZE, ask("nvmlDeviceGetName", handle, text, 2u));
    EXPECT(SUCCESS, ask("nvmlDeviceGetUUID", handle, text, 96u));
    CHECK(uuid == text, "%s, not %s", text, uuid.c_str());
    OK(find<CUresult(char *, int, CUdevice)>(cuda, "cuDeviceGetPCIBusId")(place, sizeof place, device));
    EXPECT(SUCCESS, ask("nvmlDeviceGetPciInfo_v3", handle, &pci));
    unsigned domain = 0, bus = 0, slot = 0;
    sscanf(place, "%x:%x:%x", &domain, &bus, &slot);
    CHECK(pci.domain == domain && pci.bus == bus && pci.device == slot, "%s, not %s", pci.address, place);
    EXPECT(SUCCESS, ask("nvmlDeviceGetHandleByPciBusId_v2", pci.address, &again));
    CHECK(handle == again, "another device");
    EXPECT(SUCCESS, ask("nvmlDeviceGetCudaComputeCapability", handle, &major, &minor));
    OK(find<CUresult(int *, int *, CUdevice)>(cuda, "cuDeviceComputeCapability")(&wanted_major, &wanted_minor, device));
    CHECK(major == wanted_major && minor == wanted_minor, "%d.%d", major, minor);
    EXPECT(INVALID_ARGUMENT, ask("nvmlDeviceGetName", handle, static_cast<char *>(nullptr), 96u));
    // A handle that is none but null is no case: NVIDIA's library looks at what it points to, and the program ends there.
    EXPECT(INVALID_ARGUMENT, ask("nvmlDeviceGetName", static_cast<Device>(nullptr), text, 96u));
    EXPECT(NOT_FOUND, ask("nvmlDeviceGetHandleByUUID", "GPU-00000000-0000-0000-0000-000000000000", &again));
}

static void usage(Device handle) {
    Memory memory = {};
    MemoryV2 second = {};
    size_t total;
    unsigned rates[2] = {101, 101}, count = 0;
    EXPECT(SUCCESS, ask("nvmlDeviceGetMemoryInfo", handle, &memory));
    OK(find<CUresult(size_t *, CUdevice)>(cuda, "cuDeviceTotalMem_v2")(&total, 0));
    CHECK(memory.total >= total && memory.total / 2 < total, "%llu, not %zu", memory.total, total);
    CHECK(memory.used + memory.free <= memory.total, "%llu and %llu", memory.used, memory.free);
    second.version = sizeof second | 2 << 24;
    EXPECT(SUCCESS, ask("nvmlDeviceGetMemoryInfo_v2", handle, &second));
    CHECK(second.total == memory.total, "%llu", second.total);
    EXPECT(SUCCESS, ask("nvmlDeviceGetUtilizationRates", handle, rates));
    CHECK(rates[0] <= 100 && rates[1] <= 100, "%u, %u", rates[0], rates[1]);
    // This program uses the device, so there is at least one process.
    EXPECT(INSUFFICIENT_SIZE, ask("nvmlDeviceGetComputeRunningProcesses_v3", handle, &count, static_cast<Process *>(nullptr)));
    std::vector<Process> processes(count + 64);
    count = unsigned(processes.size());
    EXPECT(SUCCESS, ask("nvmlDeviceGetComputeRunningProcesses_v3", handle, &count, processes.data()));
    CHECK(count >= 1 && count <= processes.size() && processes[0].pid > 1, "%u processes", count);
}

// The first form of a PCI address, which NCCL asks for.
struct OldPci {
    char address[16];
    unsigned domain, bus, device, ids[2], reserved[4];
};

// Whether links lead to other devices, and where; a device without any says so to each question. Both forms tell of the same place.
static void links(Device handle) {
    unsigned state = 9, reaches = 9, version = 9;
    Fabric fabric;
    EXPECT(SUCCESS, ask("nvmlDeviceGetGpuFabricInfoV", handle, &fabric));
    CHECK(fabric.state <= 3, "the fabric's state is %u", fabric.state);
    for (unsigned link = 0; link < 18; link++) {
        Pci pci = {};
        OldPci old = {};
        int active = ask("nvmlDeviceGetNvLinkState", handle, link, &state);
        CHECK(active != SUCCESS || state <= 1, "link %u is %u", link, state);
        int told = ask("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, &pci);
        EXPECT(told, ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link, &old));
        CHECK(told != SUCCESS || (pci.domain == old.domain && pci.bus == old.bus && pci.device == old.device), "%s, not %s", old.address, pci.address);
        if (active != SUCCESS || state == 0) continue;
        EXPECT(SUCCESS, ask("nvmlDeviceGetNvLinkCapability", handle, link, 0u, &reaches));
        EXPECT(SUCCESS, ask("nvmlDeviceGetNvLinkVersion", handle, link, &version));
        CHECK(reaches <= 1 && version >= 1 && version < 100, "link %u: %u, version %u", link, reaches, version);
    }
}

// Devices reach each other's memory as CUDA says that they do.
static void peers(int devices) {
    for (int one = 0; one < devices; one++)
        for (int other = 0; other < devices; other++) {
            Device handles[2] = {};
            unsigned reads = 99;
            int can = 0;
            EXPECT(SUCCESS, ask("nvmlDeviceGetHandleByUUID", uuid_of(one).c_str(), &handles[0]));
            EXPECT(SUCCESS, ask("nvmlDeviceGetHandleByUUID", uuid_of(other).c_str(), &handles[1]));
            EXPECT(SUCCESS, ask("nvmlDeviceGetP2PStatus", handles[0], handles[1], 0u, &reads));
            OK(find<CUresult(int *, CUdevice, CUdevice)>(cuda, "cuDeviceCanAccessPeer")(&can, one, other));
            CHECK(one == other || (reads == 0) == (can != 0), "%d and %d: %u, not %d", one, other, reads, can);
        }
}

int main() {
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(cuda, "%s", dlerror());
    if (!cuda) return finish("nvml_queries");
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    CHECK(nvml || !getenv("KATYDID_SERVER"), "%s", dlerror());
    if (!nvml) {
        printf("devices and their use\n");
        return finish("nvml_queries");
    }
    unsigned count = 0, index = 99;
    int devices = 0, version = 0;
    char text[96] = "";
    Device handle = nullptr;
    CUcontext context;
    EXPECT(UNINITIALIZED, ask("nvmlDeviceGetCount_v2", &count));
    OK(find<CUresult(unsigned)>(cuda, "cuInit")(0));
    OK(find<CUresult(int *)>(cuda, "cuDeviceGetCount")(&devices));
    OK(find<CUresult(CUcontext *, CUdevice)>(cuda, "cuDevicePrimaryCtxRetain")(&context, 0));
    EXPECT(SUCCESS, ask("nvmlInit_v2"));
    EXPECT(SUCCESS, ask("nvmlDeviceGetCount_v2", &count));
    CHECK(int(count) >= devices, "%u devices, not %d", count, devices);
    EXPECT(SUCCESS, ask("nvmlSystemGetDriverVersion", text, 80u));
    CHECK(text[0], "no version");
    EXPECT(SUCCESS, ask("nvmlSystemGetCudaDriverVersion_v2", &version));
    CHECK(version >= 12000, "%d", version);
    for (int device = 0; device < devices; device++) identity(device);
    std::string uuid = uuid_of(0);
    EXPECT(SUCCESS, ask("nvmlDeviceGetHandleByUUID", uuid.c_str(), &handle));
    EXPECT(SUCCESS, ask("nvmlDeviceGetIndex", handle, &index));
    CHECK(index < count, "%u", index);
    usage(handle);
    links(handle);
    peers(devices);
    // Longer than a connection is kept: the next question makes another one.
    usleep(300000);
    usage(handle);
    EXPECT(INVALID_ARGUMENT, ask("nvmlDeviceGetHandleByIndex_v2", 99u, &handle));
    EXPECT(SUCCESS, ask("nvmlShutdown"));
    EXPECT(UNINITIALIZED, ask("nvmlShutdown"));
    const char *(*words)(int) = find<const char *(int)>(nvml, "nvmlErrorString");
    CHECK(strcmp(words(0), "Success") == 0, "%s", words(0));
    printf("devices and their use\n");
    return finish("nvml_queries");
}
