// Limits of code and contexts: registers of a thread, by the code and by options of its load; PTX that does not declare its
// address size; limits of the context; code that no device here runs.
#include <cuda.h>

#include <cstring>
#include <string>

#include "check.h"
#include "first_device.h"

// A kernel that keeps 90 values over a barrier: out[i] = in[89 - i] + 1, a thread alone.
static std::string wide(const char *directives) {
    std::string text = ".version 7.0\n.target sm_75\n.visible .entry wide(.param .u64 words) " + std::string(directives) +
                       "\n{\n.reg .f32 %f<90>;\n.reg .b64 %d<2>;\nld.param.u64 %d1, [words];\n";
    for (int i = 0; i < 90; i++) text += "ld.global.f32 %f" + std::to_string(i) + ", [%d1+" + std::to_string(4 * i) + "];\n";
    text += "bar.sync 0;\n";
    for (int i = 0; i < 90; i++) text += "add.f32 %f" + std::to_string(i) + ", %f" + std::to_string(i) + ", 0f3F800000;\n";
    for (int i = 0; i < 90; i++) text += "st.global.f32 [%d1+" + std::to_string(360 + 4 * i) + "], %f" + std::to_string(89 - i) + ";\n";
    return text + "ret;\n}\n";
}

static CUdeviceptr words;

// What is told of the kernel agrees with `most` registers of a thread, and blocks of `threads` threads start.
static void check(CUmodule module, int most, unsigned threads, int blocks, const char *what) {
    CUfunction wide;
    int registers, largest, fit;
    float in[90], out[90];
    OK(cuModuleGetFunction(&wide, module, "wide"));
    OK(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, wide));
    OK(cuFuncGetAttribute(&largest, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, wide));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, wide, 256, 0));
    CHECK(registers > 0 && registers <= most, "%s: %d registers", what, registers);
    CHECK(largest >= int(threads), "%s: blocks of %d", what, largest);
    CHECK(fit >= blocks, "%s: %d blocks of 256 threads", what, fit);
    for (int i = 0; i < 90; i++) in[i] = i;
    OK(cuMemcpyHtoD(words, in, sizeof in));
    void *arguments[] = {&words};
    EXPECT(CUDA_SUCCESS, cuLaunchKernel(wide, 1, 1, 1, threads, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH(out, words + sizeof in, sizeof out));
    for (int i = 0; i < 90; i++) CHECK_QUIETLY(out[i] == 90 - i, "%s: %d: %g", what, i, out[i]);
    OK(cuModuleUnload(module));
}

static void registers_are_limited() {
    CUmodule module;
    CUjit_option kind = CU_JIT_MAX_REGISTERS;
    std::string text = wide("");
    for (long most : {64L, 38L, 32L}) {
        void *value = reinterpret_cast<void *>(most);
        OK(cuModuleLoadDataEx(&module, text.c_str(), 1, &kind, &value));
        check(module, most, 1024, most > 40 ? 4 : most > 32 ? 6 : 8, "an option of the load");
    }
    void *forty = reinterpret_cast<void *>(40L);
    CUlinkState linking;
    void *image;
    size_t size;
    OK(cuLinkCreate(1, &kind, &forty, &linking));
    OK(cuLinkAddData(linking, CU_JIT_INPUT_PTX, &text[0], text.size() + 1, "wide.ptx", 0, nullptr, nullptr));
    OK(cuLinkComplete(linking, &image, &size));
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(linking));
    check(module, 40, 1024, 6, "an option of the linker");
    OK(cuModuleLoadData(&module, wide(".maxnreg 32").c_str()));
    check(module, 32, 1024, 8, ".maxnreg");
    OK(cuModuleLoadData(&module, wide(".maxntid 256 .minnctapersm 8").c_str()));
    check(module, 32, 256, 8, ".minnctapersm");
    OK(cuModuleLoadData(&module, wide(".maxntid 1024").c_str()));
    check(module, 64, 1024, 4, ".maxntid");
    // A kernel's own directive takes precedence over an option.
    OK(cuModuleLoadDataEx(&module, wide(".maxnreg 32").c_str(), 1, &kind, &forty));
    check(module, 32, 1024, 8, ".maxnreg and an option");
    printf("registers are limited\n");
}

static void addresses_have_64_bits() {
    CUmodule module;
    CUfunction twice;
    int got[2];
    const char *body = ".entry twice(.param .u64 words)\n{\n.reg .u64 %d<2>;\n.reg .u32 %r<2>;\nld.param.u64 %d1, [words];\n"
                       "mov.u32 %r1, 5;\nst.global.u32 [%d1], %r1;\nst.global.u32 [%d1+4], %r1;\nret;\n}\n";
    for (const char *head : {".version 7.0\n.target sm_75\n.visible ", ".version 2.3\n.target sm_20\n", ".version 1.4\n.target sm_10, map_f64_to_f32\n"}) {
        OK(cuMemsetD32(words, 0, 2));
        EXPECT(CUDA_SUCCESS, cuModuleLoadData(&module, (std::string(head) + body).c_str()));
        OK(cuModuleGetFunction(&twice, module, "twice"));
        void *arguments[] = {&words};
        OK(cuLaunchKernel(twice, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
        OK(cuMemcpyDtoH(got, words, sizeof got));
        CHECK(got[0] == 5 && got[1] == 5, "%d, %d", got[0], got[1]);
        OK(cuModuleUnload(module));
    }
    CHECK(cuModuleLoadData(&module, (std::string(".version 2.2\n.target sm_20\n.address_size 64\n") + body).c_str()) != CUDA_SUCCESS, "older than the directive");
    printf("PTX without a size of addresses\n");
}

static void limits_of_the_context(CUdevice device) {
    int most;
    size_t got;
    OK(cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, device));
    if (most > 0) {
        EXPECT(CUDA_SUCCESS, cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, most));
        OK(cuCtxGetLimit(&got, CU_LIMIT_PERSISTING_L2_CACHE_SIZE));
        CHECK(got > 0 && got <= size_t(most), "%zu of %d", got, most);
        EXPECT(CUDA_SUCCESS, cuCtxResetPersistingL2Cache());
        EXPECT(CUDA_SUCCESS, cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0));
    }
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    OK(cuCtxGetLimit(&got, CU_LIMIT_STACK_SIZE));
    CHECK(got == 4096, "%zu", got);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxGetLimit(&got, static_cast<CUlimit>(99)));
    printf("limits of the context\n");
}

int main() {
    CUdevice device;
    CUcontext context;
    begin_on_first(&device, &context);
    OK(cuMemAlloc(&words, 4096));
    registers_are_limited();
    addresses_have_64_bits();
    limits_of_the_context(device);
    OK(cuMemFree(words));
    return finish("code_limits");
}
