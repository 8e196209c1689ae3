// Memory that kernels allocate: lists that live from one kernel to the next, objects with constructors, a full heap
// that becomes usable again, and its limit.
#include "check.h"

struct Node {
    Node *next;
    int value;
    __device__ Node(Node *next, int value) : next(next), value(value) {}
};

// Each thread makes a list of the numbers below its index modulo 9.
__global__ void build(Node **lists) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    Node *list = nullptr;
    for (int value = 0; value < at % 9; value++) list = new Node(list, value);
    lists[at] = list;
}

__global__ void sum(Node **lists, int *sums) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    int total = 0;
    for (Node *node = lists[at]; node != nullptr; node = node->next) total += node->value;
    sums[at] = total;
}

__global__ void drop(Node **lists) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    while (lists[at] != nullptr) {
        Node *next = lists[at]->next;
        delete lists[at];
        lists[at] = next;
    }
}

// Allocates pieces until none is left, frees all, and allocates one again; a piece is writable to its end.
__global__ void fill(int size, int *result) {
    const int most = 256;
    __shared__ char *pieces[most];
    int count = 0;
    while (count < most) {
        char *piece = (char *)malloc(size);
        if (piece == nullptr) break;
        piece[0] = piece[size - 1] = 1;
        pieces[count++] = piece;
    }
    result[0] = count < most;
    result[1] = count > 0;
    for (int at = 0; at < count; at++) free(pieces[at]);
    char *again = (char *)malloc(size);
    result[2] = again != nullptr && size_t(again) % 16 == 0;
    free(again);
    free(nullptr);
}

int main() {
    const int blocks = 4, threads = 64, count = blocks * threads;
    OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20));
    size_t limit = 0;
    OK(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
    CHECK(limit >= 16 << 20, "%zu", limit);

    Node **lists;
    int *sums, host[count];
    OK(cudaMalloc(&lists, count * sizeof(Node *)));
    OK(cudaMalloc(&sums, sizeof host));
    for (int round = 0; round < 3; round++) {
        build<<<blocks, threads>>>(lists);
        sum<<<blocks, threads>>>(lists, sums);
        drop<<<blocks, threads>>>(lists);
        OK(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
        int total = 0, expected = 0;
        for (int at = 0; at < count; at++) total += host[at], expected += at % 9 * (at % 9 - 1) / 2;
        CHECK(total == expected, "round %d: %d, not %d", round, total, expected);
    }

    fill<<<1, 1>>>(1 << 20, sums);
    OK(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
    printf("full %d, some fitted %d, usable again %d\n", host[0], host[1], host[2]);
    OK(cudaFree(sums));
    OK(cudaFree(lists));
    return finish("device_malloc");
}
