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
//   machine   has chosen what a memory failure of the machine does to it (PR_MCE_KILL)
//   merging   shares equal pages (PR_SET_MEMORY_MERGE)
//   guessing  has switched off a kind of speculation (PR_SET_SPECULATION_CTRL)
//   mount     has a child with a mount namespace of its own
//   network   has a child with a network namespace of its own
//   unsent    has sent more to itself over TCP than there is room for; it reads that at its end
//
// A child lives as long as the program. All kinds print the same.
#include "steps.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <sched.h>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

constexpr int N = 1024, STEPS = 40;
// PR_SET_MEMORY_MERGE, of Linux 6.4.
constexpr int MEMORY_MERGE = 67;

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

// Its own calls to the kernel that no other process can make for it.
static bool set_for_itself(const char *kind) {
    if (strcmp(kind, "machine") == 0) return prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0) == 0;
    if (strcmp(kind, "merging") == 0) return prctl(MEMORY_MERGE, 1, 0, 0, 0) == 0;
    if (strcmp(kind, "guessing") == 0) return prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0) == 0;
    return false;
}

// Sends until nothing more goes; gives both ends and how much that was.
static size_t fill(int ends[2]) {
    sockaddr_in address = {};
    socklen_t length = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(bind(listener, reinterpret_cast<sockaddr *>(&address), length) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length) == 0, "getsockname");
    must(connect(ends[0], reinterpret_cast<sockaddr *>(&address), length) == 0, "connect");
    ends[1] = accept(listener, nullptr, nullptr);
    must(ends[1] >= 0 && close(listener) == 0, "accept");
    must(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0, "fcntl");
    std::vector<char> bytes(64 << 10, 'x');
    size_t sent = 0;
    for (ssize_t some; (some = write(ends[0], bytes.data(), bytes.size())) > 0;) sent += some;
    return sent;
}

static void drain(int ends[2], size_t sent) {
    std::vector<char> bytes(64 << 10);
    for (ssize_t some; sent > 0; sent -= some) {
        some = read(ends[1], bytes.data(), bytes.size());
        must(some > 0 && bytes[0] == 'x', "read");
    }
}

static pid_t child_of(const char *kind) {
    static char stack[64 << 10];
    if (strcmp(kind, "memory") == 0) return clone(wait_for_a_signal, stack + sizeof stack, CLONE_VM | SIGCHLD, nullptr);
    pid_t child = strcmp(kind, "raw") == 0 ? pid_t(syscall(SYS_fork)) : fork();
    if (child == 0) {
        if (strcmp(kind, "mount") == 0 && unshare(CLONE_NEWNS) != 0) _exit(1);
        if (strcmp(kind, "network") == 0 && unshare(CLONE_NEWNET) != 0) _exit(1);
        wait_for_a_signal(nullptr);
    }
    return child;
}

// Waits until a child has a namespace of its own.
static void has_its_own(pid_t child, const char *name) {
    char ours[64] = "", theirs[64] = "";
    std::string of_child = "/proc/" + std::to_string(child) + "/ns/" + name, of_us = std::string("/proc/self/ns/") + name;
    do {
        must(readlink(of_us.c_str(), ours, sizeof ours - 1) > 0 && readlink(of_child.c_str(), theirs, sizeof theirs - 1) > 0, "ns");
        usleep(1000);
    } while (strcmp(ours, theirs) == 0);
}

static void may_open_no_more() {
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    must(next >= 0 && close(next) == 0, "open");
    limit.rlim_cur = rlim_t(next);
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

// What is on its way over TCP.
static int ends[2];
static size_t sent;

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
    } else if (strcmp(kind, "unsent") == 0) {
        sent = fill(ends);
    } else if (set_for_itself(kind)) {
        return 0;
    } else if (strcmp(kind, "none") != 0) {
        pid_t child = child_of(kind);
        must(child > 0, "a child");
        if (strcmp(kind, "stopped") == 0) kill(child, SIGSTOP);
        if (strcmp(kind, "mount") == 0) has_its_own(child, "mnt");
        if (strcmp(kind, "network") == 0) has_its_own(child, "net");
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
    drain(ends, sent);
    OK(cudaFree(field));
    return finish("changed_process");
}
