// Helpers for programs that are measured as well as tested (`gpu-test programs`).
//
// Without an argument such a program is an ordinary test. With `small` or `large` it also writes one line of JSON to
// standard error: the duration of its first call and of its work (seconds), and the bytes copied. Checks of the results
// come after the work and count in neither.
#pragma once

#include "buffer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

struct Measured {
    using Clock = std::chrono::steady_clock;
    bool is_told, is_large;
    double start = 0, work = 0;
    uint64_t bytes_in = 0, bytes_out = 0;
    std::string further;
    Clock::time_point begun;

    // Makes the context, which is the first call of any program.
    Measured(int count, char **arguments)
        : is_told(count > 1), is_large(is_told && strcmp(arguments[1], "large") == 0), begun(Clock::now()) {
        OK(cudaFree(nullptr));
        start = seconds();
        begun = Clock::now();
    }
    double seconds() const { return std::chrono::duration<double>(Clock::now() - begun).count(); }
    // Returns one of two numbers, by the requested size.
    int pick(int small, int large) const { return is_large ? large : small; }

    template <class T> void write(Buffer<T> &to, const std::vector<T> &from) {
        bytes_in += from.size() * sizeof(T);
        to.write(from);
    }
    template <class T> std::vector<T> read(const Buffer<T> &from) {
        bytes_out += from.size * sizeof(T);
        return from.read();
    }
    // Ends the measurement: checks follow.
    void done() {
        RAN();
        work = seconds();
    }
    // Adds a named number to the report.
    void note(const std::string &name, double value) {
        char text[32];
        snprintf(text, sizeof text, "%.6g", value);
        further += ",\"" + name + "\":" + text;
    }
    // Prints the report, and returns the exit status for `main`.
    int finish(const char *name) const {
        if (is_told)
            fprintf(stderr, "{\"start\":%.9f,\"work\":%.9f,\"bytes_in\":%llu,\"bytes_out\":%llu%s}\n", start, work,
                    (unsigned long long)bytes_in, (unsigned long long)bytes_out, further.c_str());
        return ::finish(name);
    }
};
