// Not a test by itself: in the middle of its steps, the program has descriptors of which CRIU saves a part. At its end they must be
// unchanged.
//
//   open_descriptors KIND
//
//   leases    has leases: one intact, and others that opens of their files are breaking; it was notified once of each of these
//   inherited has such a lease on a file that a child alone has open
//   senders   has unread datagrams, from senders that exist, are gone, or have no name
//   watches   has watches that end with their first event, and that leave out files without a name
//   peers     has socket pairs of which a child has the other end
//
// These are refused:
//
//   empty     has an unread datagram without bytes, and one after it; it reads both at its end
//   marks     watches a whole file system (FAN_MARK_FILESYSTEM)
//   queued    has an unread event of fanotify
//   semaphore has an eventfd that counts down by one
//   counter   has an eventfd whose count exceeds 32 bits
//   alarm     has a timerfd of an alarm clock
//   messages  has a queue of POSIX messages
//   deadline  has a deadline (SCHED_DEADLINE)
//
// All kinds print the same. The program skips what needs root where it is not allowed.
#include "field_steps.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <mqueue.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

// A private folder, which the program removes at its end.
static char folder[] = "/tmp/open_descriptors.XXXXXX";

static std::string in_folder(const std::string &name) { return std::string(folder) + "/" + name; }

