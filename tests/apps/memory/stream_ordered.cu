// Stream-ordered allocation: memory is allocated, used and freed in the order of streams, from default and own pools.
#include "check.h"

#include <vector>

constexpr int N = 20011;

__global__ void fill(int *out, int value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = value + i;
}

__global__ void add(int *sum, const int *in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] += in[i];
}

// Every round allocates, computes and frees without waiting; the sums show that no round used another's memory too early.
static void rounds() {
    constexpr int STREAMS = 3, ROUNDS = 20;
    std::vector<int> result(N);
    cudaStream_t streams[STREAMS];
    int *sums[STREAMS];
    for (int s = 0; s < STREAMS; s++) {
        OK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        OK(cudaMallocAsync(&sums[s], N * sizeof(int), streams[s]));
        OK(cudaMemsetAsync(sums[s], 0, N * sizeof(int), streams[s]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int s = 0; s < STREAMS; s++) {
            int *scratch;
            OK(cudaMallocAsync(&scratch, (N + round % 3) * sizeof(int), streams[s]));
            fill<<<(N + 255) / 256, 256, 0, streams[s]>>>(scratch, round * 100 + s, N);
            add<<<(N + 255) / 256, 256, 0, streams[s]>>>(sums[s], scratch, N);
            OK(cudaFreeAsync(scratch, streams[s]));
        }
    }
    for (int s = 0; s < STREAMS; s++) {
        OK(cudaMemcpyAsync(result.data(), sums[s], N * sizeof(int), cudaMemcpyDeviceToHost, streams[s]));
        OK(cudaFreeAsync(sums[s], streams[s]));
        OK(cudaStreamSynchronize(streams[s]));
        int start = 100 * ROUNDS * (ROUNDS - 1) / 2 + ROUNDS * s;
        for (int i = 0; i < N; i++) CHECK_QUIETLY(result[i] == start + ROUNDS * i, "stream %d, %d: %d", s, i, result[i]);
        OK(cudaStreamDestroy(streams[s]));
    }
    printf("rounds: %d streams, %d rounds\n", STREAMS, ROUNDS);
}

static unsigned long long count(cudaMemPool_t pool, cudaMemPoolAttr attribute) {
    unsigned long long value = 77;
    OK(cudaMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

// What a pool counts: bytes in use as asked for, memory reserved in larger pieces.
static void counts() {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool, named = nullptr;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemPoolCreate(&pool, &properties));
    unsigned long long keep = ~0ull;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    void *small, *large;
    OK(cudaMallocFromPoolAsync(&small, 1000, pool, stream));
    OK(cudaMallocFromPoolAsync(&large, 5 << 20, pool, stream));
    CHECK(count(pool, cudaMemPoolAttrUsedMemCurrent) == 1000 + (5 << 20), "%llu", count(pool, cudaMemPoolAttrUsedMemCurrent));
    CHECK(count(pool, cudaMemPoolAttrReservedMemCurrent) >= 1000 + (5 << 20), "less reserved than used");
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, large));
    CHECK(attributes.type == cudaMemoryTypeDevice, "type %d", int(attributes.type));
    OK(cudaFreeAsync(small, stream));
    OK(cudaFreeAsync(large, stream));
    EXPECT(cudaErrorInvalidValue, cudaFreeAsync(large, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(count(pool, cudaMemPoolAttrUsedMemCurrent) == 0, "memory in use");
    CHECK(count(pool, cudaMemPoolAttrReservedMemCurrent) > 0, "nothing kept");
    CHECK(count(pool, cudaMemPoolAttrUsedMemHigh) == 1000 + (5 << 20), "%llu", count(pool, cudaMemPoolAttrUsedMemHigh));
    OK(cudaMemPoolTrimTo(pool, 0));
    CHECK(count(pool, cudaMemPoolAttrReservedMemCurrent) == 0, "still reserved");
    unsigned long long one = 1, zero = 0;
    EXPECT(cudaErrorInvalidValue, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &zero));
    EXPECT(cudaErrorInvalidValue, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &one));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
    // A chosen pool serves the calls that name none, until it ends.
    cudaMemPool_t first;
    OK(cudaDeviceGetDefaultMemPool(&first, 0));
    OK(cudaDeviceSetMemPool(0, pool));
    OK(cudaDeviceGetMemPool(&named, 0));
    CHECK(named == pool, "another pool is current");
    OK(cudaMallocAsync(&small, 100, stream));
    CHECK(count(pool, cudaMemPoolAttrUsedMemCurrent) == 100, "the chosen pool was not used");
    OK(cudaMemPoolDestroy(pool));
    OK(cudaDeviceGetMemPool(&named, 0));
    CHECK(named == first, "the default pool is not current");
    OK(cudaFreeAsync(small, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(cudaErrorInvalidValue, cudaMemPoolDestroy(first));
    OK(cudaStreamDestroy(stream));
    printf("counts: as asked for\n");
}

// Ways to free: what was allocated in a stream with cudaFree, and the other way round.
static void ways() {
    int supported = 0, result = 0, *a, *b;
    OK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
    OK(cudaMallocAsync(&a, 400, 0));
    OK(cudaMalloc(&b, 400));
    fill<<<1, 100>>>(a, 5, 100);
    OK(cudaMemcpyAsync(b, a, 400, cudaMemcpyDeviceToDevice, 0));
    OK(cudaMemcpy(&result, b + 99, sizeof result, cudaMemcpyDeviceToHost));
    CHECK(result == 104, "%d", result);
    OK(cudaFree(a));
    OK(cudaFreeAsync(b, 0));
    void *nothing = &result;
    OK(cudaMallocAsync(&nothing, 0, 0));
    CHECK(nothing == nullptr, "nothing is somewhere");
    EXPECT(cudaErrorMemoryAllocation, cudaMallocAsync(&nothing, 1ull << 50, 0));
    cudaGetLastError();
    OK(cudaDeviceSynchronize());
    printf("ways: pools supported %d\n", supported);
}

int main() {
    rounds();
    counts();
    ways();
    return finish("stream_ordered");
}
