// Kernel state of a process, its child and each thread beside memory and files: scheduling, priorities, limits, credentials,
// signals, timers, memory flags and settings of prctl(2). The program sets all of it once, as far as allowed, and reads it in
// each step. A periodic timer has an unread expiry whenever the GPU is used.
#include "steps.h"

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

// `struct sched_attr`, which C libraries before 2.41 lack.
struct Scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
    uint32_t least, most;
};
constexpr uint64_t RESET_ON_FORK = 1, CLAMP_LEAST = 0x20, CLAMP_MOST = 0x40;

__global__ void add(unsigned *cells, unsigned step) { cells[threadIdx.x] = cells[threadIdx.x] * 5 + step; }

static std::string text_of(const std::string &path) {
    char text[8192] = "";
    int file = open(path.c_str(), O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    return length < 0 ? "none" : std::string(text, size_t(length));
}

static void write_to(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    // A setting that is not allowed stays unchanged.
    if (file >= 0 && write(file, text, strlen(text)) < 0) errno = 0;
    if (file >= 0) close(file);
}

static std::string named(const char *name, long long value) { return std::string(name) + "=" + std::to_string(value) + " "; }

// Returns the attributes of one thread, readable from all.
static std::string of_thread(pid_t thread) {
    Scheduling scheduling = {};
    syscall(SYS_sched_getattr, thread, &scheduling, sizeof scheduling, 0);
    cpu_set_t processors;
    CPU_ZERO(&processors);
    sched_getaffinity(thread, sizeof processors, &processors);
    std::string all = named("policy", scheduling.policy) + named("flags", scheduling.flags) + named("nice", scheduling.nice);
    all += named("least", scheduling.least) + named("most", scheduling.most);
    all += named("priority", scheduling.priority) + named("ioprio", syscall(SYS_ioprio_get, 1, thread)) + "processors=";
    for (int at = 0; at < CPU_SETSIZE; at++)
        if (CPU_ISSET(at, &processors)) all += std::to_string(at) + ",";
    return all + " slack=" + text_of("/proc/" + std::to_string(thread) + "/timerslack_ns");
}

// The lines of `/proc/self/status` about capabilities.
static std::string capabilities() {
    std::string status = text_of("/proc/self/status"), all;
    for (size_t at = 0; (at = status.find("\nCap", at)) != std::string::npos; at++) all += status.substr(at + 1, 24) + " ";
    return all;
}

// Returns the attributes of the process and its main thread.
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
    return all + capabilities() + named("uid", getuid()) + named("gid", getgid());
}

static void set_scheduling(Scheduling wanted) {
    wanted.size = sizeof wanted;
    syscall(SYS_sched_setattr, 0, &wanted, 0);
    // Kernels without clamps refuse them.
    wanted.flags |= CLAMP_LEAST | CLAMP_MOST;
    wanted.least = 100, wanted.most = 900;
    syscall(SYS_sched_setattr, 0, &wanted, 0);
}

// Allows only the last processor, or only the first.
static void use_one_processor(bool last) {
    cpu_set_t allowed, one;
    sched_getaffinity(0, sizeof allowed, &allowed);
    CPU_ZERO(&one);
    for (int at = 0; at < CPU_SETSIZE; at++)
        if (CPU_ISSET(at, &allowed) && (last || CPU_COUNT(&one) == 0)) {
            CPU_ZERO(&one);
            CPU_SET(at, &one);
        }
    sched_setaffinity(0, sizeof one, &one);
}

static void set_soft_limit(int which, rlim_t value) {
    struct rlimit limit;
    getrlimit(static_cast<__rlimit_resource>(which), &limit);
    if (limit.rlim_max != RLIM_INFINITY && value > limit.rlim_max) value = limit.rlim_max;
    limit.rlim_cur = value;
    setrlimit(static_cast<__rlimit_resource>(which), &limit);
}

// ---- what all threads have, so it is set before there is a second one

static void drop_capabilities() {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[2] = {};
    prctl(PR_CAPBSET_DROP, CAP_WAKE_ALARM, 0, 0, 0);
    if (syscall(SYS_capget, &header, sets) != 0) return;
    sets[0].effective &= ~(1u << CAP_SYS_TIME);
    sets[0].permitted &= ~(1u << CAP_SYS_TIME);
    sets[1].effective &= ~(1u << (CAP_WAKE_ALARM - 32));
    syscall(SYS_capset, &header, sets);
}