static int made(const std::string &name) {
    int file = open(in_folder(name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    must(file >= 0 && close(file) == 0, "a file");
    return 0;
}

// ---- leases

static volatile sig_atomic_t signals = 0;
static void heard(int) { signals = signals + 1; }

struct Lease {
    int file, target;
};
static std::vector<Lease> leases;

// Opens a file, and breaks the lease on it by another open. `target` is what is left of the lease.
static int broken(const std::string &name, int access, int breaker, int target) {
    made(name);
    int file = open(in_folder(name).c_str(), access | O_CLOEXEC);
    must(file >= 0 && fcntl(file, F_SETLEASE, access == O_RDONLY ? F_RDLCK : F_WRLCK) == 0, "F_SETLEASE");
    const int before = signals;
    must(open(in_folder(name).c_str(), breaker | O_NONBLOCK) < 0 && errno == EWOULDBLOCK, "an open that breaks the lease");
    CHECK(signals == before + 1 && fcntl(file, F_GETLEASE) == target, "%s: %d signals", name.c_str(), int(signals));
    return file;
}

// A lease that no other open breaks, on a file with contents.
static int whole() {
    made("whole");
    int file = open(in_folder("whole").c_str(), O_RDWR | O_CLOEXEC);
    must(file >= 0 && write(file, "whole", 5) == 5 && fcntl(file, F_SETLEASE, F_WRLCK) == 0, "F_SETLEASE");
    return file;
}

static void set_leases() {
    leases.push_back({whole(), F_WRLCK});
    leases.push_back({broken("read", O_RDONLY, O_WRONLY, F_UNLCK), F_UNLCK});
    leases.push_back({broken("downgraded", O_WRONLY, O_RDONLY, F_RDLCK), F_RDLCK});
    leases.push_back({broken("written", O_WRONLY, O_WRONLY, F_UNLCK), F_UNLCK});
    leases.push_back({broken("both", O_RDWR, O_RDONLY, F_RDLCK), F_RDLCK});
    // Descriptors of the same open file have the same lease.
    must(dup(leases.back().file) >= 0, "dup");
}

static void leases_are_breaking(int wanted) {
    for (const Lease &lease : leases) {
        CHECK(fcntl(lease.file, F_GETLEASE) == lease.target, "a lease is %d", fcntl(lease.file, F_GETLEASE));
        // If that took long, the kernel has ended the lease.
        CHECK(fcntl(lease.file, F_SETLEASE, F_UNLCK) == 0 || errno == EAGAIN, "F_UNLCK: %s", strerror(errno));
    }
    CHECK(signals == wanted, "%d signals", int(signals));
}

static int to_child[2], from_child[2];

static pid_t child_with_a_lease() {
    int file = broken("inherited", O_WRONLY, O_RDONLY, F_RDLCK);
    must(pipe(to_child) == 0 && pipe(from_child) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (read(to_child[0], &byte, 1) != 1) _exit(1);
        byte = char('0' + fcntl(file, F_GETLEASE));
        _exit(write(from_child[1], &byte, 1) == 1 ? 0 : 1);
    }
    must(child > 0 && close(file) == 0, "fork");
    return child;
}

static void child_has_the_lease() {
    char byte = 0;
    must(write(to_child[1], "x", 1) == 1 && read(from_child[0], &byte, 1) == 1, "the child");
    CHECK(byte == '0' + F_RDLCK && signals == 1, "its lease is %c, and there were %d signals", byte, int(signals));
}

// ---- datagrams

struct Address {
    sockaddr_un name;
    socklen_t length;
    sockaddr *pointer() { return reinterpret_cast<sockaddr *>(&name); }
};

// Returns an address in the kernel's abstract namespace, or that of a file.
static Address named(const std::string &name, bool is_file) {
    Address address = {};
    address.name.sun_family = AF_UNIX;
    std::string text = is_file ? in_folder(name) : std::string(1, '\0') + in_folder(name);
    memcpy(address.name.sun_path, text.data(), text.size());
    address.length = socklen_t(sizeof address.name.sun_family + text.size() + (is_file ? 1 : 0));
    return address;
}

static int bound(const std::string &name, bool is_file) {
    Address address = named(name, is_file);
    int made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    must(made >= 0 && bind(made, address.pointer(), address.length) == 0, "bind");
    return made;
}

static void send_to(int sender, Address to, const std::string &text) {
    must(sendto(sender, text.data(), text.size(), 0, to.pointer(), to.length) == ssize_t(text.size()), "sendto");
}

static const std::string LONG(20000, 'l');

// Reads a datagram and its sender's name.
static void is_read(int socket, const std::string &text, Address from) {
    std::vector<char> bytes(1 << 16);
    Address sender = {};
    sender.length = sizeof sender.name;
    ssize_t length = recvfrom(socket, bytes.data(), bytes.size(), MSG_DONTWAIT, sender.pointer(), &sender.length);
    CHECK(length == ssize_t(text.size()) && memcmp(bytes.data(), text.data(), text.size()) == 0, "a datagram of %zd bytes", length);
    const bool is_its = sender.length == from.length && memcmp(&sender.name, &from.name, from.length) == 0;
    CHECK(is_its, "%s is from %s", text.substr(0, 8).c_str(), sender.name.sun_path + (sender.name.sun_path[0] ? 0 : 1));
}

struct Receiver {
    int socket;
    std::string name;
    bool is_file;
};
static std::vector<Receiver> receivers;
static int connected = -1;

static void send_all() {
    int here = bound("here", false), here_too = bound("here_too", true), unnamed = socket(AF_UNIX, SOCK_DGRAM, 0);
    for (bool is_file : {false, true}) {
        std::string name = is_file ? "to_file" : "to";
        receivers.push_back({bound(name, is_file), name, is_file});
        Address to = named(name, is_file);
        int gone = bound(name + "_gone", false);
        send_to(unnamed, to, "unnamed");
        send_to(here, to, "here");
        send_to(gone, to, LONG);
        send_to(here_too, to, "here too");
        send_to(unnamed, to, "again");
        close(gone);
        if (geteuid() != 0) continue;
        // Its name is still a file, or no longer one.
        for (const char *end : {"_left", "_removed"}) {
            int file = bound(name + end, true);
            send_to(file, to, end);
            close(file);
        }
        must(unlink(in_folder(name + "_removed").c_str()) == 0, "unlink");
    }
    int pair[2];
    Address at_end = named("at_end", false);
    must(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && bind(pair[0], at_end.pointer(), at_end.length) == 0, "socketpair");
    must(send(pair[0], "pair", 4, 0) == 4, "send");
    connected = pair[1];
}

static void all_is_read() {
    const Address none = {};
    for (const Receiver &to : receivers) {
        is_read(to.socket, "unnamed", none);
        is_read(to.socket, "here", named("here", false));
        is_read(to.socket, LONG, named(to.name + "_gone", false));
        is_read(to.socket, "here too", named("here_too", true));
        is_read(to.socket, "again", none);
        if (geteuid() == 0)
            for (const char *end : {"_left", "_removed"}) is_read(to.socket, end, named(to.name + end, true));
        CHECK(recv(to.socket, nullptr, 0, MSG_DONTWAIT) < 0 && errno == EAGAIN, "one datagram more");
        // The program can reply to its sender by name.
        send_to(to.socket, named("here", false), "answer");
    }
    is_read(connected, "pair", named("at_end", false));
}

static int empty = -1;

static void send_nothing() {
    empty = bound("empty", false);
    int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    for (const char *text : {"", "text"}) send_to(sender, named("empty", false), text);
}

// ---- watches

static int watch = -1, unlinked = -1;

static void set_watches() {
    must(mkdir(in_folder("once").c_str(), 0700) == 0 && mkdir(in_folder("named").c_str(), 0700) == 0, "mkdir");
    made("named/file");
    unlinked = open(in_folder("named/file").c_str(), O_RDWR | O_CLOEXEC);
    watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    must(inotify_add_watch(watch, in_folder("once").c_str(), IN_CREATE | IN_ONESHOT) == 1, "IN_ONESHOT");
    must(inotify_add_watch(watch, in_folder("named").c_str(), IN_MODIFY | IN_EXCL_UNLINK) == 2, "IN_EXCL_UNLINK");
}

static void watches_are_whole() {
    must(write(unlinked, "x", 1) == 1 && unlink(in_folder("named/file").c_str()) == 0 && write(unlinked, "y", 1) == 1, "write");
    for (const char *name : {"once/one", "once/two"}) made(name);
    alignas(inotify_event) char bytes[4096];
    ssize_t length = read(watch, bytes, sizeof bytes);
    std::string all;
    for (ssize_t at = 0; at < length;) {
        auto *event = reinterpret_cast<inotify_event *>(bytes + at);
        all += std::to_string(event->wd) + ":" + std::to_string(event->mask) + " ";
        at += ssize_t(sizeof *event + event->len);
    }
    const std::string wanted = "2:" + std::to_string(IN_MODIFY) + " 1:" + std::to_string(IN_CREATE) + " 1:" + std::to_string(IN_IGNORED) + " ";
    CHECK(all == wanted, "events are %s", all.c_str());
}

// Whether fanotify is allowed.
static bool mark_with_fanotify(bool is_file_system) {
    watch = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY | O_CLOEXEC);
    const unsigned flags = FAN_MARK_ADD | (is_file_system ? FAN_MARK_FILESYSTEM : 0);
    if (watch < 0 || fanotify_mark(watch, flags, FAN_OPEN, AT_FDCWD, "/proc/self/exe") != 0) return false;
    if (!is_file_system) close(open("/proc/self/exe", O_RDONLY));
    return true;
}

// ---- peers

struct Pair {
    int end;
    pid_t maker;
};
static std::vector<Pair> pairs;

static pid_t pid_of_peer(int socket) {
    ucred peer = {};
    socklen_t length = sizeof peer;
    must(getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0, "SO_PEERCRED");
    return peer.pid;
}

static pid_t make_pairs() {
    int others[4];
    for (int &other : others) {
        int pair[2];
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
        // The child has one of the two, the first or the second.
        const int ours = pairs.size() % 2;
        pairs.push_back({pair[ours], getpid()});
        other = pair[1 - ours];
    }
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (const Pair &pair : pairs) close(pair.end);
        char byte = 0;
        for (int other : others)
            if (read(other, &byte, 1) != 1 || pid_of_peer(other) != parent || write(other, &byte, 1) != 1) _exit(1);
        _exit(0);
    }
    for (int other : others) close(other);
    return child;
}

