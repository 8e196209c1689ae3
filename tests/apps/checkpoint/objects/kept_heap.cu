// Memory that kernels allocate and keep over all steps: a tree that grows and is pruned on the device.
#include "steps.h"

struct Leaf {
    Leaf *left = nullptr, *right = nullptr;
    unsigned key, weight;
    __device__ Leaf(unsigned key, unsigned weight) : key(key), weight(weight) {}
};

__device__ Leaf *root;

__global__ void grow(unsigned seed, int count) {
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        Leaf **at = &root;
        while (*at && (*at)->key != seed >> 8) at = seed >> 8 < (*at)->key ? &(*at)->left : &(*at)->right;
        if (*at) (*at)->weight++;
        else *at = new Leaf(seed >> 8, i);
    }
}

// Removes the smallest keys.
__global__ void prune(int count) {
    for (int i = 0; i < count && root; i++) {
        Leaf **at = &root;
        while ((*at)->left) at = &(*at)->left;
        Leaf *gone = *at;
        *at = gone->right;
        delete gone;
    }
}

__device__ unsigned sum_of(const Leaf *leaf) {
    if (!leaf) return 7;
    return sum_of(leaf->left) * 31 + leaf->key + leaf->weight * 3 + sum_of(leaf->right) * 17;
}

__global__ void sum(unsigned *out) { *out = sum_of(root); }

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 16);
    // The sum recurses to the depth of the tree: some 30 levels of small frames.
    OK(cudaDeviceSetLimit(cudaLimitStackSize, 8192));
    OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20));
    unsigned *out, host;
    OK(cudaMalloc(&out, sizeof host));
    for (int step = 0; step < steps; step++) {
        grow<<<1, 1>>>(step * 12345 + 1, 20);
        if (step % 3 == 2) prune<<<1, 1>>>(15);
        sum<<<1, 1>>>(out);
        OK(cudaGetLastError());
        OK(cudaMemcpy(&host, out, sizeof host, cudaMemcpyDeviceToHost));
        Checksum line;
        line.add(host);
        told(step, line);
    }
    prune<<<1, 1>>>(1 << 20);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(out));
    return finish("kept_heap");
}
