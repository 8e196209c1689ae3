// Events that the program sets, callbacks of events, and what a failed one does to those that wait for it.
#include "check.h"
#include <pthread.h>
#include <unistd.h>

static volatile int calls, order_of_calls[16];
static int value;

static void CL_CALLBACK note(cl_event event, cl_int status, void *data) {
    (void)event;
    order_of_calls[calls] = (int)(size_t)data * 10 + (status < 0 ? 9 : status);
    __sync_fetch_and_add(&calls, 1);
}

static void CL_CALLBACK look(cl_event event, cl_int status, void *data) {
    (void)event, (void)status;
    // What the command has read is there when its callback runs.
    *(int *)data = value;
    __sync_fetch_and_add(&calls, 1);
}

static void *open_gate(void *gate) {
    usleep(20000);
    clSetUserEventStatus((cl_event)gate, CL_COMPLETE);
    return NULL;
}

static void wait_for_calls(int wanted) {
    while (calls < wanted) usleep(100);
}

// Who asks when a read ended until he is told has what it read.
static void ask_for_times(cl_mem buffer) {
    cl_int code;
    cl_command_queue timed = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &code);
    CHECK(code);
    int seen = 0;
    cl_event done;
    cl_ulong end;
    CHECK(clEnqueueReadBuffer(timed, buffer, CL_FALSE, 0, 4, &seen, 0, NULL, &done));
    CHECK(clFlush(timed));
    do {
        usleep(100);
        code = clGetEventProfilingInfo(done, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
    } while (code == CL_PROFILING_INFO_NOT_AVAILABLE);
    CHECK(code);
    printf("read, by its times: %d\n", seen);
    CHECK(clReleaseEvent(done));
    CHECK(clReleaseCommandQueue(timed));
}

int main(void) {
    set_up(0);
    cl_int code;
    int seen = 0, number = 4711;
    cl_mem buffer = buffer_of(CL_MEM_COPY_HOST_PTR, 4, &number);
    cl_event gate = clCreateUserEvent(context, &code), read;
    CHECK(code);
    cl_command_type type;
    cl_command_queue of;
    CHECK(clGetEventInfo(gate, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL));
    CHECK(clGetEventInfo(gate, CL_EVENT_COMMAND_QUEUE, sizeof of, &of, NULL));
    printf("user event: %s, queue %s\n", type == CL_COMMAND_USER ? "yes" : "no", of ? "some" : "none");
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, 4, &value, 1, &gate, &read));
    CHECK(clSetEventCallback(read, CL_COMPLETE, look, &seen));
    CHECK(clSetEventCallback(gate, CL_COMPLETE, note, (void *)1));
    CHECK(clFlush(queue));
    pthread_t thread;
    pthread_create(&thread, NULL, open_gate, gate);
    CHECK(clWaitForEvents(1, &read));
    pthread_join(thread, NULL);
    printf("read %d\n", value);
    wait_for_calls(2);
    printf("callback saw %d\n", seen);
    printf("set again: %s\n", code_name(clSetUserEventStatus(gate, CL_COMPLETE)));
    printf("set a command's: %s\n", code_name(clSetUserEventStatus(read, CL_COMPLETE)));
    CHECK(clReleaseEvent(gate));
    CHECK(clReleaseEvent(read));

    ask_for_times(buffer);

    // A callback of an event that is over already.
    calls = 0;
    cl_event done;
    CHECK(clEnqueueMarkerWithWaitList(queue, 0, NULL, &done));
    CHECK(clFinish(queue));
    CHECK(clSetEventCallback(done, CL_COMPLETE, note, (void *)2));
    wait_for_calls(1);
    printf("late callback: %d\n", order_of_calls[0]);
    CHECK(clReleaseEvent(done));

    // A failure is told to callers that ask or wait.
    cl_event bad = clCreateUserEvent(context, &code);
    CHECK(code);
    CHECK(clSetUserEventStatus(bad, -7));
    cl_int status;
    CHECK(clGetEventInfo(bad, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    printf("failed: %d\n", status);
    printf("waiting for it: %s\n", code_name(clWaitForEvents(1, &bad)));
    CHECK(clReleaseEvent(bad));
    CHECK(clReleaseMemObject(buffer));
    tear_down();
    return 0;
}