// The filter answers a call that no kernel has any more with this number.
constexpr int FILTERED = 77;
static void filter_calls() {
    sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_nfsservctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | FILTERED),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "PR_SET_SECCOMP: %s", strerror(errno));
}

static void set_credentials() {
    const gid_t groups[] = {4242, 4243, 65534};
    // A setting that is not allowed stays unchanged.
    if (setgroups(3, groups) != 0) errno = 0;
    prctl(PR_SET_SECUREBITS, SECBIT_NO_CAP_AMBIENT_RAISE, 0, 0, 0);
    prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
    drop_capabilities();
    filter_calls();
    personality(ADDR_NO_RANDOMIZE);
}

// ---- a child with other values

static int to_child[2], from_child[2];

static void be_child() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    use_one_processor(true);
    set_scheduling({0, SCHED_BATCH, 0, 9});
    syscall(SYS_ioprio_set, 1, 0, (2 << 13) | 1);
    write_to("/proc/self/oom_score_adj", "432");
    write_to("/proc/self/coredump_filter", "0x31");
    prctl(PR_SET_NAME, "child");
    prctl(PR_SET_TIMERSLACK, 77777);
    set_soft_limit(RLIMIT_NOFILE, 999);
    set_soft_limit(RLIMIT_CORE, 0);
    umask(026);
    if (chdir("/") != 0) _exit(1);
    struct itimerval timer = {{300000, 0}, {400000, 0}};
    setitimer(ITIMER_REAL, &timer, nullptr);
    for (char byte; read(to_child[0], &byte, 1) == 1;) {
        const std::string all = of_process() + of_thread(getpid());
        const size_t size = all.size();
        if (write(from_child[1], &size, sizeof size) < 0 || write(from_child[1], all.data(), size) < 0) break;
    }
    _exit(0);
}

static void make_child() {
    CHECK(pipe(to_child) == 0 && pipe(from_child) == 0, "pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        close(to_child[1]);
        close(from_child[0]);
        be_child();
    }
    CHECK(child > 0 && close(to_child[0]) == 0 && close(from_child[1]) == 0, "fork: %s", strerror(errno));
}

// Returns the child's attributes as it sees them.
static std::string of_child() {
    size_t size = 0, length = 0;
    char text[16384];
    if (write(to_child[1], "x", 1) != 1 || read(from_child[0], &size, sizeof size) != sizeof size) return "no child";
    if (size > sizeof text) return "too much of a child";
    for (ssize_t some; length < size && (some = read(from_child[0], text + length, size - length)) > 0;) length += some;
    return std::string(text, length);
}

// ---- other threads

static pid_t other_thread, urgent_thread;

static void *stands_by(void *barrier) {
    set_scheduling({0, SCHED_BATCH, 0, 7});
    syscall(SYS_ioprio_set, 1, 0, 3 << 13);
    other_thread = gettid();
    pthread_barrier_wait(static_cast<pthread_barrier_t *>(barrier));
    for (;;) pause();
}

// A thread with a real-time policy, where that is allowed.
static void *is_urgent(void *barrier) {
    set_scheduling({0, SCHED_FIFO, RESET_ON_FORK, 0, 5});
    urgent_thread = gettid();
    pthread_barrier_wait(static_cast<pthread_barrier_t *>(barrier));
    for (;;) pause();
}

static void start_threads() {
    pthread_barrier_t begun;
    pthread_barrier_init(&begun, nullptr, 3);
    pthread_t thread;
    for (auto work : {stands_by, is_urgent})
        CHECK(pthread_create(&thread, nullptr, work, &begun) == 0, "pthread_create");
    pthread_barrier_wait(&begun);
}

// ---- timers

constexpr int TICK_SIGNAL = 41, TICK_VALUE = 123;
static volatile sig_atomic_t ticks = 0, last_value = 0;
static timer_t ticking, distant;
// Periodic; one that has expired once and is not read; one that the wall clock ends in days; one that it ends in each step; and one that
// it has ended, and that was read.
static int periodic, unread, on_a_day, soon, past;

static void tick(int, siginfo_t *news, void *) {
    last_value = news->si_code == SI_TIMER ? news->si_value.sival_int : -1;
    ticks = ticks + 1;
}

