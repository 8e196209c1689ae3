// A blocking write is done for all that comes after it: commands of another queue, or of one without order, that do not wait for
// its event, and callers that ask for the event's state and times.
#include "check.h"
#include <pthread.h>
#include <unistd.h>

static const char *source =
    "__kernel void pick(__global const int *from, __global int *to, int at) { to[0] = from[at]; }\n";

static cl_kernel pick;
static cl_mem result;

// What a kernel of a queue finds in a buffer now.
static int found(cl_command_queue in, cl_mem buffer, int at) {
    size_t one = 1;
    int value = 0;
    CHECK(clSetKernelArg(pick, 0, sizeof buffer, &buffer));
    CHECK(clSetKernelArg(pick, 1, sizeof result, &result));
    CHECK(clSetKernelArg(pick, 2, sizeof at, &at));
    CHECK(clEnqueueNDRangeKernel(in, pick, 1, NULL, &one, NULL, 0, NULL, NULL));
    CHECK(clEnqueueBarrierWithWaitList(in, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(in, result, CL_TRUE, 0, sizeof value, &value, 0, NULL, NULL));
    return value;
}

static void *open_later(void *gate) {
    usleep(100000);
    CHECK(clSetUserEventStatus((cl_event)gate, CL_COMPLETE));
    return NULL;
}

// A write of so many numbers in the first queue, which stands still for a while; and what the second one finds.
static void behind_a_gate(cl_command_queue second, int count, int wants_event) {
    cl_int code;
    int *host = calloc((size_t)count, sizeof *host);
    cl_mem buffer = buffer_of(CL_MEM_COPY_HOST_PTR, (size_t)count * sizeof *host, host);
    cl_event gate = clCreateUserEvent(context, &code), end;
    CHECK(code);
    host[count - 1] = 7;
    CHECK(clEnqueueBarrierWithWaitList(queue, 1, &gate, NULL));
    pthread_t thread;
    pthread_create(&thread, NULL, open_later, gate);
    CHECK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, (size_t)count * sizeof *host, host, 0, NULL, wants_event ? &end : NULL));
    host[count - 1] = 8;
    cl_int state = CL_COMPLETE;
    cl_ulong begin = 1, finish = 2;
    if (wants_event) {
        CHECK(clGetEventProfilingInfo(end, CL_PROFILING_COMMAND_START, sizeof begin, &begin, NULL));
        CHECK(clGetEventProfilingInfo(end, CL_PROFILING_COMMAND_END, sizeof finish, &finish, NULL));
        CHECK(clGetEventInfo(end, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
        CHECK(clReleaseEvent(end));
    }
    printf("%d numbers: found %d, %s, %s\n", count, found(second, buffer, count - 1), state == CL_COMPLETE ? "done" : "not done",
           begin <= finish ? "times" : "no times");
    pthread_join(thread, NULL);
    CHECK(clFinish(queue));
    CHECK(clReleaseEvent(gate));
    CHECK(clReleaseMemObject(buffer));
    free(host);
}

// The same in a queue without order.
static void without_order(cl_command_queue loose) {
    enum { COUNT = 8 << 20 };
    int *host = calloc(COUNT, sizeof *host), good = 1;
    cl_mem buffer = buffer_of(CL_MEM_COPY_HOST_PTR, COUNT * sizeof *host, host);
    for (int i = 1; i <= 5; i++) {
        host[COUNT - 1] = i;
        CHECK(clEnqueueWriteBuffer(loose, buffer, CL_TRUE, 0, COUNT * sizeof *host, host, 0, NULL, NULL));
        good &= found(loose, buffer, COUNT - 1) == i;
    }
    printf("without order: %s\n", good ? "as expected" : "wrong");
    CHECK(clReleaseMemObject(buffer));
    free(host);
}

int main(void) {
    set_up(CL_QUEUE_PROFILING_ENABLE);
    cl_int code;
    cl_command_queue second = clCreateCommandQueue(context, device, 0, &code);
    CHECK(code);
    cl_command_queue loose = clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    CHECK(code);
    cl_program program = build(source, "");
    pick = kernel_of(program, "pick");
    result = buffer_of(0, sizeof(int), NULL);
    // The driver has accepted such commands, and need not be asked about them.
    cl_mem warm = buffer_of(0, 64, NULL);
    found(second, warm, 0), found(loose, warm, 0);
    CHECK(clReleaseMemObject(warm));
    for (int wants_event = 0; wants_event < 2; wants_event++)
        for (int count = 16; count <= 1 << 20; count <<= 8) behind_a_gate(second, count, wants_event);
    for (int count = 16; count <= 1 << 20; count <<= 8) behind_a_gate(loose, count, 0);
    without_order(loose);
    CHECK(clReleaseMemObject(result));
    CHECK(clReleaseKernel(pick));
    CHECK(clReleaseProgram(program));
    CHECK(clReleaseCommandQueue(second));
    CHECK(clReleaseCommandQueue(loose));
    tear_down();
    return 0;
}
