// Not a test by itself: a program whose kernel, which is native code on a processor, makes system calls in its worker.
//
//   intruder FILE VARIABLE SOCKET OPEN CACHE
//                           says of each thing that it tries whether it was `done` or `refused`: to read that file and the
//                           environment of the worker's parent, to trace and to signal that, to make sockets and namespaces, to find
//                           a variable in the environment of the worker itself, to connect to that unix socket, to change the mode and
//                           the times of that file, which it may read, to make a folder, a pipe and a file in that module cache, to make memory that
//                           stays, to lower its score for want of memory, to give a child a process group of its own, and each system call
//                           that no driver needs. Last comes the number of that child, which it leaves behind
#include <sys/syscall.h>

#include "check.h"

static const char *source =
    "static long call(long number, long a, long b, long c, long d) {\n"
    "    long result;\n"
    "    __asm__ volatile(\"movq %5, %%r10\\n\\tsyscall\" : \"=a\"(result) : \"a\"(number), \"D\"(a), \"S\"(b), \"d\"(c), \"r\"(d)\n"
    "                     : \"rcx\", \"r10\", \"r11\", \"memory\");\n"
    "    return result;\n"
    "}\n"
    "__kernel void calls(__global long *numbers, __global char *bytes) {\n"
    "    long base = (long)bytes;\n"
    "    for (int at = 0; at < 5; at++)\n"
    "        if (numbers[6 + at]) numbers[1 + at] += base;\n"
    "    numbers[0] = call(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]);\n"
    "}\n";

enum { NUMBERS = 12, BYTES = 1 << 16 };

static cl_kernel kernel;
static cl_mem numbers, bytes;
static char text[BYTES];

// A system call with four arguments, of which those of `places` (bit n: the nth) are offsets into `text`, which goes there and back.
static long call(long number, long a, long b, long c, long d, unsigned places) {
    long all[NUMBERS] = {number, a, b, c, d};
    for (int at = 0; at < 4; at++) all[6 + at] = places >> at & 1;
    CHECK(clEnqueueWriteBuffer(queue, numbers, CL_TRUE, 0, sizeof all, all, 0, NULL, NULL));
    CHECK(clEnqueueWriteBuffer(queue, bytes, CL_TRUE, 0, sizeof text, text, 0, NULL, NULL));
    size_t one = 1;
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, &one, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, numbers, CL_TRUE, 0, sizeof all, all, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, bytes, CL_TRUE, 0, sizeof text, text, 0, NULL, NULL));
    return all[0];
}

enum {
    READ = 0, WRITE = 1, OPEN = 2, SHMGET = 29, GETPID = 39, SOCKET = 41, CONNECT = 42, SOCKETPAIR = 53, CLONE = 56, KILL = 62, MKDIR = 83, CHMOD = 90, FCHMOD = 91, PTRACE = 101,
    SYMLINK = 88, SETPGID = 109, GETPPID = 110, MKNOD = 133, SETPRIORITY = 141, SCHED_SETAFFINITY = 203, UTIMES = 235, FCHMODAT = 268, UNSHARE = 272, IO_URING = 425, CLONE3 = 435, FCHMODAT2 = 452
};

static long opened(const char *path) {
    memset(text, 0, sizeof text);
    strcpy(text, path);
    return call(OPEN, 0, 0, 0, 0, 1);
}

static void say(const char *what, long result) { printf("%s: %s\n", what, result < 0 ? "refused" : "done"); }

// Whether a file of the worker's has a word in it.
static int has(const char *path, const char *word) {
    long file = opened(path), length, found = 0;
    while (file >= 0 && (length = call(READ, file, 0, sizeof text - 1, 0, 2)) > 0)
        for (long at = 0; at + (long)strlen(word) <= length && !found; at++) found = !memcmp(text + at, word, strlen(word));
    return (int)found;
}

// Connects to a unix socket that has a place in a folder.
static long connected(const char *path) {
    long made = call(SOCKET, 1, 1, 0, 0, 0);
    memset(text, 0, sizeof text);
    text[0] = 1;
    strcpy(text + 2, path);
    return made < 0 ? made : call(CONNECT, made, 0, 110, 0, 2);
}

// A call on a path, with a number behind it.
static long on_path(long number, const char *path, long further) {
    memset(text, 0, sizeof text);
    strcpy(text, path);
    return call(number, 0, further, 0, 0, 1);
}

static long on_path_at(long number, const char *path, long further) {
    memset(text, 0, sizeof text);
    strcpy(text, path);
    return call(number, -100, 0, further, 0, 2);
}

