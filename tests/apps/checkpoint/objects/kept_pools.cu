// Stream-ordered memory over all steps, from the device's own pool and from one of the program's.
#include "steps.h"

#include <vector>

constexpr int N = 500;

__global__ void mix(unsigned *data, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) data[i] = data[i] * 1664525u + salt + i;
}

static cudaMemPool_t own_pool() {
    cudaMemPoolProps request = {};
    request.allocType = cudaMemAllocationTypePinned;
    request.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t pool;
    OK(cudaMemPoolCreate(&pool, &request));
    uint64_t threshold = 8 << 20;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    return pool;
}

static uint64_t threshold_of(cudaMemPool_t pool) {
    uint64_t threshold = 0;
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    return threshold;
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 16);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaMemPool_t pool = own_pool();
    std::vector<unsigned *> held;
    unsigned host[N];
    for (int step = 0; step < steps; step++) {
        unsigned *fresh;
        if (step % 2) OK(cudaMallocAsync(&fresh, sizeof host, stream));
        else OK(cudaMallocFromPoolAsync(&fresh, sizeof host, pool, stream));
        OK(cudaMemsetAsync(fresh, step, sizeof host, stream));
        held.push_back(fresh);
        if (held.size() > 5) {
            OK(cudaFreeAsync(held.front(), stream));
            held.erase(held.begin());
        }
        Checksum sum;
        for (unsigned *data : held) {
            mix<<<(N + 63) / 64, 64, 0, stream>>>(data, step);
            OK(cudaMemcpyAsync(host, data, sizeof host, cudaMemcpyDeviceToHost, stream));
            OK(cudaStreamSynchronize(stream));
            sum.add(host);
        }
        CHECK(threshold_of(pool) == 8 << 20, "step %d: %llu", step, static_cast<unsigned long long>(threshold_of(pool)));
        told(step, sum);
    }
    for (unsigned *data : held) OK(cudaFreeAsync(data, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemPoolDestroy(pool));
    OK(cudaStreamDestroy(stream));
    return finish("kept_pools");
}
