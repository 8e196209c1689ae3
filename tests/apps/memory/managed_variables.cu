// Variables in managed memory: the program and kernels use them under one name, with initial values, arrays, structures, pointers, in two streams.
#include <cstring>

#include "check.h"

struct Pair {
    int key;
    double value;
};

__managed__ int counter = 41;
__managed__ Pair pairs[300] = {{1, 0.5}, {2, 1.5}};
__managed__ char text[20000] = "from the image";
__managed__ int *chain = nullptr;
__managed__ unsigned long long total;
__device__ int plain = 5;

__global__ void count() { atomicAdd_system(&counter, 1); }

__global__ void scale(int size) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < size) pairs[at] = {at, pairs[at].value * 2 + at};
}

__global__ void shout() {
    for (int at = threadIdx.x; at < int(sizeof text); at += blockDim.x)
        if (text[at] >= 'a' && text[at] <= 'z') text[at] -= 32;
}

__global__ void follow(int size) {
    for (int at = threadIdx.x; at < size; at += blockDim.x) atomicAdd(&total, (unsigned long long)chain[at] * plain);
}

static void values() {
    CHECK(counter == 41, "%d", counter);
    CHECK(pairs[1].key == 2 && pairs[1].value == 1.5 && pairs[2].key == 0, "%d", pairs[1].key);
    count<<<2, 32>>>();
    OK(cudaDeviceSynchronize());
    CHECK(counter == 41 + 64, "%d", counter);
    for (int round = 0; round < 5; round++) {
        counter = round * 1000;
        count<<<1, 10>>>();
        OK(cudaDeviceSynchronize());
        CHECK(counter == round * 1000 + 10, "%d", counter);
    }
    printf("a number\n");
}

static void structures() {
    for (int i = 0; i < 300; i++) pairs[i].value = i;
    scale<<<3, 128>>>(300);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 300; i++) CHECK_QUIETLY(pairs[i].key == i && pairs[i].value == 3 * i, "%d: %f", i, pairs[i].value);
    strcpy(text + 19000, "far away");
    shout<<<1, 256>>>();
    OK(cudaDeviceSynchronize());
    CHECK(!strcmp(text, "FROM THE IMAGE") && !strcmp(text + 19000, "FAR AWAY"), "%s, %s", text, text + 19000);
    printf("structures and text: %s\n", text);
}

// A managed pointer to managed memory.
static void pointers() {
    int *block;
    OK(cudaMallocManaged(&block, 1000 * 4));
    for (int i = 0; i < 1000; i++) block[i] = i;
    chain = block;
    total = 0;
    follow<<<1, 128>>>(1000);
    OK(cudaDeviceSynchronize());
    CHECK(total == 5ull * 499500, "%llu", total);
    OK(cudaFree(block));
    printf("pointers\n");
}

static void by_symbol() {
    int value = 7, *address = nullptr;
    size_t size = 0;
    OK(cudaGetSymbolAddress(reinterpret_cast<void **>(&address), counter));
    OK(cudaGetSymbolSize(&size, counter));
    CHECK(address == &counter && size == 4, "%zu bytes", size);
    OK(cudaMemcpyToSymbol(counter, &value, 4));
    CHECK(counter == 7, "%d", counter);
    count<<<1, 1>>>();
    OK(cudaMemcpyFromSymbol(&value, counter, 4));
    CHECK(value == 8, "%d", value);
    int *device;
    OK(cudaMalloc(&device, 4));
    OK(cudaMemcpy(device, &counter, 4, cudaMemcpyDefault));
    OK(cudaMemset(&counter, 0, 4));
    OK(cudaDeviceSynchronize());
    CHECK(counter == 0, "%d", counter);
    OK(cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost));
    CHECK(value == 8, "%d", value);
    cudaPointerAttributes known;
    OK(cudaPointerGetAttributes(&known, &counter));
    CHECK(known.type == cudaMemoryTypeManaged && known.devicePointer == &counter, "type %d", known.type);
    OK(cudaFree(device));
    printf("by symbol\n");
}

static void streams() {
    cudaStream_t one, two;
    cudaEvent_t done;
    OK(cudaStreamCreate(&one));
    OK(cudaStreamCreate(&two));
    OK(cudaEventCreate(&done));
    counter = 0;
    for (int i = 0; i < 10; i++) {
        count<<<1, 32, 0, one>>>();
        count<<<1, 32, 0, two>>>();
    }
    OK(cudaEventRecord(done, one));
    OK(cudaEventSynchronize(done));
    OK(cudaStreamSynchronize(two));
    CHECK(counter == 640, "%d", counter);
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
    OK(cudaEventDestroy(done));
    printf("streams\n");
}

int main() {
    values();
    structures();
    pointers();
    by_symbol();
    streams();
    return finish("managed_variables");
}
