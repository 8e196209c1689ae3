// Kernel parameters of every size and alignment, by value: small ones, structs, kilobytes, and a hundred of them.
#include "check.h"

#include <cstring>

struct Odd {
    char letters[3];
};
struct alignas(16) Wide {
    double pair[2];
    short tail;
};
struct Big {
    int values[900];
};
struct Huge {
    unsigned char bytes[20000];
};

__global__ void mixed(int *out, char a, short b, Odd c, long long d, bool e, Wide f, float g, unsigned char h, double i) {
    out[0] = a + b;
    out[1] = c.letters[0] + c.letters[2];
    out[2] = int(d >> 32);
    out[3] = e;
    out[4] = int(f.pair[0] + f.pair[1]) + f.tail;
    out[5] = int(g * 2);
    out[6] = h;
    out[7] = int(i);
}

__global__ void kilobytes(int *out, const Big big, int last) {
    int sum = 0;
    for (int i = threadIdx.x; i < 900; i += 32) sum += big.values[i];
    atomicAdd(out, sum);
    if (threadIdx.x == 0) atomicAdd(out, last);
}

__global__ void tens_of_kilobytes(int *out, const __grid_constant__ Huge huge) {
    int sum = 0;
    for (int i = threadIdx.x; i < 20000; i += 32) sum += huge.bytes[i];
    atomicAdd(out, sum);
}

#define TEN(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7) X(n##8) X(n##9)
#define HUNDRED(X) TEN(X, 1) TEN(X, 2) TEN(X, 3) TEN(X, 4) TEN(X, 5) TEN(X, 6) TEN(X, 7) TEN(X, 8) TEN(X, 9)
#define DECLARE(n) , int p##n
#define ADD(n) +p##n
#define PASS(n) , n

__global__ void ninety(int *out HUNDRED(DECLARE)) { *out = 0 HUNDRED(ADD); }

static int *device;

static void fetch(int *out, int count) {
    OK(cudaGetLastError());
    OK(cudaMemcpy(out, device, count * sizeof(int), cudaMemcpyDeviceToHost));
    OK(cudaMemset(device, 0, count * sizeof(int)));
}

int main() {
    int out[8];
    OK(cudaMalloc(&device, sizeof out));
    Wide wide = {{100.5, 200.5}, 7};
    mixed<<<1, 1>>>(device, 'a', -1000, Odd{{1, 2, 3}}, 77ll << 32, true, wide, 1.5f, 255, 1e6);
    fetch(out, 8);
    const int wanted[8] = {'a' - 1000, 4, 77, 1, 308, 3, 255, 1000000};
    for (int i = 0; i < 8; i++) CHECK(out[i] == wanted[i], "parameter group %d: %d, wanted %d", i, out[i], wanted[i]);

    Big big;
    int sum = 12345;
    for (int i = 0; i < 900; i++) sum += big.values[i] = i * i;
    kilobytes<<<1, 32>>>(device, big, 12345);
    memset(&big, 0, sizeof big);
    fetch(out, 1);
    CHECK(out[0] == sum, "kilobytes: %d, wanted %d", out[0], sum);

    static Huge huge;
    sum = 0;
    for (int i = 0; i < 20000; i++) sum += huge.bytes[i] = (unsigned char)(i * 3);
    tens_of_kilobytes<<<1, 32>>>(device, huge);
    memset(&huge, 0, sizeof huge);
    fetch(out, 1);
    CHECK(out[0] == sum, "tens of kilobytes: %d, wanted %d", out[0], sum);

    ninety<<<1, 1>>>(device HUNDRED(PASS));
    fetch(out, 1);
    CHECK(out[0] == (10 + 99) * 90 / 2, "ninety parameters: %d", out[0]);
    OK(cudaFree(device));
    printf("9 of mixed sizes, 3.6 KB, 20 KB, 90 of them\n");
    return finish("parameters");
}