static void pairs_tell_their_maker() {
    for (const Pair &pair : pairs) {
        char byte = 0;
        CHECK(pid_of_peer(pair.end) == pair.maker, "the peer is %d", pid_of_peer(pair.end));
        CHECK(write(pair.end, "x", 1) == 1 && read(pair.end, &byte, 1) == 1, "the child has another peer");
    }
}

// ---- what no image of CRIU's has

static int counter = -1;
constexpr uint64_t LARGE_COUNT = uint64_t(5) << 32;

static void open_counter(uint64_t count, int flags) {
    counter = eventfd(0, flags | EFD_CLOEXEC);
    must(counter >= 0 && write(counter, &count, sizeof count) == sizeof count, "eventfd");
}

static void counter_has(uint64_t expected) {
    uint64_t count = 0;
    CHECK(read(counter, &count, sizeof count) == sizeof count && count == expected, "the counter gives %llu", (unsigned long long)count);
}

static void open_queue() {
    const std::string name = std::string("/") + (strrchr(folder, '/') + 1);
    must(mq_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600, nullptr) >= 0 && mq_unlink(name.c_str()) == 0, "mq_open");
}

// The kernel's struct sched_attr of its first version, whose header does not go with glibc's. Times in nanoseconds.
struct SchedAttr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static void schedule(bool has_deadline) {
    constexpr uint32_t ordinary = 0, deadline = 6;
    SchedAttr wanted = {sizeof wanted, ordinary, 0, 0, 0, 0, 0, 0};
    if (has_deadline) wanted = {sizeof wanted, deadline, 0, 0, 0, 1000000, 100000000, 100000000};
    must(syscall(SYS_sched_setattr, 0, &wanted, 0) == 0, "sched_setattr");
}

