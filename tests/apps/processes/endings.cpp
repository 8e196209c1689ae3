// Beginnings and ends of programs: forks before CUDA starts, exit handlers and static objects, a closed library,
// signals, contexts that come and go in many threads.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "check.h"
#include "first_device.h"

static CUcontext context;
static CUdeviceptr memory;

static void start() {
    CUdevice device;
    begin_on_first(&device, &context);
    OK(cuMemAlloc(&memory, 4096));
}

// Fills memory and reads a word of it.
static CUresult use() {
    unsigned word = 0;
    CUresult result = cuMemsetD32(memory, 7, 1024);
    if (result == CUDA_SUCCESS) result = cuMemcpyDtoH(&word, memory + 400, 4);
    if (result == CUDA_SUCCESS && word != 7) result = CUDA_ERROR_UNKNOWN;
    return result;
}

// Prints the code of a call after the end of `main`.
static void late(const char *when) {
    printf("%s: %d\n", when, int(use()));
    fflush(stdout);
}

// Runs a part in a new process that has not started CUDA; returns its end as wait reports it.
static int process(void (*part)()) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        // Contexts of a driver take long to make where many programs do so at once.
        alarm(240);
        part();
        exit(failures == 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static void ends_well(const char *name, void (*part)()) {
    int status = process(part);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ended with %x", name, status);
    printf("%s\n", name);
}

static void ends_by(int signal, const char *name, void (*part)()) {
    int status = process(part);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signal, "%s ended with %x", name, status);
    printf("%s\n", name);
}

static void uses_cuda() {
    start();
    EXPECT(CUDA_SUCCESS, use());
}

// Forks a child before both start CUDA, and one that never uses it.
static void forks_first() {
    fflush(stdout);
    pid_t other = fork();
    if (other == 0) {
        uses_cuda();
        exit(failures == 0 ? 0 : 1);
    }
    uses_cuda();
    pid_t idle = fork();
    if (idle == 0) exit(0);
    for (pid_t child : {other, idle}) {
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with %x", status);
    }
    EXPECT(CUDA_SUCCESS, use());
}

// Handlers run in reverse order: those from before CUDA started come when it has ended.
static void exit_handlers() {
    atexit([] { late("a handler from before the start"); });
    start();
    atexit([] { late("a handler from after it"); });
}

struct Object {
    const char *when;
    ~Object() { late(when); }
};

static void static_objects() {
    static Object before{"an object from before the start"};
    start();
    static Object after{"an object from after it"};
}

// The library is closed and opened again while nothing else holds it.
static void closed_library() {
    for (int round = 0; round < 3; round++) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        CHECK(library != nullptr, "%s", dlerror());
        auto init = reinterpret_cast<decltype(&cuInit)>(dlsym(library, "cuInit"));
        auto count = reinterpret_cast<decltype(&cuDeviceGetCount)>(dlsym(library, "cuDeviceGetCount"));
        int devices = 0;
        OK(init(0));
        OK(count(&devices));
        CHECK(devices > 0, "%d devices", devices);
        CHECK(dlclose(library) == 0, "%s", dlerror());
    }
}

static void killed() {
    uses_cuda();
    raise(SIGKILL);
}

static void terminated() {
    uses_cuda();
    for (int round = 0; round < 100; round++) OK(cuMemsetD32Async(memory, round, 1024, nullptr));
    raise(SIGTERM);
}

static void aborted() {
    uses_cuda();
    abort();
}

static volatile sig_atomic_t ticks = 0;

// Signals do not disturb waiting calls, although they interrupt the system calls inside.
static void interrupted() {
    start();
    struct sigaction action = {};
    action.sa_handler = [](int) { ticks = ticks + 1; };
    sigaction(SIGALRM, &action, nullptr);
    itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, nullptr);
    int wrong = 0;
    for (int round = 0; round < 300 || ticks < 20; round++) wrong += use() != CUDA_SUCCESS;
    itimerval never = {};
    setitimer(ITIMER_REAL, &never, nullptr);
    CHECK(wrong == 0, "%d rounds failed", wrong);
}

// Eight threads make contexts at once; objects made in these end with them.
static void contexts_in_threads() {
    OK(cuInit(0));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 8; number++) {
        threads.emplace_back([&wrong, number] {
            for (unsigned round = 0; round < 4; round++) {
                CUcontext own, current = nullptr;
                CUdeviceptr block;
                CUstream stream;
                unsigned word = 0;
                wrong += cuCtxCreate(&own, nullptr, 0, 0) != CUDA_SUCCESS;
                wrong += cuMemAlloc(&block, 4096) != CUDA_SUCCESS;
                wrong += cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS;
                wrong += cuMemsetD32Async(block, number * 100 + round, 1024, stream) != CUDA_SUCCESS;
                wrong += cuStreamSynchronize(stream) != CUDA_SUCCESS;
                wrong += cuMemcpyDtoH(&word, block + 4092, 4) != CUDA_SUCCESS || word != number * 100 + round;
                wrong += cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != own;
                wrong += cuCtxDestroy(own) != CUDA_SUCCESS;
                wrong += cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != nullptr;
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(wrong == 0, "%d calls went wrong", wrong.load());
}

int main() {
    ends_well("forks before the start", forks_first);
    ends_well("exit handlers", exit_handlers);
    ends_well("static objects", static_objects);
    ends_well("the library closed and opened again", closed_library);
    ends_by(SIGKILL, "killed", killed);
    ends_by(SIGTERM, "terminated with work under way", terminated);
    ends_by(SIGABRT, "aborted", aborted);
    ends_well("interrupted", interrupted);
    ends_well("contexts in threads", contexts_in_threads);
    // After all of them, this process starts CUDA itself.
    uses_cuda();
    return finish("endings");
}
