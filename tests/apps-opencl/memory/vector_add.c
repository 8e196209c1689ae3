// Two buffers added, with sizes below and beyond one frame, waited for in each of the ways there are.
#include "check.h"

static const char *source =
    "__kernel void add(__global const int *a, __global const int *b, __global int *c, int bias) {\n"
    "    size_t i = get_global_id(0);\n"
    "    c[i] = a[i] + b[i] + bias;\n"
    "}\n";

static void run(cl_kernel kernel, size_t count, int way) {
    int *a = malloc(count * sizeof *a), *b = malloc(count * sizeof *b), *c = calloc(count, sizeof *c);
    for (size_t i = 0; i < count; i++) a[i] = (int)i * 3, b[i] = 7 - (int)i;
    cl_mem da = buffer_of(CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, count * 4, a);
    cl_mem db = buffer_of(CL_MEM_READ_ONLY, count * 4, NULL), dc = buffer_of(CL_MEM_WRITE_ONLY, count * 4, NULL);
    CHECK(clEnqueueWriteBuffer(queue, db, way % 2, 0, count * 4, b, 0, NULL, NULL));
    memset(b, 0, way % 2 ? count * 4 : 0);
    for (int bias = 0; bias < 3; bias++) {
        CHECK(clSetKernelArg(kernel, 0, sizeof da, &da));
        CHECK(clSetKernelArg(kernel, 1, sizeof db, &db));
        CHECK(clSetKernelArg(kernel, 2, sizeof dc, &dc));
        CHECK(clSetKernelArg(kernel, 3, sizeof bias, &bias));
        launch(kernel, count);
    }
    cl_event event;
    switch (way) {
    case 0: CHECK(clEnqueueReadBuffer(queue, dc, CL_TRUE, 0, count * 4, c, 0, NULL, NULL)); break;
    case 1:
        CHECK(clEnqueueReadBuffer(queue, dc, CL_FALSE, 0, count * 4, c, 0, NULL, NULL));
        CHECK(clFinish(queue));
        break;
    case 2:
        CHECK(clEnqueueReadBuffer(queue, dc, CL_FALSE, 0, count * 4, c, 0, NULL, &event));
        CHECK(clWaitForEvents(1, &event));
        CHECK(clReleaseEvent(event));
        break;
    default:
        CHECK(clEnqueueReadBuffer(queue, dc, CL_FALSE, 0, count * 4, c, 0, NULL, &event));
        CHECK(clFlush(queue));
        for (cl_int state = CL_QUEUED; state != CL_COMPLETE;)
            CHECK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
        CHECK(clReleaseEvent(event));
    }
    printf("%zu values, way %d: %lu\n", count, way, sum_of(c, count));
    CHECK(clReleaseMemObject(da));
    CHECK(clReleaseMemObject(db));
    CHECK(clReleaseMemObject(dc));
    free(a), free(b), free(c);
}

int main(void) {
    set_up(0);
    cl_program program = build(source, "-cl-std=CL1.2");
    cl_kernel kernel = kernel_of(program, "add");
    size_t counts[] = {1, 1000, 262144, 1500001};
    for (int way = 0; way < 4; way++)
        for (int i = 0; i < 4; i++) run(kernel, counts[i], way);
    CHECK(clReleaseKernel(kernel));
    CHECK(clReleaseProgram(program));
    tear_down();
    return 0;
}
