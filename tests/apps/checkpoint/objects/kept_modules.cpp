// Modules are loaded, unloaded and loaded again while others stay. Their variables keep what kernels wrote, and addresses that
// the program has seen stay valid. Modules come from text, through the linker, and as libraries. Streams that come and go leave
// memory with the driver, after which the next variables lie.
#include <cuda.h>

#include <cstring>
#include <vector>

#include "embedded_ptx.h"
#include "steps.h"

struct Loaded {
    CUmodule module;
    CUfunction bump, add;
    CUdeviceptr counter;
};

static Loaded know(CUmodule module) {
    Loaded one = {module, nullptr, nullptr, 0};
    size_t size;
    OK(cuModuleGetFunction(&one.bump, module, "bump"));
    OK(cuModuleGetFunction(&one.add, module, "add"));
    OK(cuModuleGetGlobal(&one.counter, &size, module, "counter"));
    return one;
}

static Loaded load() {
    CUmodule module;
    OK(cuModuleLoadData(&module, MODULE_PTX));
    return know(module);
}

// Starts a link with its input, and does not complete it.
static CUlinkState begin_link() {
    CUlinkState link;
    OK(cuLinkCreate(0, nullptr, nullptr, &link));
    OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char *>(MODULE_PTX), strlen(MODULE_PTX) + 1, "text", 0, nullptr, nullptr));
    return link;
}

// The linker's output is gone before the module is used.
static Loaded complete(CUlinkState link) {
    void *image;
    size_t size;
    CUmodule module;
    OK(cuLinkComplete(link, &image, &size));
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(link));
    return know(module);
}

struct Library {
    CUlibrary library;
    CUkernel bump;
    CUdeviceptr counter;
};

static Library load_library() {
    Library one;
    size_t size;
    OK(cuLibraryLoadData(&one.library, MODULE_PTX, nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cuLibraryGetKernel(&one.bump, one.library, "bump"));
    OK(cuLibraryGetGlobal(&one.counter, &size, one.library, "counter"));
    return one;
}

static void launch(CUfunction function, void **arguments) { OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr)); }

static void bump(CUfunction function, int times) {
    for (int i = 0; i < times; i++) OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}

static unsigned read(CUdeviceptr at) {
    unsigned value = 0;
    OK(cuMemcpyDtoH(&value, at, sizeof value));
    return value;
}

// Runs a module's kernel over memory that all modules share.
static void add(const Loaded &one, CUdeviceptr data, int term) {
    unsigned count = 32;
    void *arguments[] = {&data, &count, &data, &term};
    launch(one.add, arguments);
}

// Makes streams that exist at once, and destroys them.
static void come_and_go(size_t count) {
    std::vector<CUstream> streams(count);
    for (CUstream &stream : streams) OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (CUstream stream : streams) OK(cuStreamDestroy(stream));
}

// Adds one module; from the third on, the oldest but one goes, so a module stays while an older one is unloaded.
static void change(std::vector<Loaded> &modules) {
    come_and_go(20 + 8 * modules.size());
    modules.push_back(load());
    if (modules.size() < 4) return;
    OK(cuModuleUnload(modules[1].module));
    modules.erase(modules.begin() + 1);
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 14);
    OK(cuInit(0));
    CUdevice device;
    CUcontext context;
    CUdeviceptr data;
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxCreate(&context, nullptr, 0, device));
    OK(cuMemAlloc(&data, 32 * 4));
    OK(cuMemsetD32(data, 1, 32));
    come_and_go(20);
    std::vector<Loaded> modules = {complete(begin_link())};
    // Begun in one step, and completed in the next.
    CUlinkState link = nullptr;
    Library library = load_library();
    CUfunction of_library;
    OK(cuKernelGetFunction(&of_library, library.bump));
    for (int step = 0; step < steps; step++) {
        if (step % 2 == 0) change(modules);
        Checksum sum;
        for (size_t i = 0; i < modules.size(); i++) {
            bump(modules[i].bump, int(i) + 1);
            add(modules[i], data, step);
            sum.add(read(modules[i].counter));
            CUdeviceptr again;
            size_t size;
            OK(cuModuleGetGlobal(&again, &size, modules[i].module, "counter"));
            CHECK(again == modules[i].counter, "step %d: the variable of module %zu has moved", step, i);
        }
        bump(of_library, 2);
        bump(reinterpret_cast<CUfunction>(library.bump), 1);
        sum.add(read(library.counter));
        if (step % 2 == 0) {
            link = begin_link();
        } else {
            Loaded linked = complete(link);
            bump(linked.bump, step);
            sum.add(read(linked.counter));
            OK(cuModuleUnload(linked.module));
            link = nullptr;
        }
        unsigned host[32];
        OK(cuMemcpyDtoH(host, data, sizeof host));
        sum.add(host);
        told(step, sum);
    }
    if (link) OK(cuLinkDestroy(link));
    for (const Loaded &one : modules) OK(cuModuleUnload(one.module));
    OK(cuLibraryUnload(library.library));
    OK(cuMemFree(data));
    OK(cuCtxDestroy(context));
    return finish("kept_modules");
}
