// Commands that wait for an event of the program's, for a while, and then fail with it. A checkpoint that is asked for meanwhile is
// refused; it leaves nothing behind that the failure would meet.
#include "check.h"

enum { ROUNDS = 8, STEPS = 6, SIZE = 64 };

// Something that comes to its end, in a queue of its own.
static unsigned work(cl_command_queue other, cl_mem buffer, unsigned seed) {
    unsigned char bytes[SIZE], back[SIZE];
    unsigned sum = seed;
    memset(bytes, (int)seed, sizeof bytes);
    CHECK(clEnqueueWriteBuffer(other, buffer, CL_FALSE, 0, sizeof bytes, bytes, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(other, buffer, CL_TRUE, 0, sizeof back, back, 0, NULL, NULL));
    for (int i = 0; i < SIZE; i++) sum = sum * 31 + back[i];
    return sum;
}

static cl_int status_of(cl_event event) {
    cl_int status;
    CHECK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    return status;
}

int main(void) {
    // What is behind the commands in a queue that keeps its order waits with them; in this one, only what is behind all.
    set_up(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    cl_int code;
    cl_command_queue other = clCreateCommandQueue(context, device, 0, &code);
    CHECK(code);
    cl_mem buffer = buffer_of(CL_MEM_READ_WRITE, SIZE, NULL), waiting = buffer_of(CL_MEM_READ_WRITE, SIZE, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char back[SIZE] = {1};
        unsigned sum = 0;
        cl_event gate = clCreateUserEvent(context, &code), all[3];
        CHECK(code);
        CHECK(clEnqueueFillBuffer(queue, waiting, "\3", 1, 0, SIZE, 1, &gate, &all[0]));
        CHECK(clEnqueueReadBuffer(queue, waiting, CL_FALSE, 0, SIZE, back, 1, &all[0], &all[1]));
        CHECK(clEnqueueMarkerWithWaitList(queue, 1, &all[1], &all[2]));
        CHECK(clFlush(queue));
        for (int step = 0; step < STEPS; step++) sum = sum * 7 + work(other, buffer, (unsigned)(round * STEPS + step));
        CHECK(clSetUserEventStatus(gate, -1000 - round));
        code = clWaitForEvents(1, &all[2]);
        printf("round %d: %08x, %s, %d, nothing read: %d\n", round, sum, code_name(code), status_of(gate), back[0]);
        for (int i = 0; i < 3; i++) REQUIRE(status_of(all[i]) < 0);
        for (int i = 0; i < 3; i++) CHECK(clReleaseEvent(all[i]));
        CHECK(clReleaseEvent(gate));
        for (int step = 0; step < STEPS; step++) sum = sum * 7 + work(other, buffer, (unsigned)(round + step));
        printf("then %08x\n", sum);
    }
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseMemObject(waiting));
    CHECK(clReleaseCommandQueue(other));
    tear_down();
    return 0;
}
