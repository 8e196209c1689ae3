// Rows with gaps, few and many, thin and wider than any piece in which they travel, from and to every kind of memory. The gaps
// between rows stay untouched on both sides.
#include "check.h"

#include <cstring>
#include <vector>

struct Shape {
    const char *name;
    size_t width, height, depth, host_pitch, device_pitch;
};

static const Shape shapes[] = {
    {"a byte in each row", 1, 20000, 1, 3, 512},
    {"rows of odd length", 3001, 3000, 1, 3003, 3072},
    {"rows wider than a piece", (5 << 20) + 3, 2, 1, (5 << 20) + 7, (5 << 20) + 512},
    {"packed here, apart there", 1000, 4000, 1, 1000, 1024},
    {"slices", 333, 41, 60, 400, 512},
    {"slices of one row", 70000, 1, 50, 70016, 70144},
};

static unsigned char value(size_t x, size_t y, size_t z, int turn) { return (unsigned char)(1 + (x * 7 + y * 13 + z * 31 + turn) % 251); }

/// Runs `visit` with each byte of the rows: its place, and where it lies at `pitch`.
template <typename Visit> static void each(const Shape &it, size_t pitch, Visit visit) {
    for (size_t z = 0; z < it.depth; z++)
        for (size_t y = 0; y < it.height; y++)
            for (size_t x = 0; x < it.width; x++) visit(x, y, z, (z * it.height + y) * pitch + x);
}

static void fill(const Shape &it, unsigned char *host, size_t bytes, int turn) {
    memset(host, 0, bytes);
    each(it, it.host_pitch, [&](size_t x, size_t y, size_t z, size_t at) { host[at] = value(x, y, z, turn); });
}

/// All bytes of the rows are theirs, and those between them 0.
static void compare(const Shape &it, const unsigned char *host, size_t bytes, int turn, const char *what) {
    size_t sum = 0, wanted = 0, wrong = 0;
    each(it, it.host_pitch, [&](size_t x, size_t y, size_t z, size_t at) {
        unsigned char byte = value(x, y, z, turn);
        wrong += host[at] != byte;
        wanted += byte;
    });
    for (size_t at = 0; at < bytes; at++) sum += host[at];
    CHECK(wrong == 0, "%s, %s: %zu bytes are wrong", it.name, what, wrong);
    CHECK(sum == wanted, "%s, %s: something lies between the rows", it.name, what);
}

static void copy(const Shape &it, void *to, size_t to_pitch, const void *from, size_t from_pitch, cudaMemcpyKind kind, cudaStream_t stream) {
    if (it.depth == 1 && stream) {
        OK(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, it.width, it.height, kind, stream));
        return;
    }
    if (it.depth == 1) {
        OK(cudaMemcpy2D(to, to_pitch, from, from_pitch, it.width, it.height, kind));
        return;
    }
    cudaMemcpy3DParms all = {};
    all.srcPtr = make_cudaPitchedPtr((void *)from, from_pitch, it.width, it.height);
    all.dstPtr = make_cudaPitchedPtr(to, to_pitch, it.width, it.height);
    all.extent = make_cudaExtent(it.width, it.height, it.depth);
    all.kind = kind;
    if (stream)
        OK(cudaMemcpy3DAsync(&all, stream));
    else
        OK(cudaMemcpy3D(&all));
}

/// There, aside, back; `in` and `out` are the program's memory.
static void there_and_back(const Shape &it, unsigned char *in, unsigned char *out, cudaStream_t stream, int turn, const char *what) {
    size_t rows = it.height * it.depth, host = rows * it.host_pitch, device = rows * it.device_pitch;
    unsigned char *first, *second;
    OK(cudaMalloc(&first, device));
    OK(cudaMalloc(&second, device));
    OK(cudaMemset(first, 0xaa, device));
    OK(cudaMemset(second, 0xbb, device));
    OK(cudaDeviceSynchronize());
    fill(it, in, host, turn);
    memset(out, 0, host);
    copy(it, first, it.device_pitch, in, it.host_pitch, cudaMemcpyHostToDevice, stream);
    copy(it, second, it.device_pitch, first, it.device_pitch, cudaMemcpyDeviceToDevice, stream);
    copy(it, out, it.host_pitch, second, it.device_pitch, cudaMemcpyDeviceToHost, stream);
    OK(cudaStreamSynchronize(stream));
    compare(it, out, host, turn, what);
    // What lies between the rows over there, and behind the last one.
    std::vector<unsigned char> all(device);
    OK(cudaMemcpy(all.data(), second, device, cudaMemcpyDeviceToHost));
    size_t touched = 0;
    for (size_t row = 0; row < rows; row++)
        for (size_t at = row * it.device_pitch + it.width; at < (row + 1) * it.device_pitch; at++) touched += all[at] != 0xbb;
    CHECK(touched == 0, "%s, %s: %zu bytes between the rows of the GPU were written", it.name, what, touched);
    OK(cudaFree(first));
    OK(cudaFree(second));
}

int main() {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    int turn = 0;
    for (const Shape &it : shapes) {
        size_t bytes = it.height * it.depth * it.host_pitch;
        std::vector<unsigned char> in(bytes), out(bytes);
        there_and_back(it, in.data(), out.data(), nullptr, ++turn, "pageable");
        there_and_back(it, in.data(), out.data(), stream, ++turn, "pageable, in a stream");
        unsigned char *pinned_in, *pinned_out;
        OK(cudaMallocHost(&pinned_in, bytes));
        OK(cudaMallocHost(&pinned_out, bytes));
        there_and_back(it, pinned_in, pinned_out, nullptr, ++turn, "pinned");
        there_and_back(it, pinned_in, out.data(), stream, ++turn, "pinned and pageable, in a stream");
        memset(out.data(), 0, bytes);
        copy(it, out.data(), it.host_pitch, pinned_out, it.host_pitch, cudaMemcpyHostToHost, nullptr);
        compare(it, out.data(), bytes, turn - 1, "from host to host");
        OK(cudaFreeHost(pinned_in));
        OK(cudaFreeHost(pinned_out));
        printf("%s: %zu of %zu bytes\n", it.name, it.width * it.height * it.depth, bytes);
    }
    OK(cudaStreamDestroy(stream));
    return finish("pitched_copies");
}
