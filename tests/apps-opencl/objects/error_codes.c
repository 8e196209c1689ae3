// What is wrong, and the code that says so: a table.
#include "check.h"

static cl_int code;
#define SHOW(what, call) (code = CL_SUCCESS, (call), printf("%-34s %s\n", what, code_name(code)))
#define IS(what, call) SHOW(what, code = (call))

static cl_mem image(cl_mem_flags flags, cl_image_desc desc, void *host) {
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    return clCreateImage(context, flags, &format, &desc, host, &code);
}

// What the standard says of pitches. PoCL takes them without memory, and has other codes; so it is not asked natively.
#define PITCH(what, standard, call) SHOW(what, is_katydid ? (void)(call) : (void)(code = (standard)))

static void shapes(void) {
    int is_katydid = platform_says(CL_PLATFORM_VERSION, "Katydid");
    enum { W = 256, H = 256, D = 3 };
    static unsigned char host[W * (H + 1) * D * 4];
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc plane = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = W, .image_height = H}, gaps = plane;
    cl_image_desc volume = {.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = W, .image_height = H, .image_depth = D};
    gaps.image_row_pitch = W * 4 + 4;
    PITCH("pitch without memory", CL_INVALID_IMAGE_DESCRIPTOR, image(0, gaps, NULL));
    SHOW("pitch with memory", image(CL_MEM_COPY_HOST_PTR, gaps, host));
    gaps.image_row_pitch = W * 4 - 4;
    PITCH("pitch below a row", CL_INVALID_IMAGE_DESCRIPTOR, image(CL_MEM_COPY_HOST_PTR, gaps, host));
    gaps.image_row_pitch = W * 4 + 1;
    PITCH("pitch, not a multiple", CL_INVALID_IMAGE_DESCRIPTOR, image(CL_MEM_COPY_HOST_PTR, gaps, host));
    gaps = volume, gaps.image_slice_pitch = W * 4 * (H + 1);
    PITCH("slice pitch without memory", CL_INVALID_IMAGE_DESCRIPTOR, image(0, gaps, NULL));
    SHOW("slice pitch with memory", image(CL_MEM_COPY_HOST_PTR, gaps, host));
    gaps.image_slice_pitch = W * 4 * H + 4;
    PITCH("slice pitch, not a multiple", CL_INVALID_IMAGE_DESCRIPTOR, image(CL_MEM_COPY_HOST_PTR, gaps, host));
    PITCH("old plane, pitch without memory", CL_INVALID_IMAGE_SIZE, clCreateImage2D(context, 0, &format, 8, 4, 40, NULL, &code));
    PITCH("old plane, pitch below a row", CL_INVALID_IMAGE_SIZE,
          clCreateImage2D(context, CL_MEM_COPY_HOST_PTR, &format, 8, 4, 28, host, &code));
    PITCH("old volume, pitch without memory", CL_INVALID_IMAGE_SIZE,
          clCreateImage3D(context, 0, &format, 8, 4, 3, 0, 160, NULL, &code));
    cl_image_desc odd = plane;
    odd.image_depth = 5, odd.image_array_size = 7;
    SHOW("sizes that a plane has not", image(CL_MEM_COPY_HOST_PTR, odd, host));
    // Regions that do not lie in an image, of which nothing is done.
    cl_mem flat = image(0, plane, NULL), deep = image(0, volume, NULL);
    size_t all[3] = {W, H, 1}, wide[3] = {W + 1, H, 1}, tall[3] = {W, H + 1, 1}, thick[3] = {W, H, 2}, whole[3] = {W, H, D};
    size_t zero[3] = {0}, at_x[3] = {1}, at_z[3] = {0, 0, 2};
    size_t row, slice;
    memset(host, 1, sizeof host);
    CHECK(clEnqueueWriteImage(queue, deep, CL_TRUE, zero, whole, 0, 0, host, 0, NULL, NULL));
    memset(host, 2, sizeof host);
    IS("write beyond an image's rows", clEnqueueWriteImage(queue, flat, CL_TRUE, zero, wide, 0, 0, host, 0, NULL, NULL));
    IS("write beyond an image's columns", clEnqueueWriteImage(queue, flat, CL_TRUE, zero, tall, 0, 0, host, 0, NULL, NULL));
    IS("write from the second column", clEnqueueWriteImage(queue, flat, CL_FALSE, at_x, all, 0, 0, host, 0, NULL, NULL));
    IS("write to slices beyond the last", clEnqueueWriteImage(queue, deep, CL_TRUE, at_z, thick, 0, 0, host, 0, NULL, NULL));
    IS("read beyond an image's columns", clEnqueueReadImage(queue, flat, CL_TRUE, zero, tall, 0, 0, host, 0, NULL, NULL));
    SHOW("map beyond an image's columns", clEnqueueMapImage(queue, flat, CL_TRUE, CL_MAP_READ, zero, tall, &row, &slice, 0, NULL, NULL, &code));
    IS("none of these was begun", clFinish(queue));
    CHECK(clEnqueueReadImage(queue, deep, CL_TRUE, zero, whole, 0, 0, host, 0, NULL, NULL));
    int same = 1;
    for (size_t i = 0; i < W * H * D * 4; i++) same &= host[i] == 1;
    printf("the image is %s\n", same ? "as it was" : "another one");
    clReleaseMemObject(flat), clReleaseMemObject(deep);
}

