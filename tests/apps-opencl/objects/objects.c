// How long objects live, what they say of themselves, and who is told when they end.
#include "check.h"
#include <unistd.h>

static volatile int ended;

static void CL_CALLBACK memory_ends(cl_mem memory, void *data) {
    (void)memory;
    printf("memory ends: %s\n", (const char *)data);
    fflush(stdout);
    __sync_fetch_and_add(&ended, 1);
}

static cl_uint references(cl_context of) {
    cl_uint count;
    CHECK(clGetContextInfo(of, CL_CONTEXT_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

int main(void) {
    set_up(CL_QUEUE_PROFILING_ENABLE);
    char text[1024];
    CHECK(clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof text, text, NULL));
    printf("platform: %.7s\n", text);
    CHECK(clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, 0, NULL, &(size_t){0}));
    cl_platform_id of;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof of, &of, NULL));
    cl_uint count, units;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL));
    printf("its device is its own: %s, units: %s\n", of == platform ? "yes" : "no", units ? "some" : "none");
    CHECK(clRetainContext(context));
    cl_context_properties properties[3];
    cl_device_id devices[1];
    CHECK(clGetContextInfo(context, CL_CONTEXT_PROPERTIES, sizeof properties, properties, NULL));
    CHECK(clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof devices, devices, NULL));
    printf("context: properties %s, device %s, retained %s\n",
           properties[0] == CL_CONTEXT_PLATFORM && properties[1] == (cl_context_properties)platform && !properties[2] ? "kept" : "lost",
           devices[0] == device ? "right" : "wrong", references(context) >= 2 ? "yes" : "no");
    CHECK(clReleaseContext(context));
    cl_command_queue_properties flags;
    cl_context c;
    cl_device_id d;
    CHECK(clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof flags, &flags, NULL));
    CHECK(clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof c, &c, NULL));
    CHECK(clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof d, &d, NULL));
    printf("queue: profiling %s, context %s, device %s\n", flags & CL_QUEUE_PROFILING_ENABLE ? "on" : "off",
           c == context ? "right" : "wrong", d == device ? "right" : "wrong");
    // A kernel keeps its program, and that its context.
    cl_program program = build("__kernel void f(__global int *v) { *v = 7; }", "");
    cl_kernel kernel = kernel_of(program, "f");
    CHECK(clReleaseProgram(program));
    cl_program again;
    CHECK(clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof again, &again, NULL));
    CHECK(clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof text, text, NULL));
    printf("kernel %s of the same program: %s\n", text, again == program ? "yes" : "no");
    cl_mem buffer = buffer_of(CL_MEM_WRITE_ONLY, 64, NULL);
    CHECK(clSetMemObjectDestructorCallback(buffer, memory_ends, "told first"));
    CHECK(clSetMemObjectDestructorCallback(buffer, memory_ends, "told last, so first"));
    CHECK(clRetainMemObject(buffer));
    CHECK(clGetMemObjectInfo(buffer, CL_MEM_REFERENCE_COUNT, sizeof count, &count, NULL));
    printf("buffer: %u references\n", count);
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    launch(kernel, 1);
    CHECK(clReleaseMemObject(buffer));
    int value;
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, &value, 0, NULL, NULL));
    printf("value %d\n", value);
    fflush(stdout);
    CHECK(clReleaseKernel(kernel));
    CHECK(clReleaseMemObject(buffer));
    while (ended < 2) usleep(100);
    size_t size;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_NAME, 0, NULL, &size));
    printf("room that is too small: %s\n", code_name(clGetDeviceInfo(device, CL_DEVICE_NAME, size - 1, text, NULL)));
    cl_device_partition_property none[] = {CL_DEVICE_PARTITION_BY_COUNTS, 0, 0};
    printf("no part of a device: %s\n", clCreateSubDevices(device, none, 0, NULL, &count) == CL_SUCCESS ? "made" : "refused");
    tear_down();
    return 0;
}
