// Code that the driver refuses: the codes, and the reason in the program's log. With an argument, also softcuda's texts in
// logs that NVIDIA's driver may leave empty.
#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

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

static const char *const RIGHT = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n";

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

// Where a library's load writes to: the error log and the wall time, or what is to stay as it was.
struct LibraryLog {
    char error[512] = "untouched", info[512] = "untouched";
    CUjit_option kinds[7] = {CU_JIT_ERROR_LOG_BUFFER,
                             CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                             CU_JIT_INFO_LOG_BUFFER,
                             CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                             CU_JIT_LOG_VERBOSE,
                             CU_JIT_THREADS_PER_BLOCK,
                             CU_JIT_WALL_TIME};
    void *values[7] = {error, reinterpret_cast<void *>(sizeof error), info, reinterpret_cast<void *>(sizeof info),
                       reinterpret_cast<void *>(1), reinterpret_cast<void *>(33), nullptr};
    size_t length(int of) const { return reinterpret_cast<size_t>(values[of]); }
};

// The logs of libraries are those of modules, whether they come from memory or from a file, and so are the other answers.
static void logs_of_libraries(const char *text, const char *reason) {
    char path[] = "/tmp/katydid-refused-XXXXXX";
    int file = mkstemp(path);
    CHECK(write(file, text, strlen(text)) == ssize_t(strlen(text)), "cannot write %s", path);
    for (bool from_file : {false, true}) {
        LibraryLog of_module, of_library;
        CUmodule module;
        CUlibrary library;
        CUresult loaded = cuModuleLoadDataEx(&module, text, 7, of_module.kinds, of_module.values);
        CUresult code = from_file ? cuLibraryLoadFromFile(&library, path, of_library.kinds, of_library.values, 7, nullptr, nullptr, 0)
                                  : cuLibraryLoadData(&library, text, of_library.kinds, of_library.values, 7, nullptr, nullptr, 0);
        CHECK(strstr(of_library.error, reason) != nullptr && strcmp(of_library.error, of_module.error) == 0,
              "error log of a library: %s; of a module: %s", of_library.error, of_module.error);
        CHECK(strcmp(of_library.info, of_module.info) == 0, "information: %s; of a module: %s", of_library.info, of_module.info);
        CHECK(loaded != CUDA_SUCCESS || strstr(of_library.info, "registers") != nullptr, "information: %s", of_library.info);
        for (int of : {1, 3}) {
            CHECK(of_library.length(of) == of_module.length(of) && of_library.length(of) < sizeof of_library.info,
                  "lengths %zu and %zu", of_library.length(of), of_module.length(of));
        }
        CHECK(of_library.length(5) == 64 && of_module.length(5) == 64, "threads: %zu and %zu", of_library.length(5), of_module.length(5));
        if (code == CUDA_SUCCESS) OK(cuLibraryUnload(library));
        if (loaded == CUDA_SUCCESS) OK(cuModuleUnload(module));
    }
    // A log that is too long is cut, and its length is that of what is there.
    LibraryLog cut;
    CUlibrary library;
    cut.values[1] = reinterpret_cast<void *>(8);
    CUresult code = cuLibraryLoadData(&library, text, cut.kinds, cut.values, 2, nullptr, nullptr, 0);
    CHECK(strlen(cut.error) <= 7 && cut.length(1) <= 8 && cut.error[8] == 'd', "cut: %s, %zu", cut.error, cut.length(1));
    if (code == CUDA_SUCCESS) OK(cuLibraryUnload(library));
    close(file);
    unlink(path);
}

// A log's buffer goes with its size.
static void halves_of_logs(const char *text) {
    CUmodule module;
    CUlibrary library;
    CUlinkState link;
    for (int half = 0; half < 4; half++) {
        LibraryLog log;
        CUjit_option *kind = log.kinds + half;
        void **value = log.values + half;
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadDataEx(&module, text, 1, kind, value));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuLibraryLoadData(&library, text, kind, value, 1, nullptr, nullptr, 0));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuLinkCreate(1, kind, value, &link));
    }
}

// Code for devices that come later: nothing in it suits this one.
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
    if (is_soft) {
        logs_of_libraries(befuddled.c_str(), "befuddle");
        logs_of_libraries(RIGHT, "");
        halves_of_logs(RIGHT);
    }
    // Nothing of it is left behind.
    OK(cuCtxSynchronize());
    printf("refused with the reason\n");
    return finish("refused_code");
}