// What leads to other processes of the worker's user. A pair of streams stays its own: only a filter says of its end that it may not
// be connected (EPERM).
static void sockets(const char *named) {
    say("a socket with a name", connected(named));
    say("a unix socket", call(SOCKET, 1, 1, 0, 0, 0));
    say("a pair of datagrams", call(SOCKETPAIR, 1, 2, 0, 0, 8));
    say("a raw pair, which is one of datagrams", call(SOCKETPAIR, 1, 3, 0, 0, 8));
    memset(text, 0, sizeof text);
    say("a pair of streams", call(SOCKETPAIR, 1, 1, 0, 0, 8));
    int end;
    memcpy(&end, text, sizeof end);
    memset(text, 0, sizeof text);
    text[0] = 1;
    strcpy(text + 2, named);
    say("another end for it", call(CONNECT, end, 0, 110, 0, 2) == -1 ? -1 : 0);
}

// A name that a module would have: what is there keeps it out.
static void stores(const char *cache) {
    char path[4096];
    snprintf(path, sizeof path, "%s/folder", cache);
    say("a folder in the module cache", on_path(MKDIR, path, 0700));
    snprintf(path, sizeof path, "%s/pipe", cache);
    // S_IFIFO
    say("a pipe in the module cache", on_path(MKNOD, path, 010600));
    snprintf(path, sizeof path, "%s/socket", cache);
    // S_IFSOCK
    say("a socket in the module cache", on_path(MKNOD, path, 0140600));
    // The name of the link stands behind what it leads to.
    memset(text, 0, sizeof text);
    snprintf(text, sizeof text, "/etc/passwd%c%s/link", 0, cache);
    say("a link in the module cache", call(SYMLINK, 0, 12, 0, 0, 3));
    snprintf(path, sizeof path, "%s/file", cache);
    // O_WRONLY | O_CREAT
    say("a file in the module cache", on_path(OPEN, path, 0101));
}

// Calls that reach into other processes, change the machine or files, leave the sandbox or go around it. With arguments that are none
// (an address, a size and a descriptor of -1), the kernel would do nothing, and say something else than that it refuses.
static const struct {
    const char *name;
    long number;
} further[] = {
#define CALL(name) {#name, SYS_##name}
    CALL(process_vm_writev), {"process_madvise", 440}, {"pidfd_getfd", 438}, CALL(kcmp), CALL(mount), CALL(umount2), CALL(pivot_root),
    CALL(chroot), {"move_mount", 429}, {"open_tree", 428}, {"fsopen", 430}, {"fsconfig", 431}, {"fsmount", 432}, {"fspick", 433},
    {"mount_setattr", 442}, CALL(setns), CALL(quotactl), CALL(swapon), CALL(swapoff), CALL(fanotify_init), CALL(open_by_handle_at),
    CALL(kexec_load), CALL(kexec_file_load), CALL(init_module), CALL(finit_module), CALL(delete_module), CALL(reboot), CALL(acct),
    CALL(syslog), CALL(bpf), CALL(perf_event_open), CALL(userfaultfd), CALL(settimeofday), CALL(clock_settime), CALL(clock_adjtime),
    CALL(adjtimex), CALL(sethostname), CALL(setdomainname), CALL(iopl), CALL(ioperm), CALL(modify_ldt), CALL(keyctl), CALL(add_key),
    CALL(request_key), CALL(chown), CALL(lchown), CALL(fchown), CALL(fchownat), CALL(utime), CALL(futimesat), CALL(utimensat),
    CALL(setxattr), CALL(lsetxattr), CALL(fsetxattr), CALL(removexattr), CALL(lremovexattr), CALL(fremovexattr), {"setxattrat", 463},
    {"removexattrat", 466}, CALL(semget), CALL(mq_open), CALL(setsid), {"io_uring_setup", 425}, {"io_uring_enter", 426},
    {"io_uring_register", 427}, {"clone3", 435}, CALL(prlimit64),
    // Of the other ABI of the processor.
    {"getpid of x32", 0x40000000 + SYS_getpid},
#undef CALL
};

// Has the kernel end another process first: a server gives its workers more than 0.
static long lower_score(void) {
    long file = on_path(OPEN, "/proc/self/oom_score_adj", 1);
    memset(text, 0, sizeof text);
    text[0] = '0';
    return file < 0 ? file : call(WRITE, file, 0, 1, 0, 2);
}

// EPERM, or ENOSYS where a caller can do without.
static int is_refused(long result) { return result == -1 || result == -38; }

