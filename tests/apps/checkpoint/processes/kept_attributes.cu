// What the kernel keeps of a process and of each thread beside memory and files: scheduling, priorities, limits, signals, timers
// and what prctl(2) sets. All of it is set once, as far as it takes no rights, and read again in each step. A periodic timer
// has an expiry that was not read whenever the GPU is used.
#include "steps.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <cstring>
#include <string>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

// `struct sched_attr`, which C libraries before 2.41 have not.
struct Scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

__global__ void add(unsigned *cells, unsigned step) { cells[threadIdx.x] = cells[threadIdx.x] * 5 + step; }

static std::string text_of(const std::string &path) {
    char text[256] = "";
    int file = open(path.c_str(), O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    return length < 0 ? "none" : std::string(text, size_t(length));
}

static void write_to(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    // What is not allowed stays what it is.
    if (file >= 0 && write(file, text, strlen(text)) < 0) fprintf(stderr, "%s: not set\n", path);
    if (file >= 0) close(file);
}

static std::string named(const char *name, long long value) { return std::string(name) + "=" + std::to_string(value) + " "; }

// Of one thread, readable from all.
static std::string of_thread(pid_t thread) {
    Scheduling scheduling = {};
    syscall(SYS_sched_getattr, thread, &scheduling, sizeof scheduling, 0);
    cpu_set_t processors;
    CPU_ZERO(&processors);
    sched_getaffinity(thread, sizeof processors, &processors);
    std::string all = named("policy", scheduling.policy) + named("flags", scheduling.flags) + named("nice", scheduling.nice);
    all += named("priority", scheduling.priority) + named("ioprio", syscall(SYS_ioprio_get, 1, thread)) + "processors=";
    for (int at = 0; at < CPU_SETSIZE; at++)
        if (CPU_ISSET(at, &processors)) all += std::to_string(at) + ",";
    return all + " slack=" + text_of("/proc/" + std::to_string(thread) + "/timerslack_ns");
}

// Of the process and its main thread.
static std::string of_process() {
    std::string all;
    for (const char *name : {"oom_score_adj", "coredump_filter", "comm", "personality"})
        all += std::string(name) + "=" + text_of(std::string("/proc/self/") + name);
    int value = 0;
    prctl(PR_GET_PDEATHSIG, &value);
    all += named("pdeathsig", value);
    prctl(PR_GET_CHILD_SUBREAPER, &value);
    all += named("subreaper", value) + named("dumpable", prctl(PR_GET_DUMPABLE)) + named("thp", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    all += named("no_new_privs", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)) + named("keepcaps", prctl(PR_GET_KEEPCAPS));
    all += named("securebits", prctl(PR_GET_SECUREBITS)) + named("seccomp", prctl(PR_GET_SECCOMP)) + named("slack", prctl(PR_GET_TIMERSLACK));
    for (int which = 0; which < RLIM_NLIMITS; which++) {
        struct rlimit limit;
        getrlimit(static_cast<__rlimit_resource>(which), &limit);
        all += named("limit", (long long)limit.rlim_cur) + named("of", (long long)limit.rlim_max);
    }
    mode_t mask = umask(0);
    umask(mask);
    char folder[512] = "";
    all += named("umask", mask) + "folder=" + (getcwd(folder, sizeof folder) ? folder : "none") + " ";
    sigset_t blocked, pending;
    sigprocmask(SIG_BLOCK, nullptr, &blocked);
    sigpending(&pending);
    for (int number = 1; number < 64; number++)
        all += named("blocked", sigismember(&blocked, number)) + named("pending", sigismember(&pending, number));
    stack_t stack;
    sigaltstack(nullptr, &stack);
    all += named("stack", (long long)stack.ss_size);
    for (int which = 0; which < 3; which++) {
        struct itimerval timer;
        getitimer(static_cast<__itimer_which>(which), &timer);
        all += named("period", timer.it_interval.tv_sec);
    }
    gid_t groups[64];
    int count = getgroups(64, groups);
    for (int at = 0; at < count; at++) all += named("group", groups[at]);
    return all + named("uid", getuid()) + named("gid", getgid());
}

static pid_t other_thread;

static void *stands_by(void *barrier) {
    Scheduling batch = {sizeof batch, SCHED_BATCH, 0, 7};
    syscall(SYS_sched_setattr, 0, &batch, 0);
    syscall(SYS_ioprio_set, 1, 0, 3 << 13);
    other_thread = gettid();
    pthread_barrier_wait(static_cast<pthread_barrier_t *>(barrier));
    for (;;) pause();
}

// As far as it takes no rights: what is refused stays what it is.
static void set_all() {
    cpu_set_t processors;
    sched_getaffinity(0, sizeof processors, &processors);
    for (int at = 0, kept = 0; at < CPU_SETSIZE; at++)
        if (CPU_ISSET(at, &processors) && kept++ > 0) CPU_CLR(at, &processors);
    sched_setaffinity(0, sizeof processors, &processors);
    Scheduling batch = {sizeof batch, SCHED_BATCH, 1, 3};
    syscall(SYS_sched_setattr, 0, &batch, 0);
    syscall(SYS_ioprio_set, 1, 0, (2 << 13) | 6);
    write_to("/proc/self/oom_score_adj", "321");
    write_to("/proc/self/coredump_filter", "0x7");
    personality(ADDR_NO_RANDOMIZE);
    prctl(PR_SET_NAME, "odd) name (");
    prctl(PR_SET_TIMERSLACK, 123456);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    limit.rlim_cur = 6 << 20;
    setrlimit(RLIMIT_STACK, &limit);
    umask(031);
    if (chdir("/usr") != 0) fprintf(stderr, "no /usr\n");
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigaddset(&blocked, 40);
    sigprocmask(SIG_BLOCK, &blocked, nullptr);
    raise(SIGUSR2);
    // To this thread: those of a driver may not have it blocked.
    pthread_sigqueue(pthread_self(), 40, {7});
    static char stack[65536];
    stack_t other = {};
    other.ss_sp = stack, other.ss_size = sizeof stack;
    sigaltstack(&other, nullptr);
    struct itimerval timer = {{100000, 0}, {200000, 0}};
    setitimer(ITIMER_REAL, &timer, nullptr);
}

int main(int argc, char **argv) {
    int steps = steps_wanted(argc, argv, 12);
    unsigned *cells = nullptr, host[64];
    OK(cudaMalloc(&cells, sizeof host));
    OK(cudaMemset(cells, 0, sizeof host));
    set_all();
    pthread_barrier_t begun;
    pthread_barrier_init(&begun, nullptr, 2);
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, stands_by, &begun) == 0, "pthread_create");
    pthread_barrier_wait(&begun);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec period = {{0, 2000000}, {0, 2000000}};
    CHECK(timerfd_settime(timer, 0, &period, nullptr) == 0, "timerfd_settime");
    const std::string first = of_process(), main_thread = of_thread(getpid()), other = of_thread(other_thread);
    for (int step = 0; step < steps; step++) {
        // No thread reads it before the GPU has been used.
        struct pollfd expiry = {timer, POLLIN, 0};
        while (poll(&expiry, 1, -1) < 1) {}
        add<<<1, 64>>>(cells, step);
        OK(cudaMemcpy(host, cells, sizeof host, cudaMemcpyDeviceToHost));
        uint64_t expiries = 0;
        CHECK(read(timer, &expiries, sizeof expiries) == sizeof expiries && expiries > 0, "expiry in step %d", step);
        const std::string now = of_process(), main_now = of_thread(getpid()), other_now = of_thread(other_thread);
        CHECK(now == first, "in step %d: %s, and was %s", step, now.c_str(), first.c_str());
        CHECK(main_now == main_thread, "in step %d: %s, and was %s", step, main_now.c_str(), main_thread.c_str());
        CHECK(other_now == other, "in step %d: %s, and was %s", step, other_now.c_str(), other.c_str());
        Checksum sum;
        sum.add(host);
        told(step, sum);
    }
    OK(cudaFree(cells));
    return finish("kept_attributes");
}