static itimerspec of_milliseconds(long value, long interval) {
    return {{interval / 1000, interval % 1000 * 1000000}, {value / 1000, value % 1000 * 1000000}};
}

static void set_to_the_clock(int timer, time_t seconds, long nanoseconds) {
    itimerspec at = {};
    clock_gettime(CLOCK_REALTIME, &at.it_value);
    at.it_value.tv_sec += seconds;
    at.it_value.tv_nsec += nanoseconds;
    if (at.it_value.tv_nsec >= 1000000000) at.it_value.tv_sec++, at.it_value.tv_nsec -= 1000000000;
    CHECK(timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, nullptr) == 0, "timerfd_settime: %s", strerror(errno));
}

static bool has_expired(int timer, int patience) {
    struct pollfd expiry = {timer, POLLIN, 0};
    int found;
    while ((found = poll(&expiry, 1, patience)) < 0) {}
    return found == 1;
}

static void is_read(int timer, const char *what) {
    uint64_t expiries = 0;
    CHECK(read(timer, &expiries, sizeof expiries) == sizeof expiries && expiries > 0, "an expiry of the %s timer", what);
}

static void start_timers() {
    struct sigaction action = {};
    action.sa_sigaction = tick;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(TICK_SIGNAL, &action, nullptr);
    sigevent by_signal = {}, silent = {};
    by_signal.sigev_notify = SIGEV_SIGNAL;
    by_signal.sigev_signo = TICK_SIGNAL;
    by_signal.sigev_value.sival_int = TICK_VALUE;
    silent.sigev_notify = SIGEV_NONE;
    const itimerspec often = of_milliseconds(5, 5), rarely = {{500000, 0}, {600000, 0}};
    CHECK(timer_create(CLOCK_MONOTONIC, &by_signal, &ticking) == 0, "timer_create");
    CHECK(timer_create(CLOCK_REALTIME, &silent, &distant) == 0, "timer_create");
    CHECK(timer_settime(ticking, 0, &often, nullptr) == 0 && timer_settime(distant, 0, &rarely, nullptr) == 0, "timer_settime");
    const itimerspec period = of_milliseconds(2, 2), once = of_milliseconds(1, 0);
    periodic = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    unread = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK);
    CHECK(timerfd_settime(periodic, 0, &period, nullptr) == 0, "timerfd_settime");
    CHECK(timerfd_settime(unread, 0, &once, nullptr) == 0 && has_expired(unread, -1), "timerfd_settime");
    on_a_day = timerfd_create(CLOCK_REALTIME, 0);
    soon = timerfd_create(CLOCK_REALTIME, 0);
    past = timerfd_create(CLOCK_REALTIME, 0);
    set_to_the_clock(on_a_day, 200000, 0);
    set_to_the_clock(soon, 0, 1000000);
    set_to_the_clock(past, -1, 0);
    is_read(past, "past");
}

static void has_left(const itimerspec &left, time_t most, time_t interval) {
    const time_t seconds = left.it_value.tv_sec;
    CHECK(seconds > most - 100000 && seconds <= most && left.it_interval.tv_sec == interval, "%ld s are left", long(seconds));
}

// Runs in each step, after the use of the GPU.
static void timers_go_on() {
    is_read(periodic, "periodic");
    CHECK(has_expired(unread, 0), "the timer that expired once");
    CHECK(!has_expired(past, 0), "a timer that had been read expired once more");
    CHECK(has_expired(soon, -1), "the timer of this step");
    is_read(soon, "wall clock's");
    set_to_the_clock(soon, 0, 1000000);
    itimerspec left = {};
    CHECK(timerfd_gettime(on_a_day, &left) == 0, "timerfd_gettime");
    has_left(left, 200000, 0);
    CHECK(timer_gettime(distant, &left) == 0, "timer_gettime");
    has_left(left, 600000, 500000);
    for (const int before = ticks; ticks == before;) poll(nullptr, 0, 1);
    CHECK(last_value == TICK_VALUE, "a tick with %d", int(last_value));
}

// ---- flags of memory

static char *flagged;

static void flag_memory() {
    void *memory = mmap(nullptr, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && mlock(memory, 16384) == 0, "mlock: %s", strerror(errno));
    for (int advice : {MADV_DONTFORK, MADV_DONTDUMP}) CHECK(madvise(memory, 16384, advice) == 0, "madvise: %s", strerror(errno));
    flagged = static_cast<char *>(memory);
}

