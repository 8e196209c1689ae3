// Not a test by itself: a program that changes what its process is in its first step, and goes on with its steps.
//
//   changed_process KIND
//
//   none      changes nothing
//   raw       has a child by the system call alone, which no handler of fork knows of, and with it copies of all descriptors
//   memory    has a child in its own memory (CLONE_VM)
//   stopped   has a child that is stopped as soon as it is there
//   user      becomes another user
//   root      has another root directory
//   files     may open no more files
//
// A child lives as long as the program. All kinds print the same.
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 256, STEPS = 60 };

static const char *source =
    "kernel void blend(global uint *v, uint salt) { size_t i = get_global_id(0); v[i] = v[i] * 2654435761u + salt + i; }\n";

static int wait_for_a_signal(void *nothing) {
    (void)nothing;
    for (;;) pause();
    return 0;
}

static pid_t child_of(const char *kind) {
    static char stack[64 << 10];
    if (strcmp(kind, "memory") == 0) return clone(wait_for_a_signal, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
    pid_t child = strcmp(kind, "raw") == 0 ? (pid_t)syscall(SYS_fork) : fork();
    if (child == 0) wait_for_a_signal(NULL);
    if (child > 0 && strcmp(kind, "stopped") == 0) kill(child, SIGSTOP);
    return child;
}

static void may_open_no_more(void) {
    struct rlimit limit;
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    REQUIRE(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = (rlim_t)next;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

// The child, or 0.
static pid_t change(const char *kind) {
    if (strcmp(kind, "none") == 0) return 0;
    if (strcmp(kind, "user") == 0) {
        REQUIRE(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    } else if (strcmp(kind, "root") == 0) {
        REQUIRE(chroot("/usr") == 0);
    } else if (strcmp(kind, "files") == 0) {
        may_open_no_more();
    } else {
        pid_t child = child_of(kind);
        REQUIRE(child > 0);
        return child;
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "none";
    pid_t child = 0;
    set_up(0);
    cl_program program = build(source, "");
    cl_kernel kernel = kernel_of(program, "blend");
    cl_uint values[SIZE] = {1, 2, 3};
    cl_mem buffer = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof values, values);
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    for (cl_uint step = 0; step < STEPS; step++) {
        CHECK(clSetKernelArg(kernel, 1, sizeof step, &step));
        launch(kernel, SIZE);
        CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
        if (step == 0) child = change(kind);
        printf("step %u: %lx\n", step, sum_of((const int *)values, SIZE));
        fflush(stdout);
    }
    if (child > 0) {
        REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    }
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseKernel(kernel));
    CHECK(clReleaseProgram(program));
    tear_down();
    return 0;
}
