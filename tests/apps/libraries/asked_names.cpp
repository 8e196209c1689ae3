// Every function that the runtimes of CUDA 12 and 13 ask the driver for at their start exists, under every name,
// version and flags of their requests, and is the very function that driver 580 returns.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include "check.h"

struct Asked {
    const char *name;
    int version;
    unsigned flags;
    const char *symbol;
};

#define ASKED(name, version, flags, symbol) {name, version, flags, symbol},
static const Asked OF_12[] = {
#include "asked_by_cudart12.h"
};
static const Asked OF_13[] = {
#include "asked_by_cudart13.h"
};

template <size_t COUNT>
static void ask(void *library, PFN_cuGetProcAddress_v12000 find, const Asked (&asked)[COUNT], const char *of) {
    for (const Asked &one : asked) {
        void *function = nullptr;
        CUdriverProcAddressQueryResult status;
        CUresult got = find(one.name, &function, one.version, one.flags, &status);
        CHECK_QUIETLY(got == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS && function != nullptr,
                      "%s of %d, flags %u: %d, status %d", one.name, one.version, one.flags, int(got), int(status));
        CHECK_QUIETLY(function == dlsym(library, one.symbol), "%s of %d, flags %u is not %s", one.name, one.version,
                      one.flags, one.symbol);
    }
    printf("%zu functions for %s\n", COUNT, of);
}

int main() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library != nullptr, "%s", dlerror());
    if (library == nullptr) return finish("asked_names");
    auto find = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
    CHECK(find != nullptr, "%s", dlerror());
    if (find == nullptr) return finish("asked_names");
    ask(library, find, OF_12, "the runtime of CUDA 12");
    ask(library, find, OF_13, "the runtime of CUDA 13");
    return finish("asked_names");
}
