// A tree of processes made by fork alone: the children are copies of a process that has not used the device yet, and
// each starts to use it by itself.
#include "family.h"

static Child forked(int seed, const Child *elder) {
    int to[2], from[2];
    must(pipe(to) == 0 && pipe(from) == 0, "pipe");
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        // With the ends of others, it would keep those from seeing the end of input.
        if (elder) {
            close(elder->to);
            close(elder->from);
        }
        close(to[1]);
        close(from[0]);
        exit(child(seed, to[0], from[1]));
    }
    close(to[0]);
    close(from[1]);
    return {pid, to[1], from[0]};
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 12);
    const Child first = forked(1, nullptr);
    const Child children[] = {first, forked(2, &first)};
    lead(children, steps);
    return finish("kept_forks");
}
