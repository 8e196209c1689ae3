// Not a test by itself: a program that fills a session whose limit of device memory is 64 MiB, by every way to allocate.
//
//   memory_limit counts  passes if every byte counts, at the call that a driver would refuse; a refused call changes nothing
//   memory_limit holds   holds some memory of each kind, says `ready` and the bytes that it holds, waits for the end of its input
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>
#include <string>
#include <vector>

#include "check.h"

static const size_t MIB = 1 << 20, LIMIT = 64 * MIB, PIECE = 16 * MIB;

// Blocks of 1 MiB that one thread gets of the heap, and gives back. The runtime keeps to what it has heard of a kernel first, so there
// are two of them.
template <int number> __global__ void heap_blocks(int wanted, int *got) {
    char *blocks[64];
    int count = 0;
    while (count < wanted && (blocks[count] = (char *)malloc(1 << 20)) != nullptr) {
        blocks[count][0] = 1;
        blocks[count][(1 << 20) - 1] = 2;
        count++;
    }
    *got = count;
    for (int at = 0; at < count; at++) free(blocks[at]);
}

// A function of the driver's, which the program is not linked with.
template <class Function> static Function *driver(const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    OK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
    return (Function *)found;
}

#define DRIVER(name) driver<decltype(name)>(#name)

static size_t held() {
    size_t free = 0, total = 0;
    OK(cudaMemGetInfo(&free, &total));
    CHECK(total == LIMIT, "%zu", total);
    return total - free;
}

// Returns the number of pieces until memory runs out, with exactly that error.
template <class Make> static int pieces(Make make) {
    int count = 0;
    cudaError_t got = cudaSuccess;
    while (count < 64 && (got = cudaError_t(make())) == cudaSuccess) count++;
    CHECK(got == cudaErrorMemoryAllocation, "%d after %d", int(got), count);
    cudaGetLastError();
    return count;
}

// Returns the number of pieces that fit in the rest of the limit; frees them before it returns.
static int rest() {
    std::vector<void *> all;
    int count = pieces([&] {
        void *piece = nullptr;
        cudaError_t got = cudaMalloc(&piece, PIECE);
        if (got == cudaSuccess) all.push_back(piece);
        return got;
    });
    for (void *piece : all) OK(cudaFree(piece));
    return count;
}

// A module with a variable of so many bytes.
static std::string text(size_t bytes) {
    char text[400];
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 variable[%zu];\n"
             ".visible .entry kernel(.param .u64 p) { ret; }\n", bytes);
    return text;
}

static void blocks() {
    EXPECT(4, rest());
    // What was freed above lies idle here, and goes back for what is no block.
    void *managed = nullptr;
    OK(cudaMallocManaged(&managed, PIECE));
    OK(cudaFree(managed));
    std::vector<void *> all;
    EXPECT(4, pieces([&] {
        void *piece = nullptr;
        cudaError_t got = cudaMallocAsync(&piece, PIECE, 0);
        if (got == cudaSuccess) all.push_back(piece);
        return got;
    }));
    for (void *piece : all) OK(cudaFreeAsync(piece, 0));
    OK(cudaDeviceSynchronize());
    std::vector<cudaArray_t> arrays;
    cudaChannelFormatDesc texels = cudaCreateChannelDesc<float>();
    EXPECT(4, pieces([&] {
        cudaArray_t array = nullptr;
        cudaError_t got = cudaMallocArray(&array, &texels, 2048, 2048);
        if (got == cudaSuccess) arrays.push_back(array);
        return got;
    }));
    for (cudaArray_t array : arrays) OK(cudaFreeArray(array));
}

// Small blocks get the rest of the free bytes.
static void small_blocks() {
    enum { COUNT = 8192 };
    size_t before = held();
    std::vector<void *> all(COUNT);
    for (void *&block : all) OK(cudaMalloc(&block, 1));
    CHECK(held() - before == COUNT * 512, "%zu", held() - before);
    for (void *block : all) OK(cudaFree(block));
}

static void managed() {
    std::vector<char *> all;
    EXPECT(4, pieces([&] {
        char *piece = nullptr;
        cudaError_t got = cudaMallocManaged(&piece, PIECE);
        if (got == cudaSuccess) all.push_back(piece), memset(piece, 7, PIECE);
        return got;
    }));
    CHECK(held() == LIMIT, "%zu", held());
    EXPECT(0, rest());
    for (char *piece : all) CHECK(piece[PIECE - 1] == 7, "%d", piece[PIECE - 1]);
    OK(cudaFree(all.back()));
    EXPECT(1, rest());
    all.pop_back();
    for (char *piece : all) OK(cudaFree(piece));
    EXPECT(4, rest());
}

