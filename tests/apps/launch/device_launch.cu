// Kernels that launch kernels: a recursive sum and a quicksort by device-side launches, streams and events, copies and
// fills by device code, tail launches that see all earlier work, and errors of invalid launches.
#include "check.h"

#include <algorithm>
#include <vector>

__global__ void add(int *data, int from, int count, int what) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) data[from + at] += what;
}

// Halves a range until it is small; every part is done by a grid of its own.
__global__ void divide(int *data, int from, int count, int depth) {
    if (count <= 32) {
        for (int at = 0; at < count; at++) data[from + at] += depth;
        return;
    }
    divide<<<1, 1, 0, cudaStreamFireAndForget>>>(data, from, count / 2, depth + 1);
    divide<<<1, 1, 0, cudaStreamFireAndForget>>>(data, from + count / 2, count - count / 2, depth + 1);
}

__device__ int partition(unsigned *data, int low, int high) {
    unsigned pivot = data[(low + high) / 2];
    int left = low - 1, right = high + 1;
    while (true) {
        do left++; while (data[left] < pivot);
        do right--; while (data[right] > pivot);
        if (left >= right) return right;
        unsigned swapped = data[left];
        data[left] = data[right];
        data[right] = swapped;
    }
}

// Sorts small ranges by insertion, larger ones by two launches into streams of its own.
__global__ void quicksort(unsigned *data, int low, int high) {
    if (high - low < 24) {
        for (int at = low + 1; at <= high; at++) {
            unsigned value = data[at];
            int to = at;
            for (; to > low && data[to - 1] > value; to--) data[to] = data[to - 1];
            data[to] = value;
        }
        return;
    }
    int middle = partition(data, low, high);
    cudaStream_t left, right;
    cudaStreamCreateWithFlags(&left, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&right, cudaStreamNonBlocking);
    quicksort<<<1, 1, 0, left>>>(data, low, middle);
    quicksort<<<1, 1, 0, right>>>(data, middle + 1, high);
    cudaStreamDestroy(left);
    cudaStreamDestroy(right);
}

__global__ void total(const int *data, int count, int *result) {
    int sum = 0;
    for (int at = 0; at < count; at++) sum += data[at];
    *result = sum;
}

// Two streams ordered by an event, then a tail that sums what all of them left.
__global__ void ordered(int *data, int count, int *result) {
    cudaStream_t first, second;
    cudaEvent_t done;
    cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    total<<<1, 1, 0, cudaStreamTailLaunch>>>(data, count, result);
    cudaMemsetAsync(data, 0, count * sizeof(int), first);
    add<<<(count + 63) / 64, 64, 0, first>>>(data, 0, count, 3);
    cudaEventRecord(done, first);
    cudaStreamWaitEvent(second, done, 0);
    cudaMemcpyAsync(data + count / 2, data, count / 2 * sizeof(int), cudaMemcpyDeviceToDevice, second);
    add<<<1, 32, 0, second>>>(data, 0, 32, 1);
    cudaEventDestroy(done);
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
}

// A block too large is an error of the thread that launches, and of no other.
__global__ void too_large(int *result) {
    if (threadIdx.x == 1) add<<<1, 4096>>>(result, 0, 1, 1);
    cudaError_t peeked = cudaPeekAtLastError(), taken = cudaGetLastError(), again = cudaGetLastError();
    result[threadIdx.x] = (peeked != cudaSuccess) * 100 + (taken != cudaSuccess) * 10 + (again != cudaSuccess);
}

int main() {
    const int count = 1000;
    int *data, *result, host[count];
    OK(cudaMalloc(&data, sizeof host));
    OK(cudaMalloc(&result, 64));

    OK(cudaMemset(data, 0, sizeof host));
    divide<<<1, 1>>>(data, 0, count, 0);
    OK(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
    for (int at = 0; at < count; at++) CHECK_QUIETLY(host[at] == 5, "%d: %d", at, host[at]);

    Numbers numbers(7);
    std::vector<unsigned> unsorted(count);
    for (unsigned &value : unsorted) value = numbers.next();
    OK(cudaMemcpy(data, unsorted.data(), sizeof host, cudaMemcpyHostToDevice));
    quicksort<<<1, 1>>>((unsigned *)data, 0, count - 1);
    std::vector<unsigned> sorted(count);
    OK(cudaMemcpy(sorted.data(), data, sizeof host, cudaMemcpyDeviceToHost));
    std::sort(unsorted.begin(), unsorted.end());
    CHECK(sorted == unsorted, "not sorted");

    int sum = 0;
    ordered<<<1, 1>>>(data, count, result);
    OK(cudaMemcpy(&sum, result, sizeof sum, cudaMemcpyDeviceToHost));
    CHECK(sum == 3 * count + 32, "%d", sum);

    int codes[2] = {};
    too_large<<<1, 2>>>(result);
    OK(cudaMemcpy(codes, result, sizeof codes, cudaMemcpyDeviceToHost));
    printf("error seen, taken, gone: %d; by the other thread: %d\n", codes[1], codes[0]);
    OK(cudaFree(data));
    OK(cudaFree(result));
    return finish("device_launch");
}
