// One process locks, checkpoints, restores and unlocks another one, by its id: cuCheckpointProcess* of CUDA 12.8. The
// other has device memory and host memory, code with a variable, and a stream that may wait; its answers continue where
// they stopped.
//
// With arguments it does one thing to a process that another process has started: `ask ID WHAT [OLD NEW]…`, with the UUIDs of
// GPUs in hexadecimal. With `self` it does everything to itself.
#include "first_device.h"
#include "two_programs.h"

#include <initializer_list>
#include <poll.h>
#include <signal.h>
#include <vector>

constexpr unsigned N = 1 << 20;

// Orders to the other process; it answers each with a number.
enum class Word : char { step = 's', wait = 'w', write = 'v', end = 'e' };

struct Work {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction add, bump;
    CUdeviceptr data, flag, counter;
    CUstream waiting, other;
    unsigned *pinned;
    unsigned turn = 0;

    Work() {
        size_t size;
        begin_on_first(&device, &context);
        OK(cuModuleLoadData(&module, MODULE_PTX));
        OK(cuModuleGetFunction(&add, module, "add"));
        OK(cuModuleGetFunction(&bump, module, "bump"));
        OK(cuModuleGetGlobal(&counter, &size, module, "counter"));
        OK(cuMemAlloc(&data, N * sizeof(unsigned)));
        OK(cuMemAlloc(&flag, sizeof(unsigned)));
        OK(cuMemsetD32(data, 1, N));
        OK(cuMemsetD32(flag, 0, 1));
        OK(cuMemAllocHost(reinterpret_cast<void **>(&pinned), N * sizeof(unsigned)));
        OK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
        OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    }

    // Each element becomes three times itself and one more, and the variable counts the steps; returns the sum of all.
    unsigned step() {
        unsigned n = N, count;
        int term = 1;
        void *parameters[] = {&data, &n, &data, &term};
        OK(cuLaunchKernel(add, N / 256, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
        OK(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
        OK(cuMemcpyDtoH(pinned, data, N * sizeof(unsigned)));
        OK(cuMemcpyDtoH(&count, counter, sizeof count));
        unsigned sum = count;
        for (unsigned i = 0; i < N; i++) sum = sum * 31 + pinned[i];
        return sum;
    }

    unsigned answer(Word word) {
        if (word == Word::step) return step();
        turn += word == Word::wait;
        if (word == Word::wait) OK(cuStreamWaitValue32(waiting, flag, turn, CU_STREAM_WAIT_VALUE_EQ));
        if (word == Word::write) OK(cuStreamWriteValue32(other, flag, turn, CU_STREAM_WRITE_VALUE_DEFAULT));
        return turn;
    }
};

static int other() {
    Work work;
    tell(0u);
    for (Word word; (word = hear<Word>()) != Word::end;) tell(work.answer(word));
    OK(cuMemFreeHost(work.pinned));
    OK(cuMemFree(work.data));
    return failures != 0;
}

static unsigned ask(Word word) {
    tell(word);
    return hear<unsigned>();
}

// The sums of the steps, as the host computes them.
struct Wanted {
    unsigned element = 1, count = 10;
    unsigned next() {
        element = element * 3 + 1;
        unsigned sum = ++count;
        for (unsigned i = 0; i < N; i++) sum = sum * 31 + element;
        return sum;
    }
} wanted;

static void has_state(pid_t process, CUprocessState wanted_state) {
    CUprocessState state = CUprocessState(77);
    OK(cuCheckpointProcessGetState(process, &state));
    CHECK(state == wanted_state, "state %d, wanted %d", int(state), int(wanted_state));
}

// Refused: calls that do not fit the state of the process.
static void is_refused_in(CUprocessState state, pid_t process) {
    if (state != CU_PROCESS_STATE_RUNNING) EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessLock(process, nullptr));
    if (state != CU_PROCESS_STATE_LOCKED) {
        EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessCheckpoint(process, nullptr));
        EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(process, nullptr));
    }
    if (state != CU_PROCESS_STATE_CHECKPOINTED) EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessRestore(process, nullptr));
    has_state(process, state);
}

static bool is_silent() {
    pollfd there = {peer, POLLIN, 0};
    return poll(&there, 1, 100) == 0;
}

// Refused: an id without a process, a process without CUDA, and invalid arguments.
static void is_refused(pid_t process) {
    CUprocessState state;
    int thread;
    for (pid_t none : {0, -1, 0x7fffffff}) {
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(none, &state));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetRestoreThreadId(none, &thread));
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessLock(none, nullptr));
    }
    pid_t idle = fork();
    must(idle >= 0, "fork");
    if (idle == 0) {
        pause();
        _exit(0);
    }
    // The header does not say which of two codes this returns.
    const int codes[] = {cuCheckpointProcessGetState(idle, &state), cuCheckpointProcessLock(idle, nullptr)};
    for (int code : codes) CHECK(code == CUDA_ERROR_NOT_INITIALIZED || code == CUDA_ERROR_INVALID_VALUE, "without CUDA: %d", code);
    kill(idle, SIGKILL);
    waitpid(idle, nullptr, 0);
    CUcheckpointLockArgs lock = {};
    lock.reserved1[6] = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessLock(process, &lock));
    CUcheckpointUnlockArgs unlock = {};
    unlock.reserved[0] = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessUnlock(process, &unlock));
    CUcheckpointRestoreArgs restore = {};
    restore.gpuPairsCount = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(process, &restore));
    is_refused_in(CU_PROCESS_STATE_RUNNING, process);
}

