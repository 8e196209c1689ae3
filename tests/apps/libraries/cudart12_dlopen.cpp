// The runtime of CUDA 12, opened at run time, on the same driver library. It starts, copies and launches, and its errors are
// right.
//
// Its headers belong to another toolkit, so this file declares the few functions that it uses.
#include <dlfcn.h>

#include <cstring>
#include <vector>

#include "check.h"
#include "embedded_ptx.h"

static void *runtime;

// Returns the function of that name, or ends the program.
template <typename Function>
static Function *get(const char *name) {
    void *function = dlsym(runtime, name);
    CHECK(function != nullptr, "%s is not there", name);
    if (function == nullptr) exit(finish("cudart12_dlopen"));
    return reinterpret_cast<Function *>(function);
}

struct Extent {
    unsigned x, y, z;
};

// An entry of a container of code, and the container: what compilers put into a program for its runtime. NVIDIA's driver reads
// the options of ptxas, so an entry says that it has none.
struct Entry {
    uint16_t kind = 1, form = 0x101;
    uint32_t header = 80;
    uint64_t size;
    uint32_t compressed = 0, options = 64;
    uint16_t minor = 0, major = 7;
    uint32_t architecture = 70, name = 0, name_length = 0;
    uint64_t flags = 0x11, reserved = 0, uncompressed = 0;
    uint64_t options_text = 72, no_options = 0;
};
struct Container {
    uint32_t magic = 0xba55ed50;
    uint16_t version = 1, header = 16;
    uint64_t size;
};
struct Wrapper {
    int magic = 0x466243b1, version = 1;
    const void *container;
    void *reserved = nullptr;
};

static std::vector<char> container_of(const char *text) {
    size_t length = (strlen(text) + 8) / 8 * 8;
    Entry entry;
    entry.size = length;
    Container container;
    container.size = sizeof entry + length;
    std::vector<char> bytes(sizeof container + sizeof entry + length, 0);
    memcpy(bytes.data(), &container, sizeof container);
    memcpy(bytes.data() + sizeof container, &entry, sizeof entry);
    memcpy(bytes.data() + sizeof container + sizeof entry, text, strlen(text));
    return bytes;
}

// A kernel out of code that is registered as a compiler does it, over what a copy has brought.
static void launch(void *stream) {
    auto enter = get<void **(void *)>("__cudaRegisterFatBinary");
    auto add = get<void(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *)>(
        "__cudaRegisterFunction");
    auto complete = get<void(void **)>("__cudaRegisterFatBinaryEnd");
    auto leave = get<void(void **)>("__cudaUnregisterFatBinary");
    auto start = get<int(const void *, Extent, Extent, void **, size_t, void *)>("cudaLaunchKernel");
    auto allocate = get<int(void **, size_t)>("cudaMalloc");
    auto free_memory = get<int(void *)>("cudaFree");
    auto copy_async = get<int(void *, const void *, size_t, int, void *)>("cudaMemcpyAsync");
    auto synchronize = get<int(void *)>("cudaStreamSynchronize");
    unsigned count = 5000;
    int term = -7;
    std::vector<int> values(count);
    for (unsigned i = 0; i < count; i++) values[i] = int(i);
    void *in, *out;
    static std::vector<char> code = container_of(MODULE_PTX);
    static Wrapper wrapper;
    static char kernel;
    wrapper.container = code.data();
    char name[] = "add";
    void **registered = enter(&wrapper);
    add(registered, &kernel, name, name, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    complete(registered);
    OK(allocate(&in, count * 4));
    OK(allocate(&out, count * 4));
    OK(copy_async(in, values.data(), count * 4, 1, stream));
    void *parameters[] = {&out, &count, &in, &term};
    OK(start(&kernel, {(count + 127) / 128, 1, 1}, {128, 1, 1}, parameters, 0, stream));
    OK(copy_async(values.data(), out, count * 4, 2, stream));
    OK(synchronize(stream));
    for (unsigned i = 0; i < count; i++) CHECK_QUIETLY(values[i] == int(i) * 3 - 7, "%u: %d", i, values[i]);
    OK(free_memory(out));
    OK(free_memory(in));
    leave(registered);
}

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, UP = 1, DOWN = 2 };

int main() {
    runtime = dlopen("libcudart.so.12", RTLD_NOW);
    CHECK(runtime != nullptr, "%s", dlerror());
    if (runtime == nullptr) return finish("cudart12_dlopen");
    auto runtime_version = get<int(int *)>("cudaRuntimeGetVersion");
    auto device_count = get<int(int *)>("cudaGetDeviceCount");
    auto set_device = get<int(int)>("cudaSetDevice");
    auto allocate = get<int(void **, size_t)>("cudaMalloc");
    auto free_memory = get<int(void *)>("cudaFree");
    auto allocate_host = get<int(void **, size_t)>("cudaMallocHost");
    auto free_host = get<int(void *)>("cudaFreeHost");
    auto copy = get<int(void *, const void *, size_t, int)>("cudaMemcpy");
    auto copy_async = get<int(void *, const void *, size_t, int, void *)>("cudaMemcpyAsync");
    auto fill = get<int(void *, int, size_t)>("cudaMemset");
    auto create_stream = get<int(void **)>("cudaStreamCreate");
    auto destroy_stream = get<int(void *)>("cudaStreamDestroy");
    auto synchronize = get<int(void *)>("cudaStreamSynchronize");
    auto last_error = get<int()>("cudaGetLastError");

    int version = 0, count = 0;
    OK(runtime_version(&version));
    CHECK(version / 1000 == 12, "version %d", version);
    OK(device_count(&count));
    CHECK(count >= 1, "%d devices", count);
    OK(set_device(0));
    const size_t bytes = 100003;
    std::vector<char> up(bytes), down(bytes, 0);
    for (size_t i = 0; i < bytes; i++) up[i] = char(i * 13);
    void *device, *pinned, *stream, *nothing;
    OK(allocate(&device, bytes));
    OK(allocate_host(&pinned, bytes));
    OK(create_stream(&stream));
    OK(copy(device, up.data(), bytes, UP));
    OK(fill(static_cast<char *>(device) + 10, 0x5a, 90));
    memset(&up[10], 0x5a, 90);
    OK(copy_async(pinned, device, bytes, DOWN, stream));
    OK(synchronize(stream));
    CHECK(memcmp(pinned, up.data(), bytes) == 0, "the pinned copy differs");
    OK(copy(down.data(), device, bytes, DOWN));
    CHECK(down == up, "the copy differs");
    launch(stream);
    EXPECT(OUT_OF_MEMORY, allocate(&nothing, size_t(1) << 50));
    EXPECT(OUT_OF_MEMORY, last_error());
    EXPECT(INVALID_VALUE, copy(device, up.data(), bytes + 1, UP));
    EXPECT(INVALID_DEVICE, set_device(99));
    OK(destroy_stream(stream));
    OK(free_host(pinned));
    OK(free_memory(device));
    printf("CUDA 12's runtime starts, copies and launches\n");
    return finish("cudart12_dlopen");
}
