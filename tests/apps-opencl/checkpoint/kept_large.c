// One large buffer of which a small part changes at every step, for checkpoints and moves in mid-run: MIB STEPS PAUSE, 8 MiB
// in 10 steps without pauses (milliseconds) unless told otherwise; with a fourth word, in memory for the host. Checksums are
// made on the device, each in a buffer of its own: of a part a step, of all of it in the end.
#include "check.h"
#include <unistd.h>

enum { SUMS = 1024, PART = 64 };

static const char *source =
    "__kernel void begin(__global uint *v) { size_t i = get_global_id(0); v[i] = (uint)i * 2654435761u; }\n"
    "__kernel void turn(__global uint *v, uint salt) { size_t i = get_global_id(0); v[i] = v[i] * 1664525u + salt; }\n"
    "__kernel void sum(__global const uint *v, uint stride, uint each, __global uint *sums) {\n"
    "    uint total = 0;\n"
    "    for (uint k = 0; k < each; k++) total = total * 31 + v[get_global_id(0) * (size_t)stride + k];\n"
    "    sums[get_global_id(0)] = total;\n"
    "}\n";

static unsigned checksum(cl_kernel kernel, cl_uint each) {
    static int host[SUMS];
    cl_mem sums = buffer_of(CL_MEM_READ_WRITE, sizeof host, NULL);
    CHECK(clSetKernelArg(kernel, 2, sizeof each, &each));
    CHECK(clSetKernelArg(kernel, 3, sizeof sums, &sums));
    launch(kernel, SUMS);
    CHECK(clEnqueueReadBuffer(queue, sums, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
    CHECK(clReleaseMemObject(sums));
    return (unsigned)sum_of(host, SUMS);
}

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 8;
    int steps = argc > 2 ? atoi(argv[2]) : 10, pause = argc > 3 ? atoi(argv[3]) : 0;
    set_up(0);
    size_t words = mib * 262144;
    cl_uint each = (cl_uint)(words / SUMS);
    REQUIRE(each >= PART);
    cl_program program = build(source, "");
    cl_kernel begin = kernel_of(program, "begin"), turn = kernel_of(program, "turn"), sum = kernel_of(program, "sum");
    cl_mem_flags flags = CL_MEM_READ_WRITE | (argc > 4 ? CL_MEM_ALLOC_HOST_PTR : 0);
    cl_mem values = buffer_of(flags, words * 4, NULL);
    CHECK(clSetKernelArg(begin, 0, sizeof values, &values));
    CHECK(clSetKernelArg(turn, 0, sizeof values, &values));
    CHECK(clSetKernelArg(sum, 0, sizeof values, &values));
    CHECK(clSetKernelArg(sum, 1, sizeof each, &each));
    launch(begin, words);
    for (int step = 0; step < steps; step++) {
        cl_uint salt = (cl_uint)step;
        CHECK(clSetKernelArg(turn, 1, sizeof salt, &salt));
        launch(turn, words / 100);
        printf("step %d: %08x\n", step, checksum(sum, PART));
        fflush(stdout);
        if (pause) usleep((useconds_t)pause * 1000);
    }
    printf("all: %08x\n", checksum(sum, each));
    CHECK(clReleaseMemObject(values));
    clReleaseKernel(begin), clReleaseKernel(turn), clReleaseKernel(sum), clReleaseProgram(program);
    tear_down();
    return 0;
}
