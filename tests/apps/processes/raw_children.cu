// Children that are made past the C library cannot use CUDA that their parent had started, as those of fork cannot; the
// parent, whose memory they have copies of, goes on unharmed.
#include "check.h"

#include <csignal>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__global__ void raise(int *cell) { *cell += 1; }

// All of the child: no call reaches the parent's session, and none of them hangs.
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
#if defined(__GLIBC_PREREQ) && __GLIBC_PREREQ(2, 34)
static pid_t by_c_library() { return _Fork(); }
#else
static pid_t by_c_library() { return by_system_call(); }
#endif

int main() {
    int *device, host = 0, raised = 0;
    OK(cudaMalloc(&device, sizeof(int)));
    OK(cudaMemset(device, 0, sizeof(int)));
    for (auto make : {by_system_call, by_clone, by_c_library}) {
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
    OK(cudaFree(device));
    printf("3 children refused, the parent unharmed\n");
    return finish("raw_children");
}
