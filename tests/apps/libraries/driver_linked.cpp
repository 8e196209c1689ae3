// The driver API by linking with libcuda.so.1: a module from PTX text, launches in both parameter forms, memory,
// pointer attributes, JIT logs.
#include <cuda.h>

#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "embedded_ptx.h"

static CUcontext context;
static CUmodule module;

static void start() {
    CUdevice device;
    CUcontext current = reinterpret_cast<CUcontext>(1);
    int count = 0, version = 0;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    OK(cuDriverGetVersion(&version));
    OK(cuDeviceGetCount(&count));
    CHECK(count >= 1 && version >= 12000, "%d devices, version %d", count, version);
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == nullptr, "a context is current before any was made");
    CUdeviceptr nothing;
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&nothing, 16));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == nullptr, "retaining made the context current");
    OK(cuCtxSetCurrent(context));
    printf("started\n");
}

static void load() {
    OK(cuModuleLoadData(&module, MODULE_PTX));
    CUfunction function;
    CUdeviceptr address;
    size_t bytes = 0;
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "nowhere"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&address, &bytes, module, "nowhere"));
    OK(cuModuleGetGlobal(&address, &bytes, module, "counter"));
    CHECK(bytes == 4 && address != 0, "a variable of %zu bytes", bytes);
    EXPECT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "no image of any kind"));
    printf("loaded\n");
}

// The same launch with an array of pointers, and with one packed block.
static void launch() {
    const int n = 1000;
    CUfunction add;
    CUdeviceptr in, out;
    CUstream stream;
    std::vector<int> host(n), result(n);
    for (int i = 0; i < n; i++) host[i] = i * i;
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuMemAlloc(&in, n * 4));
    OK(cuMemAlloc(&out, n * 4));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyHtoD(in, host.data(), n * 4));
    int count = n, term = 5;
    void *pointers[] = {&out, &count, &in, &term};
    OK(cuLaunchKernel(add, 8, 1, 1, 128, 1, 1, 0, stream, pointers, nullptr));
    OK(cuMemcpyDtoHAsync(result.data(), out, n * 4, stream));
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < n; i++) CHECK_QUIETLY(result[i] == i * i * 3 + 5, "pointers, element %d: %d", i, result[i]);
    struct {
        CUdeviceptr out;
        unsigned n;
        CUdeviceptr in;
        int term;
    } packed = {out, unsigned(n), in, -7};
    size_t size = 28;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    OK(cuLaunchKernel(add, 8, 1, 1, 128, 1, 1, 0, nullptr, nullptr, extra));
    OK(cuMemcpyDtoH(result.data(), out, n * 4));
    for (int i = 0; i < n; i++) CHECK_QUIETLY(result[i] == i * i * 3 - 7, "packed, element %d: %d", i, result[i]);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(add, 8, 1, 1, 128, 1, 1, 0, nullptr, pointers, extra));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(add, 8, 1, 1, 2048, 1, 1, 0, nullptr, pointers, nullptr));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(add, 0, 1, 1, 128, 1, 1, 0, nullptr, pointers, nullptr));
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(in));
    OK(cuMemFree(out));
    printf("launched with pointers and with a packed block\n");
}

static void variables() {
    CUfunction bump;
    CUdeviceptr counter, factor;
    size_t bytes;
    int value = 0;
    OK(cuModuleGetFunction(&bump, module, "bump"));
    for (int i = 0; i < 5; i++) OK(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    OK(cuModuleGetGlobal(&counter, nullptr, module, "counter"));
    OK(cuMemcpyDtoH(&value, counter, 4));
    CHECK(value == 15, "the counter is %d", value);
    OK(cuModuleGetGlobal(&factor, &bytes, module, "factor"));
    OK(cuMemcpyDtoH(&value, factor, 4));
    CHECK(value == 3 && bytes == 4, "the constant is %d, %zu bytes", value, bytes);
    printf("variables read and written\n");
}

static void memory() {
    size_t available = 0, total = 0, after = 0, size = 0;
    CUdeviceptr block, base;
    const size_t bytes = size_t(256) << 20;
    OK(cuMemGetInfo(&available, &total));
    OK(cuMemAlloc(&block, bytes));
    OK(cuMemGetInfo(&after, &total));
    CHECK(after + bytes <= available + (size_t(4) << 20) && after < available, "%zu bytes free, then %zu", available, after);
    OK(cuMemGetAddressRange(&base, &size, block + 12345));
    CHECK(base == block && size == bytes, "the range has %zu bytes", size);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, 0x1234));
    OK(cuMemsetD32(block, 0x01020304, 1000));
    OK(cuMemsetD16(block + 4000, 0x0506, 1000));
    OK(cuMemsetD8(block + 6000, 7, 1000));
    std::vector<unsigned char> host(7000);
    OK(cuMemcpyDtoH(host.data(), block, host.size()));
    CHECK(host[0] == 4 && host[3999] == 1 && host[4000] == 6 && host[5999] == 5 && host[6000] == 7 && host[6999] == 7,
          "fills of 4, 2 and 1 byte");
    OK(cuMemFree(block));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(block));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&block, 0));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&block, size_t(1) << 45));
    printf("memory counted, found, filled\n");
}

static void attributes() {
    CUdeviceptr block, start = 0;
    void *pinned;
    int pageable = 0, ordinal = 77;
    size_t size = 0;
    unsigned type = 77;
    OK(cuMemAlloc(&block, 4096));
    OK(cuMemHostAlloc(&pinned, 8192, 0));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + 100));
    CHECK(type == CU_MEMORYTYPE_DEVICE, "type %u", type);
    OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block + 100));
    OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + 100));
    CHECK(start == block && size == 4096, "%zu bytes", size);
    CUcontext owner = nullptr;
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block));
    CHECK(owner == context, "another context owns the memory");
    void *host = nullptr;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, block));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + 4096));
    CUdeviceptr pageable_pointer = reinterpret_cast<CUdeviceptr>(&pageable);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pageable_pointer));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(pinned) + 5));
    CHECK(type == CU_MEMORYTYPE_HOST, "type %u", type);
    // Several at once never fail; what is unknown is set to its neutral value.
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *values[] = {&type, &ordinal, &host};
    OK(cuPointerGetAttributes(3, which, values, block));
    CHECK(type == CU_MEMORYTYPE_DEVICE && ordinal == 0 && host == nullptr, "type %u, device %d", type, ordinal);
    OK(cuPointerGetAttributes(3, which, values, pageable_pointer));
    CHECK(type == 0 && ordinal == -2 && host == &pageable, "type %u, device %d", type, ordinal);
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree(block));
    printf("pointers say where they point\n");
}

// Log buffers are filled whether the image is good or not; numbers come back in the array of values itself.
static void logs() {
    CUmodule other;
    char errors[4096] = "", information[4096] = "";
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
                              CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *room = reinterpret_cast<void *>(sizeof errors);
    void *values[] = {information, room, errors, room};
    OK(cuModuleLoadDataEx(&other, MODULE_PTX, 4, options, values));
    CHECK(errors[0] == 0, "errors about a good module: %s", errors);
    OK(cuModuleUnload(other));
    values[1] = values[3] = room;
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&other, BROKEN_PTX, 4, options, values));
    CHECK(strlen(errors) > 0 && reinterpret_cast<size_t>(values[3]) <= sizeof errors, "no error log");
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&other, BROKEN_PTX));
    printf("the log of a broken module has text\n");
}

int main() {
    start();
    load();
    launch();
    variables();
    memory();
    attributes();
    logs();
    OK(cuModuleUnload(module));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxRelease(0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
    return finish("driver_linked");
}