// What is said of each binary where a program is refused.
static void binaries(void) {
    const unsigned char text[64] = "no binary", *binary = text;
    size_t length = sizeof text;
    cl_int status = 77;
    SHOW("program of no binary", clCreateProgramWithBinary(context, 1, &device, &length, &binary, &status, &code));
    SHOW("which is said of it", code = status);
}

// What the standard says where a native driver is not asked: it may end the program.
#define OURS(what, standard, call) SHOW(what, code = is_katydid ? (call) : (standard))

// Handles of another kind, and of what the program has released.
static void foreign_handles(cl_mem buffer, cl_kernel kernel) {
    int is_katydid = platform_says(CL_PLATFORM_VERSION, "Katydid"), value = 0;
    size_t one = 1;
    cl_event event = clCreateUserEvent(context, &code), foreign = (cl_event)buffer;
    cl_sampler sampler = clCreateSampler(context, CL_FALSE, CL_ADDRESS_NONE, CL_FILTER_NEAREST, &code);
    cl_command_queue other = clCreateCommandQueue(context, device, 0, &code);
    cl_context second = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    cl_program program = build("__kernel void g(__global int *v) { v[0] = 1; }", "");
    cl_kernel kernel_of_it = kernel_of(program, "g");
    cl_mem memory = buffer_of(0, 64, NULL);
    OURS("a buffer as a queue", CL_INVALID_COMMAND_QUEUE, clFinish((cl_command_queue)buffer));
    OURS("a queue as a buffer", CL_INVALID_MEM_OBJECT,
         clEnqueueReadBuffer(queue, (cl_mem)queue, CL_TRUE, 0, 4, &value, 0, NULL, NULL));
    OURS("a buffer as a kernel", CL_INVALID_KERNEL, clSetKernelArg((cl_kernel)buffer, 0, 4, &value));
    OURS("a kernel as a program", CL_INVALID_PROGRAM, clBuildProgram((cl_program)kernel, 1, &device, "", NULL, NULL));
    OURS("a buffer as a sampler", CL_INVALID_SAMPLER, clRetainSampler((cl_sampler)buffer));
    OURS("a queue as a device", CL_INVALID_DEVICE, clGetDeviceInfo((cl_device_id)queue, CL_DEVICE_TYPE, 8, &value, NULL));
    OURS("a device as a context", CL_INVALID_CONTEXT, clRetainContext((cl_context)device));
    OURS("a buffer as an event", CL_INVALID_EVENT, clRetainEvent(foreign));
    OURS("a buffer as an event to wait for", CL_INVALID_EVENT, clWaitForEvents(1, &foreign));
    OURS("a buffer in a wait list", CL_INVALID_EVENT_WAIT_LIST, clEnqueueMarkerWithWaitList(queue, 1, &foreign, NULL));
    CHECK(clReleaseKernel(kernel_of_it));
    CHECK(clReleaseProgram(program));
    CHECK(clReleaseMemObject(memory));
    CHECK(clReleaseSampler(sampler));
    CHECK(clReleaseEvent(event));
    CHECK(clReleaseCommandQueue(other));
    CHECK(clReleaseContext(second));
    OURS("a queue that is gone", CL_INVALID_COMMAND_QUEUE, clFinish(other));
    OURS("a buffer that is gone", CL_INVALID_MEM_OBJECT,
         clEnqueueReadBuffer(queue, memory, CL_TRUE, 0, 4, &value, 0, NULL, NULL));
    OURS("a buffer that is gone, released", CL_INVALID_MEM_OBJECT, clReleaseMemObject(memory));
    OURS("a kernel that is gone", CL_INVALID_KERNEL, clEnqueueNDRangeKernel(queue, kernel_of_it, 1, NULL, &one, NULL, 0, NULL, NULL));
    OURS("a program that is gone", CL_INVALID_PROGRAM, clBuildProgram(program, 1, &device, "", NULL, NULL));
    OURS("a sampler that is gone", CL_INVALID_SAMPLER, clRetainSampler(sampler));
    OURS("an event that is gone", CL_INVALID_EVENT, clSetUserEventStatus(event, CL_COMPLETE));
    OURS("a context that is gone", CL_INVALID_CONTEXT, clRetainContext(second));
}

