// Copies in both directions, from and to pageable and pinned memory; checks every byte that comes back.
#include "measured.h"

static std::vector<double> timed(int repetitions, size_t bytes, void (*copy)(char *, char *, size_t), char *device, char *host) {
    std::vector<double> seconds;
    for (int i = 0; i < repetitions; i++) {
        auto begun = Measured::Clock::now();
        copy(device, host, bytes);
        seconds.push_back(std::chrono::duration<double>(Measured::Clock::now() - begun).count());
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds;
}

static void into(char *device, char *host, size_t bytes) { OK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice)); }
static void out(char *device, char *host, size_t bytes) { OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost)); }

int main(int count, char **arguments) {
    Measured run(count, arguments);
    const size_t bytes = size_t(run.pick(192 << 10, 64 << 20)) + 13;
    const int repetitions = run.pick(3, 10);
    std::vector<char> pageable(bytes);
    char *pinned;
    OK(cudaMallocHost(&pinned, bytes));
    Buffer<char> device(bytes);
    int wrong = 0;
    double spent = 0;
    for (char *host : {pageable.data(), pinned}) {
        const char *kind = host == pinned ? "pinned" : "pageable";
        uint32_t seed = host == pinned ? 3 : 7;
        for (size_t i = 0; i < bytes; i++) host[i] = char(i * 2654435761u >> seed);
        auto there = timed(repetitions, bytes, into, device, host);
        memset(host, 0, bytes);
        auto back = timed(repetitions, bytes, out, device, host);
        for (size_t i = 0; i < bytes; i++) wrong += host[i] != char(i * 2654435761u >> seed);
        CHECK(wrong == 0, "%d bytes of %zu %s ones", wrong, bytes, kind);
        run.note(std::string("htod_") + kind, bytes / there[repetitions / 2]);
        run.note(std::string("dtoh_") + kind, bytes / back[repetitions / 2]);
        for (int i = 0; i < repetitions; i++) spent += there[i] + back[i];
        run.bytes_in += bytes * repetitions;
        run.bytes_out += bytes * repetitions;
    }
    run.done();
    // Filling and comparing are not part of the copies.
    run.work = spent;
    OK(cudaFreeHost(pinned));
    printf("%zu bytes there and back, pageable and pinned: all as they were\n", bytes);
    return run.finish("bandwidth");
}