// Opens the descriptors of this kind. Returns the child, or 0.
static pid_t begin(const std::string &kind) {
    must(signal(SIGIO, heard) != SIG_ERR && mkdtemp(folder) != nullptr, "a folder");
    if (kind == "leases") set_leases();
    if (kind == "senders") send_all();
    if (kind == "empty") send_nothing();
    if (kind == "watches") set_watches();
    if (kind == "marks" || kind == "queued") must(mark_with_fanotify(kind == "marks"), "fanotify");
    if (kind == "semaphore") open_counter(5, EFD_SEMAPHORE);
    if (kind == "counter") open_counter(LARGE_COUNT, 0);
    if (kind == "alarm") must(timerfd_create(CLOCK_REALTIME_ALARM, TFD_CLOEXEC) >= 0, "timerfd_create");
    if (kind == "messages") open_queue();
    if (kind == "deadline") schedule(true);
    if (kind == "inherited") return child_with_a_lease();
    return kind == "peers" ? make_pairs() : 0;
}

static void end(const std::string &kind, pid_t child) {
    if (kind == "leases") leases_are_breaking(4);
    if (kind == "inherited") child_has_the_lease();
    if (kind == "senders") all_is_read();
    if (kind == "watches") watches_are_whole();
    if (kind == "semaphore") counter_has(1);
    // A process with a deadline may have no children.
    if (kind == "deadline") schedule(false);
    if (kind == "counter") counter_has(LARGE_COUNT);
    if (kind == "peers") pairs_tell_their_maker();
    if (kind == "empty") {
        const Address none = {};
        for (const char *text : {"", "text"}) is_read(empty, text, none);
    }
    if (child > 0) {
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ends with %d", status);
    }
    std::string remove = std::string("rm -rf ") + folder;
    must(system(remove.c_str()) == 0, "rm");
}

int main(int argc, char **argv) {
    const std::string kind = argc > 1 ? argv[1] : "";
    pid_t child = 0;
    all_steps([&] { child = begin(kind); }, [&] { end(kind, child); });
    return finish("open_descriptors");
}