// Returns the flags of the memory that were set.
static std::string flags_of_memory() {
    char begin[32], line[512];
    snprintf(begin, sizeof begin, "%lx-", reinterpret_cast<unsigned long>(flagged));
    FILE *maps = fopen("/proc/self/smaps", "r");
    bool is_it = false;
    std::string all;
    while (maps && fgets(line, sizeof line, maps)) {
        if (strncmp(line, begin, strlen(begin)) == 0) is_it = true;
        if (!is_it || strncmp(line, "VmFlags:", 8) != 0) continue;
        for (const char *flag : {" lo ", " dc ", " dd "})
            if (strstr(line, flag)) all += flag;
        break;
    }
    if (maps) fclose(maps);
    return all;
}

// Sets everything that is allowed; what is refused stays unchanged.
static void set_all() {
    use_one_processor(false);
    set_scheduling({0, SCHED_BATCH, RESET_ON_FORK, 3});
    syscall(SYS_ioprio_set, 1, 0, (2 << 13) | 6);
    write_to("/proc/self/oom_score_adj", "321");
    write_to("/proc/self/oom_score_adj", "-100");
    write_to("/proc/self/coredump_filter", "0x7");
    prctl(PR_SET_NAME, "odd) name (");
    prctl(PR_SET_TIMERSLACK, 123456);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    set_soft_limit(RLIMIT_STACK, 6 << 20);
    set_soft_limit(RLIMIT_CORE, 1 << 20);
    set_soft_limit(RLIMIT_FSIZE, rlim_t(1) << 50);
    set_soft_limit(RLIMIT_CPU, 1 << 24);
    set_soft_limit(RLIMIT_SIGPENDING, 12345);
    set_soft_limit(RLIMIT_MSGQUEUE, 54321);
    umask(031);
    if (chdir("/usr") != 0) fprintf(stderr, "no /usr\n");
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigaddset(&blocked, 40);
    sigprocmask(SIG_BLOCK, &blocked, nullptr);
    raise(SIGUSR2);
    // Sent to this thread: a driver's threads must not have it blocked.
    pthread_sigqueue(pthread_self(), 40, {7});
    static char stack[65536];
    stack_t other = {};
    other.ss_sp = stack, other.ss_size = sizeof stack;
    sigaltstack(&other, nullptr);
    struct itimerval timer = {{100000, 0}, {200000, 0}};
    for (auto which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) setitimer(which, &timer, nullptr);
    // Ignored, as it is by default.
    prctl(PR_SET_PDEATHSIG, SIGURG);
    // Without root's rights, the process could no longer read its own files.
    if (geteuid() == 0) prctl(PR_SET_DUMPABLE, 0);
}

int main(int argc, char **argv) {
    int steps = steps_wanted(argc, argv, 12);
    unsigned *cells = nullptr, host[64];
    set_credentials();
    make_child();
    OK(cudaMalloc(&cells, sizeof host));
    OK(cudaMemset(cells, 0, sizeof host));
    flag_memory();
    set_all();
    start_threads();
    start_timers();
    auto all = [] {
        const std::string threads = of_thread(getpid()) + of_thread(other_thread) + of_thread(urgent_thread);
        return of_process() + threads + flags_of_memory() + of_child();
    };
    const std::string first = all();
    for (int step = 0; step < steps; step++) {
        // No thread reads the timer before the GPU has been used.
        has_expired(periodic, -1);
        add<<<1, 64>>>(cells, step);
        OK(cudaMemcpy(host, cells, sizeof host, cudaMemcpyDeviceToHost));
        timers_go_on();
        const std::string now = all();
        CHECK(now == first, "in step %d: %s, and was %s", step, now.c_str(), first.c_str());
        CHECK(syscall(SYS_nfsservctl, 0, nullptr, nullptr) == -1 && errno == FILTERED, "the filter: %s", strerror(errno));
        Checksum sum;
        sum.add(host);
        told(step, sum);
    }
    CHECK(first.find(" lo  dc  dd ") != std::string::npos, "the flags of memory in %s", first.c_str());
    is_read(unread, "unread");
    OK(cudaFree(cells));
    return finish("kept_attributes");
}
