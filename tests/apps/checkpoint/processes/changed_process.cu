// Not a test by itself: a program that changes its process once its session has begun, and then goes on with its steps.
//
//   changed_process KIND
//
//   none      changes nothing
//   raw       has a child made by the bare system call, unknown to fork handlers, with copies of all descriptors
//   memory    has a child in its own memory (CLONE_VM)
//   stopped   has a child that is stopped as soon as it exists
//   user      becomes another user
//   root      has another root directory
//   files     may open no more files
//   segment   has a System V segment attached
//   machine   has set its reaction to a memory failure of the machine (PR_MCE_KILL)
//   merging   shares equal pages (PR_SET_MEMORY_MERGE)
//   guessing  has switched off a kind of speculation (PR_SET_SPECULATION_CTRL)
//   mount     has a child with a mount namespace of its own
//   network   has a child with a network namespace of its own
//   unsent    has sent itself more bytes over TCP than there is room for; it reads them at its end
//   halves    has TCP connections to itself that one end has shut down (FIN_WAIT2 and CLOSE_WAIT), and open ones; it uses them at
//             its end
//   policy    takes memory of the first node only (set_mempolicy)
//   bound     has a mapping with memory of the first node only (mbind)
//   spread    takes memory of all nodes in turn (MPOL_INTERLEAVE), and has a shared mapping that prefers the first (MPOL_PREFERRED)
//   flusher   writes for a file system (PR_SET_IO_FLUSHER)
//   session   has a child whose child is in a session without its leader
//   ended     has a child that has ended in such a session, and has not waited for it
//   peer      has a socket made by a process of another user, which is gone
//   events    has not read an event of a file that it watches
//   suspended has a child that SIGTSTP has stopped, and learns that signal at its end
//   vforked   has a child by vfork, for which one of its threads waits
//   traced    traces a child (ptrace)
//   corked    has written unsent bytes to a UDP socket (UDP_CORK); it reads them at its end
//   pidfd     has a descriptor of a thread (PIDFD_THREAD)
//
// A child lives as long as the program. Settings of a process must be the same at its end. All kinds print the same.
#include "field_steps.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <grp.h>
#include <linux/mempolicy.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

// PR_SET_MEMORY_MERGE, of Linux 6.4.
constexpr int MEMORY_MERGE = 67;

static int wait_for_a_signal(void *) {
    for (;;) pause();
    return 0;
}

// Two pages of memory with a policy, and one on each side without.
static char *bound = nullptr;
constexpr size_t PAGE = 4096;

static bool bind_pages(int shared, int mode) {
    const unsigned long first_node = 1;
    void *memory = mmap(nullptr, 4 * PAGE, PROT_READ | PROT_WRITE, shared | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    bound = static_cast<char *>(memory);
    memset(bound, 7, 4 * PAGE);
    return syscall(SYS_mbind, bound + PAGE, 2 * PAGE, mode, &first_node, 64, 0) == 0;
}

static bool is_flusher = false;
static bool is_careful = false;

// Changes its own state by calls that no other process can make for it.
static bool set_for_itself(const char *kind) {
    if (strcmp(kind, "machine") == 0) return prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0) == 0;
    if (strcmp(kind, "flusher") == 0) {
        // Not every root may do that.
        is_flusher = prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0;
        return is_flusher || errno == EPERM;
    }
    if (strcmp(kind, "merging") == 0) return prctl(MEMORY_MERGE, 1, 0, 0, 0) == 0;
    if (strcmp(kind, "guessing") == 0) {
        // Some processors, or their kernels, leave no choice.
        is_careful = prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0) == 0;
        return is_careful || errno == ENXIO;
    }
    const unsigned long first_node = 1;
    if (strcmp(kind, "policy") == 0) return syscall(SYS_set_mempolicy, MPOL_BIND, &first_node, 64) == 0;
    if (strcmp(kind, "bound") == 0) return bind_pages(MAP_PRIVATE, MPOL_BIND);
    if (strcmp(kind, "spread") == 0)
        return syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &first_node, 64) == 0 && bind_pages(MAP_SHARED, MPOL_PREFERRED);
    return false;
}

// Reads the policy of the thread, or of memory: the kernel's number and mask.
static bool has_policy(const void *address, int mode, unsigned long nodes) {
    int found = -1;
    unsigned long mask[16] = {};
    unsigned long flags = address ? MPOL_F_ADDR : 0;
    if (syscall(SYS_get_mempolicy, &found, mask, 8 * sizeof mask, address, flags) != 0) return false;
    CHECK(found == mode && mask[0] == nodes, "the policy is %d of %lx", found, mask[0]);
    return true;
}

