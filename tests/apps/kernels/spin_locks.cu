// Threads that wait for each other: a spin lock taken by every lane of a warp, a ticket lock, a flag between blocks with
// release and acquire, and the last block finishing a sum. They end only if diverged lanes and waiting blocks make progress.
#include "buffer.h"

__device__ unsigned lock_word, next_ticket, now_serving, guarded, served, arrived;
__device__ int message;
__device__ volatile int flag;

// Every lane of every warp takes the same lock, in the form that needs independent progress of lanes.
__global__ void spin() {
    while (atomicCAS(&lock_word, 0, 1) != 0) {}
    __threadfence();
    guarded = guarded + 1;
    __threadfence();
    atomicExch(&lock_word, 0);
}

__global__ void tickets(unsigned *order) {
    unsigned mine = atomicAdd(&next_ticket, 1);
    while (atomicAdd(&now_serving, 0) != mine) __nanosleep(20);
    order[mine] = served;
    served = served + 1;
    __threadfence();
    atomicAdd(&now_serving, 1);
}

// Block 1 waits for what block 0 says; both are resident together on any device.
__global__ void pass_message(int *out) {
    if (blockIdx.x == 0) {
        message = 4711;
        __threadfence();
        flag = 1;
    } else {
        while (flag == 0) {}
        __threadfence();
        *out = message;
    }
}

// As above with the instructions of the memory model instead of a volatile and fences.
__global__ void release_acquire(int *flags, int *data, int *out) {
    int seen = 0;
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) {
            *data = 815;
            asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(flags) : "memory");
        } else {
            while (seen == 0) asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flags) : "memory");
            *out = *data;
        }
    }
}

// Sums blocks apart; the block that comes last adds the partial sums.
__global__ void last_block(const int *numbers, int *partial, int *total) {
    __shared__ int sum;
    __shared__ bool last;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, numbers[blockIdx.x * blockDim.x + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int all = 0;
        for (unsigned block = 0; block < gridDim.x; block++) all += __ldcg(partial + block);
        *total = all;
    }
}

int main() {
    unsigned count = 0;
    spin<<<4, 64>>>();
    RAN();
    OK(cudaMemcpyFromSymbol(&count, guarded, sizeof count));
    CHECK(count == 256, "%u passed the lock", count);
    Buffer<unsigned> order(96);
    tickets<<<3, 32>>>(order);
    RAN();
    std::vector<unsigned> o = order.read();
    for (unsigned i = 0; i < o.size(); i++) CHECK(o[i] == i, "ticket %u was served as %u", i, o[i]);
    Buffer<int> words(4);
    pass_message<<<2, 1>>>(words);
    RAN();
    CHECK(words.read()[0] == 4711, "the message was %d", words.read()[0]);
    release_acquire<<<2, 32>>>(words + 1, words + 2, words + 3);
    RAN();
    CHECK(words.read()[3] == 815, "acquired %d", words.read()[3]);
    Numbers source(3);
    std::vector<int> numbers(16 * 64);
    int wanted = 0;
    for (int &number : numbers) wanted += number = int(source.below(100));
    Buffer<int> device_numbers(numbers), partial(16), total(1);
    // Twice: the counter wraps back to 0.
    for (int round = 0; round < 2; round++) last_block<<<16, 64>>>(device_numbers, partial, total);
    RAN();
    CHECK(total.read()[0] == wanted, "%d, wanted %d", total.read()[0], wanted);
    printf("%u threads passed a lock, %zu were served in order, messages arrived, %d is the sum\n", count, o.size(), wanted);
    return finish("spin_locks");
}
