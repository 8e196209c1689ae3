// Memory for the host of several MiB: a buffer, a part of it and others that come and go in its neighbourhood, changed by kernels and
// through maps, of which some last over commands for other buffers. A checksum a step, for checkpoints in between.
#include "check.h"

enum { WORDS = 3 << 18, PART = 1 << 18, BRIEF = 2 << 18, FEW = 1000, STEPS = 8 };

static const char *source =
    "__kernel void turn(__global uint *v, uint salt) { size_t i = get_global_id(0); v[i] = v[i] * 1664525u + salt + (uint)i; }\n";

static const cl_mem_flags FOR_HOST = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR;

static cl_kernel turn;

static void turned(cl_mem buffer, size_t words, cl_uint salt) {
    CHECK(clSetKernelArg(turn, 0, sizeof buffer, &buffer));
    CHECK(clSetKernelArg(turn, 1, sizeof salt, &salt));
    launch(turn, words);
}

static cl_uint *map(cl_mem buffer, cl_map_flags flags, size_t from, size_t words) {
    cl_int code;
    cl_uint *place = clEnqueueMapBuffer(queue, buffer, CL_TRUE, flags, from * 4, words * 4, 0, NULL, NULL, &code);
    CHECK(code);
    return place;
}

static void unmap(cl_mem buffer, cl_uint *place) {
    CHECK(clEnqueueUnmapMemObject(queue, buffer, place, 0, NULL, NULL));
}

static cl_uint checksum(cl_mem buffer, size_t words) {
    cl_uint sum = 1, *values = map(buffer, CL_MAP_READ, 0, words);
    for (size_t i = 0; i < words; i++) sum = sum * 16777619u ^ values[i];
    unmap(buffer, values);
    return sum;
}

int main(void) {
    set_up(0);
    cl_int code;
    cl_uint *first = malloc(WORDS * 4);
    REQUIRE(first);
    for (cl_uint i = 0; i < WORDS; i++) first[i] = i * 2654435761u;
    cl_program program = build(source, "");
    turn = kernel_of(program, "turn");
    cl_mem whole = buffer_of(FOR_HOST | CL_MEM_COPY_HOST_PTR, WORDS * 4, first);
    cl_buffer_region region = {PART * 4, PART * 4};
    cl_mem part = clCreateSubBuffer(whole, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    CHECK(code);
    cl_mem brief = buffer_of(FOR_HOST | CL_MEM_COPY_HOST_PTR, BRIEF * 4, first);
    for (cl_uint step = 0; step < STEPS; step++) {
        turned(whole, WORDS, step);
        cl_uint *some = map(part, CL_MAP_READ | CL_MAP_WRITE, FEW, FEW);
        for (cl_uint i = 0; i < FEW; i++) some[i] ^= step + i;
        // Mapped while another buffer is at work; and in some steps that one is gone then, and another has its place.
        turned(brief, BRIEF, step);
        cl_uint sum = checksum(brief, BRIEF);
        if (step % 2) {
            CHECK(clReleaseMemObject(brief));
            brief = buffer_of(FOR_HOST | CL_MEM_COPY_HOST_PTR, BRIEF * 4, first + step);
        }
        for (cl_uint i = 0; i < FEW; i++) some[i] += sum;
        unmap(part, some);
        cl_uint *all = map(brief, CL_MAP_WRITE_INVALIDATE_REGION, FEW, FEW);
        for (cl_uint i = 0; i < FEW; i++) all[i] = sum + i;
        unmap(brief, all);
        CHECK(clEnqueueCopyBuffer(queue, brief, whole, 0, 0, 2 * FEW * 4, 0, NULL, NULL));
        printf("step %u: %08x %08x\n", step, sum, checksum(whole, WORDS));
        fflush(stdout);
    }
    CHECK(clReleaseMemObject(part));
    CHECK(clReleaseMemObject(whole));
    printf("the last: %08x\n", checksum(brief, BRIEF));
    CHECK(clReleaseMemObject(brief));
    clReleaseKernel(turn), clReleaseProgram(program);
    free(first);
    tear_down();
    return 0;
}
