// The just-in-time compiler and the linker of the driver API: options, logs that name the place, error codes for wrong
// code, several inputs that become one module.
#include "check.h"
#include "first_device.h"

#include <cstring>
#include <cuda.h>
#include <string>

static const std::string HEAD = ".version 7.0\n.target sm_75\n.address_size 64\n";
static const std::string CALLEE = HEAD +
    ".visible .func (.param .b32 r) f(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a];\n"
    "add.u32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }\n";
static const std::string CALLER = HEAD +
    ".extern .func (.param .b32 r) f(.param .b32 a);\n"
    ".visible .entry k(.param .u64 o) { .reg .b64 %rd<3>; .reg .b32 %r<3>; ld.param.u64 %rd1, [o]; mov.u32 %r1, 7;\n"
    "{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; call (q), f, (p); ld.param.b32 %r2, [q]; }\n"
    "st.global.u32 [%rd1], %r2; ret; }\n";

// Error log and its length as the driver writes them.
struct Log {
    char text[500];
    CUjit_option kinds[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[2] = {text, (void *)sizeof text};
    Log() { memset(text, 0, sizeof text); }
    bool says(const char *part) const { return strstr(text, part) != nullptr; }
};

static CUresult load(const std::string &text, Log &log) {
    CUmodule module;
    CUresult result = cuModuleLoadDataEx(&module, text.c_str(), 2, log.kinds, log.values);
    if (result == CUDA_SUCCESS) OK(cuModuleUnload(module));
    return result;
}

static void wrong_code() {
    struct {
        std::string text;
        CUresult code;
        const char *part;
    } cases[] = {
        {HEAD + ".visible .entry k() { ret; }", CUDA_SUCCESS, ""},
        {HEAD + ".visible .entry k() {\n bogus.u32 %r1;\n }", CUDA_ERROR_INVALID_PTX, "line 5"},
        {HEAD + ".visible .entry k() {\n bogus.u32 %r1;\n }", CUDA_ERROR_INVALID_PTX, "bogus"},
        {HEAD + ".visible .entry k() {\n bra X;\n }", CUDA_ERROR_INVALID_PTX, "X"},
        {HEAD + ".visible .entry k(.param .b8 a[5000]) { ret; }", CUDA_ERROR_INVALID_PTX, "k"},
        {".version 99.0\n" + HEAD.substr(13) + ".visible .entry k() { ret; }", CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "99.0"},
        {"hello", CUDA_ERROR_INVALID_IMAGE, ""},
        {CALLER, CUDA_ERROR_INVALID_PTX, "f"},
    };
    int right = 0;
    for (auto &one : cases) {
        Log log;
        CUresult got = load(one.text, log);
        CHECK(got == one.code && log.says(one.part), "%d: %s", int(got), log.text);
        right += got == one.code;
    }
    // Only the length that was written comes back, and never more than there is room for.
    Log log;
    log.values[1] = (void *)10;
    EXPECT(CUDA_ERROR_INVALID_PTX, load(HEAD + ".visible .entry k() {\n bogus;\n }", log));
    CHECK(strlen(log.text) == 9 && size_t(log.values[1]) <= 10, "%zu, %zu", strlen(log.text), size_t(log.values[1]));
    CUjit_option wrong = (CUjit_option)77;
    void *value = nullptr;
    CUmodule module;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadDataEx(&module, CALLEE.c_str(), 1, &wrong, &value));
    printf("wrong code: %d texts\n", right);
}

static CUresult add(CUlinkState state, CUjitInputType type, const std::string &data, const char *name) {
    return cuLinkAddData(state, type, (void *)data.c_str(), data.size() + 1, name, 0, nullptr, nullptr);
}

static void linking() {
    CUlinkState state;
    Log log;
    OK(cuLinkCreate(2, log.kinds, log.values, &state));
    OK(add(state, CU_JIT_INPUT_PTX, CALLER, "caller"));
    OK(add(state, CU_JIT_INPUT_PTX, CALLEE, "callee"));
    void *image;
    size_t size;
    OK(cuLinkComplete(state, &image, &size));
    CHECK(size > 4 && memcmp(image, "\177ELF", 4) == 0, "%zu bytes", size);
    EXPECT(CUDA_ERROR_INVALID_VALUE, add(state, CU_JIT_INPUT_PTX, CALLEE, "late"));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLinkComplete(state, &image, &size));
    std::string kept((const char *)image, size);
    OK(cuLinkDestroy(state));

    CUmodule module;
    CUfunction function;
    CUdeviceptr out;
    int result = 0;
    OK(cuModuleLoadData(&module, kept.data()));
    OK(cuModuleGetFunction(&function, module, "k"));
    OK(cuMemAlloc(&out, sizeof result));
    void *arguments[] = {&out};
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuMemcpyDtoH(&result, out, sizeof result));
    CHECK(result == 8, "%d", result);
    OK(cuMemFree(out));
    OK(cuModuleUnload(module));
    printf("linking: the callee gave %d\n", result);
}

// Driver 580 gives 300 or 999 for the same mistake, depending on which logs were asked for.
static void expect_no_link(CUresult got) {
    CHECK(got == CUDA_ERROR_INVALID_SOURCE || got == CUDA_ERROR_UNKNOWN, "%d", int(got));
}

