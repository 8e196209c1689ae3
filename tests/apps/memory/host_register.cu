// Existing memory of the program, registered: copies from and to it, kernels that read and write it in place, neighbours in one
// page, wrong calls.
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "check.h"

__global__ void add(int *values, int count, int by) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) values[at] += by;
}

__global__ void sum(const int *values, int count, long long *total) {
    long long own = 0;
    for (int at = threadIdx.x; at < count; at += blockDim.x) own += values[at];
    atomicAdd(reinterpret_cast<unsigned long long *>(total), (unsigned long long)own);
}

static long long sum_of(const int *values, int count) {
    long long *total, result = 0;
    OK(cudaMalloc(&total, 8));
    OK(cudaMemset(total, 0, 8));
    sum<<<1, 256>>>(values, count, total);
    OK(cudaMemcpy(&result, total, 8, cudaMemcpyDeviceToHost));
    OK(cudaFree(total));
    return result;
}

// A kernel adds to a block in place, between writes of the program.
static void in_place(int *block, int count, const char *name) {
    for (int i = 0; i < count; i++) block[i] = i;
    OK(cudaHostRegister(block, count * 4, cudaHostRegisterDefault));
    int *device = nullptr;
    OK(cudaHostGetDevicePointer(&device, block, 0));
    CHECK(device == block, "the device has another pointer");
    for (int round = 1; round <= 3; round++) {
        add<<<(count + 255) / 256, 256>>>(device, count, 1000);
        OK(cudaDeviceSynchronize());
        for (int i = 0; i < count; i++) CHECK_QUIETLY(block[i] == i + 1001 * round - 1, "%d: %d", i, block[i]);
        for (int i = 0; i < count; i++) block[i]++;
    }
    long long want = 0;
    for (int i = 0; i < count; i++) want += block[i];
    CHECK(sum_of(device, count) == want, "another sum");
    OK(cudaHostUnregister(block));
    CHECK(block[1] == 3004, "the memory is gone: %d", block[1]);
    printf("%s\n", name);
}

static void copies() {
    const int count = 300000;
    std::vector<int> from(count), to(count);
    int *device;
    cudaStream_t stream;
    for (int i = 0; i < count; i++) from[i] = i * 7;
    OK(cudaMalloc(&device, count * 4));
    OK(cudaStreamCreate(&stream));
    OK(cudaHostRegister(from.data(), count * 4, cudaHostRegisterPortable));
    OK(cudaHostRegister(to.data(), count * 4, cudaHostRegisterMapped));
    OK(cudaMemcpyAsync(device, from.data(), count * 4, cudaMemcpyHostToDevice, stream));
    add<<<(count + 255) / 256, 256, 0, stream>>>(device, count, 5);
    OK(cudaMemcpyAsync(to.data(), device, count * 4, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < count; i++) CHECK_QUIETLY(to[i] == i * 7 + 5, "%d: %d", i, to[i]);
    OK(cudaMemcpy(to.data(), from.data(), count * 4, cudaMemcpyDefault));
    CHECK(to[count - 1] == (count - 1) * 7, "%d", to[count - 1]);
    // As if it were device memory.
    OK(cudaMemset(to.data(), 1, 400));
    CHECK(to[99] == 0x01010101 && to[100] == 700, "%x %d", to[99], to[100]);
    OK(cudaHostUnregister(from.data()));
    OK(cudaHostUnregister(to.data()));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(device));
    printf("copies\n");
}

