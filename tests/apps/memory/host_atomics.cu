// Host and device change the same words of managed memory: at once where the device's attributes allow it, otherwise in turns.
//
//   host_atomics [registered]
//
// `registered`: memory of cudaHostRegister instead, which the device alone changes.
#include "check.h"

static const int ROUNDS = 2000, THREADS = 256, BLOCKS = 4, WORDS = 4;

__global__ void add(int *words, int rounds) {
    for (int i = 0; i < rounds; i++) {
        atomicAdd_system(words, 1);
        atomicMax_system(words + 1, i * 4 + int(threadIdx.x % 4));
        atomicXor_system(words + 2, 1 << (threadIdx.x % 31));
        int seen = words[3];
        for (int before; (before = atomicCAS_system(words + 3, seen, seen + 2)) != seen; seen = before) {}
    }
}

static void add_on_host(int *words) {
    for (int i = 0; i < ROUNDS * 8; i++) {
        __sync_fetch_and_add(words, 1);
        __sync_fetch_and_xor(words + 2, 1 << (i % 31));
        __sync_fetch_and_add(words + 3, 2);
    }
}

static int change_registered() {
    static int words[WORDS];
    OK(cudaHostRegister(words, sizeof words, cudaHostRegisterDefault));
    add<<<BLOCKS, THREADS>>>(words, 2);
    OK(cudaDeviceSynchronize());
    CHECK(words[0] == BLOCKS * THREADS * 2, "the sum is %d", words[0]);
    OK(cudaHostUnregister(words));
    return finish("host_atomics");
}

int main(int argc, char **) {
    if (argc > 1) return change_registered();
    int concurrent = 0, native = 0, *words;
    OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    OK(cudaDeviceGetAttribute(&native, cudaDevAttrHostNativeAtomicSupported, 0));
    OK(cudaMallocManaged(&words, WORDS * sizeof(int)));
    for (int i = 0; i < WORDS; i++) words[i] = 0;
    add<<<BLOCKS, THREADS>>>(words, ROUNDS / 100);
    OK(cudaGetLastError());
    if (!concurrent) OK(cudaDeviceSynchronize());
    add_on_host(words);
    OK(cudaDeviceSynchronize());
    int by_device = BLOCKS * THREADS * (ROUNDS / 100), by_host = ROUNDS * 8;
    unsigned expected = 0;
    for (int i = 0; i < by_host; i++) expected ^= 1u << (i % 31);
    CHECK(words[0] == by_device + by_host, "the sum is %d", words[0]);
    CHECK(words[1] == (ROUNDS / 100 - 1) * 4 + 3, "the largest is %d", words[1]);
    CHECK(unsigned(words[2]) == expected, "the bits are %x", unsigned(words[2]));
    CHECK(words[3] == 2 * (by_device + by_host), "the sum of exchanges is %d", words[3]);
    // Host memory that the device reaches supports atomic operations of both only if the attribute says so.
    if (native) {
        int *pinned;
        OK(cudaMallocHost(&pinned, WORDS * sizeof(int)));
        for (int i = 0; i < WORDS; i++) pinned[i] = 0;
        add<<<BLOCKS, THREADS>>>(pinned, ROUNDS / 100);
        add_on_host(pinned);
        OK(cudaDeviceSynchronize());
        CHECK(pinned[0] == by_device + by_host, "the sum in pinned memory is %d", pinned[0]);
        OK(cudaFreeHost(pinned));
    }
    OK(cudaFree(words));
    printf("no update is lost\n");
    return finish("host_atomics");
}
