// Managed memory: a list that the host builds and kernels change, advice, prefetching, and pointer attributes.
#include "check.h"

#include <cstring>

struct Node {
    int value;
    Node *next;
};

// Follows pointers that no parameter shows.
__global__ void double_all(Node *first) {
    for (Node *node = first; node; node = node->next) node->value *= 2;
}

__global__ void count_up(int *numbers, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) numbers[i] += i;
}

static void list() {
    constexpr int LENGTH = 50;
    Node *first = nullptr;
    for (int i = LENGTH; i > 0; i--) {
        Node *node;
        OK(cudaMallocManaged(&node, sizeof(Node)));
        *node = {i, first};
        first = node;
    }
    double_all<<<1, 1>>>(first);
    OK(cudaDeviceSynchronize());
    int sum = 0, length = 0;
    while (first) {
        Node *next = first->next;
        sum += first->value;
        length++;
        OK(cudaFree(first));
        first = next;
    }
    CHECK(sum == LENGTH * (LENGTH + 1), "%d", sum);
    printf("list: %d nodes, sum %d\n", length, sum);
}

// The host and the GPU change the same numbers in turns.
static void turns() {
    constexpr int N = 30011, ROUNDS = 4;
    int *numbers, *copy;
    OK(cudaMallocManaged(&numbers, N * sizeof(int)));
    OK(cudaMalloc(&copy, N * sizeof(int)));
    memset(numbers, 0, N * sizeof(int));
    for (int round = 0; round < ROUNDS; round++) {
        count_up<<<(N + 255) / 256, 256>>>(numbers, N);
        OK(cudaDeviceSynchronize());
        for (int i = 0; i < N; i++) numbers[i] += 1;
    }
    for (int i = 0; i < N; i++) CHECK_QUIETLY(numbers[i] == ROUNDS * (i + 1), "%d: %d", i, numbers[i]);
    OK(cudaMemcpy(copy, numbers, N * sizeof(int), cudaMemcpyDefault));
    OK(cudaMemset(numbers, 0xff, N * sizeof(int)));
    OK(cudaDeviceSynchronize());
    CHECK(numbers[N - 1] == -1, "%d", numbers[N - 1]);
    OK(cudaMemcpy(numbers, copy, N * sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(numbers[N - 1] == ROUNDS * N, "%d", numbers[N - 1]);
    OK(cudaFree(copy));
    OK(cudaFree(numbers));
    printf("turns: %d numbers, %d rounds\n", N, ROUNDS);
}

static int range(const void *start, size_t size, cudaMemRangeAttribute attribute) {
    int value = -77;
    OK(cudaMemRangeGetAttribute(&value, sizeof value, attribute, start, size));
    return value;
}

static void advice() {
    constexpr size_t SIZE = 1 << 20;
    cudaMemLocation device = {}, host = {};
    device.type = cudaMemLocationTypeDevice;
    host.type = cudaMemLocationTypeHost;
    int concurrent = 0;
    char *bytes;
    OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    OK(cudaMallocManaged(&bytes, SIZE));
    OK(cudaMemAdvise(bytes, SIZE, cudaMemAdviseSetReadMostly, device));
    CHECK(range(bytes, SIZE, cudaMemRangeAttributeReadMostly) == 1, "not mostly read");
    OK(cudaMemAdvise(bytes, SIZE, cudaMemAdviseUnsetReadMostly, device));
    CHECK(range(bytes, SIZE, cudaMemRangeAttributeReadMostly) == 0, "mostly read");
    OK(cudaMemAdvise(bytes, SIZE, cudaMemAdviseSetPreferredLocation, device));
    CHECK(range(bytes, SIZE, cudaMemRangeAttributePreferredLocation) == 0, "not on the device");
    OK(cudaMemPrefetchAsync(bytes, SIZE, device, 0, 0));
    OK(cudaDeviceSynchronize());
    CHECK(range(bytes, SIZE, cudaMemRangeAttributeLastPrefetchLocation) == 0, "not prefetched to the device");
    OK(cudaMemPrefetchAsync(bytes, SIZE, host, 0, 0));
    OK(cudaDeviceSynchronize());
    CHECK(range(bytes, SIZE, cudaMemRangeAttributeLastPrefetchLocation) == cudaCpuDeviceId, "not prefetched to the host");
    EXPECT(cudaErrorInvalidValue, cudaMemPrefetchAsync(bytes, 2 * SIZE + 4096, device, 0, 0));
    cudaGetLastError();
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, bytes + 5));
    CHECK(attributes.type == cudaMemoryTypeManaged, "type %d", int(attributes.type));
    CHECK(attributes.devicePointer == bytes + 5 && attributes.hostPointer == bytes + 5, "two addresses");
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamAttachMemAsync(stream, bytes, 0, cudaMemAttachSingle));
    OK(cudaStreamAttachMemAsync(stream, bytes, 0, cudaMemAttachGlobal));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    void *none;
    EXPECT(cudaErrorInvalidValue, cudaMallocManaged(&none, 100, 7));
    EXPECT(cudaErrorMemoryAllocation, cudaMallocManaged(&none, 1ull << 50));
    cudaGetLastError();
    OK(cudaFree(bytes));
    CHECK(concurrent == 0 || concurrent == 1, "%d", concurrent);
    printf("advice: kept and told back\n");
}

int main() {
    list();
    turns();
    advice();
    return finish("managed_memory");
}
