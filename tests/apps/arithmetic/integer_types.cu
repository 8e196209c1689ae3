// Integers of 8 to 64 bits: division and remainder (also by nonzero constants), mixed signedness, saturation, high halves,
// averages, shifts beyond the width, and the signs of narrow loads and stores.
#include "buffer.h"

#include <limits>

constexpr int N = 512;

template <class T> __global__ void divide(const T *a, const T *b, T *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    T divisor = b[i] == 0 ? T(1) : b[i];
    out[4 * i] = T(a[i] / divisor), out[4 * i + 1] = T(a[i] % divisor);
    out[4 * i + 2] = T(a[i] / T(7) + a[i] % T(10)), out[4 * i + 3] = T(a[i] * b[i] - (a[i] >> 3));
}

template <class T> static void check_division(const char *name, Numbers &numbers) {
    std::vector<T> a(N), b(N);
    for (int i = 0; i < N; i++) {
        unsigned long long wide = (unsigned long long)numbers.next() << 32 | numbers.next();
        a[i] = T(wide), b[i] = T(i % 3 ? numbers.next() % 100 : wide >> 13);
    }
    a[0] = std::numeric_limits<T>::max(), a[1] = std::numeric_limits<T>::min(), b[1] = T(2), b[2] = std::numeric_limits<T>::max();
    Buffer<T> device_a(a), device_b(b), out(4 * N);
    divide<<<N / 128, 128>>>(device_a.data, device_b.data, out.data);
    RAN();
    std::vector<T> o = out.read();
    for (int i = 0; i < N; i++) {
        T divisor = b[i] == 0 ? T(1) : b[i];
        // Computed as unsigned, since the device's product wraps.
        unsigned long long last = (unsigned long long)a[i] * (unsigned long long)b[i] - (unsigned long long)(a[i] >> 3);
        const T wanted[4] = {T(a[i] / divisor), T(a[i] % divisor), T(a[i] / T(7) + a[i] % T(10)), T(last)};
        for (int k = 0; k < 4; k++) CHECK_QUIETLY(o[4 * i + k] == wanted[k], "%s, result %d of %lld, %lld: %lld", name, k, (long long)a[i], (long long)b[i], (long long)o[4 * i + k]);
    }
}

constexpr int OUTS = 12;

__global__ void mixed(const int *a, const unsigned *b, long long *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = a[i];
    unsigned y = b[i];
    long long *o = out + i * OUTS;
    o[0] = __mulhi(x, int(y)), o[1] = __umulhi(unsigned(x), y), o[2] = __mul24(x, int(y)), o[3] = __umul24(unsigned(x), y);
    o[4] = __hadd(x, int(y)), o[5] = __urhadd(unsigned(x), y), o[6] = (signed char)x, o[7] = (unsigned short)x;
    o[8] = (long long)x * y, o[9] = x < int(y) ? -1 : unsigned(x) < y;
    // A shift by more than the width gives 0, or the sign, on the device.
    unsigned amount = y % 40;
    asm("shl.b32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(amount));
    o[10] = y;
    asm("shr.s32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(amount));
    o[11] = int(y);
}

static void check_mixed(Numbers &numbers) {
    std::vector<int> a(N);
    std::vector<unsigned> b(N);
    for (int i = 0; i < N; i++) a[i] = int(numbers.next()), b[i] = numbers.next();
    Buffer<int> device_a(a);
    Buffer<unsigned> device_b(b);
    Buffer<long long> out(N * OUTS);
    mixed<<<N / 128, 128>>>(device_a, device_b, out);
    RAN();
    std::vector<long long> o = out.read();
    for (int i = 0; i < N; i++) {
        long long x = a[i], y = int(b[i]), ux = unsigned(a[i]), uy = b[i], amount = b[i] % 40;
        long long low_x = a[i] << 8 >> 8, low_y = int(b[i] << 8) >> 8;
        const long long wanted[OUTS] = {x * y >> 32, (long long)((unsigned long long)ux * (unsigned long long)uy >> 32), int(low_x * low_y),
                                        unsigned((ux & 0xffffff) * (uy & 0xffffff)), (x + y) >> 1, (ux + uy + 1) >> 1, (signed char)x,
                                        (unsigned short)x, x * uy, x < y ? -1 : ux < uy, amount > 31 ? 0 : unsigned(ux << amount),
                                        x >> (amount > 31 ? 31 : amount)};
        for (int k = 0; k < OUTS; k++) CHECK_QUIETLY(o[i * OUTS + k] == wanted[k], "mixed %d of %lld, %lld: %lld, wanted %lld", k, x, uy, o[i * OUTS + k], wanted[k]);
    }
}

int main() {
    Numbers numbers(88);
    check_division<signed char>("signed char", numbers);
    check_division<unsigned char>("unsigned char", numbers);
    check_division<short>("short", numbers);
    check_division<unsigned short>("unsigned short", numbers);
    check_division<int>("int", numbers);
    check_division<unsigned>("unsigned", numbers);
    check_division<long long>("long long", numbers);
    check_division<unsigned long long>("unsigned long long", numbers);
    check_mixed(numbers);
    printf("8 types of integers divided, %d mixed operations\n", OUTS);
    return finish("integer_types");
}