static void is_still_set(const char *kind) {
    bool asked = true;
    if (strcmp(kind, "machine") == 0) CHECK(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0) == PR_MCE_KILL_EARLY, "PR_MCE_KILL_GET");
    if (is_flusher) CHECK(prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) == 1, "PR_GET_IO_FLUSHER");
    if (strcmp(kind, "merging") == 0) CHECK(prctl(MEMORY_MERGE + 1, 0, 0, 0, 0) == 1, "PR_GET_MEMORY_MERGE");
    if (is_careful) {
        const int stores = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0);
        CHECK(stores == (PR_SPEC_PRCTL | PR_SPEC_DISABLE), "PR_GET_SPECULATION_CTRL gives %d", stores);
    }
    const bool is_spread = strcmp(kind, "spread") == 0;
    if (strcmp(kind, "policy") == 0) asked = has_policy(nullptr, MPOL_BIND, 1);
    if (is_spread) asked = has_policy(nullptr, MPOL_INTERLEAVE, 1);
    if (bound) {
        const int mode = is_spread ? MPOL_PREFERRED : MPOL_BIND;
        for (int page = 0; page < 4; page++) {
            const bool is_bound = page == 1 || page == 2;
            asked = asked && has_policy(bound + page * PAGE, is_bound ? mode : MPOL_DEFAULT, is_bound ? 1 : 0);
            CHECK(bound[page * PAGE] == 7, "page %d has changed", page);
        }
    }
    CHECK(asked, "get_mempolicy");
}

static int make_pair(void *other) {
    int *pair = static_cast<int *>(other);
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
    _exit(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 ? 0 : 1);
}

// Gets a socket pair made by another user, from a child with this process' memory and descriptors.
static void get_a_foreign_pair() {
    static char stack[64 << 10];
    static int pair[2];
    int status = 1;
    pid_t child = clone(make_pair, stack + sizeof stack, CLONE_VM | CLONE_FILES | SIGCHLD, pair);
    must(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a foreign pair");
}

// Makes both ends of a connection; returns false where there is no such protocol.
static bool connect_ends(int family, int ends[2]) {
    sockaddr_storage storage = {};
    auto *address = reinterpret_cast<sockaddr *>(&storage);
    socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    storage.ss_family = sa_family_t(family);
    if (family == AF_INET) reinterpret_cast<sockaddr_in *>(&storage)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else reinterpret_cast<sockaddr_in6 *>(&storage)->sin6_addr = in6addr_loopback;
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, address, length) != 0) return false;
    ends[0] = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(listen(listener, 1) == 0 && getsockname(listener, address, &length) == 0, "listen");
    must(connect(ends[0], address, length) == 0, "connect");
    ends[1] = accept(listener, nullptr, nullptr);
    must(ends[1] >= 0 && close(listener) == 0, "accept");
    return true;
}

// Connections, and which end has been shut down: 0 or 1, or -1 for none.
struct Half {
    int ends[2], shut;
};
static std::vector<Half> halves;

static void get_halves() {
    for (int family : {AF_INET, AF_INET6})
        for (int shut : {-1, 0, 1}) {
            Half half = {{}, shut};
            if (!connect_ends(family, half.ends)) continue;
            char byte;
            // The other end learns of it when it reads the end of the stream.
            if (shut >= 0) must(shutdown(half.ends[shut], SHUT_WR) == 0 && read(half.ends[1 - shut], &byte, 1) == 0, "shutdown");
            halves.push_back(half);
        }
}

static void use_halves() {
    for (const Half &half : halves)
        for (int from : {0, 1}) {
            char byte = 0;
            const int there = half.ends[from], here = half.ends[1 - from];
            if (from == half.shut) CHECK(read(here, &byte, 1) == 0, "the end of what was shut down");
            else CHECK(write(there, "x", 1) == 1 && read(here, &byte, 1) == 1 && byte == 'x', "a byte from end %d", from);
        }
}

// Sends until the socket is full; sets both ends, and returns the bytes sent.
static size_t fill(int ends[2]) {
    must(connect_ends(AF_INET, ends), "a connection");
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

// Returns a child that has a child in a session whose leader has ended.
static pid_t child_in_a_lost_session() {
    int ready[2];
    char byte;
    must(pipe(ready) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        pid_t leader = fork();
        if (leader == 0) {
            setsid();
            if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr) == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                wait_for_a_signal(nullptr);
            }
            _exit(0);
        }
        waitpid(leader, nullptr, 0);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        wait_for_a_signal(nullptr);
    }
    must(close(ready[1]) == 0 && read(ready[0], &byte, 1) == 1 && close(ready[0]) == 0, "a child in a lost session");
    return child;
}

// Gets an ended child by the end of its parent, which was a child of this process.
static void get_an_ended_child() {
    must(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "PR_SET_CHILD_SUBREAPER");
    pid_t leader = fork();
    if (leader == 0) {
        setsid();
        pid_t child = fork();
        if (child == 0) _exit(0);
        siginfo_t news;
        waitid(P_PID, id_t(child), &news, WEXITED | WNOWAIT);
        _exit(0);
    }
    must(leader > 0 && waitpid(leader, nullptr, 0) == leader, "a child that ends");
}

