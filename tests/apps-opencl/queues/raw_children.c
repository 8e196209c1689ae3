// Children of a program that uses OpenCL, made by fork and past the C library: each call of theirs is refused, and none hangs; the
// parent, whose memory they have copies of, goes on unharmed. Without Katydid a child waits without end for threads that it does not have.
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 64 };

static const char *source = "kernel void raise(global int *v) { v[get_global_id(0)] += 1; }\n";

static cl_mem buffer;
static cl_kernel raise_all;

static int refused(const char *what, cl_int code) {
    if (code == CL_DEVICE_NOT_AVAILABLE) return 1;
    printf("%s: %s\n", what, code_name(code));
    return 0;
}

static int child(void) {
    int host[SIZE], all = 1;
    size_t items = SIZE;
    cl_int code = CL_SUCCESS;
    alarm(60);
    all &= clCreateBuffer(context, 0, 64, NULL, &code) == NULL && refused("clCreateBuffer", code);
    all &= refused("a launch", clEnqueueNDRangeKernel(queue, raise_all, 1, NULL, &items, NULL, 0, NULL, NULL));
    all &= refused("a read", clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
    all &= refused("clFinish", clFinish(queue));
    all &= refused("a release", clReleaseMemObject(buffer));
    fflush(stdout);
    return all ? 0 : 1;
}

static pid_t by_system_call(void) { return (pid_t)syscall(SYS_fork); }
static pid_t by_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); }
// `struct clone_args`: flags, three addresses, the signal at its end, stack and its size, and thread-local storage.
static pid_t by_new_clone(void) {
    cl_ulong arguments[8] = {0, 0, 0, 0, SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, arguments, sizeof arguments);
    // Some containers have none.
    return pid < 0 ? by_clone() : pid;
}

int main(void) {
    static pid_t (*const makers[])(void) = {fork, by_system_call, by_clone, by_new_clone};
    int host[SIZE] = {0};
    set_up(0);
    cl_program program = build(source, "");
    raise_all = kernel_of(program, "raise");
    buffer = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof host, host);
    CHECK(clSetKernelArg(raise_all, 0, sizeof buffer, &buffer));
    for (int i = 0; i < 4; i++) {
        int status = -1;
        launch(raise_all, SIZE);
        fflush(stdout);
        pid_t pid = makers[i]();
        if (pid == 0) _exit(child());
        launch(raise_all, SIZE);
        REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
        CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
        printf("child %d refused, %d and %d in the parent\n", i, host[0], host[SIZE - 1]);
    }
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseKernel(raise_all));
    CHECK(clReleaseProgram(program));
    tear_down();
    return 0;
}
