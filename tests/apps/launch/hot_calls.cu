// Allocations of the most frequent calls: none, once each was made a few times. The program calls the driver's functions
// without the runtime, which may allocate for itself.
//
//   hot_calls      prints how many there were in a thousand calls of each kind
#include "check.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cerrno>

extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
}

// Counts only in the measured thread: others may allocate for reasons of their own.
static thread_local bool is_counted = false;
static std::atomic<int> allocations{0};

static void count() {
    if (is_counted) allocations++;
}

// The program's definitions replace those that its libraries call; nvcc takes `malloc` for a device function too.
#pragma nv_diag_suppress 20011
extern "C" void *malloc(size_t size) noexcept { return count(), __libc_malloc(size); }
extern "C" void *calloc(size_t n, size_t size) noexcept { return count(), __libc_calloc(n, size); }
extern "C" void *realloc(void *at, size_t size) noexcept { return count(), __libc_realloc(at, size); }
extern "C" void *aligned_alloc(size_t alignment, size_t size) noexcept { return count(), __libc_memalign(alignment, size); }
extern "C" int posix_memalign(void **to, size_t alignment, size_t size) noexcept {
    count();
    *to = __libc_memalign(alignment, size);
    return *to ? 0 : ENOMEM;
}

__global__ void add(unsigned *data, unsigned what) { data[threadIdx.x] += what; }

// A function of the driver by its name.
template <class F> F driver_function(const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult status;
    OK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status));
    return reinterpret_cast<F>(found);
}
#define DRIVER(name) auto *name = driver_function<decltype(&::name)>(#name)

template <class F> void measured(const char *name, F call) {
    for (int i = 0; i < 200; i++) call();
    allocations = 0;
    is_counted = true;
    for (int i = 0; i < 1000; i++) call();
    is_counted = false;
    printf("%s: %d allocations\n", name, allocations.load());
}

int main() {
    unsigned *memory;
    cudaFunction_t kernel;
    OK(cudaMalloc(&memory, 4096));
    OK(cudaGetFuncBySymbol(&kernel, reinterpret_cast<const void *>(add)));
    DRIVER(cuLaunchKernel);
    DRIVER(cuLaunchKernelEx);
    DRIVER(cuEventRecord);
    DRIVER(cuEventCreate);
    DRIVER(cuMemcpyHtoD);
    DRIVER(cuMemcpyDtoH);
    DRIVER(cuStreamCreate);
    DRIVER(cuStreamSynchronize);
    CUevent event;
    CUstream stream;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamCreate(&stream, 0));
    CUdeviceptr at = reinterpret_cast<CUdeviceptr>(memory);
    unsigned what = 1, word = 7;
    void *parameters[] = {&at, &what};
    CUlaunchAttribute priority = {};
    priority.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    CUlaunchConfig config = {};
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = 32, config.hStream = stream, config.attrs = &priority, config.numAttrs = 1;
    // No thread waits at a full queue while it is counted: each kind ends with a wait for its own work.
    const auto wait = [&] { OK(cuStreamSynchronize(stream)); };
    measured("launch", [&] { OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr)); });
    wait();
    measured("launch with an attribute", [&] { OK(cuLaunchKernelEx(&config, kernel, parameters, nullptr)); });
    wait();
    measured("event record", [&] { OK(cuEventRecord(event, stream)); });
    wait();
    measured("4 bytes to the device", [&] { OK(cuMemcpyHtoD(at, &word, sizeof word)); });
    measured("4 bytes from the device", [&] { OK(cuMemcpyDtoH(&word, at, sizeof word)); });
    measured("launch and wait", [&] {
        OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
        wait();
    });
    return finish("hot_calls");
}
