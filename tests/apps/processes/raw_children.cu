// Children that are made past the C library cannot use CUDA that their parent had started, as those of fork cannot; the
// parent, whose memory they have copies of, goes on unharmed. So it does where a child has that memory itself: such a child is
// served as its parent is, and what it made serves the parent. With an argument it also asks for a host function, whose thread would end
// with it: it is refused one, and its parent has one later.
#include "check.h"

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__global__ void raise(int *cell) { *cell += 1; }

// The whole child: no call reaches the parent's session, and none hangs.
static int child(int *device) {
    int host = 0;
    void *more;
    EXPECT(cudaErrorInitializationError, cudaMalloc(&more, 16));
    EXPECT(cudaErrorInitializationError, cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    raise<<<1, 1>>>(device);
    EXPECT(cudaErrorInitializationError, cudaGetLastError());
    EXPECT(cudaErrorInitializationError, cudaDeviceSynchronize());
    return failures == 0 ? 0 : 1;
}

static pid_t by_system_call() { return pid_t(syscall(SYS_fork)); }
static pid_t by_clone() { return pid_t(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)); }
// `struct clone_args`: flags, three addresses, the signal at its end, stack and its size, and thread-local storage.
static pid_t by_new_clone() {
    uint64_t arguments[8] = {0, 0, 0, 0, SIGCHLD};
    pid_t pid = pid_t(syscall(SYS_clone3, arguments, sizeof arguments));
    // Some containers have none.
    return pid < 0 ? by_clone() : pid;
}
#if defined(__GLIBC_PREREQ) && __GLIBC_PREREQ(2, 34)
static pid_t by_c_library() { return _Fork(); }
#else
static pid_t by_c_library() { return by_system_call(); }
#endif

static int *shared_cell;
static char *host_bytes, *more_bytes;
static const size_t MANY = 64 << 20;
static bool asks_for_function;
static int calls;

static void CUDART_CB count_call(void *) { calls++; }

// Enough bytes for whatever a library opens for large copies.
static void copy_many(char first) {
    void *many = nullptr;
    OK(cudaMalloc(&many, MANY));
    memset(host_bytes, first, MANY);
    OK(cudaMemcpy(many, host_bytes, MANY, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(more_bytes, many, MANY, cudaMemcpyDeviceToHost));
    CHECK(memcmp(host_bytes, more_bytes, MANY) == 0, "other bytes than %d", first);
    OK(cudaFree(many));
}

// All of a child with its parent's memory. The parent waits meanwhile, with whose thread it shares the C library's variables.
static int shared_child(void *) {
    int host = 0;
    void *more = nullptr;
    OK(cudaMalloc(&more, 16));
    raise<<<1, 1>>>(shared_cell);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&host, shared_cell, sizeof host, cudaMemcpyDeviceToHost));
    OK(cudaFree(more));
    copy_many(1);
    if (asks_for_function) {
        CHECK(cudaLaunchHostFunc(nullptr, count_call, nullptr) != cudaSuccess, "a function whose thread ends with the child");
        cudaGetLastError();
        OK(cudaDeviceSynchronize());
    }
    _exit(failures == 0 ? 0 : 1);
}

static pid_t by_vfork() {
    pid_t pid = vfork();
    if (pid == 0) shared_child(nullptr);
    return pid;
}

static pid_t with_own_stack() {
    static char stack[1 << 20];
    return clone(shared_child, stack + sizeof stack, CLONE_VM | SIGCHLD, nullptr);
}

int main(int argc, char **) {
    asks_for_function = argc > 1;
    host_bytes = static_cast<char *>(malloc(MANY)), more_bytes = static_cast<char *>(malloc(MANY));
    int *device, host = 0, raised = 0;
    OK(cudaMalloc(&device, sizeof(int)));
    OK(cudaMemset(device, 0, sizeof(int)));
    for (auto make : {by_system_call, by_clone, by_new_clone, by_c_library}) {
        raise<<<1, 1>>>(device);
        fflush(stdout);
        pid_t pid = make();
        if (pid == 0) {
            int status = child(device);
            fflush(stdout);
            _exit(status);
        }
        raise<<<1, 1>>>(device);
        int status = -1;
        waitpid(pid, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with status %d", status);
        raised += 2;
        OK(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
        CHECK(host == raised, "%d where %d was to be", host, raised);
    }
    shared_cell = device;
    for (auto make : {by_vfork, with_own_stack}) {
        int status = -1;
        pid_t pid = make();
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "a child ended with status %d", status);
        raise<<<1, 1>>>(device);
        raised += 2;
        OK(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
        CHECK(host == raised, "%d where %d was to be", host, raised);
        copy_many(2);
    }
    OK(cudaLaunchHostFunc(nullptr, count_call, nullptr));
    OK(cudaDeviceSynchronize());
    CHECK(calls == 1, "%d calls", calls);
    OK(cudaFree(device));
    printf("4 children refused, 2 that had its memory served, the parent unharmed\n");
    return finish("raw_children");
}
