// Several small numbers in one word: the SIMD intrinsics on bytes and halfwords, dot products of bytes, sums of differences.
#include "buffer.h"

constexpr int N = 256, OUTS = 16;

__global__ void packed(const unsigned *a, const unsigned *b, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = a[i], y = b[i], *o = out + i * OUTS;
    o[0] = __vadd4(x, y), o[1] = __vsub4(x, y), o[2] = __vaddus4(x, y), o[3] = __vsubss4(x, y);
    o[4] = __vabsdiffu4(x, y), o[5] = __vabsdiffs4(x, y), o[6] = __vmaxs2(x, y), o[7] = __vminu2(x, y);
    o[8] = __vavgu4(x, y), o[9] = __vcmpgtu4(x, y), o[10] = __vsadu4(x, y), o[11] = __vsads2(x, y);
    o[12] = __dp4a(x, y, 7u), o[13] = unsigned(__dp4a(int(x), int(y), -7)), o[14] = __dp2a_lo(x, y, 1u);
    o[15] = __sad(int(x), int(y), 5u);
}

static int clamped(int value, int low, int high) { return value < low ? low : value > high ? high : value; }

// One byte or halfword of the result of operation `k`.
static unsigned lane(int k, unsigned x, unsigned y, int width) {
    unsigned all = (1u << width) - 1;
    int sx = int(x << (32 - width)) >> (32 - width), sy = int(y << (32 - width)) >> (32 - width);
    switch (k) {
    case 0: return (x + y) & all;
    case 1: return (x - y) & all;
    case 2: return std::min(x + y, all);
    case 3: return unsigned(clamped(sx - sy, -128, 127)) & all;
    case 4: return x > y ? x - y : y - x;
    case 5: return unsigned(std::abs(sx - sy)) & all;
    case 6: return unsigned(std::max(sx, sy)) & all;
    case 7: return std::min(x, y);
    case 8: return (x + y + 1) / 2;
    default: return x > y ? all : 0;
    }
}

static unsigned wanted(int k, unsigned x, unsigned y) {
    int width = k == 6 || k == 7 || k == 11 ? 16 : 8;
    unsigned r = 0, sum = 0;
    int signed_sum = 0;
    for (int at = 0; at < 32; at += width) {
        unsigned p = x >> at & ((1u << width) - 1), q = y >> at & ((1u << width) - 1);
        if (k < 10) r |= lane(k, p, q, width) << at;
        int sp = width == 8 ? int8_t(p) : int16_t(p), sq = width == 8 ? int8_t(q) : int16_t(q);
        sum += k == 12 ? p * q : unsigned(std::abs(k == 11 ? sp - sq : int(p) - int(q)));
        signed_sum += sp * sq;
    }
    if (k == 12) return sum + 7;
    if (k == 13) return unsigned(signed_sum - 7);
    if (k == 14) return (x & 0xffff) * (y & 255) + (x >> 16) * (y >> 8 & 255) + 1;
    if (k == 15) return unsigned(std::llabs((long long)int(x) - int(y))) + 5;
    return k < 10 ? r : sum;
}

int main() {
    Numbers numbers(48);
    std::vector<unsigned> a(N), b(N);
    for (int i = 0; i < N; i++) a[i] = numbers.next(), b[i] = i % 8 == 0 ? 0x80ff7f00u : numbers.next();
    Buffer<unsigned> device_a(a), device_b(b), out(N * OUTS);
    packed<<<N / 64, 64>>>(device_a, device_b, out);
    RAN();
    std::vector<unsigned> o = out.read();
    for (int i = 0; i < N * OUTS; i++) {
        unsigned w = wanted(i % OUTS, a[i / OUTS], b[i / OUTS]);
        CHECK_QUIETLY(o[i] == w, "operation %d of %08x, %08x: %08x, wanted %08x", i % OUTS, a[i / OUTS], b[i / OUTS], o[i], w);
    }
    printf("%d operations on packed numbers\n", OUTS);
    return finish("packed_bytes");
}
