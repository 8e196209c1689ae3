// A handler of a signal jumps out of a call that waits; every later call of any thread is answered as ever.
#include <cuda.h>

#include <csetjmp>
#include <csignal>
#include <ctime>
#include <pthread.h>
#include <thread>

#include "check.h"
#include "first_device.h"

static sigjmp_buf before;
static volatile sig_atomic_t is_armed = 0;

static void jump(int) {
    if (is_armed) siglongjmp(before, 1);
}

// Sends the signal a moment after the wait has begun; where it comes before, the jump is out of nothing, and harmless.
static void disturb(pthread_t thread) {
    timespec moment = {0, 30000000};
    nanosleep(&moment, nullptr);
    pthread_kill(thread, SIGUSR1);
}

static CUcontext context;
static CUdeviceptr words;
static CUstream waiter, writer;

// Whether a wait for the stream, which stands still, was left by a jump.
static bool left_by_jump(bool whole_context) {
    if (sigsetjmp(before, 1) != 0) {
        is_armed = 0;
        return true;
    }
    is_armed = 1;
    static std::thread disturber;
    disturber = std::thread(disturb, pthread_self());
    disturber.detach();
    if (whole_context) OK(cuCtxSynchronize());
    else OK(cuStreamSynchronize(waiter));
    return false;
}

static void other_thread() {
    unsigned value = 0;
    OK(cuCtxSetCurrent(context));
    OK(cuMemcpyDtoH(&value, words + 8, 4));
    CHECK(value == 7, "another thread read %u", value);
}

int main() {
    CUdevice device;
    begin_on_first(&device, &context);
    struct sigaction action = {};
    action.sa_handler = jump;
    sigaction(SIGUSR1, &action, nullptr);
    OK(cuMemAlloc(&words, 64));
    OK(cuMemsetD32(words, 7, 16));
    OK(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
    int jumps = 0;
    for (unsigned round = 1; round <= 6; round++) {
        unsigned value = 0;
        OK(cuStreamWaitValue32(waiter, words, 100 + round, CU_STREAM_WAIT_VALUE_EQ));
        OK(cuMemsetD32Async(words + 16, round, 1, waiter));
        jumps += left_by_jump(round % 2 == 0);
        EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
        std::thread(other_thread).join();
        OK(cuStreamWriteValue32(writer, words, 100 + round, 0));
        OK(cuStreamSynchronize(waiter));
        OK(cuMemcpyDtoH(&value, words + 16, 4));
        CHECK(value == round, "%u in round %u", value, round);
    }
    OK(cuMemFree(words));
    printf("%d waits left\n", jumps);
    return finish("long_jump");
}
