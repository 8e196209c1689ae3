// An out-of-order queue whose commands wait for each other by events, markers and barriers, and begin at a user's event.
#include "check.h"

static const char *source =
    "__kernel void advance(__global int *v, int factor, int add) { size_t i = get_global_id(0); v[i] = v[i] * factor + add; }\n";

enum { N = 4096, CHAIN = 40 };

int main(void) {
    set_up(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE);
    cl_program program = build(source, "");
    cl_kernel kernel = kernel_of(program, "advance");
    int host[N], expected[N];
    for (int i = 0; i < N; i++) host[i] = expected[i] = i;
    cl_mem buffer = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof host, host);
    cl_int code;
    cl_event gate = clCreateUserEvent(context, &code), last = gate;
    CHECK(code);
    size_t size = N;
    cl_event kept[CHAIN];
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    for (int k = 0; k < CHAIN; k++) {
        int factor = 1 + k % 3, add = k;
        CHECK(clSetKernelArg(kernel, 1, sizeof factor, &factor));
        CHECK(clSetKernelArg(kernel, 2, sizeof add, &add));
        CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 1, &last, &kept[k]));
        last = kept[k];
        for (int i = 0; i < N; i++) expected[i] = (int)((unsigned)expected[i] * (unsigned)factor + (unsigned)add);
    }
    cl_event marker, read;
    CHECK(clEnqueueMarkerWithWaitList(queue, 1, &last, &marker));
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, sizeof host, host, 1, &marker, &read));
    CHECK(clFlush(queue));
    cl_int state;
    CHECK(clGetEventInfo(read, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
    printf("before the gate opens the end is %s\n", state == CL_COMPLETE ? "reached" : "not reached");
    CHECK(clSetUserEventStatus(gate, CL_COMPLETE));
    CHECK(clWaitForEvents(1, &read));
    printf("chain: %s\n", memcmp(host, expected, sizeof host) ? "wrong" : "as expected");
    int ordered = 1;
    cl_ulong before = 0;
    for (int k = 0; k < CHAIN; k++) {
        cl_ulong start, end;
        CHECK(clGetEventProfilingInfo(kept[k], CL_PROFILING_COMMAND_START, sizeof start, &start, NULL));
        CHECK(clGetEventProfilingInfo(kept[k], CL_PROFILING_COMMAND_END, sizeof end, &end, NULL));
        ordered &= start >= before && end >= start;
        before = end;
        CHECK(clReleaseEvent(kept[k]));
    }
    printf("times: %s\n", ordered ? "in order" : "out of order");
    // Independent halves, brought together by a barrier.
    int zero = 0;
    CHECK(clEnqueueFillBuffer(queue, buffer, &zero, 4, 0, N * 2, 0, NULL, NULL));
    CHECK(clEnqueueFillBuffer(queue, buffer, &zero, 4, N * 2, N * 2, 0, NULL, NULL));
    CHECK(clEnqueueBarrierWithWaitList(queue, 0, NULL, NULL));
    int one = 1, five = 5;
    CHECK(clSetKernelArg(kernel, 1, sizeof one, &one));
    CHECK(clSetKernelArg(kernel, 2, sizeof five, &five));
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL));
    CHECK(clEnqueueBarrierWithWaitList(queue, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
    int good = 1;
    for (int i = 0; i < N; i++) good &= host[i] == 5;
    printf("barrier: %s\n", good ? "as expected" : "wrong");
    CHECK(clReleaseEvent(gate));
    CHECK(clReleaseEvent(marker));
    CHECK(clReleaseEvent(read));
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseKernel(kernel));
    CHECK(clReleaseProgram(program));
    tear_down();
    return 0;
}