static void wrong_links() {
    CUlinkState state;
    void *image;
    size_t size;
    {
        Log log;
        OK(cuLinkCreate(2, log.kinds, log.values, &state));
        OK(add(state, CU_JIT_INPUT_PTX, CALLER, "caller"));
        expect_no_link(cuLinkComplete(state, &image, &size));
        CHECK(log.says("f"), "%s", log.text);
        OK(cuLinkDestroy(state));
    }
    {
        Log log;
        OK(cuLinkCreate(2, log.kinds, log.values, &state));
        OK(add(state, CU_JIT_INPUT_PTX, CALLEE, "first"));
        expect_no_link(add(state, CU_JIT_INPUT_PTX, CALLEE, "second"));
        CHECK(log.says("second") && log.says("first"), "%s", log.text);
        OK(cuLinkDestroy(state));
    }
    Log log;
    OK(cuLinkCreate(2, log.kinds, log.values, &state));
    EXPECT(CUDA_ERROR_INVALID_PTX, add(state, CU_JIT_INPUT_PTX, HEAD + ".visible .entry k() {\n bogus;\n }", "bad"));
    CHECK(log.says("line 5") && log.says("bogus"), "%s", log.text);
    EXPECT(CUDA_ERROR_INVALID_IMAGE, add(state, CU_JIT_INPUT_PTX, "hello", "hello"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, add(state, (CUjitInputType)9, CALLEE, "kind"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLinkAddData(state, CU_JIT_INPUT_PTX, nullptr, 5, "null", 0, nullptr, nullptr));
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/no/such/file", 0, nullptr, nullptr));
    // Refused input is left out; the rest can be linked.
    OK(cuLinkComplete(state, &image, &size));
    OK(cuLinkDestroy(state));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(nullptr));
    printf("wrong links: refused as the driver does\n");
}

// Returns 1 if a kernel's product and sum were rounded once, 0 if each was.
static int is_contracted(CUmodule module) {
    float values[3] = {1 + 1 / 4096.f, 1 + 1 / 4096.f, -(1 + 1 / 2048.f)};
    CUfunction function;
    CUdeviceptr at;
    OK(cuModuleGetFunction(&function, module, "k"));
    OK(cuMemAlloc(&at, sizeof values));
    OK(cuMemcpyHtoD(at, values, sizeof values));
    void *arguments[] = {&at};
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuMemcpyDtoH(values, at, sizeof values));
    OK(cuMemFree(at));
    OK(cuModuleUnload(module));
    return values[0] != 0;
}

// What options make of a product and a sum: without optimisation each is rounded.
static void contraction() {
    const std::string text = HEAD +
        ".visible .entry k(.param .u64 o) { .reg .b64 %rd<2>; .reg .f32 %f<6>; ld.param.u64 %rd1, [o];\n"
        "ld.global.f32 %f1, [%rd1]; ld.global.f32 %f2, [%rd1+4]; ld.global.f32 %f3, [%rd1+8];\n"
        "mul.f32 %f4, %f1, %f2; add.f32 %f5, %f4, %f3; st.global.f32 [%rd1], %f5; ret; }\n";
    CUjit_option level = CU_JIT_OPTIMIZATION_LEVEL, debug = CU_JIT_GENERATE_DEBUG_INFO;
    struct {
        unsigned count;
        CUjit_option kinds[2];
        size_t values[2];
        CUresult code;
        int contracted;
    } cases[] = {
        {0, {}, {}, CUDA_SUCCESS, 1},
        {1, {level}, {0}, CUDA_SUCCESS, 0},
        {1, {level}, {1}, CUDA_SUCCESS, 1},
        {1, {level}, {4}, CUDA_SUCCESS, 1},
        {1, {debug}, {1}, CUDA_SUCCESS, 0},
        {2, {debug, level}, {1, 4}, CUDA_ERROR_INVALID_PTX, 0},
    };
    for (auto &one : cases) {
        void *values[2] = {(void *)one.values[0], (void *)one.values[1]};
        CUmodule module;
        CUresult got = cuModuleLoadDataEx(&module, text.c_str(), one.count, one.kinds, values);
        CHECK(got == one.code, "%d, not %d", int(got), int(one.code));
        if (got != CUDA_SUCCESS) continue;
        int contracted = is_contracted(module);
        CHECK(contracted == one.contracted, "%u options: contracted is %d", one.count, contracted);
    }
    // The level of a linking is that of its inputs.
    CUlinkState state;
    void *zero = nullptr, *image;
    size_t size;
    CUmodule module;
    OK(cuLinkCreate(1, &level, &zero, &state));
    OK(add(state, CU_JIT_INPUT_PTX, text, "text"));
    OK(cuLinkComplete(state, &image, &size));
    OK(cuModuleLoadData(&module, image));
    CHECK(is_contracted(module) == 0, "linked code is contracted");
    OK(cuLinkDestroy(state));
    printf("contraction: with optimisation, and not without\n");
}

int main() {
    CUdevice device;
    CUcontext context;
    begin_on_first(&device, &context);
    wrong_code();
    linking();
    wrong_links();
    contraction();
    OK(cuDevicePrimaryCtxRelease(device));
    return finish("jit_and_link");
}