static void further_calls(void) {
    int done = 0;
    for (size_t at = 0; at < sizeof further / sizeof *further; at++) {
        long result = call(further[at].number, -1, -1, -1, -1, 0);
        if (is_refused(result)) continue;
        printf("%s: %ld\n", further[at].name, result);
        done++;
    }
    // TIOCSTI: a letter for the terminal that the server was started from. And a queue of messages, which would stay.
    done += !is_refused(call(SYS_ioctl, -1, 0x5412, -1, 0, 0)) + !is_refused(call(SYS_msgget, -1, 0, 0, 0, 0));
    say("further calls", done ? 0 : -1);
}

static void files_and_what_stays(const char *socket, const char *open, const char *cache) {
    say("a file that it may read", opened(open));
    sockets(socket);
    say("its mode", on_path(CHMOD, open, 0755));
    say("its mode by folder", on_path_at(FCHMODAT, open, 0755) & on_path_at(FCHMODAT2, open, 0755));
    say("its mode by descriptor", call(FCHMOD, opened(open), 0755, 0, 0, 0));
    say("its times", on_path(UTIMES, open, 0));
    // O_WRONLY, and O_WRONLY | O_CREAT: as root, modes would not hold these.
    say("a file of the system, to write", on_path(OPEN, "/etc/passwd", 1));
    say("a file in the system's folder", on_path(OPEN, "/usr/share/katydid-intruder", 0101));
    say("keys", opened("/etc/ssl"));
    say("another terminal", on_path(OPEN, "/dev/ptmx", 2));
    stores(cache);
    // PRIO_USER of the worker itself.
    say("priorities of its user", call(SETPRIORITY, 2, 0, 19, 0, 0));
    say("the server's processors", call(SCHED_SETAFFINITY, call(GETPPID, 0, 0, 0, 0, 0), 8, 0, 0, 4));
    // CLONE_PARENT | SIGCHLD
    say("a child of the server's", call(CLONE, 0x8000 | 17, 0, 0, 0, 0));
    say("memory that stays", call(SHMGET, 0, 4096, 01600, 0, 0));
    say("a lower score for want of memory", lower_score());
    further_calls();
    // SIGCHLD; in the child the driver's thread goes on, and finds nothing to do.
    long child = call(CLONE, 17, 0, 0, 0, 0);
    // The worker leads its session, so the kernel would refuse it a group of its own in any case.
    say("another process group for a child", call(SETPGID, child, 0, 0, 0, 0));
    call(SETPGID, child, call(GETPID, 0, 0, 0, 0, 0), 0, 0, 0);
    printf("child %ld\n", child);
}

int main(int count, char **words) {
    REQUIRE(count == 6);
    set_up(0);
    kernel = kernel_of(build(source, ""), "calls");
    numbers = buffer_of(CL_MEM_READ_WRITE, NUMBERS * sizeof(long), NULL), bytes = buffer_of(CL_MEM_READ_WRITE, BYTES, NULL);
    CHECK(clSetKernelArg(kernel, 0, sizeof numbers, &numbers));
    CHECK(clSetKernelArg(kernel, 1, sizeof bytes, &bytes));
    long parent = call(GETPPID, 0, 0, 0, 0, 0);
    REQUIRE(parent > 1);
    char path[64];
    say("a file", opened(words[1]));
    snprintf(path, sizeof path, "/proc/%ld/environ", parent);
    say("the server's environment", opened(path));
    snprintf(path, sizeof path, "/proc/%ld/mem", parent);
    say("the server's memory", opened(path));
    // PTRACE_SEIZE, which stops nothing.
    say("tracing the server", call(PTRACE, 0x4206, parent, 0, 0, 0));
    say("a signal to the server", call(KILL, parent, 0, 0, 0, 0));
    say("a socket of TCP", call(SOCKET, 2, 1, 0, 0, 0));
    say("a socket of the kernel's", call(SOCKET, 16, 3, 0, 0, 0));
    // CLONE_NEWUTS
    say("a namespace", call(UNSHARE, 0x04000000, 0, 0, 0, 0));
    printf("the variable: %s\n", has("/proc/self/environ", words[2]) ? "found" : "not found");
    printf("privileges: %s\n", has("/proc/self/status", "NoNewPrivs:\t1") ? "no new ones" : "open");
    printf("capabilities: %s\n", has("/proc/self/status", "CapEff:\t0000000000000000") ? "none" : "some");
    files_and_what_stays(words[3], words[4], words[5]);
    tear_down();
    return 0;
}
