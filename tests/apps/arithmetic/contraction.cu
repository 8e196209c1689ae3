// Products and sums that the compiler leaves separate. The driver's compiler fuses them, so they are rounded once; those
// with explicit rounding stay separate.
#include "check.h"

#include <cmath>
#include <cuda_fp16.h>

constexpr int FORMS = 6;

template <typename T>
__global__ void forms(const T *values, T *out) {
    T a = values[0], b = values[1], c = values[2];
    out[0] = c - a * b;
    out[1] = a * b - c;
    out[2] = c - floor(a) * b;
    out[3] = a * b + c;
}

__global__ void rounded(const float *values, float *out) {
    out[4] = values[2] - __fmul_rn(values[0], values[1]);
    out[5] = __fsub_rn(values[2], values[0] * values[1]);
}

__global__ void rounded(const double *values, double *out) {
    out[4] = values[2] - __dmul_rn(values[0], values[1]);
    out[5] = __dsub_rn(values[2], values[0] * values[1]);
}

// c - a * b and a * b + c of 16 bits, alone and in pairs.
__global__ void halves(const __half *values, __half *out) {
    __half a = values[0], b = values[1], c = values[2];
    out[0] = __hsub(c, __hmul(a, b));
    out[1] = __hadd(__hmul(a, b), c);
    out[2] = __hsub(c, __hmul_rn(a, b));
    __half2 pair = __hsub2(__half2half2(c), __hmul2(__half2half2(a), __half2half2(b)));
    out[3] = __low2half(pair);
    out[4] = __high2half(pair);
}

template <typename T>
void check(T a, T b, T c) {
    T values[3] = {a, b, c}, found[FORMS], *in, *out;
    OK(cudaMalloc(&in, sizeof values));
    OK(cudaMalloc(&out, sizeof found));
    OK(cudaMemcpy(in, values, sizeof values, cudaMemcpyHostToDevice));
    forms<<<1, 1>>>(in, out);
    rounded<<<1, 1>>>(in, out);
    OK(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
    volatile T product = a * b;
    T apart = c - product;
    T wanted[FORMS] = {std::fma(-a, b, c), std::fma(a, b, -c), std::fma(-std::floor(a), b, c), std::fma(a, b, c), apart, apart};
    for (int form = 0; form < FORMS; form++)
        CHECK(found[form] == wanted[form], "form %d of %d bytes: %a, wanted %a", form, int(sizeof(T)), double(found[form]),
              double(wanted[form]));
    OK(cudaFree(in));
    OK(cudaFree(out));
}

void check_halves(float a, float b, float c) {
    __half values[3] = {__float2half(a), __float2half(b), __float2half(c)}, found[5], *in, *out;
    OK(cudaMalloc(&in, sizeof values));
    OK(cudaMalloc(&out, sizeof found));
    OK(cudaMemcpy(in, values, sizeof values, cudaMemcpyHostToDevice));
    halves<<<1, 1>>>(in, out);
    OK(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
    float exact = a * b;  // of 11 bits each, so that nothing is lost
    __half less = __float2half(c - exact), apart = __float2half(c - __half2float(__float2half(exact)));
    __half wanted[5] = {less, __float2half(exact + c), apart, less, less};
    for (int form = 0; form < 5; form++)
        CHECK(__half2float(found[form]) == __half2float(wanted[form]), "form %d: %a, wanted %a", form,
              double(__half2float(found[form])), double(__half2float(wanted[form])));
    OK(cudaFree(in));
    OK(cudaFree(out));
}

int main() {
    check<double>(213.0, 1.2, 255.6);
    check<double>(1.0 + 0x1p-30, 1.0 - 0x1p-30, 1.0);
    check<float>(213.0f, 1.2f, 255.6f);
    check<float>(1.0f + 0x1p-12f, 1.0f + 0x1p-12f, 1.0f + 0x1p-11f);
    check_halves(1.0f + 0x1p-10f, 1.0f + 0x1p-10f, 1.0f + 0x1p-9f);
    return finish("contraction");
}