// No handle at all.
static void nulls(void) {
    int is_katydid = platform_says(CL_PLATFORM_VERSION, "Katydid"), value = 0;
    size_t one = 1;
    cl_event none = NULL;
    cl_mem buffer = buffer_of(0, 64, NULL);
    IS("no queue to finish", clFinish(NULL));
    IS("no queue to read by", clEnqueueReadBuffer(NULL, buffer, CL_TRUE, 0, 4, &value, 0, NULL, NULL));
    IS("no buffer to read", clEnqueueReadBuffer(queue, NULL, CL_TRUE, 0, 4, &value, 0, NULL, NULL));
    IS("no buffer to release", clReleaseMemObject(NULL));
    OURS("no kernel to launch", CL_INVALID_KERNEL, clEnqueueNDRangeKernel(queue, NULL, 1, NULL, &one, NULL, 0, NULL, NULL));
    IS("no kernel to set", clSetKernelArg(NULL, 0, 4, &value));
    IS("no program to build", clBuildProgram(NULL, 0, NULL, "", NULL, NULL));
    SHOW("no program to have kernels of", clCreateKernel(NULL, "f", &code));
    IS("no sampler to retain", clRetainSampler(NULL));
    IS("no device to ask", clGetDeviceInfo(NULL, CL_DEVICE_TYPE, 8, &value, NULL));
    SHOW("no context for a buffer", clCreateBuffer(NULL, 0, 64, NULL, &code));
    SHOW("no context for a queue", clCreateCommandQueue(NULL, device, 0, &code));
    SHOW("no device for a queue", clCreateCommandQueue(context, NULL, 0, &code));
    IS("no event to retain", clRetainEvent(NULL));
    IS("no event to wait for", clWaitForEvents(1, &none));
    IS("no event in a wait list", clEnqueueMarkerWithWaitList(queue, 1, &none, NULL));
    clReleaseMemObject(buffer);
}

// Lists of properties, and parts of devices.
static void properties(void) {
    int is_katydid = platform_says(CL_PLATFORM_VERSION, "Katydid");
    cl_context_properties unknown[] = {0x7777, 1, 0};
    SHOW("context, unknown property", clCreateContext(unknown, 1, &device, NULL, NULL, &code));
    // The descriptor of memory of another interface's.
    cl_mem_properties external[] = {0x2060, 1, 0};
    SHOW("buffer, unknown property",
         is_katydid ? clCreateBufferWithProperties(context, external, 0, 64, NULL, &code) : (code = CL_INVALID_PROPERTY, NULL));
    cl_device_id parts[1];
    cl_device_partition_property much[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1 << 20, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    IS("a part larger than the device", clCreateSubDevices(device, much, 1, parts, NULL));
}

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
    static char long_name[3 << 20];
    memset(long_name, 'f', sizeof long_name - 1);
    IS("argument of a huge size", clSetKernelArg(kernel, 1, sizeof long_name, long_name));
    code = CL_SUCCESS;
    cl_kernel none = clCreateKernel(program, long_name, &code);
    printf("%-34s %s\n", "kernel of a long name", none || code == CL_SUCCESS ? "made" : "refused");
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
    // The standard is silent. PoCL chooses a size; NVIDIA's driver divides by it, so only Katydid may be asked.
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
    // Where a queue has had commands with the same objects, no side need ask the driver about one that cannot be wrong.
    cl_mem other = buffer_of(0, 256, NULL);
    for (int i = 0; i < 2; i++) CHECK(clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 0, sizeof host, host, 0, NULL, NULL));
    for (int i = 0; i < 2; i++) CHECK(clEnqueueCopyBuffer(queue, buffer, other, 0, 0, 256, 0, NULL, NULL));
    IS("copy over itself", clEnqueueCopyBuffer(queue, buffer, buffer, 0, 8, 16, 0, NULL, NULL));
    IS("copy beside itself", clEnqueueCopyBuffer(queue, buffer, buffer, 0, 16, 16, 0, NULL, NULL));
    IS("copy from beyond the end", clEnqueueCopyBuffer(queue, buffer, other, 250, 0, 16, 0, NULL, NULL));
    IS("copy to beyond the end", clEnqueueCopyBuffer(queue, buffer, other, 0, 250, 16, 0, NULL, NULL));
    // NVIDIA's driver ends the program here (580).
    IS("copy of more than there is", may_ask ? clEnqueueCopyBuffer(queue, buffer, other, 8, 8, (size_t)-4, 0, NULL, NULL) : CL_INVALID_VALUE);
    IS("write beyond the end again", clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 253, 4, host, 0, NULL, NULL));
    IS("none of these was begun", clFinish(queue));
    CHECK(clReleaseMemObject(other));
    shapes();
    binaries();
    nulls();
    foreign_handles(buffer, kernel);
    properties();
    CHECK(clSetUserEventStatus(user, CL_COMPLETE));
    CHECK(clReleaseEvent(user));
    clReleaseKernel(kernel), clReleaseProgram(program), clReleaseMemObject(buffer);
    tear_down();
    return 0;
}
