// Words that streams wait for and write: order between streams without events, of 32 and 64 bits, with every comparison.
#include <cuda.h>

#include "check.h"
#include "first_device.h"

static CUdeviceptr words, data;
static CUstream waiter, writer;

// The fill behind the wait happens only once the word has been written.
static void gate(const char *name, int which, unsigned long long before, unsigned long long after, unsigned flags) {
    CUdeviceptr word = words + 8 * which;
    unsigned filled = 0;
    OK(cuStreamWriteValue64(writer, word, before, 0));
    OK(cuStreamSynchronize(writer));
    OK(cuMemsetD32(data, 0, 1));
    OK(cuStreamSynchronize(nullptr));
    OK(cuStreamWaitValue64(waiter, word, 6, flags));
    OK(cuMemsetD32Async(data, 99, 1, waiter));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
    OK(cuStreamWriteValue64(writer, word, after, 0));
    OK(cuStreamSynchronize(waiter));
    OK(cuMemcpyDtoH(&filled, data, 4));
    CHECK(filled == 99, "the fill gave %u", filled);
    printf("%s\n", name);
}

static void narrow() {
    unsigned value = 0;
    OK(cuStreamWaitValue32(waiter, words, 7, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamWriteValue32(waiter, words + 4, 8, CU_STREAM_WRITE_VALUE_DEFAULT));
    OK(cuStreamWriteValue32(writer, words, 7, 0));
    OK(cuStreamSynchronize(waiter));
    OK(cuMemcpyDtoH(&value, words + 4, 4));
    CHECK(value == 8, "wrote %u", value);
    printf("32 bits\n");
}

static void wrong() {
    int local = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(writer, words + 2, 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(writer, words + 4, 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(writer, reinterpret_cast<CUdeviceptr>(&local), 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(waiter, words, 1, 4));
    // The flag is of the older form of the function.
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuStreamWriteValue32(writer, words, 1, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
    printf("wrong ones refused\n");
}

int main() {
    CUdevice device;
    CUcontext context;
    begin_on_first(&device, &context);
    OK(cuMemAlloc(&words, 64));
    OK(cuMemAlloc(&data, 64));
    OK(cuMemsetD8(words, 0, 64));
    OK(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
    OK(cuStreamSynchronize(nullptr));
    narrow();
    gate("at least", 1, 5, 9, CU_STREAM_WAIT_VALUE_GEQ);
    gate("equal", 2, 7, 6, CU_STREAM_WAIT_VALUE_EQ);
    gate("a common bit", 3, 8, 4, CU_STREAM_WAIT_VALUE_AND);
    gate("a missing bit", 4, ~0ull, 1, CU_STREAM_WAIT_VALUE_NOR);
    wrong();
    return finish("stream_values");
}
