// Single precision with the compiler's defaults: the functions are within the bounds of CUDA's manual, compared with
// the host's double precision. A second build has -use_fast_math, with wider bounds and denormals flushed to zero.
#include "buffer.h"

#include <cmath>

#ifdef FAST
constexpr bool FAST_MATH = true;
#define NAME "float_math_fast"
#else
constexpr bool FAST_MATH = false;
#define NAME "float_math"
#endif

constexpr int N = 1024, FUNCTIONS = 20;

__global__ void functions(const float *a, const float *b, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = a[i], y = b[i], p = fabsf(y) + 0.125f;
    float *o = out + i * FUNCTIONS;
    o[0] = sinf(x), o[1] = cosf(x), o[2] = expf(x), o[3] = logf(p), o[4] = log2f(p), o[5] = exp2f(x), o[6] = powf(p, x);
    o[7] = x / p, o[8] = sqrtf(p), o[9] = 1.0f / p, o[10] = rsqrtf(p), o[11] = tanhf(x);
    o[12] = atanf(x), o[13] = asinf(y / 8), o[14] = erff(x), o[15] = cbrtf(x), o[16] = lgammaf(p), o[17] = fmodf(x, p);
    o[18] = log1pf(p), o[19] = sinhf(y);
}

static void on_host(double x, double y, float yf, double *o) {
    double p = double(std::fabs(yf) + 0.125f);
    const double values[FUNCTIONS] = {std::sin(x), std::cos(x), std::exp(x), std::log(p), std::log2(p), std::exp2(x), std::pow(p, x),
                                      x / p, std::sqrt(p), 1 / p, 1 / std::sqrt(p), std::tanh(x), std::atan(x), std::asin(y / 8),
                                      std::erf(x), std::cbrt(x), std::lgamma(p), std::fmod(x, p), std::log1p(p), std::sinh(y)};
    for (int k = 0; k < FUNCTIONS; k++) o[k] = values[k];
}

// How far a result may be off: units in the last place of the result, and an absolute part for functions whose error
// is bounded that way (the fast ones, and lgamma near its zeros). The fast hyperbolic tangent has eleven good bits.
static double allowed(int function, double wanted) {
    const double manual[FUNCTIONS] = {2, 2, 2, 1, 1, 2, 4, 0.5, 0.5, 0.5, 2, 2, 2, 2, 2, 1, 6, 0, 1, 3};
    const double fast_ulps[FUNCTIONS] = {0, 0, 8, 3, 2, 4, 60, 2, 3, 1, 3, 9000, 8, 8, 8, 8, 40, 0, 8, 12};
    const double fast_absolute[FUNCTIONS] = {6e-7, 6e-7, 0, 4e-7, 3e-7, 0, 0, 0, 0, 0, 0, 0, 1e-6, 1e-6, 1e-6, 0, 0, 0, 1e-6, 2e-6};
    int exponent;
    std::frexp(wanted, &exponent);
    double ulp = std::ldexp(1.0, std::max(exponent, -125) - 24);
    double units = FAST_MATH ? fast_ulps[function] : manual[function];
    // A remainder under fast division may be a whole divisor off; lgamma crosses zero at 1 and 2.
    double absolute = FAST_MATH ? fast_absolute[function] : 0;
    if (function == 16) absolute = 2e-6;
    return (units + 0.01) * ulp + absolute;
}

__global__ void denormal(const float *in, float *out) { out[0] = in[0] * 0.5f, out[1] = in[0] + in[1]; }

int main() {
    Numbers numbers(77);
    std::vector<float> a(N), b(N);
    for (int i = 0; i < N; i++) a[i] = numbers.unit() * 3, b[i] = numbers.unit() * 4;
    Buffer<float> device_a(a), device_b(b), out(N * FUNCTIONS);
    functions<<<N / 128, 128>>>(device_a, device_b, out);
    RAN();
    std::vector<float> o = out.read();
    for (int i = 0; i < N; i++) {
        double wanted[FUNCTIONS];
        on_host(a[i], b[i], b[i], wanted);
        for (int k = 0; k < FUNCTIONS; k++) {
            if (FAST_MATH && k == 17) continue;
            double off = std::fabs(o[i * FUNCTIONS + k] - wanted[k]);
            CHECK_QUIETLY(off <= allowed(k, wanted[k]), "function %d of %a, %a: %a, wanted %a", k, a[i], b[i], o[i * FUNCTIONS + k], wanted[k]);
        }
    }
    Buffer<float> tiny(std::vector<float>{2e-39f, 1e-39f}), results(2);
    denormal<<<1, 1>>>(tiny, results);
    RAN();
    std::vector<float> r = results.read();
    CHECK(FAST_MATH ? r[0] == 0 && r[1] == 0 : r[0] == 1e-39f && r[1] == 3e-39f, "denormals: %a, %a", r[0], r[1]);
    printf("%d functions of %d numbers\n", FAST_MATH ? FUNCTIONS - 1 : FUNCTIONS, N);
    return finish(NAME);
}
