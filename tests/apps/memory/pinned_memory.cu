// Pinned host memory: asynchronous copies from and to it, and kernels that use it directly, under the same address.
#include "check.h"

#include <cstring>

constexpr int N = 30011;

__global__ void negate(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = -in[i];
}

static void asynchronous_copies() {
    int *up, *down, *device;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMallocHost(&up, N * sizeof(int)));
    OK(cudaHostAlloc(&down, N * sizeof(int), cudaHostAllocPortable));
    OK(cudaMalloc(&device, N * sizeof(int)));
    for (int i = 0; i < N; i++) up[i] = i * 3 - 1000;
    memset(down, 0xee, N * sizeof(int));
    OK(cudaMemcpyAsync(device, up, N * sizeof(int), cudaMemcpyHostToDevice, stream));
    negate<<<(N + 255) / 256, 256, 0, stream>>>(device, device, N);
    OK(cudaMemcpyAsync(down, device, N * sizeof(int), cudaMemcpyDefault, stream));
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < N; i++) CHECK_QUIETLY(down[i] == 1000 - i * 3, "element %d: %d", i, down[i]);
    OK(cudaFreeHost(up));
    OK(cudaFreeHost(down));
    OK(cudaFree(device));
    OK(cudaStreamDestroy(stream));
    printf("asynchronous copies: %d numbers up and down\n", N);
}

// The kernel reads and writes the host's memory itself; between launches the host changes it again.
static void direct_use() {
    int *in, *out, *same;
    OK(cudaHostAlloc(&in, N * sizeof(int), cudaHostAllocMapped | cudaHostAllocWriteCombined));
    OK(cudaHostAlloc(&out, N * sizeof(int), cudaHostAllocMapped));
    OK(cudaHostGetDevicePointer(&same, in, 0));
    CHECK(same == in, "the device's address differs from the host's");
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < N; i++) in[i] = i * round;
        negate<<<(N + 255) / 256, 256>>>(in, out, N);
        OK(cudaDeviceSynchronize());
        for (int i = 0; i < N; i++) CHECK_QUIETLY(out[i] == -i * round, "round %d, element %d: %d", round, i, out[i]);
    }
    // The second half only: the first must keep what the host wrote.
    for (int i = 0; i < N; i++) out[i] = 7;
    negate<<<64, 256>>>(in + N / 2, out + N / 2, N - N / 2);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < N; i++) CHECK_QUIETLY(out[i] == (i < N / 2 ? 7 : -i * 3), "half, element %d: %d", i, out[i]);
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
    printf("direct use: kernels read and wrote the host's memory\n");
}

__global__ void follow(unsigned *const *where, unsigned *seen) { *seen = **where; }

// The kernel finds a flag of the host by a pointer in device memory, so no launch names it.
static void flags_of_unknown_memory() {
    unsigned *flag, *seen, **where, got = 0;
    OK(cudaHostAlloc(&flag, sizeof(unsigned), cudaHostAllocMapped));
    OK(cudaMalloc(&where, sizeof(flag)));
    OK(cudaMalloc(&seen, sizeof(unsigned)));
    OK(cudaMemcpy(where, &flag, sizeof(flag), cudaMemcpyHostToDevice));
    for (unsigned round = 0; round < 4; round++) {
        *flag = round * 1000003;
        follow<<<1, 1>>>(where, seen);
        OK(cudaMemcpy(&got, seen, sizeof(got), cudaMemcpyDeviceToHost));
        CHECK(got == round * 1000003, "round %u: the kernel saw %u", round, got);
    }
    OK(cudaFreeHost(flag));
    OK(cudaFree(where));
    OK(cudaFree(seen));
    printf("a flag that no launch names\n");
}

static void what_pointers_say() {
    int *pinned, *device, pageable = 0;
    unsigned flags = 0;
    cudaPointerAttributes says;
    OK(cudaHostAlloc(&pinned, 4096, cudaHostAllocPortable | cudaHostAllocMapped));
    OK(cudaMalloc(&device, 4096));
    OK(cudaPointerGetAttributes(&says, pinned + 10));
    CHECK(says.type == cudaMemoryTypeHost, "type %d", int(says.type));
    CHECK(says.devicePointer == pinned + 10 && says.hostPointer == pinned + 10, "pinned memory has two addresses");
    OK(cudaPointerGetAttributes(&says, device + 10));
    CHECK(says.type == cudaMemoryTypeDevice && says.device == 0, "type %d, device %d", int(says.type), says.device);
    CHECK(says.devicePointer == device + 10 && says.hostPointer == nullptr, "device memory with a host address");
    OK(cudaPointerGetAttributes(&says, &pageable));
    CHECK(says.type == cudaMemoryTypeUnregistered, "type %d", int(says.type));
    OK(cudaHostGetFlags(&flags, pinned));
    CHECK(flags == (cudaHostAllocPortable | cudaHostAllocMapped), "flags %u", flags);
    OK(cudaFreeHost(pinned));
    EXPECT(cudaErrorInvalidValue, cudaFreeHost(pinned));
    OK(cudaFree(device));
    printf("pointers say what memory they are in\n");
}

// A copy from pinned memory is read when the stream gets there, so a change after the synchronisation is not in it.
static void many_blocks() {
    const int blocks = 40;
    char *block[blocks];
    char *device, *back;
    OK(cudaMalloc(&device, blocks * 5000));
    OK(cudaMallocHost(&back, blocks * 5000));
    for (int b = 0; b < blocks; b++) {
        OK(cudaMallocHost(&block[b], 5000));
        memset(block[b], b + 1, 5000);
        OK(cudaMemcpyAsync(device + b * 5000, block[b], 5000, cudaMemcpyHostToDevice));
    }
    OK(cudaDeviceSynchronize());
    for (int b = 0; b < blocks; b += 2) OK(cudaFreeHost(block[b]));
    for (int b = 1; b < blocks; b += 2) memset(block[b], 0, 5000);
    OK(cudaMemcpyAsync(back, device, blocks * 5000, cudaMemcpyDeviceToHost));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < blocks * 5000; i++) CHECK_QUIETLY(back[i] == i / 5000 + 1, "byte %d: %d", i, back[i]);
    for (int b = 1; b < blocks; b += 2) OK(cudaFreeHost(block[b]));
    OK(cudaFreeHost(back));
    OK(cudaFree(device));
    printf("%d pinned blocks, freed in another order\n", blocks);
}

int main() {
    asynchronous_copies();
    direct_use();
    flags_of_unknown_memory();
    what_pointers_say();
    many_blocks();
    return finish("pinned_memory");
}
