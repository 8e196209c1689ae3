// Dense numerics: a Cholesky factorisation and triangular solves in double precision, a fast Fourier transform through
// shared memory, and a Jacobi iteration that ends by a reduction on the device.
#include "buffer.h"

#include <cmath>
#include <complex>
#include <cstring>

constexpr int N = 48;

// One block; column by column, the threads share the rows below.
__global__ void cholesky(double *a) {
    for (int k = 0; k < N; k++) {
        if (threadIdx.x == 0) a[k * N + k] = sqrt(a[k * N + k]);
        __syncthreads();
        for (int row = k + 1 + int(threadIdx.x); row < N; row += int(blockDim.x)) a[row * N + k] /= a[k * N + k];
        __syncthreads();
        for (int row = k + 1 + int(threadIdx.x); row < N; row += int(blockDim.x))
            for (int column = k + 1; column <= row; column++) a[row * N + column] -= a[row * N + k] * a[column * N + k];
        __syncthreads();
    }
}

__global__ void solve(const double *l, double *x) {
    for (int k = 0; k < N; k++) {
        if (threadIdx.x == 0) x[k] /= l[k * N + k];
        __syncthreads();
        for (int row = k + 1 + int(threadIdx.x); row < N; row += int(blockDim.x)) x[row] -= l[row * N + k] * x[k];
        __syncthreads();
    }
    for (int k = N - 1; k >= 0; k--) {
        if (threadIdx.x == 0) x[k] /= l[k * N + k];
        __syncthreads();
        for (int row = int(threadIdx.x); row < k; row += int(blockDim.x)) x[row] -= l[k * N + row] * x[k];
        __syncthreads();
    }
}

static void factor_and_solve() {
    Numbers numbers(5);
    std::vector<double> half(N * N), a(N * N), b(N);
    for (double &x : half) x = numbers.unit();
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            for (int m = 0; m < N; m++) a[i * N + k] += half[i * N + m] * half[k * N + m];
            a[i * N + k] += i == k ? N : 0;
        }
    for (double &x : b) x = numbers.unit();
    Buffer<double> device_a(a), device_x(b);
    cholesky<<<1, 64>>>(device_a);
    solve<<<1, 64>>>(device_a, device_x);
    RAN();
    std::vector<double> x = device_x.read();
    for (int i = 0; i < N; i++) {
        double sum = -b[i];
        for (int k = 0; k < N; k++) sum += a[i * N + k] * x[k];
        CHECK_QUIETLY(std::fabs(sum) < 1e-13, "row %d is %g off", i, sum);
    }
}

constexpr int POINTS = 256;

// Decimation in time; one butterfly per thread and stage.
__global__ void transform(const float2 *in, float2 *out) {
    __shared__ float2 points[POINTS];
    for (int i = int(threadIdx.x); i < POINTS; i += int(blockDim.x)) points[__brev(unsigned(i)) >> 24] = in[i];
    __syncthreads();
    for (int half = 1; half < POINTS; half *= 2) {
        int k = int(threadIdx.x) % half, at = (int(threadIdx.x) - k) * 2 + k;
        float s, c;
        sincospif(-float(k) / float(half), &s, &c);
        float2 a = points[at], b = points[at + half], t = make_float2(b.x * c - b.y * s, b.x * s + b.y * c);
        __syncthreads();
        points[at] = make_float2(a.x + t.x, a.y + t.y), points[at + half] = make_float2(a.x - t.x, a.y - t.y);
        __syncthreads();
    }
    for (int i = int(threadIdx.x); i < POINTS; i += int(blockDim.x)) out[i] = points[i];
}

static void check_transform() {
    Numbers numbers(6);
    std::vector<float2> in(POINTS);
    for (float2 &x : in) x = make_float2(numbers.unit(), numbers.unit());
    Buffer<float2> device_in(in), out(POINTS);
    transform<<<1, POINTS / 2>>>(device_in, out);
    RAN();
    std::vector<float2> o = out.read();
    for (int k = 0; k < POINTS; k++) {
        std::complex<double> sum = 0;
        for (int i = 0; i < POINTS; i++) sum += std::complex<double>(in[i].x, in[i].y) * std::polar(1.0, -2 * M_PI * (i * k % POINTS) / POINTS);
        CHECK_QUIETLY(std::abs(sum - std::complex<double>(o[k].x, o[k].y)) < 1e-4, "frequency %d: %g, %g", k, o[k].x, o[k].y);
    }
}

__global__ void jacobi(const float *from, float *to, int side, unsigned *change) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= side - 1 || y >= side - 1) return;
    float value = 0.25f * (from[y * side + x - 1] + from[y * side + x + 1] + from[(y - 1) * side + x] + from[(y + 1) * side + x]);
    to[y * side + x] = value;
    // Nonnegative floats are ordered like their bits.
    atomicMax(change, __float_as_uint(fabsf(value - from[y * side + x])));
}

static void iterate() {
    const int side = 24;
    std::vector<float> start(side * side);
    for (int i = 0; i < side; i++) start[i] = 1, start[i * side] = 1;
    Buffer<float> a(start), b(start);
    Buffer<unsigned> change(1);
    float *from = a, *to = b, most = 1;
    for (int round = 0; round < 2000 && most > 1e-5f; round++, std::swap(from, to)) {
        OK(cudaMemset(change, 0, sizeof(unsigned)));
        jacobi<<<dim3(3, 3), dim3(8, 8)>>>(from, to, side, change);
        RAN();
        unsigned bits = change.read()[0];
        memcpy(&most, &bits, sizeof most);
    }
    CHECK(most <= 1e-5f, "still changes by %g", most);
    // The solution is symmetric, and 1/2 on the diagonal between a hot and a cold side.
    std::vector<float> o = a.read();
    for (int i = 1; i < side - 1; i++) {
        CHECK_QUIETLY(std::fabs(o[i * side + side - 1 - i] - 0.5f) < 2e-3f, "diagonal %d: %g", i, o[i * side + side - 1 - i]);
        CHECK_QUIETLY(std::fabs(o[i * side + 3] - o[3 * side + i]) < 2e-3f, "symmetry %d", i);
    }
}

int main() {
    factor_and_solve();
    check_transform();
    iterate();
    printf("%d equations, %d frequencies, and a plate at rest\n", N, POINTS);
    return finish("dense_solvers");
}
