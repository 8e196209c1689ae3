// Adds two vectors in three element types; the length is no multiple of the block, so the last block is partly idle.
#include "check.h"

#include <vector>

template <typename T>
__global__ void add(const T *a, const T *b, T *sum, size_t n) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) sum[i] = a[i] + b[i];
}

// Every value is exact in its type, so the sums must be equal, not merely close.
template <typename T>
void add_vectors(const char *type, size_t n, T scale) {
    Numbers numbers(7);
    std::vector<T> a(n), b(n), sum(n);
    for (size_t i = 0; i < n; i++) {
        a[i] = T(numbers.below(1 << 20)) * scale;
        b[i] = T(numbers.below(1 << 20)) * scale;
    }
    T *da, *db, *dsum;
    size_t bytes = n * sizeof(T);
    OK(cudaMalloc(&da, bytes));
    OK(cudaMalloc(&db, bytes));
    OK(cudaMalloc(&dsum, bytes));
    OK(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
    add<<<unsigned((n + 255) / 256), 256>>>(da, db, dsum, n);
    OK(cudaGetLastError());
    OK(cudaMemcpy(sum.data(), dsum, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) CHECK_QUIETLY(sum[i] == a[i] + b[i], "%s element %zu", type, i);
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dsum));
    printf("%s: %zu sums\n", type, n);
}

int main() {
    add_vectors<float>("float", 100003, 0.5f);
    add_vectors<double>("double", 50001, 0.25);
    add_vectors<long long>("long long", 30007, 4000000007ll);
    return finish("vector_add");
}
