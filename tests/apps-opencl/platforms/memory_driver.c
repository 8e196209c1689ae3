// What a driver may do and PoCL does not: the driver is the tests' own (drivers/memory.c), the only one here.
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#include "check.h"
#include <unistd.h>

enum { COUNT = 256, PATIENCE = 6000 };

static int is_katydid;

// The device has all of an allocation again when a part of it is unmapped, and gets nothing with the rest.
static void unmapped_as_a_whole(void) {
    int begun[COUNT], back[COUNT];
    for (int i = 0; i < COUNT; i++) begun[i] = i;
    int *values = clSVMAlloc(context, CL_MEM_READ_WRITE, sizeof begun, 0);
    REQUIRE(values);
    CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, values, begun, sizeof begun, 0, NULL, NULL));
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_WRITE, values, sizeof begun, 0, NULL, NULL));
    values[20] = 77, values[200] = 79;
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, values + 16, 64, 0, NULL, NULL));
    printf("within another: %d,", values[20]);
    values[21] = 78;
    CHECK(clEnqueueSVMUnmap(queue, values + 16, 0, NULL, NULL));
    CHECK(clEnqueueSVMUnmap(queue, values, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, back, values, sizeof back, 0, NULL, NULL));
    printf(" %d %d %d, others %d %d\n", back[20], back[21], back[200], back[19], back[COUNT - 1]);
    CHECK(clFinish(queue));
    clSVMFree(context, values);
}

static volatile int told;
static char text[64];

static void CL_CALLBACK hear(const char *why, const void *more, size_t length, void *data) {
    (void)more, (void)length;
    REQUIRE(data == &told);
    snprintf(text, sizeof text, "%s", why);
    __sync_fetch_and_add(&told, 1);
}

// What the driver tells a context comes to the program, each time.
static void told_by_the_context(void) {
    cl_int code;
    cl_context listening = clCreateContext(NULL, 1, &device, hear, (void *)&told, &code);
    CHECK(code);
    for (int round = 1; round <= 2; round++) {
        cl_mem none = clCreateBuffer(listening, 0, ((size_t)1 << 28) + round, NULL, &code);
        for (int wait = 0; told < round && wait < PATIENCE; wait++) usleep(10000);
        printf("%s, told %d: %s\n", none ? "made" : code_name(code), told, text);
    }
    CHECK(clReleaseContext(listening));
}

// The driver takes any property, a descriptor too, which would be another one where the driver runs.
static void properties(void) {
    cl_int code;
    cl_mem_properties list[] = {0x2060, 1, 0}, none[] = {0};
    cl_mem one = clCreateBufferWithProperties(context, list, 0, 64, NULL, &code);
    REQUIRE((code == CL_SUCCESS) == !is_katydid && (one != NULL) == !is_katydid);
    if (is_katydid) REQUIRE(code == CL_INVALID_PROPERTY);
    if (one) CHECK(clReleaseMemObject(one));
    one = clCreateBufferWithProperties(context, none, 0, 64, NULL, &code);
    printf("properties, none: %s\n", code_name(code));
    CHECK(clReleaseMemObject(one));
}

// A queue's properties are set and told as the driver has them, and a command goes through it after each change.
static void queue_properties(void) {
    const cl_command_queue_properties sets[] = {CL_QUEUE_PROFILING_ENABLE, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
                                                CL_QUEUE_PROFILING_ENABLE | CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 1 << 9};
    cl_int code;
    cl_command_queue one = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &code);
    cl_mem buffer = clCreateBuffer(context, 0, 4, NULL, &code);
    CHECK(code);
    for (int i = 0; i < 8; i++) {
        cl_command_queue_properties before = 0, now = 0;
        int value = i, back = 0;
        code = clSetCommandQueueProperty(one, sets[i % 4], i >= 4, &before);
        CHECK(clGetCommandQueueInfo(one, CL_QUEUE_PROPERTIES, sizeof now, &now, NULL));
        CHECK(clEnqueueWriteBuffer(one, buffer, CL_TRUE, 0, 4, &value, 0, NULL, NULL));
        CHECK(clFinish(one));
        CHECK(clEnqueueReadBuffer(one, buffer, CL_TRUE, 0, 4, &back, 0, NULL, NULL));
        printf("%s %d: %s, %d before, %d now; %d\n", i < 4 ? "without" : "with", (int)sets[i % 4], code_name(code), (int)before, (int)now, back);
    }
    CHECK(clSetCommandQueueProperty(one, CL_QUEUE_PROFILING_ENABLE, CL_FALSE, NULL));
    REQUIRE(clSetCommandQueueProperty(NULL, CL_QUEUE_PROFILING_ENABLE, CL_TRUE, NULL) == CL_INVALID_COMMAND_QUEUE);
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseCommandQueue(one));
}

int main(void) {
    set_up(0);
    is_katydid = platform_says(CL_PLATFORM_VERSION, "Katydid");
    unmapped_as_a_whole();
    told_by_the_context();
    properties();
    queue_properties();
    tear_down();
    return 0;
}
