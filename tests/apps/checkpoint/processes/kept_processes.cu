// A tree of processes that all use the device: the first starts two more by exec, and communicates with them.
#include "family.h"

#include <cstring>

// Starts a process anew by exec, as a launcher does: it inherits nothing of CUDA.
static Child start(const char *self, int seed) {
    int to[2], from[2];
    must(pipe(to) == 0 && pipe(from) == 0, "pipe");
    char number[16];
    snprintf(number, sizeof number, "%d", seed);
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        // In an order that overwrites no end that is still needed.
        int out = dup(from[1]), in = dup(to[0]);
        for (int end : {to[0], to[1], from[0], from[1]}) close(end);
        dup2(in, 0);
        dup2(out, 3);
        for (int end = 4; end < 32; end++) close(end);
        execl(self, self, "child", number, nullptr);
        _exit(1);
    }
    close(to[0]);
    close(from[1]);
    return {pid, to[1], from[0]};
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "child") == 0) return child(atoi(argv[2]), 0, 3);
    const int steps = steps_wanted(argc, argv, 12);
    const Child children[] = {start("/proc/self/exe", 1), start("/proc/self/exe", 2)};
    lead(children, steps);
    return finish("kept_processes");
}