// Two blocks of one page, one after the other and at once.
static void neighbours() {
    char *page = static_cast<char *>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    int *first = reinterpret_cast<int *>(page + 64), *second = reinterpret_cast<int *>(page + 2048);
    OK(cudaHostRegister(first, 256, 0));
    OK(cudaHostRegister(second, 4096, 0));
    first[0] = 1;
    second[0] = 10;
    second[1023] = 100;
    add<<<1, 64>>>(first, 64, 1);
    add<<<4, 256>>>(second, 1024, 2);
    OK(cudaDeviceSynchronize());
    CHECK(first[0] == 2 && first[63] == 1 && second[0] == 12 && second[1023] == 102, "%d %d %d %d", first[0], first[63],
          second[0], second[1023]);
    OK(cudaHostUnregister(first));
    add<<<4, 256>>>(second, 1024, 3);
    OK(cudaDeviceSynchronize());
    CHECK(second[0] == 15 && second[1023] == 105, "%d %d", second[0], second[1023]);
    OK(cudaHostUnregister(second));
    OK(munmap(page, 8192));
    printf("neighbours\n");
}

static void attributes() {
    std::vector<char> block(10000);
    char *start = block.data();
    unsigned flags = 0;
    cudaPointerAttributes known;
    OK(cudaHostRegister(start, 10000, cudaHostRegisterPortable));
    OK(cudaPointerGetAttributes(&known, start + 5000));
    CHECK(known.type == cudaMemoryTypeHost, "type %d", known.type);
    CHECK(known.hostPointer == start + 5000 && known.devicePointer == start + 5000, "other pointers");
    OK(cudaHostGetFlags(&flags, start));
    CHECK(flags == 3, "flags %u", flags);
    OK(cudaHostUnregister(start));
    OK(cudaPointerGetAttributes(&known, start));
    CHECK(known.type == cudaMemoryTypeUnregistered, "type %d", known.type);
    printf("attributes\n");
}

// The device says that it can do what the rest of this program does, and memory that cannot be written can be read there.
static void supported() {
    int registers = 0, reads = 0;
    OK(cudaDeviceGetAttribute(&registers, cudaDevAttrHostRegisterSupported, 0));
    OK(cudaDeviceGetAttribute(&reads, cudaDevAttrHostRegisterReadOnlySupported, 0));
    CHECK(registers == 1, "registration is said to be %d", registers);
    const int count = 4096;
    int *block = static_cast<int *>(mmap(nullptr, count * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < count; i++) block[i] = i;
    OK(mprotect(block, count * 4, PROT_READ));
    EXPECT(cudaErrorInvalidValue, cudaHostRegister(block, count * 4, 0));
    if (reads == 1) {
        OK(cudaHostRegister(block, count * 4, cudaHostRegisterReadOnly));
        CHECK(sum_of(block, count) == 4096LL * 4095 / 2, "another sum");
        OK(cudaHostUnregister(block));
    }
    OK(munmap(block, count * 4));
    printf("supported\n");
}

static void wrong() {
    std::vector<char> block(10000);
    char *start = block.data(), *pinned;
    EXPECT(cudaErrorInvalidValue, cudaHostRegister(nullptr, 100, 0));
    EXPECT(cudaErrorInvalidValue, cudaHostRegister(start, 0, 0));
    EXPECT(cudaErrorInvalidValue, cudaHostRegister(start, 100, 16));
    EXPECT(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(start));
    OK(cudaHostRegister(start, 5000, 0));
    EXPECT(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(start, 5000, 0));
    EXPECT(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(start + 100, 100, 0));
    EXPECT(cudaErrorInvalidValue, cudaHostUnregister(start + 1));
    OK(cudaHostUnregister(start));
    EXPECT(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(start));
    OK(cudaMallocHost(&pinned, 4096));
    EXPECT(cudaErrorInvalidValue, cudaHostUnregister(pinned));
    OK(cudaFreeHost(pinned));
    printf("wrong ones refused\n");
}

int main() {
    OK(cudaFree(nullptr));
    std::vector<int> vector(100000);
    in_place(vector.data() + 3, 50000, "a part of a block");
    static int fixed[3000];
    in_place(fixed, 3000, "static memory");
    const size_t large = 8 << 20;
    void *shared = mmap(nullptr, large, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    in_place(static_cast<int *>(shared), large / 4, "shared memory");
    OK(munmap(shared, large));
    copies();
    neighbours();
    attributes();
    supported();
    wrong();
    return finish("host_register");
}
