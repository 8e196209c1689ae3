// Constant and global variables of a module: their initial values, copies to and from them by name, their addresses.
#include "check.h"

#include <cstring>

struct Settings {
    int factor;
    double offset;
    char name[6];
};

__constant__ int table[64];
__constant__ Settings settings = {3, 0.5, "first"};
__device__ int counter = 40;
__device__ int squares[8] = {0, 1, 4, 9, 16, 25, 36, 49};
__device__ int *into_squares = &squares[5];
__device__ unsigned char untouched[1000];
static __device__ long long hidden = -5000000000ll;

__global__ void use(int *out) {
    int i = threadIdx.x;
    if (i < 64) out[i] = table[63 - i] * settings.factor + int(settings.offset * 4);
    if (i == 64) out[i] = atomicAdd(&counter, 2);
    if (i == 65) out[i] = *into_squares;
    if (i == 66) out[i] = int(hidden / 1000000000ll);
    if (i == 67) out[i] = settings.name[2];
    if (i == 68) {
        out[i] = 0;
        for (unsigned char byte : untouched) out[i] += byte;
    }
}

static void run(int *device_out, int *out) {
    use<<<1, 96>>>(device_out);
    OK(cudaGetLastError());
    OK(cudaMemcpy(out, device_out, 69 * sizeof(int), cudaMemcpyDeviceToHost));
}

int main() {
    int out[69], first[64], *device_out;
    OK(cudaMalloc(&device_out, sizeof out));
    for (int i = 0; i < 64; i++) first[i] = i * i;
    OK(cudaMemcpyToSymbol(table, first, sizeof first));
    run(device_out, out);
    for (int i = 0; i < 64; i++) CHECK(out[i] == (63 - i) * (63 - i) * 3 + 2, "constant %d: %d", i, out[i]);
    CHECK(out[64] == 40 && out[65] == 25 && out[66] == -5, "first values: %d, %d, %d", out[64], out[65], out[66]);
    CHECK(out[67] == 'r' && out[68] == 0, "first values: %d, %d", out[67], out[68]);

    // Part of an array, a whole struct, and one element through a stream.
    int two[2] = {1000, 2000};
    Settings changed = {-1, 0, "other"};
    OK(cudaMemcpyToSymbol(table, two, sizeof two, 10 * sizeof(int)));
    OK(cudaMemcpyToSymbol(settings, &changed, sizeof changed));
    int six = 6;
    OK(cudaMemcpyToSymbolAsync(squares, &six, sizeof six, 5 * sizeof(int), cudaMemcpyHostToDevice, nullptr));
    run(device_out, out);
    CHECK(out[53] == -1000 && out[52] == -2000 && out[51] == -144, "%d, %d, %d", out[53], out[52], out[51]);
    CHECK(out[64] == 42 && out[65] == 6 && out[67] == 'h', "%d, %d, %d", out[64], out[65], out[67]);

    int count = 0, back[8];
    OK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    CHECK(count == 44, "the counter is %d", count);
    OK(cudaMemcpyFromSymbol(back, squares, sizeof back));
    CHECK(back[4] == 16 && back[5] == 6 && back[7] == 49, "%d, %d, %d", back[4], back[5], back[7]);

    // The address of a variable is a device pointer like any other.
    void *address = nullptr, *inside = nullptr;
    size_t size = 0;
    OK(cudaGetSymbolAddress(&address, squares));
    OK(cudaGetSymbolSize(&size, squares));
    CHECK(size == sizeof squares, "%zu bytes", size);
    OK(cudaMemcpyFromSymbol(&inside, into_squares, sizeof inside));
    CHECK(inside == static_cast<int *>(address) + 5, "the pointer variable points elsewhere");
    int nine = 9;
    OK(cudaMemcpy(inside, &nine, sizeof nine, cudaMemcpyHostToDevice));
    run(device_out, out);
    CHECK(out[65] == 9, "through the address: %d", out[65]);
    OK(cudaGetSymbolSize(&size, settings));
    CHECK(size == sizeof(Settings), "%zu bytes", size);

    int plain = 0;
    EXPECT(cudaErrorInvalidSymbol, cudaGetSymbolAddress(&address, &plain));
    EXPECT(cudaErrorInvalidValue, cudaMemcpyToSymbol(counter, first, 2 * sizeof(int)));
    OK(cudaFree(device_out));
    printf("constants, variables, offsets, addresses\n");
    return finish("symbols");
}
