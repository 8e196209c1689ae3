// A signal handler jumps out of a call that waits; every later call of any thread works as usual.
#include <cuda.h>

#include <csetjmp>
#include <csignal>
#include <cstring>
#include <pthread.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.h"
#include "first_device.h"

static sigjmp_buf before;
static volatile sig_atomic_t is_armed = 0;

static void jump(int) {
    if (is_armed) siglongjmp(before, 1);
}

// Whether a thread waits in the kernel.
static bool is_asleep(pid_t thread) {
    char text[512] = "";
    FILE *file = fopen(("/proc/self/task/" + std::to_string(thread) + "/stat").c_str(), "r");
    if (!file) return false;
    const size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] == ' ' && name_end[2] == 'S';
}

// Sends the signal once the wait has begun, as far as that is visible: a driver may busy-wait.
static void disturb(pthread_t thread, pid_t id) {
    unsigned asleep = 0;
    for (unsigned looks = 0; asleep < 10 && looks < 500; looks++) {
        usleep(2000);
        asleep = is_asleep(id) ? asleep + 1 : 0;
    }
    pthread_kill(thread, SIGUSR1);
}

static CUcontext context;
static CUdeviceptr words;
static CUstream blocking, standing, writer;
static CUevent reached;

constexpr size_t MANY = 1 << 20;
// What the copies of calls that are left go to.
static unsigned landing[64];

static void synchronize_stream(CUstream stream) { OK(cuStreamSynchronize(stream)); }
static void synchronize_context(CUstream) { OK(cuCtxSynchronize()); }
static void synchronize_event(CUstream) { OK(cuEventSynchronize(reached)); }
static void copy(CUstream) { OK(cuMemcpyDtoH(landing, words, sizeof landing)); }
static void copy_in_stream(CUstream stream) {
    OK(cuMemcpyDtoHAsync(landing, words, sizeof landing, stream));
    OK(cuStreamSynchronize(stream));
}

// Whether a wait for the blocked stream was left by a jump.
static bool left_by_jump(void (*wait)(CUstream), CUstream stream) {
    if (sigsetjmp(before, 1) != 0) {
        is_armed = 0;
        return true;
    }
    is_armed = 1;
    std::thread(disturb, pthread_self(), gettid()).detach();
    wait(stream);
    is_armed = 0;
    return false;
}

static void other_thread() {
    unsigned value = 0;
    OK(cuCtxSetCurrent(context));
    OK(cuMemcpyDtoHAsync(&value, words + 8, 4, writer));
    OK(cuStreamSynchronize(writer));
    CHECK(value == 7, "another thread read %u", value);
}

// All words, some of which the round has written.
static void all_is_read(unsigned round) {
    std::vector<unsigned> host(MANY);
    OK(cuMemcpyDtoH(host.data(), words, MANY * 4));
    CHECK(host[4] == round, "%u in round %u", host[4], round);
    for (size_t at = 5; at < MANY; at++) CHECK_QUIETLY(host[at] == 7, "word %zu is %u", at, host[at]);
}

int main() {
    CUdevice device;
    begin_on_first(&device, &context);
    struct sigaction action = {};
    action.sa_handler = jump;
    sigaction(SIGUSR1, &action, nullptr);
    OK(cuMemAlloc(&words, MANY * 4));
    OK(cuMemsetD32(words, 7, MANY));
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&standing, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&reached, CU_EVENT_DISABLE_TIMING));
    unsigned jumps = 0, round = 0;
    for (auto wait : {synchronize_stream, copy, synchronize_context, copy_in_stream, synchronize_event, copy, copy_in_stream,
                      synchronize_stream, synchronize_event, synchronize_context}) {
        // The default stream comes after this one.
        CUstream stream = wait == copy ? blocking : standing;
        round++;
        OK(cuStreamWaitValue32(stream, words, 100 + round, CU_STREAM_WAIT_VALUE_EQ));
        OK(cuMemsetD32Async(words + 16, round, 1, stream));
        OK(cuEventRecord(reached, stream));
        jumps += left_by_jump(wait, stream);
        EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
        std::thread(other_thread).join();
        OK(cuStreamWriteValue32(writer, words, 100 + round, 0));
        OK(cuStreamSynchronize(stream));
        OK(cuEventSynchronize(reached));
        all_is_read(round);
    }
    OK(cuMemFree(words));
    printf("%u waits left\n", jumps);
    return finish("long_jump");
}