// The child of a thread, which waits for it. It shares this process' memory.
static volatile pid_t vforked = 0;

static void *vforks(void *) {
    if (vfork() == 0) {
        vforked = getpid();
        for (;;) pause();
    }
    return nullptr;
}

static pid_t vforked_child() {
    pthread_t thread;
    must(pthread_create(&thread, nullptr, vforks, nullptr) == 0 && pthread_detach(thread) == 0, "pthread_create");
    while (vforked == 0) usleep(1000);
    return vforked;
}

static int corked = -1;

static void cork() {
    sockaddr_in address = {};
    socklen_t length = sizeof address;
    const int on = 1;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    corked = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    auto *name = reinterpret_cast<sockaddr *>(&address);
    must(corked >= 0 && bind(corked, name, length) == 0 && getsockname(corked, name, &length) == 0, "bind");
    must(connect(corked, name, length) == 0 && setsockopt(corked, IPPROTO_UDP, UDP_CORK, &on, sizeof on) == 0, "UDP_CORK");
    must(send(corked, "xy", 2, 0) == 2, "send");
}

static void uncork() {
    const int off = 0;
    char bytes[8];
    if (corked < 0) return;
    must(setsockopt(corked, IPPROTO_UDP, UDP_CORK, &off, sizeof off) == 0, "UDP_CORK");
    CHECK(recv(corked, bytes, sizeof bytes, 0) == 2 && bytes[1] == 'y', "what was corked");
}

static pid_t child_of(const char *kind) {
    static char stack[64 << 10];
    if (strcmp(kind, "vforked") == 0) return vforked_child();
    if (strcmp(kind, "memory") == 0) return clone(wait_for_a_signal, stack + sizeof stack, CLONE_VM | SIGCHLD, nullptr);
    pid_t child = strcmp(kind, "raw") == 0 ? pid_t(syscall(SYS_fork)) : fork();
    if (child == 0) {
        if (strcmp(kind, "suspended") == 0) setpgid(0, 0);
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

// Checks that a child has stopped by this signal, and leaves its status to be read again.
static void has_stopped_by(pid_t child, int signal) {
    siginfo_t news = {};
    must(waitid(P_PID, id_t(child), &news, WSTOPPED | WNOWAIT) == 0, "waitid");
    CHECK(news.si_code == CLD_STOPPED && news.si_status == signal, "the child was stopped by signal %d", news.si_status);
}

static void may_open_no_more() {
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    must(next >= 0 && close(next) == 0, "open");
    limit.rlim_cur = rlim_t(next);
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

// Sockets with bytes on their way over TCP.
static int ends[2];
static size_t sent;

// Changes the process as `kind` says. Returns the child, or 0.
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
    } else if (strcmp(kind, "halves") == 0) {
        get_halves();
    } else if (strcmp(kind, "ended") == 0) {
        get_an_ended_child();
    } else if (strcmp(kind, "peer") == 0) {
        get_a_foreign_pair();
    } else if (strcmp(kind, "events") == 0) {
        int watch = inotify_init1(IN_CLOEXEC), file = inotify_add_watch(watch, "/proc/self/exe", IN_OPEN);
        must(watch >= 0 && file >= 0 && close(open("/proc/self/exe", O_RDONLY)) == 0, "inotify");
    } else if (strcmp(kind, "corked") == 0) {
        cork();
    } else if (strcmp(kind, "pidfd") == 0) {
        must(syscall(SYS_pidfd_open, getpid(), O_EXCL) >= 0, "PIDFD_THREAD");
    } else if (strcmp(kind, "session") == 0) {
        return child_in_a_lost_session();
    } else if (set_for_itself(kind)) {
        return 0;
    } else if (strcmp(kind, "none") != 0) {
        pid_t child = child_of(kind);
        must(child > 0, "a child");
        if (strcmp(kind, "stopped") == 0) kill(child, SIGSTOP);
        if (strcmp(kind, "traced") == 0) must(ptrace(PTRACE_SEIZE, child, nullptr, nullptr) == 0, "PTRACE_SEIZE");
        if (strcmp(kind, "suspended") == 0) {
            // A terminal's signals stop a group with only a child in it, since this process is above it in the same session.
            setpgid(child, child);
            kill(child, SIGTSTP);
            has_stopped_by(child, SIGTSTP);
        }
        if (strcmp(kind, "mount") == 0) has_its_own(child, "mnt");
        if (strcmp(kind, "network") == 0) has_its_own(child, "net");
        return child;
    }
    return 0;
}

static void end(const char *kind, pid_t child) {
    if (strcmp(kind, "suspended") == 0) has_stopped_by(child, SIGTSTP);
    is_still_set(kind);
    use_halves();
    uncork();
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
    drain(ends, sent);
}

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "none";
    pid_t child = 0;
    all_steps([&] { child = change(kind); }, [&] { end(kind, child); });
    return finish("changed_process");
}
