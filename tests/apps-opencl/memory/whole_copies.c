// Large copies that are waited for and have no event, which a layer in between may make itself: of whole buffers, into their
// middle and out of parts of them, in memory that was another buffer's before; and by two threads of one queue, of which one
// changes what the other reads.
#include "check.h"
#include <pthread.h>

enum { WORDS = (3 << 20) / 4 + 12345, STEPS = 6, CHANGES = 24, READS = 12 };

static const char *source =
    "__kernel void turn(__global uint *v, uint salt) { size_t i = get_global_id(0); v[i] = v[i] * 1664525u + salt; }\n"
    "__kernel void more(__global uint *v) { v[get_global_id(0)] += 1; }\n";

static unsigned *from, *to;

static void fill(unsigned seed) {
    for (size_t i = 0; i < WORDS; i++) from[i] = (unsigned)i * 2654435761u + seed;
}

static unsigned checksum(void) {
    unsigned sum = 1;
    for (size_t i = 0; i < WORDS; i++) sum = sum * 16777619u ^ to[i];
    return sum;
}

static void write_to(cl_mem buffer, size_t offset, size_t size, const void *bytes) {
    CHECK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, offset, size, bytes, 0, NULL, NULL));
}

static void read_from(cl_mem buffer, size_t offset, size_t size, void *bytes) {
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, offset, size, bytes, 0, NULL, NULL));
}

// A buffer of its own each step, which begins with the program's bytes every other time; its second half as a part.
static void step(int number, cl_kernel turn) {
    size_t bytes = WORDS * sizeof *from, middle = 1 << 20;
    cl_uint salt = (cl_uint)number;
    cl_int code;
    fill(salt);
    int begins = number % 2;
    cl_mem whole = buffer_of(CL_MEM_READ_WRITE | (begins ? CL_MEM_COPY_HOST_PTR : 0), bytes, begins ? from : NULL);
    if (!begins) write_to(whole, 0, bytes, from);
    CHECK(clSetKernelArg(turn, 0, sizeof whole, &whole));
    CHECK(clSetKernelArg(turn, 1, sizeof salt, &salt));
    launch(turn, WORDS);
    cl_buffer_region region = {middle, bytes - middle};
    cl_mem part = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    CHECK(code);
    write_to(part, 40, 1 << 20, from);
    write_to(whole, 12, 200000, from + 7);
    launch(turn, WORDS);
    memset(to, 0, bytes);
    read_from(part, 8, bytes - middle - 8, (char *)to + middle + 8);
    unsigned sum = checksum();
    CHECK(clReleaseMemObject(part));
    read_from(whole, 4, bytes - 4, to);
    printf("step %d: %08x %08x\n", number, sum, checksum());
    fflush(stdout);
    CHECK(clReleaseMemObject(whole));
}

static cl_mem counted;
static cl_kernel more;

static void *change(void *unused) {
    (void)unused;
    size_t words = WORDS;
    for (int i = 0; i < CHANGES; i++) CHECK(clEnqueueNDRangeKernel(queue, more, 1, NULL, &words, NULL, 0, NULL, NULL));
    return NULL;
}

// What a queue that keeps its order reads is of between two of its commands, all of it.
static void threads(void) {
    memset(from, 0, WORDS * sizeof *from);
    write_to(counted, 0, WORDS * sizeof *from, from);
    CHECK(clSetKernelArg(more, 0, sizeof counted, &counted));
    pthread_t other;
    REQUIRE(pthread_create(&other, NULL, change, NULL) == 0);
    unsigned last = 0;
    for (int i = 0; i < READS; i++) {
        read_from(counted, 0, WORDS * sizeof *to, to);
        for (size_t k = 1; k < WORDS; k++) REQUIRE(to[k] == to[0]);
        REQUIRE(to[0] >= last && to[0] <= CHANGES);
        last = to[0];
    }
    REQUIRE(pthread_join(other, NULL) == 0);
    read_from(counted, 0, WORDS * sizeof *to, to);
    printf("two threads of one queue: whole, and %u in the end\n", to[WORDS - 1]);
    fflush(stdout);
}

// Which copies the host may make is said by the object, also of large ones.
static void forbidden(void) {
    size_t bytes = WORDS * sizeof *from;
    cl_mem in = buffer_of(CL_MEM_READ_WRITE | CL_MEM_HOST_WRITE_ONLY, bytes, NULL);
    cl_mem out = buffer_of(CL_MEM_READ_WRITE | CL_MEM_HOST_READ_ONLY, bytes, NULL);
    printf("%s, ", code_name(clEnqueueReadBuffer(queue, in, CL_TRUE, 0, bytes, to, 0, NULL, NULL)));
    printf("%s, ", code_name(clEnqueueWriteBuffer(queue, out, CL_TRUE, 0, bytes, from, 0, NULL, NULL)));
    printf("%s, ", code_name(clEnqueueWriteBuffer(queue, in, CL_TRUE, 4, bytes, from, 0, NULL, NULL)));
    write_to(in, 0, bytes, from);
    read_from(out, 0, bytes, to);
    CHECK(clEnqueueCopyBuffer(queue, in, counted, 0, 0, bytes, 0, NULL, NULL));
    read_from(counted, 0, bytes, to);
    printf("%s\n", memcmp(from, to, bytes) == 0 ? "the rest as it was written" : "something else");
    CHECK(clReleaseMemObject(in));
    CHECK(clReleaseMemObject(out));
}

int main(void) {
    set_up(0);
    from = malloc(WORDS * sizeof *from), to = malloc(WORDS * sizeof *to);
    REQUIRE(from && to);
    cl_program program = build(source, "");
    cl_kernel turn = kernel_of(program, "turn");
    more = kernel_of(program, "more");
    counted = buffer_of(CL_MEM_READ_WRITE, WORDS * sizeof *from, NULL);
    for (int number = 0; number < STEPS; number++) step(number, turn);
    threads();
    fill(77);
    forbidden();
    CHECK(clReleaseMemObject(counted));
    clReleaseKernel(turn), clReleaseKernel(more), clReleaseProgram(program);
    free(from), free(to);
    tear_down();
    return 0;
}
