// The driver API without linking: the program opens libcuda.so.1, requests every function by name and version, and
// gets exactly NVIDIA's answers to wrong arguments.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include <cstring>

#include "check.h"
#include "embedded_ptx.h"

static PFN_cuGetProcAddress_v12000 find;

// Returns the function of that name in that CUDA version, or ends the program.
template <typename Function>
static Function get(const char *name, int version) {
    void *function = nullptr;
    CUdriverProcAddressQueryResult status;
    OK(find(name, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    CHECK(function != nullptr && status == CU_GET_PROC_ADDRESS_SUCCESS, "%s: status %d", name, int(status));
    if (function == nullptr) exit(finish("driver_dlopen"));
    return reinterpret_cast<Function>(function);
}

#define GET(name, version) auto name = get<PFN_##name##_v##version>(#name, version)

static void looking_up(void *library) {
    void *function = &function;
    CUdriverProcAddressQueryResult status;
    OK(find("cuNoSuchFunction", &function, 13000, 0, &status));
    CHECK(function == nullptr && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "unknown name: status %d", int(status));
    OK(find("cuMemAlloc_v2", &function, 13000, 0, &status));
    CHECK(function == nullptr && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "with suffix: status %d", int(status));
    OK(find("cuLaunchKernelEx", &function, 11000, 0, &status));
    CHECK(function == nullptr && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, "too old: status %d", int(status));
    OK(find("", &function, 0, 0, &status));
    CHECK(function == nullptr, "the empty name is found");
    EXPECT(CUDA_ERROR_INVALID_VALUE, find("cuInit", &function, 99000, 0, &status));
    EXPECT(CUDA_ERROR_INVALID_VALUE, find("cuInit", &function, 13000, 4, &status));
    OK(find("cuMemAlloc", &function, 3020, 0, nullptr));
    CHECK(function == dlsym(library, "cuMemAlloc_v2"), "cuMemAlloc of 3.2 is not cuMemAlloc_v2");
    OK(find("cuMemcpyHtoD", &function, 7000, 2, nullptr));
    CHECK(function == dlsym(library, "cuMemcpyHtoD_v2_ptds"), "the per-thread copy is another function");
    OK(find("cuLaunchKernel", &function, 7000, 2, nullptr));
    CHECK(function == dlsym(library, "cuLaunchKernel_ptsz"), "the per-thread launch is another function");
    OK(find("cuDeviceGetUuid", &function, 11030, 0, nullptr));
    CHECK(function == dlsym(library, "cuDeviceGetUuid"), "cuDeviceGetUuid of 11.3 is not the first one");
    auto find_first = reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(library, "cuGetProcAddress"));
    EXPECT(CUDA_ERROR_NOT_FOUND, find_first("cuNoSuchFunction", &function, 11030, 0));
    OK(find_first("cuCtxCreate", &function, 3020, 0));
    CHECK(function == dlsym(library, "cuCtxCreate_v2"), "cuCtxCreate of 3.2 is not cuCtxCreate_v2");
    printf("functions looked up by name, version and flags\n");
}

static void before_the_start() {
    GET(cuCtxGetCurrent, 4000);
    GET(cuDeviceGetCount, 2000);
    GET(cuDriverGetVersion, 2020);
    GET(cuGetErrorString, 6000);
    GET(cuGetErrorName, 6000);
    CUcontext context;
    int count, version = 0;
    const char *text = nullptr;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&context));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    OK(cuDriverGetVersion(&version));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDriverGetVersion(nullptr));
    OK(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    CHECK(strcmp(text, "an illegal memory access was encountered") == 0, "%s", text);
    OK(cuGetErrorName(CUDA_ERROR_NOT_FOUND, &text));
    CHECK(strcmp(text, "CUDA_ERROR_NOT_FOUND") == 0, "%s", text);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorString(CUresult(123456), &text));
    CHECK(text == nullptr, "an unknown code has a text");
    printf("before cuInit\n");
}

static void null_outputs() {
    GET(cuDeviceGetCount, 2000);
    GET(cuDeviceGet, 2000);
    GET(cuDeviceGetAttribute, 2000);
    GET(cuMemAlloc, 3020);
    GET(cuStreamCreate, 2000);
    GET(cuEventCreate, 2000);
    GET(cuModuleLoadData, 2000);
    GET(cuMemHostAlloc, 2020);
    CUdevice device;
    CUmodule module;
    int value;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(nullptr));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGet(nullptr, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 99));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, -1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, CUdevice_attribute(9999), 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(nullptr, 16));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(nullptr, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(nullptr, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(nullptr, MODULE_PTX));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, nullptr));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(nullptr, 16, 0));
    printf("null where a result should go\n");
}

