// Queries of code, devices and contexts by the rarer forms of calls: counts and names of kernels, their parameters, older
// linkers, contexts that are pushed and popped, tensor maps.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "container.h"
#include "embedded_ptx.h"

// Declared in cudaProfiler.h, which not every toolkit has.
extern "C" CUresult cuProfilerStart();
extern "C" CUresult cuProfilerStop();

static CUdevice device;
static CUcontext context;

// Whether a driver supports an optional feature; any other failure is an error.
static bool has(CUresult result, const char *what) {
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED, "%s: %d", what, int(result));
    return result == CUDA_SUCCESS;
}

// A file that holds the module's text; it goes with the value. It stays open for writing, so that a restored program finds it
// whatever became of it since the checkpoint.
struct TextFile {
    char path[32] = "/tmp/katydid-code-XXXXXX";
    int file;
    TextFile() : file(mkstemp(path)) {
        bool written = write(file, MODULE_PTX, strlen(MODULE_PTX)) == ssize_t(strlen(MODULE_PTX));
        CHECK(written, "cannot write %s", path);
    }
    ~TextFile() {
        close(file);
        unlink(path);
    }
};

// Computes 3 x 5 + 7 with a kernel of this name.
static void works(CUfunction add, const char *what) {
    CUdeviceptr memory;
    OK(cuMemAlloc_v2(&memory, 8));
    OK(cuMemsetD32_v2(memory, 5, 1));
    CUdeviceptr out = memory + 4;
    int count = 1, term = 7;
    unsigned got = 0;
    void *parameters[] = {&out, &count, &memory, &term};
    CUDA_LAUNCH_PARAMS launch = {add, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters};
    CUstream stream;
    OK(cuStreamCreate(&stream, 0));
    launch.hStream = stream;
    OK(cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&got, out, 4));
    CHECK(got == 22, "%s: %u", what, got);
    OK(cuStreamDestroy_v2(stream));
    OK(cuMemFree_v2(memory));
}

static void modules(const TextFile &file) {
    CUmodule module, same;
    CUfunction functions[2] = {}, add;
    unsigned count = 0;
    OK(cuModuleLoad(&module, file.path));
    OK(cuModuleGetFunctionCount(&count, module));
    OK(cuModuleEnumerateFunctions(functions, 2, module));
    CHECK(count == 2 && functions[0] && functions[1] && functions[0] != functions[1], "%u functions", count);
    OK(cuModuleGetFunction(&add, module, "add"));
    CHECK(add == functions[0] || add == functions[1], "add is none of them");
    const char *name = "";
    size_t offset = 0, size = 0;
    OK(cuFuncGetName(&name, add));
    OK(cuFuncGetModule(&same, add));
    CHECK(strcmp(name, "add") == 0 && same == module, "it is %s", name);
    OK(cuFuncGetParamInfo(add, 2, &offset, &size));
    CHECK(offset == 16 && size == 8, "the third parameter has %zu bytes at %zu", size, offset);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(add, 4, &offset, &size));
    CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_MAX;
    OK(cuFuncLoad(add));
    OK(cuFuncIsLoaded(&state, add));
    CHECK(state == CU_FUNCTION_LOADING_STATE_LOADED, "state %d", int(state));
    OK(cuFuncSetCacheConfig(add, CU_FUNC_CACHE_PREFER_L1));
    OK(cuFuncSetSharedMemConfig(add, CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE));
    int blocks = 0, threads = 0, again = 0;
    OK(cuOccupancyMaxPotentialBlockSize(&blocks, &threads, add, nullptr, 0, 0));
    OK(cuOccupancyMaxPotentialBlockSizeWithFlags(&blocks, &again, add, nullptr, 0, 0, CU_OCCUPANCY_DEFAULT));
    CHECK(blocks > 0 && threads > 0 && threads == again, "%d and %d threads", threads, again);
    OK(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 2048));
    OK(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, add));
    CHECK(threads == 2048, "%d bytes", threads);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 128, 0));
    CHECK(blocks > 0, "%d blocks", blocks);
    works(add, "a module of a file");
    OK(cuModuleUnload(module));
    CHECK(cuModuleLoadFatBinary(&module, "no image") != CUDA_SUCCESS, "no image is loaded");
    std::vector<uint64_t> whole = container(MODULE_PTX, 70);
    OK(cuModuleLoadFatBinary(&module, whole.data()));
    OK(cuModuleGetFunction(&add, module, "add"));
    works(add, "a module of a container");
    OK(cuModuleUnload(module));
    printf("modules\n");
}

