// Not a test by itself: prints how modules are loaded, and when a library of kernels and a large variable takes device memory.
#include "check.h"

#include <cuda.h>
#include <dlfcn.h>

static const char TEXT[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .b8 large[67108864];\n"
    ".visible .entry first() { ret; }\n.visible .entry second() { ret; }\n";

#define FROM_DRIVER(name) const auto name##_ = reinterpret_cast<decltype(&name)>(dlsym(driver, #name))

static size_t before;

// Returns by how much free memory has shrunk since the start; other work takes less than half of the variable's size.
static int taken() {
    size_t now, total;
    OK(cudaMemGetInfo(&now, &total));
    return int((before - now + (32 << 20)) / (64 << 20));
}

int main() {
    OK(cudaFree(nullptr));
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    FROM_DRIVER(cuModuleGetLoadingMode);
    FROM_DRIVER(cuLibraryLoadData);
    FROM_DRIVER(cuLibraryGetKernel);
    FROM_DRIVER(cuLibraryUnload);
    FROM_DRIVER(cuKernelGetFunction);
    FROM_DRIVER(cuFuncLoad);
    FROM_DRIVER(cuFuncIsLoaded);
    CUmoduleLoadingMode mode;
    CHECK(cuModuleGetLoadingMode_(&mode) == CUDA_SUCCESS, "no mode");
    printf("%s\n", mode == CU_MODULE_LAZY_LOADING ? "lazy" : "eager");
    size_t total;
    OK(cudaMemGetInfo(&before, &total));
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_MAX;
    CHECK(cuLibraryLoadData_(&library, TEXT, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS, "no library");
    printf("a library takes %d\n", taken());
    CHECK(cuLibraryGetKernel_(&kernel, library, "first") == CUDA_SUCCESS, "no kernel");
    CHECK(cuKernelGetFunction_(&function, kernel) == CUDA_SUCCESS, "no function");
    CHECK(cuFuncLoad_(function) == CUDA_SUCCESS, "the function is not loaded");
    CHECK(cuFuncIsLoaded_(&state, function) == CUDA_SUCCESS && state == CU_FUNCTION_LOADING_STATE_LOADED, "state %d", int(state));
    printf("a function of it takes %d\n", taken());
    CHECK(cuLibraryUnload_(library) == CUDA_SUCCESS, "the library stays");
    OK(cudaDeviceSynchronize());
    printf("without it %d\n", taken());
    return finish("lazy_code");
}
