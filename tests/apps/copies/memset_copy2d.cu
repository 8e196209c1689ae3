// Fills and copies of every shape: bytes, rows with pitch, unaligned pieces, nothing at all.
#include "check.h"

#include <cstring>
#include <vector>

static std::vector<unsigned char> fetched(const void *device, size_t bytes) {
    std::vector<unsigned char> host(bytes);
    OK(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
    return host;
}

static void fills() {
    unsigned char *device;
    const size_t bytes = 10007;
    OK(cudaMalloc(&device, bytes));
    OK(cudaMemset(device, 0xab, bytes));
    OK(cudaMemset(device + 1, 0x01, 3));
    OK(cudaMemset(device + 77, 0x02, 1001));
    OK(cudaMemsetAsync(device + bytes - 5, 0x03, 5, nullptr));
    OK(cudaMemset(device + 200, 0xff, 0));
    std::vector<unsigned char> host = fetched(device, bytes);
    for (size_t i = 0; i < bytes; i++) {
        int wanted = i >= 1 && i < 4 ? 1 : i >= 77 && i < 1078 ? 2 : i >= bytes - 5 ? 3 : 0xab;
        CHECK_QUIETLY(host[i] == wanted, "byte %zu: %x, wanted %x", i, host[i], wanted);
    }
    OK(cudaFree(device));
    printf("fills: whole, unaligned, asynchronous, empty\n");
}

static void rows_with_pitch() {
    const size_t width = 301, height = 40;
    size_t pitch = 0, other_pitch = 0;
    unsigned char *first, *second;
    OK(cudaMallocPitch(&first, &pitch, width, height));
    OK(cudaMallocPitch(&second, &other_pitch, width * 2, height));
    CHECK(pitch >= width && pitch % 512 == 0, "a pitch of %zu for rows of %zu", pitch, width);
    std::vector<unsigned char> up(width * height), down(width * height, 0);
    for (size_t i = 0; i < up.size(); i++) up[i] = (unsigned char)(i * 7 + i / width);
    OK(cudaMemset2D(first, pitch, 0x55, width, height));
    OK(cudaMemcpy2D(first, pitch, up.data(), width, width, height, cudaMemcpyHostToDevice));
    // A rectangle in the middle: rows 5 to 24, columns 10 to 109, filled and then moved to the second block.
    OK(cudaMemset2D(first + 5 * pitch + 10, pitch, 0x77, 100, 20));
    OK(cudaMemcpy2D(second + 3, other_pitch, first, pitch, width, height, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy2DAsync(down.data(), width, second + 3, other_pitch, width, height, cudaMemcpyDeviceToHost, nullptr));
    OK(cudaStreamSynchronize(nullptr));
    for (size_t i = 0; i < up.size(); i++) {
        size_t row = i / width, column = i % width;
        bool filled = row >= 5 && row < 25 && column >= 10 && column < 110;
        CHECK_QUIETLY(down[i] == (filled ? 0x77 : up[i]), "row %zu, column %zu: %x", row, column, down[i]);
    }
    OK(cudaMemcpy2D(first, pitch, up.data(), width, 0, height, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(first, pitch, up.data(), width, width, 0, cudaMemcpyHostToDevice));
    EXPECT(cudaErrorInvalidPitchValue, cudaMemcpy2D(first, 100, up.data(), width, width, height, cudaMemcpyHostToDevice));
    OK(cudaFree(first));
    OK(cudaFree(second));
    printf("rows with pitch: up, fill, move, down\n");
}

static void pieces() {
    const size_t bytes = 70001;
    unsigned char *first, *second;
    OK(cudaMalloc(&first, bytes));
    OK(cudaMalloc(&second, bytes));
    std::vector<unsigned char> up(bytes), wanted(bytes, 0);
    for (size_t i = 0; i < bytes; i++) up[i] = (unsigned char)(i * 31 + i / 256);
    OK(cudaMemset(second, 0, bytes));
    OK(cudaMemcpy(first, up.data(), bytes, cudaMemcpyHostToDevice));
    // (from, to, length) of copies on the device, none of them aligned.
    const size_t moves[4][3] = {{1, 2, 1}, {3, 65001, 4999}, {17, 101, 33333}, {50001, 40007, 20000}};
    for (const auto &move : moves) {
        OK(cudaMemcpy(second + move[1], first + move[0], move[2], cudaMemcpyDeviceToDevice));
        memcpy(&wanted[move[1]], &up[move[0]], move[2]);
    }
    OK(cudaMemcpyAsync(second + 12345, up.data() + 5, 77, cudaMemcpyDefault, nullptr));
    memcpy(&wanted[12345], &up[5], 77);
    OK(cudaMemcpy(second, up.data(), 0, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(second, first, 0, cudaMemcpyDefault));
    std::vector<unsigned char> host = fetched(second, bytes);
    for (size_t i = 0; i < bytes; i++) CHECK_QUIETLY(host[i] == wanted[i], "byte %zu: %x, wanted %x", i, host[i], wanted[i]);
    // Host to host goes through the same call.
    std::vector<unsigned char> other(bytes);
    OK(cudaMemcpy(other.data(), up.data(), bytes, cudaMemcpyHostToHost));
    OK(cudaMemcpy(other.data(), up.data(), bytes, cudaMemcpyDefault));
    CHECK(other == up, "the host's copy differs");
    OK(cudaFree(first));
    OK(cudaFree(second));
    printf("pieces: unaligned, on the device, by address, empty\n");
}

int main() {
    fills();
    rows_with_pitch();
    pieces();
    return finish("memset_copy2d");
}
