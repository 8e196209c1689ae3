// Copies of many sizes, above and below what goes at once, waited for and not, some with events and into the middle of a
// buffer; and maps of memory for the host, some of which stay mapped over steps. A checksum a step, for checkpoints in mid-copy.
#include "check.h"

enum { MOST = 9 << 20, STEPS = 8 };

static const char *source =
    "__kernel void turn(__global uint *v, uint salt) { size_t i = get_global_id(0); v[i] = v[i] * 1664525u + salt; }\n";

static const size_t sizes[STEPS] = {4096, (128 << 10) + 4, 1 << 20, (5 << 20) + 124, MOST, 300 << 10, 131072, 3 << 20};

static unsigned char *from, *to;

static void fill(size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++) from[i] = (unsigned char)((i * 2654435761u + seed) >> 7);
}

static unsigned checksum(const unsigned char *bytes, size_t size) {
    unsigned sum = 1;
    for (size_t i = 0; i < size; i++) sum = sum * 16777619u ^ bytes[i];
    return sum;
}

// There and back, and what a kernel made of it.
static void step(int number, cl_kernel turn, cl_mem buffer) {
    size_t size = sizes[number], offset = number % 2 ? 64 : 0;
    size = size + offset > MOST ? MOST - offset : size;
    cl_bool waits = number % 3 != 1;
    cl_uint salt = (cl_uint)number;
    cl_event written, read;
    fill(size, salt);
    CHECK(clEnqueueWriteBuffer(queue, buffer, waits, offset, size, from, 0, NULL, &written));
    if (!waits) CHECK(clWaitForEvents(1, &written));
    memset(from, 0, size);
    CHECK(clSetKernelArg(turn, 1, sizeof salt, &salt));
    launch(turn, MOST / 4);
    memset(to, 0, MOST);
    CHECK(clEnqueueReadBuffer(queue, buffer, waits, offset, size, to, 1, &written, &read));
    CHECK(clWaitForEvents(1, &read));
    cl_int state;
    CHECK(clGetEventInfo(read, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
    printf("step %d: %zu bytes, %08x, %d\n", number, size, checksum(to, MOST), state);
    CHECK(clReleaseEvent(written));
    CHECK(clReleaseEvent(read));
}

static unsigned *map(cl_mem buffer, cl_map_flags flags, size_t offset, size_t size) {
    cl_int code;
    void *place = clEnqueueMapBuffer(queue, buffer, CL_TRUE, flags, offset, size, 0, NULL, NULL, &code);
    CHECK(code);
    return place;
}

static void unmap(cl_mem buffer, unsigned *place) {
    CHECK(clEnqueueUnmapMemObject(queue, buffer, place, 0, NULL, NULL));
}

// A region of `held` stays mapped while a kernel works on the rest of it, and another buffer comes and goes.
static void mapped(int number, cl_kernel turn, cl_mem held) {
    enum { WORDS = 1 << 18, KEPT = 1024 };
    cl_uint salt = (cl_uint)number;
    fill(WORDS * 4, salt);
    cl_mem brief = buffer_of(CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR, WORDS * 4, from);
    unsigned *stays = map(held, CL_MAP_READ | CL_MAP_WRITE, 0, KEPT * 4);
    stays[number] += salt * 7 + 1;
    CHECK(clSetKernelArg(turn, 0, sizeof brief, &brief));
    CHECK(clSetKernelArg(turn, 1, sizeof salt, &salt));
    launch(turn, WORDS);
    unsigned *r = map(brief, CL_MAP_READ, 4096, WORDS * 4 - 4096);
    unsigned sum = checksum((unsigned char *)r, WORDS * 4 - 4096);
    stays[number + 1] ^= sum;
    unmap(brief, r);
    unmap(held, stays);
    unsigned *w = map(brief, CL_MAP_WRITE_INVALIDATE_REGION, 0, 400);
    for (int i = 0; i < 100; i++) w[i] = (unsigned)i;
    unmap(brief, w);
    CHECK(clEnqueueCopyBuffer(queue, brief, held, 0, KEPT * 4, 400, 0, NULL, NULL));
    CHECK(clReleaseMemObject(brief));
    CHECK(clSetKernelArg(turn, 0, sizeof held, &held));
    launch(turn, WORDS);
    r = map(held, CL_MAP_READ, 0, WORDS * 4);
    printf("mapped %d: %08x %08x\n", number, sum, checksum((unsigned char *)r, WORDS * 4));
    unmap(held, r);
}

int main(void) {
    set_up(0);
    from = malloc(MOST), to = malloc(MOST);
    REQUIRE(from && to);
    cl_program program = build(source, "");
    cl_kernel turn = kernel_of(program, "turn");
    fill(MOST, 99);
    cl_mem buffer = buffer_of(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, MOST, from);
    cl_mem held = buffer_of(CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR, 1 << 20, from);
    for (int number = 0; number < STEPS; number++) {
        CHECK(clSetKernelArg(turn, 0, sizeof buffer, &buffer));
        step(number, turn, buffer);
        mapped(number, turn, held);
        fflush(stdout);
    }
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseMemObject(held));
    clReleaseKernel(turn), clReleaseProgram(program);
    free(from), free(to);
    tear_down();
    return 0;
}
