// Wrong uses of the runtime API. Each gives exactly the error of NVIDIA's driver, and later calls succeed.
#include "check.h"

#include <climits>
#include <vector>

__global__ void set(int *cell, int value) { *cell = value; }
__global__ void __launch_bounds__(64) narrow(int *cell) { *cell = 1; }

static int *device;
static const size_t BYTES = 5000;

// The last error is kept, reported once, then cleared; peeking leaves it.
static void last_error(cudaError_t wanted) {
    EXPECT(wanted, cudaPeekAtLastError());
    EXPECT(wanted, cudaGetLastError());
    EXPECT(cudaSuccess, cudaGetLastError());
}

// The runtime of CUDA 12 and before checked the shape itself and said cudaErrorInvalidConfiguration.
static void launches() {
    set<<<1, 2048>>>(device, 1);
    last_error(cudaErrorInvalidValue);
    set<<<1, dim3(1, 1, 128)>>>(device, 1);
    last_error(cudaErrorInvalidValue);
    set<<<1, dim3(32, 32, 2)>>>(device, 1);
    last_error(cudaErrorInvalidValue);
    set<<<0, 32>>>(device, 1);
    last_error(cudaErrorInvalidValue);
    set<<<1, 0>>>(device, 1);
    last_error(cudaErrorInvalidValue);
    set<<<dim3(1, 65536), 32>>>(device, 1);
    last_error(cudaErrorInvalidValue);
    set<<<1, 32, 1 << 20>>>(device, 1);
    last_error(cudaErrorInvalidValue);
    narrow<<<1, 128>>>(device);
    last_error(cudaErrorInvalidValue);
    narrow<<<1, 64>>>(device);
    last_error(cudaSuccess);
    printf("launches that cannot be\n");
}

static void copies() {
    std::vector<char> host(3 * BYTES);
    char *inside = reinterpret_cast<char *>(device);
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(nullptr, host.data(), 16, cudaMemcpyHostToDevice));
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(host.data(), nullptr, 16, cudaMemcpyDeviceToHost));
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(reinterpret_cast<void *>(0x123456), host.data(), 16, cudaMemcpyHostToDevice));
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(host.data(), reinterpret_cast<void *>(0x123456), 16, cudaMemcpyDeviceToHost));
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(host.data(), host.data() + 100, 16, cudaMemcpyHostToDevice));
    EXPECT(cudaErrorInvalidMemcpyDirection, cudaMemcpy(device, host.data(), 16, cudaMemcpyKind(7)));
    EXPECT(cudaErrorInvalidValue, cudaMemset(nullptr, 0, 16));
    EXPECT(cudaErrorInvalidValue, cudaMemset(host.data(), 0, 16));
    last_error(cudaErrorInvalidValue);
    // Past the end of an allocation by one byte, and from its very end on.
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(device, host.data(), 3 * BYTES, cudaMemcpyHostToDevice));
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(inside + 1, host.data(), BYTES, cudaMemcpyHostToDevice));
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(host.data(), inside + 1, BYTES, cudaMemcpyDeviceToHost));
    EXPECT(cudaErrorInvalidValue, cudaMemset(inside + 1, 0, BYTES));
    EXPECT(cudaSuccess, cudaMemcpy(inside + BYTES - 1, host.data(), 1, cudaMemcpyHostToDevice));
    last_error(cudaErrorInvalidValue);
    printf("copies to and from where nothing is\n");
}

static void memory() {
    void *pointer = &pointer;
    EXPECT(cudaErrorMemoryAllocation, cudaMalloc(&pointer, size_t(1) << 50));
    last_error(cudaErrorMemoryAllocation);
    EXPECT(cudaErrorMemoryAllocation, cudaMalloc(&pointer, SIZE_MAX));
    last_error(cudaErrorMemoryAllocation);
    EXPECT(cudaSuccess, cudaMalloc(&pointer, 0));
    CHECK(pointer == nullptr, "an allocation of nothing is not null");
    EXPECT(cudaErrorInvalidValue, cudaMalloc(static_cast<void **>(nullptr), 16));
    EXPECT(cudaSuccess, cudaFree(nullptr));
    EXPECT(cudaErrorInvalidValue, cudaFree(&pointer));
    EXPECT(cudaErrorInvalidValue, cudaFree(device + 1));
    OK(cudaMalloc(&pointer, 1000));
    OK(cudaFree(pointer));
    EXPECT(cudaErrorInvalidValue, cudaFree(pointer));
    int value = 1;
    EXPECT(cudaErrorInvalidValue, cudaMemcpy(pointer, &value, sizeof value, cudaMemcpyHostToDevice));
    last_error(cudaErrorInvalidValue);
    EXPECT(cudaErrorInvalidValue, cudaFreeHost(&value));
    EXPECT(cudaErrorInvalidValue, cudaFreeHost(device));
    EXPECT(cudaSuccess, cudaFreeHost(nullptr));
    EXPECT(cudaErrorMemoryAllocation, cudaMallocHost(&pointer, size_t(1) << 50));
    (void)cudaGetLastError();
    printf("memory: too much, nothing, twice, of another context\n");
}

