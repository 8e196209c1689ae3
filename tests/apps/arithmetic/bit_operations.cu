// Bits within a word: counts, searches, reversals, fields, permuted bytes, masks, three-input logic.
// Every result is compared with a plain loop over bits on the host.
#include "buffer.h"

constexpr int N = 256, OUTS = 20;

__global__ void bits(const unsigned *a, const unsigned *b, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = a[i], y = b[i], r;
    unsigned long long w = (unsigned long long)x << 32 | y;
    unsigned *o = out + i * OUTS;
    o[0] = __popc(x), o[1] = __popcll(w), o[2] = __clz(x), o[3] = __clzll(w), o[4] = __ffs(x), o[5] = __ffsll(w);
    o[6] = __brev(x), o[7] = unsigned(__brevll(w)), o[8] = __byte_perm(x, y, y & 0x7777);
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(o[9]) : "r"(x), "r"(y & 31), "r"(y >> 5 & 31));
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(o[10]) : "r"(x), "r"(y & 31), "r"(y >> 5 & 31));
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(o[11]) : "r"(x), "r"(y), "r"(y >> 8 & 31), "r"(y >> 13 & 31));
    asm("bfind.u32 %0, %1;" : "=r"(o[12]) : "r"(x));
    asm("bfind.s32 %0, %1;" : "=r"(o[13]) : "r"(x));
    asm("bfind.shiftamt.u32 %0, %1;" : "=r"(o[14]) : "r"(x));
    asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(o[15]) : "r"(y & 63), "r"(y >> 6 & 63));
    asm("lop3.b32 %0, %1, %2, %3, 0xE8;" : "=r"(o[16]) : "r"(x), "r"(y), "r"(x * 2654435761u));
    asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(o[17]) : "r"(x), "r"(y), "r"(y & 3));
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(o[18]) : "r"(x), "r"(y), "r"(y & 0xffff));
    asm("szext.clamp.s32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y & 63));
    o[19] = r;
}

static unsigned highest(unsigned x) {
    for (int bit = 31; bit >= 0; bit--)
        if (x >> bit & 1) return bit;
    return ~0u;
}

static unsigned lowest(unsigned long long x) {
    for (int bit = 0; bit < 64; bit++)
        if (x >> bit & 1) return bit + 1;
    return 0;
}

static unsigned long long reversed(unsigned long long x, int width) {
    unsigned long long r = 0;
    for (int bit = 0; bit < width; bit++) r |= (x >> bit & 1) << (width - 1 - bit);
    return r;
}

static unsigned field(unsigned x, unsigned start, unsigned length, bool is_signed) {
    unsigned r = 0;
    for (unsigned bit = 0; bit < 32; bit++) {
        unsigned from = start + bit;
        if (bit < length && from < 32) r |= (x >> from & 1) << bit;
        // Bits above the field get the sign: the field's last existing bit.
        else if (is_signed && length > 0) r |= (x >> std::min(start + length - 1, 31u) & 1) << bit;
    }
    return r;
}

static unsigned inserted(unsigned x, unsigned into, unsigned start, unsigned length) {
    for (unsigned bit = 0; bit < length && start + bit < 32; bit++) {
        into &= ~(1u << (start + bit));
        into |= (x >> bit & 1) << (start + bit);
    }
    return into;
}

static unsigned permuted(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned r = 0;
    for (int byte = 0; byte < 4; byte++) {
        unsigned pick = selector >> (4 * byte) & 15;
        unsigned value = unsigned(both >> (8 * (pick & 7))) & 255;
        if (pick & 8) value = value & 128 ? 255 : 0;
        r |= value << (8 * byte);
    }
    return r;
}

static unsigned mask(unsigned start, unsigned length) {
    unsigned r = 0;
    for (unsigned bit = 0; bit < 32; bit++) r |= unsigned(bit >= start && bit < start + length) << bit;
    return r;
}

static void check(unsigned x, unsigned y, const unsigned *o) {
    unsigned long long w = (unsigned long long)x << 32 | y;
    unsigned z = x * 2654435761u, head = highest(x);
    unsigned of_sign = highest(int(x) < 0 ? ~x : x), width = y & 63;
    unsigned four = (y & 3) == 0 ? 0x3210 : (y & 3) == 1 ? 0x4321 : (y & 3) == 2 ? 0x5432 : 0x6543;
    unsigned extended = width == 0 ? 0 : width >= 32 ? x : unsigned(int(x << (32 - width)) >> (32 - width));
    const unsigned wanted[OUTS] = {
        unsigned(__builtin_popcount(x)), unsigned(__builtin_popcountll(w)), 31 - head, x ? 31 - head : 63 - highest(y),
        lowest(x), lowest(w), unsigned(reversed(x, 32)), unsigned(reversed(w, 64)), permuted(x, y, y & 0x7777),
        field(x, y & 31, y >> 5 & 31, false), field(x, y & 31, y >> 5 & 31, true), inserted(x, y, y >> 8 & 31, y >> 13 & 31),
        head, of_sign, x ? 31 - head : ~0u, mask(y & 63, y >> 6 & 63), (x & y) | (x & z) | (y & z),
        permuted(x, y, four), permuted(x, y, y & 0xffff), extended};
    for (int k = 0; k < OUTS; k++) CHECK_QUIETLY(o[k] == wanted[k], "result %d of %08x, %08x: %08x, wanted %08x", k, x, y, o[k], wanted[k]);
}

int main() {
    Numbers numbers(32);
    std::vector<unsigned> a(N), b(N);
    for (int i = 0; i < N; i++) a[i] = i < 33 ? (i == 32 ? 0 : 1u << i) : numbers.next() >> numbers.below(28), b[i] = numbers.next();
    for (int i = 40; i < 60; i++) a[i] = ~a[i];
    Buffer<unsigned> device_a(a), device_b(b), out(N * OUTS);
    bits<<<N / 64, 64>>>(device_a, device_b, out);
    RAN();
    std::vector<unsigned> o = out.read();
    for (int i = 0; i < N; i++) check(a[i], b[i], &o[i * OUTS]);
    printf("%d bit operations on %d words\n", OUTS, N);
    return finish("bit_operations");
}
