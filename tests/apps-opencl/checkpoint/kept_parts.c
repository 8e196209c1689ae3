// Parts of a device, and parts of these: queues on each, made once and used over many steps; a part that is given back
// while a context still has it. A checksum a step. Devices that have no parts, such as GPUs, are said to have none.
#include "check.h"

enum { N = 1024, STEPS = 10 };

static const char *source =
    "__kernel void turn(__global uint *v, uint salt) { size_t i = get_global_id(0); v[i] = v[i] * 2654435761u + salt; }\n";

// One part by its number of compute units: every device has one.
static cl_device_id part_of(cl_device_id whole, cl_context *made, cl_command_queue *on) {
    cl_int code;
    cl_device_id part;
    cl_device_partition_property counts[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    CHECK(clCreateSubDevices(whole, counts, 1, &part, NULL));
    *made = clCreateContext(NULL, 1, &part, NULL, NULL, &code);
    CHECK(code);
    *on = clCreateCommandQueue(*made, part, 0, &code);
    CHECK(code);
    return part;
}

// Works in the context of a part: the helpers of check.h use the global ones.
static cl_kernel begin(cl_context in, cl_device_id on, cl_mem *values) {
    context = in, device = on;
    cl_kernel kernel = kernel_of(build(source, ""), "turn");
    *values = buffer_of(CL_MEM_READ_WRITE, N * sizeof(cl_uint), NULL);
    return kernel;
}

static unsigned step_of(cl_command_queue on, cl_kernel kernel, cl_mem values, cl_uint salt) {
    static int host[N];
    size_t items = N;
    CHECK(clSetKernelArg(kernel, 0, sizeof values, &values));
    CHECK(clSetKernelArg(kernel, 1, sizeof salt, &salt));
    CHECK(clEnqueueNDRangeKernel(on, kernel, 1, NULL, &items, NULL, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(on, values, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
    return (unsigned)sum_of(host, N);
}

int main(void) {
    CHECK(clGetPlatformIDs(1, &platform, NULL));
    cl_device_id whole;
    CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &whole, NULL));
    cl_uint most = 0;
    CHECK(clGetDeviceInfo(whole, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof most, &most, NULL));
    cl_device_partition_property ways[8] = {0};
    CHECK(clGetDeviceInfo(whole, CL_DEVICE_PARTITION_PROPERTIES, sizeof ways, ways, NULL));
    if (most == 0 || ways[0] == 0) {
        printf("no parts\n");
        return 0;
    }
    cl_context contexts[2];
    cl_command_queue queues[2];
    cl_device_id parts[2];
    cl_kernel kernels[2];
    cl_mem values[2];
    cl_uint zero = 7, units;
    for (int i = 0; i < 2; i++) {
        parts[i] = part_of(whole, &contexts[i], &queues[i]);
        kernels[i] = begin(contexts[i], parts[i], &values[i]);
        CHECK(clEnqueueFillBuffer(queues[i], values[i], &zero, sizeof zero, 0, N * sizeof zero, 0, NULL, NULL));
    }
    // Its context and queue keep the second one.
    CHECK(clReleaseDevice(parts[1]));
    for (int step = 0; step < STEPS; step++) {
        cl_device_id parent;
        CHECK(clGetDeviceInfo(parts[0], CL_DEVICE_PARENT_DEVICE, sizeof parent, &parent, NULL));
        CHECK(clGetDeviceInfo(parts[0], CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL));
        unsigned first = step_of(queues[0], kernels[0], values[0], (cl_uint)step);
        printf("step %d: %08x %08x, %u unit of %s\n", step, first, step_of(queues[1], kernels[1], values[1], first), units,
               parent == whole ? "the device" : "another device");
        fflush(stdout);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(clReleaseMemObject(values[i]));
        CHECK(clReleaseKernel(kernels[i]));
        CHECK(clReleaseCommandQueue(queues[i]));
        CHECK(clReleaseContext(contexts[i]));
    }
    CHECK(clReleaseDevice(parts[0]));
    return 0;
}
