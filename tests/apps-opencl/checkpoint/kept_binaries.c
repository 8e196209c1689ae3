// Between the question for the sizes of its binaries and the one for the binaries much happens to a program: these are the binaries
// of which it was told the sizes, also where it has been built anew meanwhile, into larger or smaller ones.
#include "check.h"

enum { ROUNDS = 6, STEPS = 12, ITEMS = 256, BEYOND = 1 << 18, UNTOUCHED = 0xa5 };

static const char *source = "kernel void add(global int *values, int more) { values[get_global_id(0)] += more; }\n"
                            "#ifdef LARGER\n"
                            "kernel void further(global float *values, int count) {\n"
                            "    for (int i = 0; i < count; i++) values[i] = sin(values[i]) + pow(values[i + 1], i);\n"
                            "}\n"
                            "#endif\n";

// One launch, and what comes of it.
static unsigned long add(cl_kernel kernel, cl_mem buffer, int more) {
    int values[ITEMS];
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    CHECK(clSetKernelArg(kernel, 1, sizeof more, &more));
    launch(kernel, ITEMS);
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
    return sum_of(values, ITEMS);
}

int main(void) {
    set_up(0);
    int zeros[ITEMS] = {0};
    cl_mem buffer = buffer_of(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof zeros, zeros);
    for (int round = 0; round < ROUNDS; round++) {
        cl_program program = build(source, NULL);
        cl_kernel kernel = kernel_of(program, "add");
        size_t size;
        cl_int code, status;
        CHECK(clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL));
        unsigned char *binary = malloc(size + BEYOND);
        memset(binary, UNTOUCHED, size + BEYOND);
        unsigned long sum = 0;
        for (int step = 0; step < STEPS; step++) sum = add(kernel, buffer, round + step);
        CHECK(clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL));
        for (size_t i = size; i < size + BEYOND; i++) REQUIRE(binary[i] == UNTOUCHED);
        CHECK(clReleaseKernel(kernel));
        CHECK(clReleaseProgram(program));
        cl_program again =
            clCreateProgramWithBinary(context, 1, &device, &size, (const unsigned char **)&binary, &status, &code);
        CHECK(code);
        CHECK(status);
        CHECK(clBuildProgram(again, 1, &device, NULL, NULL, NULL));
        kernel = kernel_of(again, "add");
        printf("round %d: %08lx, from its binary %08lx\n", round, sum, add(kernel, buffer, 1000 * round));
        CHECK(clReleaseKernel(kernel));
        CHECK(clReleaseProgram(again));
        free(binary);
    }
    CHECK(clReleaseMemObject(buffer));
    tear_down();
    return 0;
}
