// Helpers for long-lived programs: steps over the same live objects, and one line per step with their checksum.
//
// Each object is made once, before the first step or in one of them, and used in later steps. So a line is right
// only if everything made before is intact. Checksums are of integers, the same on every device.
#pragma once

#include "check.h"

// FNV-1a over bytes, in the order given.
struct Checksum {
    uint64_t value = 0xcbf29ce484222325ull;
    void bytes(const void *data, size_t size) {
        const unsigned char *at = static_cast<const unsigned char *>(data);
        for (size_t i = 0; i < size; i++) value = (value ^ at[i]) * 0x100000001b3ull;
    }
    template <class T> void add(const T &what) { bytes(&what, sizeof what); }
};

// Number of steps: the first argument, or the program's default.
inline int steps_wanted(int argc, char **argv, int otherwise) { return argc > 1 ? atoi(argv[1]) : otherwise; }

// Prints the line of a step, and flushes it: a program may be killed after any line.
inline void told(int step, const Checksum &sum) {
    printf("step %d %016llx\n", step, static_cast<unsigned long long>(sum.value));
    fflush(stdout);
}