static void libraries(const TextFile &file) {
    CUlibrary library, same;
    CUkernel kernels[2] = {}, add;
    CUmodule module;
    CUfunction function;
    unsigned count = 0;
    OK(cuLibraryLoadFromFile(&library, file.path, nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cuLibraryGetKernelCount(&count, library));
    OK(cuLibraryEnumerateKernels(kernels, 2, library));
    CHECK(count == 2 && kernels[0] && kernels[1] && kernels[0] != kernels[1], "%u kernels", count);
    OK(cuLibraryGetKernel(&add, library, "add"));
    const char *name = "";
    size_t offset = 0, size = 0;
    OK(cuKernelGetName(&name, add));
    OK(cuKernelGetLibrary(&same, add));
    CHECK(strcmp(name, "add") == 0 && same == library, "it is %s", name);
    OK(cuKernelGetParamInfo(add, 1, &offset, &size));
    CHECK(offset == 8 && size == 4, "the second parameter has %zu bytes at %zu", size, offset);
    OK(cuKernelSetCacheConfig(add, CU_FUNC_CACHE_PREFER_SHARED, device));
    void *unified = nullptr;
    CHECK(cuLibraryGetUnifiedFunction(&unified, library, "add") != CUDA_SUCCESS, "a kernel is a function of both sides");
    OK(cuLibraryGetModule(&module, library));
    OK(cuModuleGetFunction(&function, module, "add"));
    works(function, "a library of a file");
    OK(cuLibraryUnload(library));
    printf("libraries\n");
}

// The linker as it was before CUDA 6.5.
static void links(const TextFile &file) {
    CUlinkState state;
    CUmodule module;
    CUfunction add;
    void *image;
    size_t size;
    std::string text = MODULE_PTX;
    OK(cuLinkCreate(0, nullptr, nullptr, &state));
    OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, &text[0], text.size() + 1, "text", 0, nullptr, nullptr));
    OK(cuLinkComplete(state, &image, &size));
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(state));
    OK(cuModuleGetFunction(&add, module, "add"));
    works(add, "linked from memory");
    OK(cuModuleUnload(module));
    OK(cuLinkCreate(0, nullptr, nullptr, &state));
    OK(cuLinkAddFile(state, CU_JIT_INPUT_PTX, file.path, 0, nullptr, nullptr));
    OK(cuLinkComplete(state, &image, &size));
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(state));
    OK(cuModuleGetFunction(&add, module, "add"));
    works(add, "linked from a file");
    OK(cuModuleUnload(module));
    OK(cuLinkCreate(0, nullptr, nullptr, &state));
    OK(cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, file.path, 0, nullptr, nullptr));
    OK(cuLinkComplete(state, &image, &size));
    CHECK(image && size > 0, "%zu bytes", size);
    OK(cuLinkDestroy(state));
    printf("links\n");
}

