// What is wrong, and the code that says so: a table.
#include "check.h"

static cl_int code;
#define SHOW(what, call) (code = CL_SUCCESS, (call), printf("%-34s %s\n", what, code_name(code)))
#define IS(what, call) SHOW(what, code = (call))

int main(void) {
    set_up(0);
    int host[64] = {0};
    cl_mem buffer = buffer_of(0, 256, NULL);
    cl_program program = build("__kernel void f(__global int *v, int n, __local int *l) { l[0] = n; v[0] = l[0]; }", "");
    cl_kernel kernel = kernel_of(program, "f");
    size_t one = 1, zero = 0;
    cl_event user = clCreateUserEvent(context, &code);
    IS("no room and no count", clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, NULL));
    IS("unknown parameter of a device", clGetDeviceInfo(device, 0x9999, 4, host, NULL));
    IS("unknown parameter of a buffer", clGetMemObjectInfo(buffer, 0x9999, 4, host, NULL));
    SHOW("context of no device", clCreateContext(NULL, 0, NULL, NULL, NULL, &code));
    SHOW("buffer of no size", clCreateBuffer(context, 0, 0, NULL, &code));
    SHOW("buffer, memory without flag", clCreateBuffer(context, 0, 256, host, &code));
    SHOW("buffer, flag without memory", clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, 256, NULL, &code));
    SHOW("buffer, flags that exclude", clCreateBuffer(context, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, 256, NULL, &code));
    SHOW("buffer, memory of two owners", clCreateBuffer(context, CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR, 256, host, &code));
    IS("read beyond the end", clEnqueueReadBuffer(queue, buffer, CL_TRUE, 200, 100, host, 0, NULL, NULL));
    IS("read of nothing to nowhere", clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, NULL, 0, NULL, NULL));
    IS("write beyond the end", clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 253, 4, host, 0, NULL, NULL));
    IS("a wait list without events", clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, host, 1, NULL, NULL));
    IS("events without a wait list", clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, host, 0, &user, NULL));
    IS("fill, odd pattern", clEnqueueFillBuffer(queue, buffer, host, 3, 0, 12, 0, NULL, NULL));
    IS("fill, not a multiple", clEnqueueFillBuffer(queue, buffer, host, 4, 2, 12, 0, NULL, NULL));
    SHOW("kernel of no name", clCreateKernel(program, "nothing", &code));
    SHOW("kernel of null", clCreateKernel(program, NULL, &code));
    IS("launch before arguments", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL));
    IS("argument beyond the last", clSetKernelArg(kernel, 3, 4, host));
    IS("argument of another size", clSetKernelArg(kernel, 1, 2, host));
    IS("buffer of another size", clSetKernelArg(kernel, 0, 4, &buffer));
    IS("local memory of no size", clSetKernelArg(kernel, 2, 0, NULL));
    IS("local memory with a value", clSetKernelArg(kernel, 2, 4, host));
    IS("number without a value", clSetKernelArg(kernel, 1, 4, NULL));
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    CHECK(clSetKernelArg(kernel, 1, 4, host));
    CHECK(clSetKernelArg(kernel, 2, 16, NULL));
    IS("no dimension", clEnqueueNDRangeKernel(queue, kernel, 0, NULL, &one, NULL, 0, NULL, NULL));
    IS("four dimensions", clEnqueueNDRangeKernel(queue, kernel, 4, NULL, &one, NULL, 0, NULL, NULL));
    IS("no sizes", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, NULL, NULL, 0, NULL, NULL));
    // The standard is silent. PoCL chooses a size; NVIDIA's driver divides by it, so nobody but Katydid may be asked.
    int is_pocl = platform_says(CL_PLATFORM_NAME, "Portable"), may_ask = is_pocl || platform_says(CL_PLATFORM_VERSION, "Katydid");
    code = may_ask ? clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, &zero, 0, NULL, NULL) : CL_INVALID_WORK_GROUP_SIZE;
    int is_right = code == (is_pocl ? CL_SUCCESS : CL_INVALID_WORK_GROUP_SIZE);
    SHOW("a group of nothing", code = is_right ? CL_SUCCESS : CL_INVALID_VALUE);
    size_t huge = (size_t)1 << 30;
    IS("a group beyond the device", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &huge, &huge, 0, NULL, NULL));
    IS("waiting for nothing", clWaitForEvents(0, NULL));
    IS("an event's state above queued", clSetUserEventStatus(user, CL_SUBMITTED));
    IS("a callback of no function", clSetEventCallback(user, CL_COMPLETE, NULL, NULL));
    IS("times of a user event", clGetEventProfilingInfo(user, CL_PROFILING_COMMAND_END, 8, host, NULL));
    const char *text = NULL;
    SHOW("program of no text", clCreateProgramWithSource(context, 1, &text, NULL, &code));
    SHOW("program of no texts", clCreateProgramWithSource(context, 0, NULL, NULL, &code));
    IS("build, device list of none", clBuildProgram(program, 1, NULL, "", NULL, NULL));
    IS("build while a kernel lives", clBuildProgram(program, 1, &device, "", NULL, NULL));
    SHOW("image of no format", clCreateImage(context, 0, NULL, NULL, NULL, &code));
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    SHOW("image of no shape", clCreateImage(context, 0, &format, NULL, NULL, &code));
    SHOW("queue of unknown properties", clCreateCommandQueue(context, device, 1u << 20, &code));
    // Where a queue has had commands with the same objects, nobody need ask the driver about one that cannot be wrong.
    cl_mem other = buffer_of(0, 256, NULL);
    for (int i = 0; i < 2; i++) CHECK(clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 0, sizeof host, host, 0, NULL, NULL));
    for (int i = 0; i < 2; i++) CHECK(clEnqueueCopyBuffer(queue, buffer, other, 0, 0, 256, 0, NULL, NULL));
    IS("copy over itself", clEnqueueCopyBuffer(queue, buffer, buffer, 0, 8, 16, 0, NULL, NULL));
    IS("copy beside itself", clEnqueueCopyBuffer(queue, buffer, buffer, 0, 16, 16, 0, NULL, NULL));
    IS("copy from beyond the end", clEnqueueCopyBuffer(queue, buffer, other, 250, 0, 16, 0, NULL, NULL));
    IS("copy to beyond the end", clEnqueueCopyBuffer(queue, buffer, other, 0, 250, 16, 0, NULL, NULL));
    IS("copy of more than there is", clEnqueueCopyBuffer(queue, buffer, other, 8, 8, (size_t)-4, 0, NULL, NULL));
    IS("write beyond the end again", clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 253, 4, host, 0, NULL, NULL));
    IS("none of these was begun", clFinish(queue));
    CHECK(clReleaseMemObject(other));
    CHECK(clSetUserEventStatus(user, CL_COMPLETE));
    CHECK(clReleaseEvent(user));
    clReleaseKernel(kernel), clReleaseProgram(program), clReleaseMemObject(buffer);
    tear_down();
    return 0;
}
