// Not a test by itself: a program that changes what its process is once its session has begun, and then goes on with its steps.
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
//   segment   has a System V segment attached
//
// A child lives as long as the program. All kinds print the same.
#include "steps.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

constexpr int N = 1024, STEPS = 40;

__global__ void mix(unsigned *field, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    field[i] = field[i] * 2654435761u + salt + i;
}

static int wait_for_a_signal(void *) {
    for (;;) pause();
    return 0;
}

static void must(bool held, const char *what) {
    CHECK(held, what);
    if (!held) exit(finish("changed_process"));
}

static pid_t child_of(const char *kind) {
    static char stack[64 << 10];
    if (strcmp(kind, "memory") == 0) return clone(wait_for_a_signal, stack + sizeof stack, CLONE_VM | SIGCHLD, nullptr);
    pid_t child = strcmp(kind, "raw") == 0 ? pid_t(syscall(SYS_fork)) : fork();
    if (child == 0) wait_for_a_signal(nullptr);
    return child;
}

static void may_open_no_more() {
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    must(next >= 0 && close(next) == 0, "open");
    limit.rlim_cur = rlim_t(next);
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

// The child, or 0.
static pid_t change(const char *kind) {
    if (strcmp(kind, "user") == 0) {
        must(setgroups(0, nullptr) == 0 && setgid(65534) == 0 && setuid(65534) == 0, "setuid");
    } else if (strcmp(kind, "root") == 0) {
        must(chroot("/usr") == 0, "chroot");
    } else if (strcmp(kind, "files") == 0) {
        may_open_no_more();
    } else if (strcmp(kind, "segment") == 0) {
        int segment = shmget(IPC_PRIVATE, 4096, 0600);
        must(segment >= 0 && shmat(segment, nullptr, 0) != reinterpret_cast<void *>(-1), "shmat");
        must(shmctl(segment, IPC_RMID, nullptr) == 0, "shmctl");
    } else if (strcmp(kind, "none") != 0) {
        pid_t child = child_of(kind);
        must(child > 0, "a child");
        if (strcmp(kind, "stopped") == 0) kill(child, SIGSTOP);
        return child;
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "none";
    std::vector<unsigned> host(N);
    unsigned *field;
    pid_t child = 0;
    OK(cudaMalloc(&field, N * sizeof(unsigned)));
    OK(cudaMemset(field, 0, N * sizeof(unsigned)));
    for (int step = 0; step < STEPS; step++) {
        mix<<<N / 128, 128>>>(field, step);
        OK(cudaGetLastError());
        OK(cudaMemcpy(host.data(), field, N * sizeof(unsigned), cudaMemcpyDeviceToHost));
        if (step == 0) child = change(kind);
        Checksum sum;
        sum.bytes(host.data(), N * sizeof(unsigned));
        told(step, sum);
    }
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
    OK(cudaFree(field));
    return finish("changed_process");
}
