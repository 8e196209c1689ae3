// A blocking write in the only queue of its context is done when it returns, whatever is before it: a queue that is made right after it
// finds what was written.
#include "check.h"

static const char *source =
    "__kernel void turn(__global uint *values, uint rounds) {\n"
    "    uint v = values[get_global_id(0)];\n"
    "    for (uint i = 0; i < rounds; i++) v = v * 1664525u + 1013904223u;\n"
    "    values[get_global_id(0)] = v;\n"
    "}\n";

enum { COUNT = 64, ROUNDS = 4, LONG = 60000000 };

static cl_uint values[COUNT], found[COUNT];

// The write stands behind a kernel that takes a while, and a second queue reads.
static void found_by_a_late_queue(cl_uint round) {
    set_up(0);
    cl_int code;
    cl_uint one = 1, rounds = LONG;
    cl_program program = build(source, "");
    cl_kernel turn = kernel_of(program, "turn");
    cl_mem buffer = buffer_of(CL_MEM_READ_WRITE, sizeof values, NULL);
    memset(values, 0, sizeof values);
    // The driver accepts such commands, and need not be asked about the others.
    CHECK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
    CHECK(clSetKernelArg(turn, 0, sizeof buffer, &buffer));
    CHECK(clSetKernelArg(turn, 1, sizeof one, &one));
    launch(turn, 1);
    CHECK(clFinish(queue));
    CHECK(clSetKernelArg(turn, 1, sizeof rounds, &rounds));
    launch(turn, 1);
    for (cl_uint i = 0; i < COUNT; i++) values[i] = round * 100 + i;
    CHECK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
    // The first one is given back in every second round: what it has begun comes first all the same.
    if (round % 2) CHECK(clReleaseCommandQueue(queue));
    cl_command_queue late = clCreateCommandQueue(context, device, 0, &code);
    CHECK(code);
    CHECK(clEnqueueReadBuffer(late, buffer, CL_TRUE, 0, sizeof found, found, 0, NULL, NULL));
    printf("round %u: %s\n", round, memcmp(found, values, sizeof found) ? "not what was written" : "as written");
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseKernel(turn));
    CHECK(clReleaseProgram(program));
    CHECK(clReleaseCommandQueue(late));
    if (round % 2) CHECK(clReleaseContext(context));
    else tear_down();
}

int main(void) {
    for (cl_uint round = 0; round < ROUNDS; round++) found_by_a_late_queue(round);
    return 0;
}
