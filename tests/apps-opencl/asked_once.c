// What a program asks again and again though it cannot change, and commands of which none can be wrong: done so often as the
// argument says, it waits no more often for answers than done once.
#include "check.h"

static const char *source = "__kernel void f(__global int *v, __local int *l) { l[0] = 1; v[0] = l[0]; }\n";

static cl_kernel kernel;

// Asks for a size and a value, if there is one.
#define ASK(call, ...)                                                                                                  \
    do {                                                                                                               \
        size_t needed = 0;                                                                                             \
        char value[256];                                                                                               \
        CHECK(call(__VA_ARGS__, 0, NULL, &needed));                                                                    \
        CHECK(call(__VA_ARGS__, sizeof value, value, &needed));                                                        \
    } while (0)

static void queries(cl_sampler sampler) {
    for (cl_uint index = 0; index < 2; index++) {
        ASK(clGetKernelArgInfo, kernel, index, CL_KERNEL_ARG_NAME);
        ASK(clGetKernelArgInfo, kernel, index, CL_KERNEL_ARG_TYPE_NAME);
    }
    ASK(clGetKernelInfo, kernel, CL_KERNEL_ATTRIBUTES);
    ASK(clGetKernelWorkGroupInfo, kernel, device, CL_KERNEL_WORK_GROUP_SIZE);
    ASK(clGetKernelWorkGroupInfo, kernel, NULL, CL_KERNEL_COMPILE_WORK_GROUP_SIZE);
    ASK(clGetCommandQueueInfo, queue, CL_QUEUE_PROPERTIES);
    ASK(clGetSamplerInfo, sampler, CL_SAMPLER_FILTER_MODE);
}

static void commands(cl_mem buffer, int round) {
    cl_event event;
    CHECK(clEnqueueFillBuffer(queue, buffer, &round, sizeof round, 0, 256, 0, NULL, NULL));
    CHECK(clEnqueueMarkerWithWaitList(queue, 0, NULL, &event));
    CHECK(clReleaseEvent(event));
    CHECK(clEnqueueBarrierWithWaitList(queue, 0, NULL, NULL));
    CHECK(clEnqueueFillBuffer(queue, buffer, &round, 1, 256 + round % 200, 40, 0, NULL, NULL));
}

// This one changes with what the argument is.
static cl_ulong local_memory(size_t size) {
    cl_ulong bytes;
    CHECK(clSetKernelArg(kernel, 1, size, NULL));
    CHECK(clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof bytes, &bytes, NULL));
    return bytes;
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 1;
    set_up(0);
    cl_int code;
    cl_program program = build(source, "-cl-kernel-arg-info");
    kernel = kernel_of(program, "f");
    cl_sampler sampler = clCreateSampler(context, CL_FALSE, CL_ADDRESS_NONE, CL_FILTER_NEAREST, &code);
    CHECK(code);
    cl_mem buffer = buffer_of(0, 512, NULL);
    CHECK(clEnqueueFillBuffer(queue, buffer, &code, 1, 0, 512, 0, NULL, NULL));
    for (int round = 1; round <= rounds; round++) queries(sampler), commands(buffer, round);
    unsigned char back[512];
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof back, back, 0, NULL, NULL));
    for (int i = 0; i < 256; i++) REQUIRE(back[i] == (unsigned char)(rounds >> i % 4 * 8));
    REQUIRE(back[256 + rounds % 200] == (unsigned char)rounds && back[511] == 0);
    cl_ulong few = local_memory(16), many = local_memory(1040);
    printf("local memory: %d more\n", (int)(many - few));
    // What can be wrong is found out where it is.
    printf("fill %s,", code_name(clEnqueueFillBuffer(queue, buffer, &rounds, 4, 2, 8, 0, NULL, NULL)));
    printf(" %s,", code_name(clEnqueueFillBuffer(queue, buffer, &rounds, 3, 0, 12, 0, NULL, NULL)));
    printf(" %s\n", code_name(clEnqueueFillBuffer(queue, buffer, &rounds, 4, 508, 8, 0, NULL, NULL)));
    clReleaseMemObject(buffer), clReleaseSampler(sampler), clReleaseKernel(kernel), clReleaseProgram(program);
    tear_down();
    return 0;
}
