// Asynchronous copies from and to ordinary memory. The source may be reused at once, and the target is complete once
// the stream is, for sizes from one byte to several pieces of any staging buffer.
#include "check.h"

#include <cstring>
#include <vector>

__global__ void flip(unsigned char *bytes, size_t n) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i * 4093 < n) bytes[i * 4093] ^= 0xff;
}

// Returns byte `i` of the copy numbered `round`.
static unsigned char value(size_t i, int round) { return (unsigned char)(i * 11 + i / 4096 + round * 37); }

static void fill(std::vector<unsigned char> &bytes, int round) {
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = value(i, round);
}

// Copies from one buffer repeatedly, and changes it right after each call.
static void source_is_free_at_once(cudaStream_t stream, size_t n) {
    const int rounds = 4;
    std::vector<unsigned char> source(n), back(n);
    unsigned char *device[rounds];
    for (int round = 0; round < rounds; round++) {
        OK(cudaMalloc(&device[round], n));
        fill(source, round);
        OK(cudaMemcpyAsync(device[round], source.data(), n, cudaMemcpyHostToDevice, stream));
        flip<<<unsigned(n / 4093 / 256 + 1), 256, 0, stream>>>(device[round], n);
    }
    memset(source.data(), 0, n);
    for (int round = 0; round < rounds; round++) {
        OK(cudaMemcpyAsync(back.data(), device[round], n, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++) wrong += back[i] != (unsigned char)(value(i, round) ^ (i % 4093 == 0 ? 0xff : 0));
        CHECK(wrong == 0, "%zu of %zu bytes of round %d differ", wrong, n, round);
        OK(cudaFree(device[round]));
    }
}

int main() {
    const size_t sizes[] = {1, 3, 4096, 65535, 65536, 65537, (1 << 20) - 1, (1 << 20) + 4096, (4 << 20) + 1, 9000001};
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t n : sizes) source_is_free_at_once(stream, n);
    OK(cudaStreamDestroy(stream));
    printf("%zu sizes, each copied 4 times from memory that changed at once\n", sizeof sizes / sizeof *sizes);
    return finish("pageable_async");
}
