// Calls of CUDA 2 that programs still make: launches whose parameters are set one by one, contexts that are attached to, 32-bit
// forms; and the log of errors.
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "check.h"
#include "embedded_ptx.h"
#include "first_device.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static CUcontext context;

static void launches() {
    const int count = 1000;
    CUmodule module;
    CUfunction add, bump;
    CUdeviceptr in, out, counter;
    CUstream stream;
    int values[count];
    OK(cuModuleLoadData(&module, MODULE_PTX));
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuModuleGetFunction(&bump, module, "bump"));
    OK(cuMemAlloc(&in, sizeof values));
    OK(cuMemAlloc(&out, sizeof values));
    OK(cuStreamCreate(&stream, 0));
    for (int i = 0; i < count; i++) values[i] = i;
    OK(cuMemcpyHtoD(in, values, sizeof values));
    OK(cuFuncSetBlockShape(add, 128, 1, 1));
    OK(cuFuncSetSharedSize(add, 0));
    OK(cuParamSetSize(add, 28));
    OK(cuParamSetv(add, 0, &out, 8));
    OK(cuParamSeti(add, 8, count));
    OK(cuParamSetv(add, 16, &in, 8));
    OK(cuParamSeti(add, 24, 7));
    OK(cuLaunchGrid(add, 8, 1));
    OK(cuMemcpyDtoH(values, out, sizeof values));
    for (int i = 0; i < count; i++) CHECK_QUIETLY(values[i] == i * 3 + 7, "%d: %d", i, values[i]);
    OK(cuParamSeti(add, 24, -1));
    OK(cuLaunchGridAsync(add, 8, 1, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(values, out, sizeof values));
    for (int i = 0; i < count; i++) CHECK_QUIETLY(values[i] == i * 3 - 1, "%d: %d", i, values[i]);
    OK(cuFuncSetBlockShape(bump, 1, 1, 1));
    OK(cuParamSetSize(bump, 0));
    OK(cuLaunch(bump));
    OK(cuModuleGetGlobal(&counter, nullptr, module, "counter"));
    OK(cuMemcpyDtoH(values, counter, 4));
    CHECK(values[0] == 11, "%d", values[0]);
    OK(cuParamSetf(add, 24, 1.0f));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(add, 0, 1, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(add, 2048, 1, 1));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuParamSetTexRef(add, CU_PARAM_TR_DEFAULT, nullptr));
    OK(cuMemFree(in));
    OK(cuMemFree(out));
    OK(cuStreamDestroy(stream));
    OK(cuModuleUnload(module));
    printf("launches\n");
}

static void attach() {
    CUcontext same = nullptr;
    OK(cuCtxAttach(&same, 0));
    CHECK(same == context, "another context");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&same, 1));
    OK(cuCtxDetach(same));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(nullptr));
    printf("attached and detached\n");
}

// The exported names without a version are those of 32-bit device pointers.
static void narrow() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    auto global = reinterpret_cast<CUresult (*)(unsigned *, unsigned *, CUmodule, const char *)>(dlsym(library, "cuModuleGetGlobal"));
    unsigned address = 0, size = 0;
    CUmodule module;
    OK(cuModuleLoadData(&module, MODULE_PTX));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, global(&address, &size, module, "counter"));
    OK(cuModuleUnload(module));
    auto first_total = reinterpret_cast<CUresult (*)(unsigned *, CUdevice)>(dlsym(library, "cuDeviceTotalMem"));
    size_t whole = 0;
    unsigned held = 0;
    OK(cuDeviceTotalMem(&whole, 0));
    OK(first_total(&held, 0));
    CHECK(held == (whole > UINT32_MAX ? UINT32_MAX : whole), "%u of %zu bytes", held, whole);
    EXPECT(CUDA_ERROR_INVALID_VALUE, first_total(nullptr, 0));
    // Its addresses were as wide as the program's from the start.
    auto first_register = reinterpret_cast<CUresult (*)(void *, size_t, unsigned)>(dlsym(library, "cuMemHostRegister"));
    static char pages[8192];
    OK(first_register(pages, sizeof pages, 0));
    OK(cuMemHostUnregister(pages));
    for (const char *name : {"cuMemGetAttribute", "cuMemGetAttribute_v2"}) {
        auto undeclared = reinterpret_cast<CUresult (*)()>(dlsym(library, name));
        CHECK(undeclared != nullptr, "no %s", name);
        EXPECT(CUDA_ERROR_NOT_SUPPORTED, undeclared());
    }
    auto profiler = reinterpret_cast<CUresult (*)(const char *, const char *, int)>(dlsym(library, "cuProfilerInitialize"));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, profiler("", "", 1));
    printf("32-bit forms\n");
}

