// A program whose source includes a header of the folder that is named: what it builds to depends on a file that may change.
#include "check.h"

enum { SIZE = 256, STEPS = 60 };

static const char *source = "#include \"turn.h\"\n"
                            "kernel void turn_all(global uint *v) { size_t i = get_global_id(0); v[i] = TURN(v[i]); }\n";

int main(int argc, char **argv) {
    REQUIRE(argc == 2);
    set_up(0);
    char options[4200];
    snprintf(options, sizeof options, "-I %s", argv[1]);
    cl_int code;
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
    CHECK(code);
    CHECK(clBuildProgram(program, 1, &device, options, NULL, NULL));
    cl_kernel kernel = clCreateKernel(program, "turn_all", &code);
    CHECK(code);
    unsigned values[SIZE] = {1, 2, 3};
    cl_mem buffer = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof values, values, &code);
    CHECK(code);
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    for (int step = 0; step < STEPS; step++) {
        size_t all = SIZE;
        unsigned sum = 0;
        CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &all, NULL, 0, NULL, NULL));
        CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
        for (int i = 0; i < SIZE; i++) sum = sum * 31 + values[i];
        printf("step %d: %08x\n", step, sum);
    }
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseKernel(kernel));
    CHECK(clReleaseProgram(program));
    tear_down();
    return 0;
}
