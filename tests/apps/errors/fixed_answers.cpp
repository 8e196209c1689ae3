// Functions with one answer to all arguments: 32-bit forms in a 64-bit context, and features that no device here has.
#include <cuda.h>
#include <dlfcn.h>

#include "check.h"
#include "first_device.h"

// As CUDA 2 had them.
static const char *const NARROW[] = {
    "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD", "cuMemcpyDtoA", "cuMemcpyAtoD", "cuMemcpyHtoA",
    "cuMemcpyAtoH", "cuMemcpyAtoA", "cuMemcpyHtoAAsync", "cuMemcpyAtoHAsync", "cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy3D",
    "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpy2DAsync", "cuMemcpy3DAsync", "cuMemsetD8", "cuMemsetD16",
    "cuMemsetD32", "cuMemsetD2D8", "cuMemsetD2D16", "cuMemsetD2D32", "cuMemGetInfo", "cuMemAlloc",
    "cuMemAllocPitch", "cuMemFree", "cuMemGetAddressRange", "cuMemAllocHost", "cuMemHostGetDevicePointer", "cuArrayCreate",
    "cuArrayGetDescriptor", "cuArray3DCreate", "cuArray3DGetDescriptor", "cuTexRefSetAddress", "cuTexRefSetAddress2D",
    "cuTexRefGetAddress",
};
// A device's attributes say that it lacks the feature, or the driver no longer has it. Without arguments, these are wrong
// calls on any device.
static const char *const NOT_THERE[] = {
    "cuProfilerInitialize", "cuDeviceGetLuid", "cuMemGetHandleForAddressRange", "cuMemBatchDecompressAsync", "cuMulticastCreate",
    "cuMulticastAddDevice", "cuMulticastBindMem", "cuMulticastBindAddr", "cuMulticastUnbind", "cuMulticastGetGranularity",
    "cuMemGetAttribute", "cuMemGetAttribute_v2", "cuStreamWriteValue32", "cuStreamWaitValue32", "cuStreamWriteValue64",
    "cuStreamWaitValue64", "cuStreamBatchMemOp",
};

// Whole numbers and pointers alike travel in registers and on the stack.
using Any = CUresult (*)(void *, void *, void *, void *, void *, void *, void *, void *);

static CUresult asked(void *library, const char *name, void *with) {
    Any function = reinterpret_cast<Any>(dlsym(library, name));
    CHECK(function != nullptr, "there is no %s", name);
    return function ? function(with, with, with, with, with, with, with, with) : CUDA_SUCCESS;
}

int main() {
    CUdevice device;
    CUcontext context;
    static char room[4096];
    begin_on_first(&device, &context);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int narrow = 0, others = 0;
    for (const char *name : NARROW) {
        CUresult result = asked(library, name, room);
        CHECK(result == CUDA_ERROR_INVALID_CONTEXT, "%s: %d", name, int(result));
        narrow++;
    }
    // One checks the module first, the other reads as many pages as the address says.
    EXPECT(CUDA_ERROR_INVALID_HANDLE, asked(library, "cuModuleGetGlobal", room));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, asked(library, "cuMemHostRegister", room));
    for (const char *name : NOT_THERE) {
        CUresult result = asked(library, name, nullptr);
        CHECK(result != CUDA_SUCCESS, "%s did something", name);
        others++;
    }
    printf("%d functions of 32 bits, %d for what is not there\n", narrow, others);
    return finish("fixed_answers");
}
