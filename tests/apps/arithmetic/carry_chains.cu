// Integers wider than a register: 256-bit sums and products through carry chains, 128-bit division, shifts across
// words. The host computes the same with its own 128-bit type.
#include "buffer.h"

constexpr int N = 128, LIMBS = 8;

// `out` = `a` + `b` over eight limbs; returns the carry.
__device__ unsigned add_chain(const unsigned *a, const unsigned *b, unsigned *out) {
    unsigned carry;
    asm("{\n\t"
        "add.cc.u32 %0, %9, %17;\n\taddc.cc.u32 %1, %10, %18;\n\taddc.cc.u32 %2, %11, %19;\n\taddc.cc.u32 %3, %12, %20;\n\t"
        "addc.cc.u32 %4, %13, %21;\n\taddc.cc.u32 %5, %14, %22;\n\taddc.cc.u32 %6, %15, %23;\n\taddc.cc.u32 %7, %16, %24;\n\t"
        "addc.u32 %8, 0, 0;\n\t}"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]), "=r"(out[4]), "=r"(out[5]), "=r"(out[6]), "=r"(out[7]), "=r"(carry)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(b[0]), "r"(b[1]), "r"(b[2]),
          "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));
    return carry;
}

// The difference of two 64-bit numbers a word at a time; the borrow comes out as all ones.
__device__ unsigned long long subtract_chain(unsigned long long a, unsigned long long b, unsigned *borrow) {
    unsigned low, high;
    asm("{\n\tsub.cc.u32 %0, %3, %5;\n\tsubc.cc.u32 %1, %4, %6;\n\tsubc.u32 %2, 0, 0;\n\t}"
        : "=r"(low), "=r"(high), "=r"(*borrow)
        : "r"(unsigned(a)), "r"(unsigned(a >> 32)), "r"(unsigned(b)), "r"(unsigned(b >> 32)));
    return (unsigned long long)high << 32 | low;
}

// A row of a schoolbook product: `sum` += `a` * `b`, low halves first, then high halves one limb up.
__device__ void multiply_row(const unsigned *a, unsigned b, unsigned *sum) {
    asm("{\n\t"
        "mad.lo.cc.u32 %0, %5, %9, %0;\n\tmadc.lo.cc.u32 %1, %6, %9, %1;\n\tmadc.lo.cc.u32 %2, %7, %9, %2;\n\t"
        "madc.lo.cc.u32 %3, %8, %9, %3;\n\taddc.u32 %4, %4, 0;\n\t"
        "mad.hi.cc.u32 %1, %5, %9, %1;\n\tmadc.hi.cc.u32 %2, %6, %9, %2;\n\tmadc.hi.cc.u32 %3, %7, %9, %3;\n\t"
        "madc.hi.u32 %4, %8, %9, %4;\n\t}"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3]), "+r"(sum[4])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

struct Result {
    unsigned sum[LIMBS + 1], product[LIMBS];
    unsigned long long difference, high, high_signed;
    unsigned borrow, shifted_left, shifted_right;
    unsigned __int128 quotient, remainder;
};

__global__ void wide(const unsigned *a, const unsigned *b, Result *results) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned *x = a + i * LIMBS, *y = b + i * LIMBS;
    Result &r = results[i];
    r.sum[LIMBS] = add_chain(x, y, r.sum);
    unsigned long long p = (unsigned long long)x[1] << 32 | x[0], q = (unsigned long long)y[1] << 32 | y[0];
    r.difference = subtract_chain(p, q, &r.borrow);
    r.high = __umul64hi(p, q), r.high_signed = (unsigned long long)__mul64hi((long long)p, (long long)q);
    unsigned product[LIMBS + 1] = {};
    for (int k = 0; k < 4; k++) multiply_row(x, y[k], product + k);
    for (int k = 0; k < LIMBS; k++) r.product[k] = product[k];
    r.shifted_left = __funnelshift_l(x[0], x[1], y[0]), r.shifted_right = __funnelshift_rc(x[0], x[1], y[0] % 64);
    unsigned __int128 dividend = (unsigned __int128)p << 64 | q, divisor = ((unsigned __int128)y[2] << 40 | y[3]) + 1;
    r.quotient = dividend / divisor, r.remainder = dividend % divisor;
}

// Checks one result against the host's own arithmetic.
static void check(int i, const unsigned *x, const unsigned *y, const Result &r) {
    typedef unsigned __int128 Wide;
    unsigned long long carry = 0;
    for (int k = 0; k < LIMBS; k++) {
        carry += (unsigned long long)x[k] + y[k];
        CHECK_QUIETLY(r.sum[k] == unsigned(carry), "sum %d, limb %d", i, k);
        carry >>= 32;
    }
    CHECK_QUIETLY(r.sum[LIMBS] == carry, "carry of sum %d", i);
    unsigned product[LIMBS] = {};
    for (int k = 0; k < 4; k++) {
        unsigned long long rest = 0;
        for (int m = 0; m < 4; m++) {
            rest += (unsigned long long)x[m] * y[k] + product[k + m];
            product[k + m] = unsigned(rest), rest >>= 32;
        }
        product[k + 4] = unsigned(rest);
    }
    for (int k = 0; k < LIMBS; k++) CHECK_QUIETLY(r.product[k] == product[k], "product %d, limb %d: %x, wanted %x", i, k, r.product[k], product[k]);
    unsigned long long p = (unsigned long long)x[1] << 32 | x[0], q = (unsigned long long)y[1] << 32 | y[0];
    CHECK_QUIETLY(r.difference == p - q && r.borrow == (p < q ? ~0u : 0u), "difference %d", i);
    CHECK_QUIETLY(r.high == (unsigned long long)(Wide(p) * q >> 64), "high half %d", i);
    CHECK_QUIETLY(r.high_signed == (unsigned long long)((__int128)(long long)p * (long long)q >> 64), "signed high half %d", i);
    unsigned left = y[0] % 32, right = y[0] % 64 > 32 ? 32 : y[0] % 64;
    CHECK_QUIETLY(r.shifted_left == unsigned(p << left >> 32), "left shift %d by %u", i, left);
    CHECK_QUIETLY(r.shifted_right == unsigned(p >> right), "right shift %d by %u", i, right);
    Wide dividend = Wide(p) << 64 | q, divisor = (Wide(y[2]) << 40 | y[3]) + 1;
    CHECK_QUIETLY(r.quotient == dividend / divisor && r.remainder == dividend % divisor, "quotient %d", i);
}

int main() {
    Numbers numbers(256);
    std::vector<unsigned> a(N * LIMBS), b(N * LIMBS);
    // A quarter of the limbs are all ones or zero, so that carries run far.
    for (unsigned &limb : a) limb = numbers.below(4) == 0 ? ~0u : numbers.next();
    for (unsigned &limb : b) limb = numbers.below(4) == 0 ? numbers.below(2) : numbers.next();
    Buffer<unsigned> device_a(a), device_b(b);
    Buffer<Result> device_results(N);
    wide<<<N / 64, 64>>>(device_a, device_b, device_results);
    RAN();
    std::vector<Result> results = device_results.read();
    for (int i = 0; i < N; i++) check(i, &a[i * LIMBS], &b[i * LIMBS], results[i]);
    printf("%d sums, products, differences and quotients of wide integers\n", N);
    return finish("carry_chains");
}
