// Helpers that all programs share, for the runtime API and the driver API: exact expectations, a fixed number sequence, the
// closing line.
//
// The rule: a program prints the same on every driver and on every way through Katydid, so that one expected text
// serves all. Hence the output has no addresses, names of devices, times or approximate digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Number of failed expectations; `finish` turns any into exit status 1.
inline int failures = 0;

// Notes when a call did not return exactly the code that NVIDIA's driver returns there, and goes on, so that one
// run shows every difference.
inline void expect_code(int wanted, int got, const char *call, const char *file, int line) {
    if (got == wanted) return;
    failures++;
    printf("%s:%d: %s returned %d, wanted %d\n", file, line, call, got, wanted);
}

// Ends the program if a call fails that all later ones need.
inline void require(int got, const char *call, const char *file, int line) {
    if (got == 0) return;
    expect_code(0, got, call, file, line);
    fflush(stdout);
    exit(1);
}

// Prints the closing line, and returns the exit status for `main`.
inline int finish(const char *name) {
    if (failures == 0) printf("PASS %s\n", name);
    return failures == 0 ? 0 : 1;
}

// A small generator with a fixed seed: the same numbers on every run (xorshift, 32 bits).
struct Numbers {
    uint32_t state;
    explicit Numbers(uint32_t seed) : state(seed * 2654435769u + 1) {}
    uint32_t next() {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        return state;
    }
    // Returns a number from 0 to `bound` - 1.
    uint32_t below(uint32_t bound) { return next() % bound; }
    // Returns a number from -1 to 1, in steps of 2^-15.
    float unit() { return float(int(below(65536)) - 32768) / 32768.0f; }
};

// The FNV-1a hash of some bytes.
inline uint32_t hash_of(const void *bytes, size_t count) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < count; i++) hash = (hash ^ static_cast<const uint8_t *>(bytes)[i]) * 16777619u;
    return hash;
}

#define EXPECT(wanted, call) expect_code(int(wanted), int(call), #call, __FILE__, __LINE__)
#define OK(call) require(int(call), #call, __FILE__, __LINE__)

// Counts a condition that does not hold, with the values that show why (a printf format and its arguments).
#define CHECK(condition, ...)                                                \
    do {                                                                     \
        if (!(condition)) {                                                  \
            failures++;                                                      \
            printf("%s:%d: not so: %s: ", __FILE__, __LINE__, #condition);   \
            printf(__VA_ARGS__);                                             \
            printf("\n");                                                    \
        }                                                                    \
    } while (0)

// Like CHECK, for loops over many elements: prints the first ten differences of a program and counts the rest.
#define CHECK_QUIETLY(condition, ...)                    \
    do {                                                 \
        if (!(condition)) {                              \
            if (failures < 10) CHECK(condition, __VA_ARGS__); \
            else failures++;                             \
        }                                                \
    } while (0)