static void contexts() {
    CUcontext made, popped = nullptr, current = nullptr;
    OK(cuCtxCreate_v3(&made, nullptr, 0, 0, device));
    OK(cuCtxPopCurrent(&popped));
    CHECK(popped == made, "another context was popped");
    OK(cuCtxPushCurrent(made));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == made, "another context was pushed");
    CUfunc_cache cache;
    CUsharedconfig banks;
    OK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_NONE));
    OK(cuCtxGetCacheConfig(&cache));
    CHECK(cache == CU_FUNC_CACHE_PREFER_NONE, "%d is preferred", int(cache));
    OK(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE));
    OK(cuCtxGetSharedMemConfig(&banks));
    OK(cuCtxResetPersistingL2Cache());
    unsigned flags = 0;
    OK(cuCtxSetFlags(CU_CTX_SCHED_YIELD));
    OK(cuCtxGetFlags(&flags));
    CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_YIELD, "flags %x", flags);
    CUcontext first;
    unsigned version = 0;
    OK(cuCtxGetApiVersion(made, &version));
    CHECK(version == 3020, "version %u", version);
    // A driver may have no room for a context of CUDA 2 beside others, since its memory lies below 4 GiB.
    if (cuCtxCreate(&first, 0, device) == CUDA_SUCCESS) {
        OK(cuCtxGetApiVersion(first, &version));
        CHECK(version == 3010, "version %u of the first form", version);
        OK(cuCtxDestroy(first));
    }
    OK(cuCtxSetCurrent(made));
    CHECK(cuCtxEnablePeerAccess(made, 0) != CUDA_SUCCESS, "a context is its own peer");
    CHECK(cuCtxDisablePeerAccess(made) != CUDA_SUCCESS, "a context was its own peer");
    OK(cuCtxDestroy(made));
    OK(cuCtxSetCurrent(context));
    OK(cuProfilerStart());
    OK(cuProfilerStop());
    printf("contexts\n");
}

static void devices() {
    CUdevprop properties = {};
    OK(cuDeviceGetProperties(&properties, device));
    CHECK(properties.SIMDWidth == 32 && properties.maxThreadsPerBlock >= 512, "warps of %d", properties.SIMDWidth);
    size_t width = 0;
    OK(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 1, device));
    CHECK(width >= 1 << 20, "textures of %zu texels", width);
    int value = 0;
    CHECK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device, device) != CUDA_SUCCESS, "its own peer");
    CUatomicOperation operation = CU_ATOMIC_OPERATION_INTEGER_ADD;
    unsigned capability = 0;
    OK(cuDeviceGetHostAtomicCapabilities(&capability, &operation, 1, device));
    CHECK(cuDeviceGetP2PAtomicCapabilities(&capability, &operation, 1, device, device) != CUDA_SUCCESS, "its own peer");
    cuuint64_t zero = 0;
    OK(cuDeviceSetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    CUasyncCallbackHandle callback;
    auto nothing = [](CUasyncNotificationInfo *, void *, CUasyncCallbackHandle) {};
    bool notifies = has(cuDeviceRegisterAsyncNotification(device, nothing, nullptr, &callback), "notifications");
    CUresult unregistered = cuDeviceUnregisterAsyncNotification(device, notifies ? callback : nullptr);
    CHECK((unregistered == CUDA_SUCCESS) == notifies, "not registered any more: %d", int(unregistered));
    printf("devices\n");
}

// Tests the primary context, which nothing else here uses.
static void primary() {
    CUcontext retained;
    unsigned flags = 0;
    int active = 0;
    EXPECT(CUDA_SUCCESS, cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_YIELD));
    OK(cuDevicePrimaryCtxRetain(&retained, device));
    OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    CHECK(active == 1 && (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_YIELD, "flags %u", flags);
    // The first form leaves a context alone that there is already, the second does not.
    EXPECT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_AUTO));
    EXPECT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_YIELD));
    EXPECT(CUDA_SUCCESS, cuDevicePrimaryCtxSetFlags_v2(device, CU_CTX_SCHED_AUTO));
    EXPECT(CUDA_SUCCESS, cuDevicePrimaryCtxReset(device));
    EXPECT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&retained, device));
    EXPECT(CUDA_SUCCESS, cuDevicePrimaryCtxReset_v2(device));
    EXPECT(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&retained, device));
    EXPECT(CUDA_SUCCESS, cuDevicePrimaryCtxRelease(device));
    printf("the primary context\n");
}

