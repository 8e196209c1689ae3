// More device output between two synchronisations than one message between processes can carry: none of it is lost,
// and it arrives in order.
#include "check.h"

#include <cstring>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

constexpr int LINES = 45000;

__global__ void flood(int lines) {
    for (int i = 0; i < lines; i++) printf("line %d of a flood, with some words to fill it up, %d\n", i, i * 7 % 1000);
}

static std::string expected() {
    std::string text;
    char line[100];
    for (int i = 0; i < LINES; i++) {
        snprintf(line, sizeof line, "line %d of a flood, with some words to fill it up, %d\n", i, i * 7 % 1000);
        text += line;
    }
    return text;
}

int main() {
    // The usual room for output is 1 MiB; what does not fit is lost.
    OK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 16 << 20));
    fflush(stdout);
    int kept = dup(1), file = memfd_create("stdout", 0);
    dup2(file, 1);
    flood<<<1, 1>>>(LINES);
    cudaError_t got = cudaDeviceSynchronize();
    fflush(stdout);
    dup2(kept, 1);
    OK(got);
    std::string text(size_t(lseek(file, 0, SEEK_END)), ' '), wanted = expected();
    CHECK(pread(file, &text[0], text.size(), 0) == ssize_t(text.size()), "cannot read it back");
    CHECK(text.size() == wanted.size(), "%zu bytes, wanted %zu", text.size(), wanted.size());
    CHECK(text == wanted, "the text differs");
    printf("%d lines, %zu bytes, all in order\n", LINES, text.size());
    return finish("printf_flood");
}
