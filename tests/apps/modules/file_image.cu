// Not a test by itself: a code image in a file of its own, as in a library that a program loads.
//
//   file_image make FILE MIB      writes a container there: a PTX text, and that much code of a kind that no device accepts
//   file_image load FILE [hidden] maps it, privately, loads it and finds its kernel, says `loaded`, and on standard error how long loading
//                                 took, and of that on the processor; `hidden`: no process can read more than its first page, so that one that does is killed
#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char TEXT[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n";
static const size_t PAGE = 4096;

// An entry: a header of 64 bytes, and what it holds.
static std::string entry(uint16_t kind, const std::string &payload) {
    std::string header(64, '\0');
    const auto set = [&](size_t at, auto value) { memcpy(&header[at], &value, sizeof value); };
    set(0, kind);
    set(4, uint32_t(header.size()));
    set(8, uint64_t(payload.size()));
    set(28, uint32_t(80));
    return header + payload;
}

static int make(const char *path, size_t bytes) {
    const uint16_t text = 1, other = 8;
    std::string code(bytes, '\0');
    uint32_t next = 1;
    for (char &byte : code) byte = char((next = next * 1664525 + 1013904223) >> 24);
    const std::string entries = entry(text, std::string(TEXT, sizeof TEXT)) + entry(other, code);
    const uint32_t head[2] = {0xba55ed50, 16 << 16 | 1};
    const uint64_t length = entries.size();
    FILE *file = fopen(path, "wb");
    if (!file) return 1;
    fwrite(head, sizeof head, 1, file);
    fwrite(&length, sizeof length, 1, file);
    fwrite(entries.data(), entries.size(), 1, file);
    return fclose(file) == 0 ? 0 : 1;
}

static int load(const char *path, bool is_hidden) {
    const int file = open(path, O_RDONLY);
    struct stat found;
    if (file < 0 || fstat(file, &found) != 0) return 1;
    char *image = static_cast<char *>(mmap(nullptr, found.st_size, PROT_READ, MAP_PRIVATE, file, 0));
    if (image == MAP_FAILED) return 1;
    if (is_hidden && mprotect(image + PAGE, found.st_size - PAGE, PROT_NONE) != 0) return 1;
    if (cudaFree(nullptr) != cudaSuccess) return 1;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto load = reinterpret_cast<decltype(&cuModuleLoadData)>(dlsym(library, "cuModuleLoadData"));
    const auto find = reinterpret_cast<decltype(&cuModuleGetFunction)>(dlsym(library, "cuModuleGetFunction"));
    CUmodule module;
    CUfunction function;
    const auto begin = std::chrono::steady_clock::now();
    const clock_t busy = clock();
    CUresult got = load(&module, image);
    const clock_t used = clock() - busy;
    const auto took = std::chrono::steady_clock::now() - begin;
    if (got == CUDA_SUCCESS) got = find(&function, module, "nothing");
    if (got != CUDA_SUCCESS) return printf("error %d\n", int(got)), 3;
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(took).count();
    fprintf(stderr, "%lld us, %lld us of the processor\n", (long long)micros, (long long)used * 1000000 / CLOCKS_PER_SEC);
    return puts("loaded"), 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "make") == 0) return make(argv[2], size_t(strtod(argv[3], nullptr) * 1048576));
    if (argc >= 3 && strcmp(argv[1], "load") == 0) return load(argv[2], argc > 3 && strcmp(argv[3], "hidden") == 0);
    return fprintf(stderr, "usage: file_image make FILE MIB | load FILE [hidden]\n"), 2;
}