static void peer_copies() {
    CUdeviceptr from, to;
    unsigned char rows[64 * 32], back[64 * 32] = {};
    for (unsigned i = 0; i < sizeof rows; i++) rows[i] = i * 13;
    OK(cuMemAlloc(&from, sizeof rows));
    OK(cuMemAlloc(&to, sizeof rows));
    OK(cuMemcpyHtoD(from, rows, sizeof rows));
    OK(cuMemsetD8(to, 0, sizeof rows));
    CUDA_MEMCPY3D_PEER copy = {};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from, copy.dstDevice = to;
    copy.srcContext = copy.dstContext = context;
    copy.srcPitch = copy.dstPitch = 64, copy.srcHeight = copy.dstHeight = 8;
    copy.WidthInBytes = 40, copy.Height = 7, copy.Depth = 4;
    OK(cuMemcpy3DPeer(&copy));
    copy.dstXInBytes = copy.srcXInBytes = 40, copy.WidthInBytes = 24;
    OK(cuMemcpy3DPeerAsync(&copy, nullptr));
    OK(cuMemcpyDtoH(back, to, sizeof back));
    for (unsigned i = 0; i < sizeof rows; i++) {
        int want = i / 64 % 8 < 7 ? rows[i] : 0;
        CHECK_QUIETLY(back[i] == want, "%u: %d, wanted %d", i, back[i], want);
    }
    OK(cuMemFree(from));
    OK(cuMemFree(to));
    printf("copies between peers\n");
}

static void flushes() {
    auto scope = [](int value) { return static_cast<CUflushGPUDirectRDMAWritesScope>(value); };
    auto target = [](int value) { return static_cast<CUflushGPUDirectRDMAWritesTarget>(value); };
    OK(cuFlushGPUDirectRDMAWrites(target(0), scope(100)));
    OK(cuFlushGPUDirectRDMAWrites(target(0), scope(200)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFlushGPUDirectRDMAWrites(target(0), scope(0)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFlushGPUDirectRDMAWrites(target(1), scope(100)));
    printf("flushes\n");
}

static void dumps() {
    char text[1024] = "unset";
    bool on = false;
    size_t size = sizeof text, one = 1;
    OK(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size));
    CHECK(text[0] == 0, "%s", text);
    OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_TRIGGER_HOST, &on, &one));
    size = sizeof text;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCoredumpGetAttribute(CU_COREDUMP_TRIGGER_HOST, text, &size));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCoredumpGetAttribute(static_cast<CUcoredumpSettings>(10), text, &size));
    printf("settings of core dumps\n");
}

static int told;
static unsigned long long default_heard;

// Its own calls behave like the program's: its null stream is the legacy one, whatever call has failed.
static void hear(void *data, CUlogLevel level, char *message, size_t length) {
    (void)length;
    if (strstr(message, "cuStreamGetPriority")) OK(cuStreamGetId(nullptr, &default_heard));
    if (data == &told && level == CU_LOG_LEVEL_ERROR && strstr(message, "cuEventQuery")) told++;
}

static void logs() {
    CUlogsCallbackHandle handle;
    CUlogIterator at;
    char lines[8192];
    size_t size = sizeof lines;
    OK(cuLogsRegisterCallback(hear, &told, &handle));
    OK(cuLogsCurrent(&at, 0));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(nullptr));
    OK(cuLogsDumpToMemory(&at, lines, &size, 0));
    CHECK(strstr(lines, "Returning 400 (CUDA_ERROR_INVALID_HANDLE) from cuEventQuery"), "%s", lines);
    CHECK(told >= 1, "told %d times", told);
    unsigned long long legacy = 0, own = 0;
    auto id_of_own = reinterpret_cast<decltype(&cuStreamGetId)>(dlsym(RTLD_DEFAULT, "cuStreamGetId_ptsz"));
    auto priority = reinterpret_cast<decltype(&cuStreamGetPriority)>(dlsym(RTLD_DEFAULT, "cuStreamGetPriority_ptsz"));
    CHECK(id_of_own && priority, "no such functions");
    OK(cuStreamGetId(nullptr, &legacy));
    OK(id_of_own(nullptr, &own));
    EXPECT(CUDA_ERROR_INVALID_VALUE, priority(nullptr, nullptr));
    CHECK(default_heard == legacy && own != legacy, "stream %llu of %llu and %llu", default_heard, legacy, own);
    OK(cuLogsUnregisterCallback(handle));
    int before = told;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(nullptr));
    CHECK(told == before, "told after the end");
    std::string path = "/tmp/katydid-log-" + std::to_string(getpid());
    OK(cuLogsDumpToFile(nullptr, path.c_str(), 0));
    FILE *file = fopen(path.c_str(), "r");
    size_t read = file ? fread(lines, 1, sizeof lines - 1, file) : 0;
    lines[read] = 0;
    CHECK(strstr(lines, "from cuEventQuery"), "%zu bytes", read);
    if (file) fclose(file);
    remove(path.c_str());
    printf("the log\n");
}

int main() {
    CUdevice device;
    begin_on_first(&device, &context);
    launches();
    attach();
    narrow();
    peer_copies();
    flushes();
    dumps();
    logs();
    return finish("old_calls");
}