static void modules() {
    CUmodule module, other;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, DRIVER(cuModuleLoadData)(&module, text(LIMIT + 1).c_str()));
    OK(DRIVER(cuModuleLoadData)(&module, text(48 * MIB).c_str()));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, DRIVER(cuModuleLoadData)(&other, text(PIECE + 1).c_str()));
    EXPECT(1, rest());
    CUdeviceptr variable;
    size_t size = 0;
    OK(DRIVER(cuModuleGetGlobal)(&variable, &size, module, "variable"));
    CHECK(size == 48 * MIB, "%zu", size);
    OK(DRIVER(cuMemsetD8)(variable, 3, size));
    OK(DRIVER(cuModuleUnload)(module));
    EXPECT(4, rest());
    CUlibrary library;
    std::string large = text(LIMIT + 1), small = text(32 * MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, DRIVER(cuLibraryLoadData)(&library, large.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(DRIVER(cuLibraryLoadData)(&library, small.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    EXPECT(2, rest());
    OK(DRIVER(cuLibraryUnload)(library));
    EXPECT(4, rest());
}

static void limits() {
    size_t before = 0, after = 0;
    OK(cudaDeviceGetLimit(&before, cudaLimitPrintfFifoSize));
    EXPECT(cudaErrorMemoryAllocation, cudaDeviceSetLimit(cudaLimitPrintfFifoSize, before + 2 * LIMIT));
    OK(cudaDeviceGetLimit(&after, cudaLimitPrintfFifoSize));
    CHECK(before == after, "%zu %zu", before, after);
    OK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, before + 40 * MIB));
    EXPECT(1, rest());
    OK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, before));
    EXPECT(4, rest());
    // A stack of each thread that the device holds at a time.
    cudaDeviceProp device;
    OK(cudaGetDeviceProperties(&device, 0));
    size_t threads = size_t(device.multiProcessorCount) * device.maxThreadsPerMultiProcessor;
    size_t fits = (LIMIT - PIECE) / threads, first = 0;
    OK(cudaDeviceGetLimit(&first, cudaLimitStackSize));
    if (fits > 64) {
        EXPECT(cudaErrorMemoryAllocation, cudaDeviceSetLimit(cudaLimitStackSize, first + 2 * LIMIT / threads));
        OK(cudaDeviceSetLimit(cudaLimitStackSize, first + fits / 32 * 32));
        CHECK(rest() <= 2, "a stack of %zu bytes for %zu threads", fits, threads);
        OK(cudaDeviceSetLimit(cudaLimitStackSize, first));
    }
    EXPECT(4, rest());
}

static void heap() {
    int *got, count = 0;
    // The heap is as large as a context has it, until the program says otherwise.
    OK(cudaMalloc(&got, 60 * MIB));
    heap_blocks<0><<<1, 1>>>(64, got);
    EXPECT(cudaErrorMemoryAllocation, cudaGetLastError());
    OK(cudaFree(got));
    EXPECT(cudaErrorMemoryAllocation, cudaDeviceSetLimit(cudaLimitMallocHeapSize, 2 * LIMIT));
    OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 40 * MIB));
    EXPECT(1, rest());
    OK(cudaMalloc(&got, sizeof *got));
    heap_blocks<1><<<1, 1>>>(64, got);
    EXPECT(0, cudaGetLastError());
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&count, got, sizeof count, cudaMemcpyDeviceToHost));
    CHECK(count >= 32 && count <= 40, "%d", count);
    CHECK(held() >= 40 * MIB, "%zu", held());
    // A block of the heap's size and one as large would be more than the limit.
    void *block = nullptr;
    EXPECT(cudaErrorMemoryAllocation, cudaMalloc(&block, 40 * MIB));
    cudaGetLastError();
    OK(cudaFree(got));
}

int main(int count, char **words) {
    OK(cudaFree(nullptr));
    if (count > 1 && !strcmp(words[1], "holds")) {
        void *block;
        CUmodule module;
        OK(cudaMalloc(&block, PIECE));
        OK(cudaMallocManaged(&block, 2 * MIB));
        OK(DRIVER(cuModuleLoadData)(&module, text(5 * MIB).c_str()));
        OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 9 * MIB));
        printf("ready %zu\n", held());
        fflush(stdout);
        while (getchar() != EOF) {}
        return 0;
    }
    size_t first = held();
    CHECK(first < 64 << 10, "%zu bytes at first", first);
    blocks();
    small_blocks();
    managed();
    modules();
    limits();
    heap();
    return finish("memory_limit");
}