// What a texture looks at, as it was told, and what memory a mipmap needs whose memory comes later.
static void textures() {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR request = {16, 16, CU_AD_FORMAT_UNSIGNED_INT32, 2};
    OK(cuArrayCreate_v2(&array, &request));
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    CUDA_TEXTURE_DESC texture = {};
    CUDA_RESOURCE_VIEW_DESC view = {}, told = {};
    view.format = CU_RES_VIEW_FORMAT_UINT_2X32;
    view.width = view.height = 16;
    CUtexObject object;
    OK(cuTexObjectCreate(&object, &resource, &texture, &view));
    OK(cuTexObjectGetResourceViewDesc(&told, object));
    CHECK(told.format == view.format && told.width == 16 && told.height == 16, "format %d, %zu wide", int(told.format), told.width);
    OK(cuTexObjectDestroy(object));
    OK(cuArrayDestroy(array));
    int deferred = 0;
    OK(cuDeviceGetAttribute(&deferred, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, device));
    if (deferred) {
        CUDA_ARRAY3D_DESCRIPTOR levels = {64, 64, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING};
        CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {};
        CUmipmappedArray mipmap;
        OK(cuMipmappedArrayCreate(&mipmap, &levels, 3));
        OK(cuMipmappedArrayGetMemoryRequirements(&needs, mipmap, device));
        CHECK(needs.size >= (64 * 64 + 32 * 32 + 16 * 16) * 4 && needs.alignment > 0, "%zu bytes", needs.size);
        OK(cuMipmappedArrayDestroy(mipmap));
    }
    printf("textures\n");
}

// Dumps are light, for all contexts and for this one.
static void core_dumps() {
    bool is_light = true, told = false;
    size_t size = sizeof is_light;
    OK(cuCoredumpSetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, &is_light, &size));
    OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, &told, &size));
    CHECK(told, "they are not light");
    is_light = false;
    OK(cuCoredumpSetAttribute(CU_COREDUMP_LIGHTWEIGHT, &is_light, &size));
    OK(cuCoredumpGetAttribute(CU_COREDUMP_LIGHTWEIGHT, &told, &size));
    CHECK(!told, "this context's are still light");
    printf("core dumps\n");
}

