// Matrix products by whole warps: half and bfloat16 into single precision, bytes into integers, and double
// precision. The numbers are small integers, so every sum is exact in any order.
#include "buffer.h"

#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda;

constexpr int N = 32;

// A warp computes one tile of the product; A is stored by rows, B by columns.
template <class In, class Out, int M, int NN, int K> __global__ void multiply(const In *a, const In *b, Out *c) {
    wmma::fragment<wmma::matrix_a, M, NN, K, In, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, M, NN, K, In, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, M, NN, K, Out> sum;
    int row = blockIdx.y * M, column = blockIdx.x * NN;
    wmma::fill_fragment(sum, Out(1));
    for (int k = 0; k < N; k += K) {
        wmma::load_matrix_sync(left, a + row * N + k, N);
        wmma::load_matrix_sync(right, b + column * N + k, N);
        wmma::mma_sync(sum, left, right, sum);
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] += Out(2);
    wmma::store_matrix_sync(c + row * N + column, sum, N, wmma::mem_row_major);
}

template <class In, class Out, int M, int NN, int K> static void check(const char *name, Numbers &numbers) {
    std::vector<In> a(N * N), b(N * N);
    std::vector<int> x(N * N), y(N * N);
    for (int i = 0; i < N * N; i++) {
        x[i] = int(numbers.below(9)), y[i] = int(numbers.below(9));
        if (In(-1) < In(0)) x[i] -= 4, y[i] -= 4;
        a[i] = In(x[i]), b[i] = In(y[i]);
    }
    Buffer<In> device_a(a), device_b(b);
    Buffer<Out> device_c(N * N);
    multiply<In, Out, M, NN, K><<<dim3(N / NN, N / M), 32>>>(device_a, device_b, device_c);
    RAN();
    std::vector<Out> c = device_c.read();
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            int wanted = 3;
            for (int m = 0; m < N; m++) wanted += x[i * N + m] * y[k * N + m];
            CHECK_QUIETLY(double(c[i * N + k]) == wanted, "%s, row %d, column %d: %g, wanted %d", name, i, k, double(c[i * N + k]), wanted);
        }
}

int main() {
    Numbers numbers(16);
    check<__half, float, 16, 16, 16>("half", numbers);
    check<__half, float, 32, 8, 16>("tall half", numbers);
    check<__nv_bfloat16, float, 8, 32, 16>("wide bfloat16", numbers);
    check<unsigned char, int, 16, 16, 16>("unsigned bytes", numbers);
    check<signed char, int, 32, 8, 16>("signed bytes", numbers);
    check<double, double, 8, 8, 4>("double", numbers);
    printf("6 shapes of matrices multiplied by warps\n");
    return finish("tensor_cores");
}