// Takes memory in large pieces until there is no more, frees it all, and can then take it again.
static void exhaustion() {
    size_t available = 0, total = 0;
    OK(cudaMemGetInfo(&available, &total));
    CHECK(available > 0 && available <= total, "%zu of %zu bytes", available, total);
    size_t piece = total / 8;
    std::vector<void *> pieces;
    for (int round = 0; round < 2; round++) {
        void *next = nullptr;
        cudaError_t got;
        while ((got = cudaMalloc(&next, piece)) == cudaSuccess && pieces.size() < 16) pieces.push_back(next);
        EXPECT(cudaErrorMemoryAllocation, got);
        CHECK(pieces.size() >= 4 && pieces.size() < 8, "%zu pieces of an eighth", pieces.size());
        for (void *taken : pieces) OK(cudaFree(taken));
        pieces.clear();
    }
    last_error(cudaErrorMemoryAllocation);
    printf("all memory taken, given back, taken again\n");
}

static void devices_streams_events() {
    cudaDeviceProp properties;
    cudaStream_t stream;
    cudaEvent_t event;
    int value = 0, count = 0;
    OK(cudaGetDeviceCount(&count));
    EXPECT(cudaErrorInvalidDevice, cudaSetDevice(count));
    EXPECT(cudaErrorInvalidDevice, cudaSetDevice(-1));
    EXPECT(cudaErrorInvalidDevice, cudaGetDeviceProperties(&properties, 99));
    EXPECT(cudaErrorInvalidValue, cudaDeviceGetAttribute(&value, cudaDeviceAttr(9999), 0));
    EXPECT(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 99));
    EXPECT(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&stream, 0x55));
    EXPECT(cudaErrorInvalidValue, cudaEventCreateWithFlags(&event, 0x5500));
    EXPECT(cudaErrorInvalidValue, cudaStreamCreate(nullptr));
    EXPECT(cudaErrorInvalidResourceHandle, cudaEventDestroy(nullptr));
    OK(cudaEventCreate(&event));
    EXPECT(cudaSuccess, cudaEventQuery(event));
    EXPECT(cudaSuccess, cudaEventSynchronize(event));
    OK(cudaEventDestroy(event));
    (void)cudaGetLastError();
    printf("devices, streams and events that are not there\n");
}

static void not_a_kernel(int) {}

static void functions() {
    cudaFuncAttributes attributes;
    int argument = 1, blocks = 0;
    void *arguments[] = {&argument};
    const void *unregistered = reinterpret_cast<const void *>(not_a_kernel);
    EXPECT(cudaErrorInvalidResourceHandle, cudaFuncGetAttributes(&attributes, unregistered));
    EXPECT(cudaErrorInvalidResourceHandle, cudaLaunchKernel(unregistered, dim3(1), dim3(1), arguments, 0, nullptr));
    EXPECT(cudaErrorInvalidValue, cudaFuncSetAttribute(set, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20));
    OK(cudaFuncGetAttributes(&attributes, narrow));
    CHECK(attributes.maxThreadsPerBlock == 64, "%d threads", attributes.maxThreadsPerBlock);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, set, 1024, 0));
    CHECK(blocks >= 1 && blocks <= 2, "%d blocks of 1024 threads at a time", blocks);
    (void)cudaGetLastError();
    printf("functions that are no kernels\n");
}

int main() {
    OK(cudaMalloc(&device, BYTES));
    launches();
    copies();
    memory();
    exhaustion();
    devices_streams_events();
    functions();
    // After all of that the context is as good as new.
    int value = 0;
    set<<<1, 1>>>(device, 4711);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
    CHECK(value == 4711, "%d", value);
    OK(cudaFree(device));
    OK(cudaDeviceSynchronize());
    return finish("errors");
}
