// 64 MiB of ordinary memory up, across the device and down again, whole and at odd offsets, with checksums.
#include "check.h"

#include <thread>
#include <vector>

constexpr size_t BYTES = size_t(64) << 20;

// Returns a checksum that also depends on the positions of bytes.
static uint64_t checksum(const unsigned char *bytes, size_t n) {
    uint64_t sum = 1469598103934665603ull;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t word;
        __builtin_memcpy(&word, bytes + i, 8);
        sum = (sum ^ word) * 1099511628211ull;
    }
    for (size_t i = n / 8 * 8; i < n; i++) sum = (sum ^ bytes[i]) * 1099511628211ull;
    return sum;
}

// Adds up every 64th word, so that the device too has seen what arrived.
__global__ void sample(const unsigned long long *words, size_t count, unsigned long long *total) {
    unsigned long long mine = 0;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i * 64 < count; i += size_t(gridDim.x) * blockDim.x)
        mine += words[i * 64];
    atomicAdd(total, mine);
}

// Copies a part of `up` to the device and back, at odd offsets, through a stream of this thread's choice.
static bool round_trip(const std::vector<unsigned char> &up, size_t from, size_t length, bool own_stream) {
    unsigned char *device;
    cudaStream_t stream = cudaStreamPerThread;
    if (own_stream) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc(&device, length + 3));
    std::vector<unsigned char> down(length + 2, 0);
    OK(cudaMemcpyAsync(device + 3, &up[from], length, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(&down[1], device + 3, length, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(device));
    if (own_stream) OK(cudaStreamDestroy(stream));
    return checksum(&down[1], length) == checksum(&up[from], length) && down[0] == 0 && down[length + 1] == 0;
}

int main() {
    std::vector<unsigned char> up(BYTES), down(BYTES, 0);
    Numbers numbers(23);
    for (size_t i = 0; i < BYTES; i += 4) {
        uint32_t word = numbers.next();
        __builtin_memcpy(&up[i], &word, 4);
    }
    unsigned char *first, *second;
    unsigned long long *device_total, total = 0, wanted = 0;
    OK(cudaMalloc(&first, BYTES));
    OK(cudaMalloc(&second, BYTES));
    OK(cudaMalloc(&device_total, sizeof total));
    OK(cudaMemset(device_total, 0, sizeof total));
    OK(cudaMemcpy(first, up.data(), BYTES, cudaMemcpyHostToDevice));
    sample<<<64, 256>>>(reinterpret_cast<unsigned long long *>(first), BYTES / 8, device_total);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&total, device_total, sizeof total, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < BYTES; i += 512) {
        unsigned long long word;
        __builtin_memcpy(&word, &up[i], 8);
        wanted += word;
    }
    CHECK(total == wanted, "the device counted %llx, wanted %llx", total, wanted);
    OK(cudaMemcpy(second, first, BYTES, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(down.data(), second, BYTES, cudaMemcpyDeviceToHost));
    uint64_t sum = checksum(up.data(), BYTES);
    CHECK(checksum(down.data(), BYTES) == sum, "64 MiB came back changed");

    // All but the ends, at offsets that nothing is aligned to.
    std::vector<unsigned char> odd(BYTES, 0);
    const size_t length = BYTES - 13;
    OK(cudaMemcpyAsync(first + 5, up.data() + 3, length, cudaMemcpyHostToDevice, nullptr));
    OK(cudaMemcpyAsync(odd.data() + 7, first + 5, length, cudaMemcpyDeviceToHost, nullptr));
    OK(cudaStreamSynchronize(nullptr));
    CHECK(checksum(odd.data() + 7, length) == checksum(up.data() + 3, length), "the odd piece came back changed");
    CHECK(odd[6] == 0 && odd[BYTES - 6] == 0, "bytes beside the odd piece were written");
    bool equal[4] = {};
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 4; i++)
        threads.emplace_back([&, i] { equal[i] = round_trip(up, i * 7 + 1, (size_t(9) << 20) + i * 4097, i % 2 == 0); });
    for (auto &thread : threads) thread.join();
    for (bool whole : equal) CHECK(whole, "a part that a thread copied came back changed");
    OK(cudaFree(first));
    OK(cudaFree(second));
    OK(cudaFree(device_total));
    printf("64 MiB up, across and down, whole and at odd offsets: %016llx\n", (unsigned long long)sum);
    return finish("big_copy");
}