static void dead_things() {
    GET(cuMemAlloc, 3020);
    GET(cuMemFree, 3020);
    GET(cuEventElapsedTime, 2000);
    GET(cuEventCreate, 2000);
    GET(cuEventDestroy, 4000);
    GET(cuEventQuery, 2000);
    GET(cuEventRecord, 2000);
    GET(cuEventSynchronize, 2000);
    GET(cuModuleLoadData, 2000);
    GET(cuModuleUnload, 2000);
    GET(cuModuleGetFunction, 2000);
    GET(cuMemFreeHost, 2000);
    CUdeviceptr block;
    CUevent first, second;
    CUmodule module;
    CUfunction function;
    float milliseconds;
    OK(cuMemAlloc(&block, 1000));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(block + 8));
    OK(cuMemFree(block));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(block));
    OK(cuEventCreate(&first, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&second, CU_EVENT_DEFAULT));
    EXPECT(CUDA_SUCCESS, cuEventQuery(first));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, first, second));
    OK(cuEventRecord(first, nullptr));
    OK(cuEventRecord(second, nullptr));
    OK(cuEventSynchronize(second));
    OK(cuEventElapsedTime(&milliseconds, first, second));
    CHECK(milliseconds >= 0, "%g ms", milliseconds);
    OK(cuEventDestroy(first));
    OK(cuEventDestroy(second));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy(nullptr));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(nullptr));
    OK(cuModuleLoadData(&module, MODULE_PTX));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(nullptr, module, "add"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(&function, module, nullptr));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(&function, module, ""));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "nowhere"));
    OK(cuModuleUnload(module));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(nullptr));
    int host = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(&host));
    printf("things that are gone, or never were\n");
}

static void contexts() {
    GET(cuCtxGetCurrent, 4000);
    GET(cuCtxSetCurrent, 4000);
    GET(cuCtxPushCurrent, 4000);
    GET(cuCtxPopCurrent, 4000);
    GET(cuCtxCreate, 3020);
    GET(cuCtxDestroy, 4000);
    GET(cuCtxGetDevice, 2000);
    GET(cuDevicePrimaryCtxGetState, 7000);
    GET(cuMemAlloc, 3020);
    GET(cuMemFree, 3020);
    CUcontext primary, made, popped, current;
    CUdevice device = -1;
    CUdeviceptr block;
    unsigned flags;
    int active = -1;
    OK(cuCtxGetCurrent(&primary));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 1, "the primary context is not active");
    OK(cuCtxCreate(&made, 0, 0));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == made && made != primary, "a new context is not current");
    OK(cuMemAlloc(&block, 4096));
    OK(cuMemFree(block));
    OK(cuCtxPopCurrent(&popped));
    CHECK(popped == made, "popped another context");
    OK(cuCtxGetCurrent(&current));
    CHECK(current == primary, "below it was another context");
    OK(cuCtxPushCurrent(made));
    OK(cuCtxGetDevice(&device));
    CHECK(device == 0, "device %d", device);
    OK(cuCtxDestroy(made));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == primary, "after the end of the current context another is current");
    OK(cuCtxSetCurrent(nullptr));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&device));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&block, 16));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&popped));
    OK(cuCtxSetCurrent(primary));
    printf("contexts made, pushed, popped, ended\n");
}

int main() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library != nullptr, "%s", dlerror());
    if (library == nullptr) return finish("driver_dlopen");
    find = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
    CHECK(find != nullptr, "%s", dlerror());
    if (find == nullptr) return finish("driver_dlopen");
    looking_up(library);
    before_the_start();
    GET(cuInit, 2000);
    OK(cuInit(0));
    GET(cuDevicePrimaryCtxRetain, 7000);
    GET(cuDevicePrimaryCtxRelease, 11000);
    GET(cuCtxSetCurrent, 4000);
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    null_outputs();
    dead_things();
    contexts();
    OK(cuDevicePrimaryCtxRelease(0));
    return finish("driver_dlopen");
}