static void has_restore_thread(pid_t process) {
    int thread = 0;
    char path[64];
    OK(cuCheckpointProcessGetRestoreThreadId(process, &thread));
    snprintf(path, sizeof path, "/proc/%d/task/%d", process, thread);
    CHECK(access(path, F_OK) == 0 && thread != process, "its restore thread is %d", thread);
}

// Makes all four calls in their order; requests in between are answered at the end.
static void taken_aside(pid_t process, CUcheckpointRestoreArgs *arguments) {
    OK(cuCheckpointProcessLock(process, nullptr));
    is_refused_in(CU_PROCESS_STATE_LOCKED, process);
    tell(Word::step);
    CHECK(is_silent(), "a locked process answers");
    OK(cuCheckpointProcessCheckpoint(process, nullptr));
    is_refused_in(CU_PROCESS_STATE_CHECKPOINTED, process);
    has_restore_thread(process);
    CHECK(is_silent(), "a process without its device answers");
    OK(cuCheckpointProcessRestore(process, arguments));
    is_refused_in(CU_PROCESS_STATE_LOCKED, process);
    CHECK(is_silent(), "a locked process answers");
    OK(cuCheckpointProcessUnlock(process, nullptr));
    has_state(process, CU_PROCESS_STATE_RUNNING);
    CHECK(hear<unsigned>() == wanted.next(), "another sum");
    CHECK(ask(Word::step) == wanted.next(), "another sum");
}

// A waiting stream keeps its process from being locked. The process goes on, and can be locked afterwards.
static void locked_in_time(pid_t process) {
    CUcheckpointLockArgs arguments = {};
    arguments.timeoutMs = 50;
    unsigned turn = ask(Word::wait);
    EXPECT(CUDA_ERROR_NOT_READY, cuCheckpointProcessLock(process, &arguments));
    has_state(process, CU_PROCESS_STATE_RUNNING);
    CHECK(ask(Word::write) == turn, "another turn");
    arguments.timeoutMs = 100000;
    OK(cuCheckpointProcessLock(process, &arguments));
    OK(cuCheckpointProcessUnlock(process, nullptr));
    CHECK(ask(Word::step) == wanted.next(), "another sum");
}

static CUuuid uuid_of(const char *digits) {
    CUuuid uuid = {};
    for (int i = 0; i < 16; i++) must(sscanf(digits + 2 * i, "%2hhx", reinterpret_cast<unsigned char *>(uuid.bytes + i)) == 1, digits);
    return uuid;
}

static int asks(pid_t process, const char *what, char **gpus) {
    int code = -1, number = -1;
    std::vector<CUcheckpointGpuPair> pairs;
    for (; gpus[0] && gpus[1]; gpus += 2) pairs.push_back({uuid_of(gpus[0]), uuid_of(gpus[1])});
    CUcheckpointRestoreArgs arguments = {};
    arguments.gpuPairs = pairs.data();
    arguments.gpuPairsCount = unsigned(pairs.size());
    if (!strcmp(what, "lock")) code = cuCheckpointProcessLock(process, nullptr);
    if (!strcmp(what, "checkpoint")) code = cuCheckpointProcessCheckpoint(process, nullptr);
    if (!strcmp(what, "restore")) code = cuCheckpointProcessRestore(process, &arguments);
    if (!strcmp(what, "unlock")) code = cuCheckpointProcessUnlock(process, nullptr);
    if (!strcmp(what, "state")) code = 0;
    int known = cuCheckpointProcessGetState(process, reinterpret_cast<CUprocessState *>(&number));
    printf("%s %d, state %d %d\n", what, code, known, number);
    return 0;
}

// A process may do it to itself: these functions are none of those that wait.
static int aside_by_itself() {
    Work work;
    pid_t process = getpid();
    CHECK(work.step() == wanted.next(), "another sum");
    OK(cuCheckpointProcessLock(process, nullptr));
    OK(cuCheckpointProcessCheckpoint(process, nullptr));
    has_state(process, CU_PROCESS_STATE_CHECKPOINTED);
    OK(cuCheckpointProcessRestore(process, nullptr));
    OK(cuCheckpointProcessUnlock(process, nullptr));
    CHECK(work.step() == wanted.next(), "another sum");
    return finish("itself");
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "self")) return aside_by_itself();
    if (argc > 3 && !strcmp(argv[1], "ask")) return asks(atoi(argv[2]), argv[3], argv + 4);
    pid_t process = begin_other(other);
    must(hear<unsigned>() == 0, "the other process");
    CHECK(ask(Word::step) == wanted.next(), "another sum");
    is_refused(process);
    has_restore_thread(process);
    printf("what is refused\n");
    taken_aside(process, nullptr);
    printf("aside and back\n");

    CUdevice device;
    CUcheckpointGpuPair pair;
    CUcheckpointRestoreArgs arguments = {};
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDeviceGetUuid(&pair.oldUuid, device));
    pair.newUuid = pair.oldUuid;
    arguments.gpuPairs = &pair;
    arguments.gpuPairsCount = 1;
    taken_aside(process, &arguments);
    printf("to the same device by name\n");
    locked_in_time(process);
    printf("within a time\n");
    tell(Word::end);
    end_other(process);
    return finish("process_checkpoint");
}
