// A list whose nodes point at each other inside device memory, and functions called through pointers on the device.
#include "check.h"

#include <vector>

struct Node {
    long long value;
    Node *next;
};

using Operation = int (*)(int, int);

__device__ int plus(int a, int b) { return a + b; }
__device__ int times(int a, int b) { return a * b; }
__device__ __noinline__ int power(int base, int exponent) { return exponent == 0 ? 1 : base * power(base, exponent - 1); }
__device__ Operation operations[3] = {plus, times, power};

// Links node i to the one 37 further on, round the end: 37 and n have no common divisor, so the ring holds every node.
__global__ void link(Node *nodes, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    nodes[i].value = i * 10ll;
    nodes[i].next = &nodes[(i + 37) % n];
}

__global__ void walk(const Node *first, int n, long long *sum, const Node **end) {
    const Node *node = first;
    for (int step = 0; step < n; step++) {
        *sum += node->value * (step % 3);
        node = node->next;
    }
    *end = node;
}

// Puts a node that the host allocated separately behind `at`.
__global__ void insert(Node *at, Node *fresh, long long value) {
    fresh->value = value;
    fresh->next = at->next;
    at->next = fresh;
}

__global__ void choose(const Operation *extra, const int *which, int *out) {
    int i = threadIdx.x;
    Operation operation = which[i] < 3 ? operations[which[i]] : *extra;
    out[i] = operation(i % 7 + 1, 3);
}

__device__ Operation kept;
__global__ void keep() { kept = [](int a, int b) { return a * 100 + b; }; }

static void check_list() {
    const int n = 1000;
    Node *nodes, *fresh;
    long long *device_sum, sum = -1;
    const Node **device_end, *end = nullptr;
    OK(cudaMalloc(&nodes, n * sizeof(Node)));
    OK(cudaMalloc(&fresh, sizeof(Node)));
    OK(cudaMalloc(&device_sum, sizeof sum));
    OK(cudaMalloc(&device_end, sizeof end));
    OK(cudaMemset(device_sum, 0, sizeof sum));
    link<<<(n + 127) / 128, 128>>>(nodes, n);
    insert<<<1, 1>>>(nodes + 5, fresh, 123456);
    walk<<<1, 1>>>(nodes, n + 1, device_sum, device_end);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&sum, device_sum, sizeof sum, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&end, device_end, sizeof end, cudaMemcpyDeviceToHost));
    CHECK(end == nodes, "the walk did not come back to its start");
    // The host follows the very same addresses in its copy.
    std::vector<Node> copy(n);
    Node extra;
    OK(cudaMemcpy(copy.data(), nodes, n * sizeof(Node), cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&extra, fresh, sizeof(Node), cudaMemcpyDeviceToHost));
    long long wanted = 0;
    const Node *at = nodes;
    for (int step = 0; step <= n; step++) {
        const Node &node = at == fresh ? extra : copy[at - nodes];
        wanted += node.value * (step % 3);
        at = node.next;
    }
    CHECK(at == nodes && sum == wanted, "%lld, wanted %lld", sum, wanted);
    OK(cudaFree(nodes));
    OK(cudaFree(fresh));
    OK(cudaFree(device_sum));
    OK(cudaFree(device_end));
    printf("%d nodes linked, walked, and followed by the host\n", n + 1);
}

static void check_functions() {
    int which[64], out[64], *device_which, *device_out;
    void *address;
    for (int i = 0; i < 64; i++) which[i] = i / 3 % 4;
    OK(cudaMalloc(&device_which, sizeof which));
    OK(cudaMalloc(&device_out, sizeof out));
    OK(cudaMemcpy(device_which, which, sizeof which, cudaMemcpyHostToDevice));
    OK(cudaGetSymbolAddress(&address, kept));
    keep<<<1, 1>>>();
    choose<<<1, 64>>>(static_cast<Operation *>(address), device_which, device_out);
    OK(cudaGetLastError());
    OK(cudaMemcpy(out, device_out, sizeof out, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) {
        int a = i % 7 + 1;
        int wanted[4] = {a + 3, a * 3, a * a * a, a * 100 + 3};
        CHECK(out[i] == wanted[which[i]], "lane %d: %d, wanted %d", i, out[i], wanted[which[i]]);
    }
    OK(cudaFree(device_which));
    OK(cudaFree(device_out));
    printf("4 functions called through pointers, one of them recursive\n");
}

int main() {
    check_list();
    check_functions();
    return finish("linked_list");
}