// A managed variable that was found through a library's module goes with the library; other kernels are launched all the same.
static void variables_of_libraries() {
    static const char text[] = R"(.version 8.0
.target sm_90
.address_size 64
.global .attribute(.managed) .align 4 .u32 cell = 5;
.visible .entry raise() {
    .reg .u32 %r<2>;
    ld.global.u32 %r1, [cell];
    add.u32 %r1, %r1, 1;
    st.global.u32 [cell], %r1;
    ret;
}
)";
    CUmodule own;
    CUfunction raise;
    OK(cuModuleLoadData(&own, text));
    OK(cuModuleGetFunction(&raise, own, "raise"));
    for (int round = 0; round < 2; round++) {
        CUlibrary library;
        CUmodule module;
        CUkernel kernel;
        CUdeviceptr cell;
        size_t size;
        OK(cuLibraryLoadData(&library, text, nullptr, nullptr, 0, nullptr, nullptr, 0));
        OK(cuLibraryGetModule(&module, library));
        OK(cuModuleGetGlobal_v2(&cell, &size, module, "cell"));
        OK(cuLibraryGetKernel(&kernel, library, "raise"));
        *reinterpret_cast<unsigned *>(cell) = 41;
        OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
        OK(cuCtxSynchronize());
        CHECK(*reinterpret_cast<unsigned *>(cell) == 42, "%u", *reinterpret_cast<unsigned *>(cell));
        OK(cuLibraryUnload(library));
        OK(cuLaunchKernel(raise, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
        OK(cuCtxSynchronize());
    }
    OK(cuModuleUnload(own));
    printf("variables of libraries\n");
}

static void tensor_maps() {
    alignas(64) CUtensorMap map = {}, moved;
    CUdeviceptr memory;
    OK(cuMemAlloc_v2(&memory, 1 << 20));
    void *start = reinterpret_cast<void *>(memory);
    cuuint64_t sizes[4] = {16, 16, 8, 4}, strides[3] = {64, 1024, 8192};
    cuuint32_t box[4] = {16, 8, 1, 1}, steps[4] = {1, 1, 1, 1};
    auto tiled = [&](CUtensorMap *target) {
        return cuTensorMapEncodeTiled(target, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, start, sizes, strides, box, steps,
                                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    int low[2] = {0, 0}, high[2] = {0, 0}, left = 0, right = 0;
    cuuint32_t channels = 16, pixels = 64;
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    CUtensorMapIm2ColWideMode mode = CU_TENSOR_MAP_IM2COL_WIDE_MODE_W;
    auto columns = [&](CUtensorMap *target) {
        return cuTensorMapEncodeIm2col(target, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, start, sizes, strides, low, high, 16, 64, steps,
                                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    auto wide = [&](CUtensorMap *target) {
        return cuTensorMapEncodeIm2colWide(target, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, start, sizes, strides, left, right,
                                           channels, pixels, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, mode, swizzle,
                                           CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    // What a driver says of these addresses it says of shapes that it knows, too.
    CUresult nowhere, between;
    auto wrong_ones = [&]() {
        start = nullptr;
        nowhere = tiled(&map);
        start = reinterpret_cast<void *>(memory + 8);
        between = tiled(&map);
        start = reinterpret_cast<void *>(memory);
    };
    wrong_ones();
    CUresult nowhere_first = nowhere;
    bool maps = has(tiled(&map), "tiles");
    wrong_ones();
    CHECK(nowhere == nowhere_first, "%d, then %d for no address", int(nowhere_first), int(nowhere));
    CHECK(!maps || between == CUDA_ERROR_INVALID_VALUE, "%d for an address between", int(between));
    maps = has(tiled(&map), "tiles");
    if (maps) {
        moved = map;
        OK(cuTensorMapReplaceAddress(&moved, reinterpret_cast<void *>(memory + 4096)));
        CHECK(memcmp(&moved, &map, sizeof map) != 0, "the address changes nothing");
        OK(cuTensorMapReplaceAddress(&moved, start));
        CHECK(memcmp(&moved, &map, sizeof map) == 0, "it is not what it was");
    }
    // Libraries make the same map again and again, for other addresses: but for its first word it is the same.
    alignas(64) CUtensorMap other = {};
    for (CUdeviceptr at : {memory + 4096, memory + 256, memory + (512 << 10), memory}) {
        if (!maps) break;
        start = reinterpret_cast<void *>(at);
        OK(tiled(&other));
        CHECK(other.opaque[0] == at, "the map begins with %llx", (unsigned long long)other.opaque[0]);
        CHECK(memcmp(other.opaque + 1, map.opaque + 1, sizeof map - 8) == 0, "more than the address is another");
    }
    CHECK(has(columns(&map), "columns") == maps, "no columns");
    CHECK(tiled(nullptr) != CUDA_SUCCESS && columns(nullptr) != CUDA_SUCCESS && wide(nullptr) != CUDA_SUCCESS, "made nowhere");
    // Wide columns are for devices of compute capability 10; where they are made, each argument counts, but the mode: for one of 9.0
    // driver 580 makes the same of both.
    CUresult made = wide(&map);
    CHECK(made == CUDA_SUCCESS || made == CUDA_ERROR_NOT_SUPPORTED || made == CUDA_ERROR_INVALID_VALUE, "%d", int(made));
    auto counts = [&](auto &argument, auto value, const char *what) {
        auto before = argument;
        argument = value;
        EXPECT(CUDA_SUCCESS, wide(&other));
        CHECK(memcmp(&other, &map, sizeof map) != 0, "%s does not count", what);
        argument = before;
    };
    if (made == CUDA_SUCCESS) {
        counts(left, -1, "the left corner");
        counts(right, 1, "the right corner");
        counts(channels, 8, "channels");
        counts(pixels, 32, "pixels");
        counts(swizzle, CU_TENSOR_MAP_SWIZZLE_64B, "the swizzle");
        counts(start, reinterpret_cast<void *>(memory + 4096), "the address");
        OK(wide(&other));
        CHECK(memcmp(&other, &map, sizeof map) == 0, "it is not what it was");
    }
    OK(cuMemFree_v2(memory));
    printf("tensor maps\n");
}

int main() {
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxCreate_v2(&context, 0, device));
    {
        TextFile file;
        modules(file);
        libraries(file);
        links(file);
    }
    variables_of_libraries();
    contexts();
    devices();
    primary();
    textures();
    core_dumps();
    tensor_maps();
    return finish("code_forms");
}
