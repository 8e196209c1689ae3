// Code that the driver refuses: the codes, and the reason in the program's log. With an argument, also softcuda's texts in
// logs that NVIDIA's driver may leave empty.
#include <cuda.h>

#include <cstring>
#include <string>

#include "check.h"
#include "container.h"
#include "first_device.h"

static const char *const LATER = ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k() { ret; }\n";
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

// What a library of this image says, and where it says it: at its load, or when its first kernel is asked for.
static int of_library(const void *image, char *log, size_t size) {
    CUlibrary library;
    CUkernel kernel;
    CUjit_option kinds[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(size)};
    CUresult code = cuLibraryLoadData(&library, image, kinds, values, 2, nullptr, nullptr, 0);
    if (code != CUDA_SUCCESS) return code;
    code = cuLibraryGetKernel(&kernel, library, "k");
    OK(cuLibraryUnload(library));
    return code;
}

// Code for later devices: none of it suits this one.
static void for_other_devices(bool is_soft) {
    CUmodule module;
    char log[512] = "";
    CUjit_option kinds[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(sizeof log)};
    std::vector<uint64_t> first = container(LATER, 120), second = container(LATER, 121), third = container(LATER, 129);
    EXPECT(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadDataEx(&module, first.data(), 2, kinds, values));
    CHECK(!is_soft || strstr(log, "PTX for 120") != nullptr, "the log of a module for others: %s", log);
    EXPECT(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadFatBinary(&module, second.data()));
    EXPECT(CUDA_ERROR_NO_BINARY_FOR_GPU, of_library(third.data(), log, sizeof log));
    printf("code for other devices is refused\n");
}

int main(int argc, char **) {
    bool is_soft = argc > 1;
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
    char library_log[512] = "";
    std::string befuddled = WRONG;
    befuddled.replace(befuddled.find("frobnicate"), strlen("frobnicate"), "befuddle");
    EXPECT(CUDA_ERROR_INVALID_PTX, of_library(befuddled.c_str(), library_log, sizeof library_log));
    for_other_devices(is_soft);
    // No state of it is left.
    OK(cuCtxSynchronize());
    printf("refused with the reason\n");
    return finish("refused_code");
}
