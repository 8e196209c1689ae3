// Children forked while the device is in use, which do not use it; they have copies of all descriptors of their parent. Some
// exist from the beginning, the first of them forked in the middle of questions to the management library. Others come and
// go, forked by separate threads beside one that calls the device.
#include "family.h"

#include <atomic>
#include <cstring>
#include <dlfcn.h>
#include <thread>

// Forks a child that adds to the numbers it gets, until its input ends. It has the ends of the others too.
static Child forked(uint64_t salt, const Child *elders, int count) {
    int to[2], from[2];
    must(pipe(to) == 0 && pipe(from) == 0, "pipe");
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        for (int i = 0; i < count; i++) {
            close(elders[i].to);
            close(elders[i].from);
        }
        close(to[1]);
        close(from[0]);
        uint64_t number;
        while (read(to[0], &number, sizeof number) == ssize_t(sizeof number)) {
            number = number * 31 + salt;
            if (write(from[1], &number, sizeof number) != ssize_t(sizeof number)) _exit(1);
        }
        _exit(0);
    }
    close(to[0]);
    close(from[1]);
    return {pid, to[1], from[0]};
}

// Asks the management library, if there is one, for the number of devices; its connection stays open for a moment.
static void ask() {
    static void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return;
    auto start = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    auto count = reinterpret_cast<int (*)(unsigned *)>(dlsym(library, "nvmlDeviceGetCount_v2"));
    auto end = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
    unsigned devices = 0;
    if (start && count && end && start() == 0) {
        count(&devices);
        end();
    }
}

// Waits for a child's end, which must be a success.
static void await(pid_t pid) {
    int status = -1;
    must(waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(status == 0, "a child ended with %x", status);
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 12);
    Field field(5);
    ask();
    Child children[3];
    for (int i = 0; i < 3; i++) children[i] = forked(i + 1, children, i);
    uint64_t number = 1;
    for (int step = 0; step < steps; step++) {
        // A short-lived child for one step, forked by another thread while this one calls.
        Child guest = {};
        std::thread forking([&] {
            if (step % 3 == 1) ask();
            guest = forked(100, children, 3);
        });
        number = field.step(unsigned(number));
        forking.join();
        for (const Child &one : {children[0], children[1], children[2], guest}) {
            must(write(one.to, &number, sizeof number) == ssize_t(sizeof number), "write");
            must(read(one.from, &number, sizeof number) == ssize_t(sizeof number), "read");
        }
        close(guest.to);
        close(guest.from);
        await(guest.pid);
        Checksum sum;
        sum.add(number);
        told(step, sum);
    }
    for (int i = 2; i >= 0; i--) {
        close(children[i].to);
        close(children[i].from);
        await(children[i].pid);
    }
    OK(cudaFree(field.data));
    return finish("kept_children");
}
