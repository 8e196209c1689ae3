// Boxes of buffers: read, written and copied with pitches on both sides; fills; and boxes that do not fit.
#include "check.h"

enum { W = 20, H = 9, D = 4, SIZE = W * H * D };

static unsigned char host[SIZE], back[SIZE], expected[SIZE];

static void compare(cl_mem buffer, const char *what) {
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, SIZE, back, 0, NULL, NULL));
    printf("%s: %s\n", what, memcmp(back, expected, SIZE) ? "wrong" : "as expected");
}

static void put(unsigned char *to, const size_t *at, const size_t *size, const unsigned char *from, const size_t *from_at,
                size_t from_row, size_t from_slice) {
    for (size_t z = 0; z < size[2]; z++)
        for (size_t y = 0; y < size[1]; y++)
            memcpy(to + (at[2] + z) * W * H + (at[1] + y) * W + at[0],
                   from + (from_at[2] + z) * from_slice + (from_at[1] + y) * from_row + from_at[0], size[0]);
}

int main(void) {
    set_up(0);
    for (int i = 0; i < SIZE; i++) host[i] = (unsigned char)(i * 7 + 1);
    cl_mem a = buffer_of(CL_MEM_COPY_HOST_PTR, SIZE, host), b = buffer_of(0, SIZE, NULL);
    unsigned char zero = 0;
    CHECK(clEnqueueFillBuffer(queue, b, &zero, 1, 0, SIZE, 0, NULL, NULL));
    size_t from[] = {3, 2, 1}, to[] = {5, 1, 0}, size[] = {7, 4, 2};
    CHECK(clEnqueueCopyBufferRect(queue, a, b, from, to, size, W, W * H, W, W * H, 0, NULL, NULL));
    put(expected, to, size, host, from, W, W * H);
    compare(b, "copied");
    unsigned char small[3 * 5 * 8];
    for (unsigned i = 0; i < sizeof small; i++) small[i] = (unsigned char)(200 + i);
    size_t small_at[] = {1, 1, 1}, deep[] = {0, 5, 2}, part[] = {6, 3, 2};
    CHECK(clEnqueueWriteBufferRect(queue, b, CL_FALSE, deep, small_at, part, W, W * H, 8, 40, small, 0, NULL, NULL));
    put(expected, deep, part, small, small_at, 8, 40);
    compare(b, "written");
    unsigned char piece[2][4][10];
    memset(piece, 0x55, sizeof piece);
    size_t zero_at[] = {0, 0, 0}, four[] = {7, 4, 2};
    CHECK(clEnqueueReadBufferRect(queue, a, CL_TRUE, from, zero_at, four, W, W * H, 10, 40, piece, 0, NULL, NULL));
    int good = 1;
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 4; y++)
            good &= !memcmp(piece[z][y], host + (z + 1) * W * H + (y + 2) * W + 3, 7) && piece[z][y][7] == 0x55;
    printf("read: %s\n", good ? "as expected" : "wrong");
    CHECK(clEnqueueReadBufferRect(queue, a, CL_FALSE, from, zero_at, four, W, W * H, 0, 0, piece, 0, NULL, NULL));
    CHECK(clFinish(queue));
    printf("without gaps: %s\n", memcmp((char *)piece + 7, host + W * H + 3 * W + 3, 7) ? "wrong" : "as expected");
    int pattern[4] = {1, 2, 3, 4}, words[16];
    CHECK(clEnqueueFillBuffer(queue, b, pattern, 16, 16, 48, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, b, CL_TRUE, 16, 48, words, 0, NULL, NULL));
    printf("filled: %d %d %d\n", words[0], words[5], words[11]);
    CHECK(clEnqueueCopyBuffer(queue, b, b, 16, 256, 48, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, b, CL_TRUE, 256, 48, words, 0, NULL, NULL));
    printf("within one: %d %d %d\n", words[0], words[5], words[11]);
    printf("overlapping: %s\n", code_name(clEnqueueCopyBuffer(queue, b, b, 0, 8, 16, 0, NULL, NULL)));
    size_t none[] = {0, 1, 1}, wide[] = {W, H, D + 1};
    printf("empty: %s\n", code_name(clEnqueueReadBufferRect(queue, a, CL_TRUE, from, zero_at, none, W, W * H, 0, 0, piece, 0, NULL, NULL)));
    printf("beyond: %s\n", code_name(clEnqueueCopyBufferRect(queue, a, b, zero_at, zero_at, wide, W, W * H, W, W * H, 0, NULL, NULL)));
    printf("narrow pitch: %s\n", code_name(clEnqueueReadBufferRect(queue, a, CL_TRUE, from, zero_at, four, W, W * H, 3, 0, piece, 0, NULL, NULL)));
    CHECK(clReleaseMemObject(a));
    CHECK(clReleaseMemObject(b));
    tear_down();
    return 0;
}
