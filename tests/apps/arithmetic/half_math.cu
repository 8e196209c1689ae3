// Half precision and bfloat16, single and in pairs: arithmetic, comparisons, conversions in every rounding mode.
// The host computes each result in double precision and rounds once, which is what IEEE 754 asks for.
#include "buffer.h"

#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int N = 256, OUTS = 16;

__global__ void halves(const float *a, const float *b, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __half x = __float2half_rn(a[i]), y = __float2half_rn(b[i]);
    float *o = out + i * OUTS;
    o[0] = __half2float(__hadd(x, y)), o[1] = __half2float(__hsub(x, y)), o[2] = __half2float(__hmul(x, y));
    o[3] = __half2float(__hfma(x, y, x)), o[4] = __half2float(__hdiv(x, y)), o[5] = __half2float(hsqrt(__habs(x)));
    o[6] = __half2float(__hmax(x, y)), o[7] = __half2float(__hmin(x, y)), o[8] = __half2float(__hneg(x));
    o[9] = float(__hlt(x, y)), o[10] = float(__half2int_rn(x)), o[11] = __half2float(hrint(y));
    __half2 p = __halves2half2(x, y), q = __hadd2(p, __lowhigh2highlow(p)), r = __hfma2(p, p, q);
    o[12] = __low2float(q), o[13] = __high2float(r);
    o[14] = __half2float(__hadd_sat(x, y)), o[15] = __half2float(__hfma_relu(x, y, y));
}

__global__ void brains(const float *a, const float *b, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __nv_bfloat16 x = __float2bfloat16(a[i]), y = __float2bfloat16(b[i]);
    float *o = out + i * OUTS;
    o[0] = __bfloat162float(__hadd(x, y)), o[1] = __bfloat162float(__hsub(x, y)), o[2] = __bfloat162float(__hmul(x, y));
    o[3] = __bfloat162float(__hfma(x, y, x)), o[4] = __bfloat162float(__hdiv(x, y));
    o[5] = __bfloat162float(hsqrt(__habs(x))), o[6] = __bfloat162float(__hmax(x, y));
    o[7] = __bfloat162float(__hmin(x, y)), o[8] = __bfloat162float(__hneg(x)), o[9] = float(__hlt(x, y));
    o[10] = float(__bfloat162int_rn(x)), o[11] = __bfloat162float(hrint(y));
    __nv_bfloat162 p = __halves2bfloat162(x, y), q = __hadd2(p, __lowhigh2highlow(p)), r = __hfma2(p, p, q);
    o[12] = __low2float(q), o[13] = __high2float(r);
    o[14] = __bfloat162float(__hadd_sat(x, y)), o[15] = __bfloat162float(__hfma_relu(x, y, y));
}

// `value` rounded to the nearest number of `bits` of precision and of exponents from `lowest` up; ties to even.
static double rounded(double value, int bits, int lowest) {
    if (value == 0 || !std::isfinite(value)) return value;
    int exponent;
    std::frexp(value, &exponent);
    exponent = std::max(exponent, lowest) - bits;
    return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

static double clamp01(double value) { return std::fmin(std::fmax(value, 0), 1); }

static void check(const char *what, const std::vector<float> &a, const std::vector<float> &b, const std::vector<float> &out, int bits, int lowest) {
    auto fit = [&](double value) { return rounded(value, bits, lowest); };
    for (int i = 0; i < N; i++) {
        double x = fit(a[i]), y = fit(b[i]), q = fit(x + y);
        const double wanted[OUTS] = {q, fit(x - y), fit(x * y), fit(std::fma(x, y, x)), fit(x / y), fit(std::sqrt(std::fabs(x))),
                                     std::fmax(x, y), std::fmin(x, y), -x, double(x < y), std::nearbyint(x), std::nearbyint(y),
                                     q, fit(std::fma(y, y, q)), clamp01(q), std::fmax(fit(std::fma(x, y, y)), 0)};
        for (int k = 0; k < OUTS; k++) {
            double got = out[i * OUTS + k];
            CHECK_QUIETLY(got == wanted[k], "%s, result %d of %a and %a: %a, wanted %a", what, k, x, y, got, wanted[k]);
        }
    }
}

constexpr int ROUNDINGS = 5;

__global__ void conversions(const float *a, unsigned short *out) {
    int i = threadIdx.x;
    unsigned short *o = out + i * ROUNDINGS;
    o[0] = __half_as_ushort(__float2half_rn(a[i])), o[1] = __half_as_ushort(__float2half_rz(a[i]));
    o[2] = __half_as_ushort(__float2half_ru(a[i])), o[3] = __half_as_ushort(__float2half_rd(a[i]));
    o[4] = __bfloat16_as_ushort(__float2bfloat16_rz(a[i]));
}

static void check_conversions() {
    std::vector<float> in = {1.00048828125f, -1.00048828125f, 65520.0f, 1e-8f, -1e-8f, 0.333333343f, 70000.0f, -INFINITY};
    // Nearest even, toward zero, up, down; then bfloat16 toward zero.
    const unsigned short wanted[8][ROUNDINGS] = {
        {0x3c00, 0x3c00, 0x3c01, 0x3c00, 0x3f80}, {0xbc00, 0xbc00, 0xbc00, 0xbc01, 0xbf80}, {0x7c00, 0x7bff, 0x7c00, 0x7bff, 0x477f},
        {0x0000, 0x0000, 0x0001, 0x0000, 0x322b}, {0x8000, 0x8000, 0x8000, 0x8001, 0xb22b}, {0x3555, 0x3555, 0x3556, 0x3555, 0x3eaa},
        {0x7c00, 0x7bff, 0x7c00, 0x7bff, 0x4788}, {0xfc00, 0xfc00, 0xfc00, 0xfc00, 0xff80}};
    Buffer<float> device_in(in);
    Buffer<unsigned short> device_out(in.size() * ROUNDINGS);
    conversions<<<1, unsigned(in.size())>>>(device_in, device_out);
    RAN();
    std::vector<unsigned short> out = device_out.read();
    for (size_t i = 0; i < in.size(); i++)
        for (int k = 0; k < ROUNDINGS; k++)
            CHECK(out[i * ROUNDINGS + k] == wanted[i][k], "%a, mode %d: %04x, wanted %04x", in[i], k, out[i * ROUNDINGS + k], wanted[i][k]);
}

int main() {
    Numbers numbers(16);
    std::vector<float> a(N), b(N);
    for (int i = 0; i < N; i++) a[i] = numbers.unit() * 16, b[i] = numbers.unit() * 2 + (i % 2 ? 2.5f : -2.5f);
    Buffer<float> device_a(a), device_b(b), out(N * OUTS);
    halves<<<N / 64, 64>>>(device_a, device_b, out);
    RAN();
    check("half", a, b, out.read(), 11, -13);
    brains<<<N / 64, 64>>>(device_a, device_b, out);
    RAN();
    check("bfloat16", a, b, out.read(), 8, -125);
    check_conversions();
    printf("%d results of %d pairs in two formats, and %d conversions, are rounded as they must be\n", OUTS, N, 8 * ROUNDINGS);
    return finish("half_math");
}
