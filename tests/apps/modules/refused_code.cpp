// Code that the driver refuses: the codes, and the reason in the log that the program asks for.
#include <cuda.h>

#include <cstring>

#include "check.h"
#include "first_device.h"

static const char *const WRONG = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry k()
{
    .reg .b32 %r<3>;
    frobnicate.u32 %r1, %r2;
    ret;
}
)";

int main() {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    begin_on_first(&device, &context);
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, WRONG));
    char log[512] = "";
    CUjit_option kinds[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(sizeof log)};
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&module, WRONG, 2, kinds, values));
    CHECK(strstr(log, "frobnicate") != nullptr, "the log of a module: %s", log);
    CUlinkState link;
    values[1] = reinterpret_cast<void *>(sizeof log);
    OK(cuLinkCreate(2, kinds, values, &link));
    log[0] = 0;
    EXPECT(CUDA_ERROR_INVALID_PTX,
           cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char *>(WRONG), strlen(WRONG) + 1, "wrong", 0, nullptr, nullptr));
    CHECK(strstr(log, "frobnicate") != nullptr, "the log of a linker: %s", log);
    OK(cuLinkDestroy(link));
    // Nothing of it is left behind.
    OK(cuCtxSynchronize());
    printf("refused with the reason\n");
    return finish("refused_code");
}
