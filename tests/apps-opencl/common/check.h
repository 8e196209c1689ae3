// What every program here needs: codes by name, a device, a program out of text. A program prints the same on every
// driver and on every way to it, so nothing of a device is printed.
#pragma once
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *code_name(cl_int code) {
    static char other[32];
#define NAME(name) case name: return #name
    switch (code) {
    NAME(CL_SUCCESS); NAME(CL_DEVICE_NOT_FOUND); NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE); NAME(CL_OUT_OF_RESOURCES);
    NAME(CL_OUT_OF_HOST_MEMORY); NAME(CL_PROFILING_INFO_NOT_AVAILABLE); NAME(CL_MEM_COPY_OVERLAP);
    NAME(CL_IMAGE_FORMAT_MISMATCH); NAME(CL_IMAGE_FORMAT_NOT_SUPPORTED); NAME(CL_BUILD_PROGRAM_FAILURE);
    NAME(CL_MAP_FAILURE); NAME(CL_MISALIGNED_SUB_BUFFER_OFFSET); NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    NAME(CL_COMPILE_PROGRAM_FAILURE); NAME(CL_LINK_PROGRAM_FAILURE); NAME(CL_INVALID_VALUE);
    NAME(CL_INVALID_DEVICE_TYPE); NAME(CL_INVALID_PLATFORM); NAME(CL_INVALID_DEVICE); NAME(CL_INVALID_CONTEXT);
    NAME(CL_INVALID_QUEUE_PROPERTIES); NAME(CL_INVALID_COMMAND_QUEUE); NAME(CL_INVALID_HOST_PTR);
    NAME(CL_INVALID_MEM_OBJECT); NAME(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR); NAME(CL_INVALID_IMAGE_SIZE);
    NAME(CL_INVALID_SAMPLER); NAME(CL_INVALID_BINARY); NAME(CL_INVALID_BUILD_OPTIONS); NAME(CL_INVALID_PROGRAM);
    NAME(CL_INVALID_PROGRAM_EXECUTABLE); NAME(CL_INVALID_KERNEL_NAME); NAME(CL_INVALID_KERNEL_DEFINITION);
    NAME(CL_INVALID_KERNEL); NAME(CL_INVALID_ARG_INDEX); NAME(CL_INVALID_ARG_VALUE); NAME(CL_INVALID_ARG_SIZE);
    NAME(CL_INVALID_KERNEL_ARGS); NAME(CL_INVALID_WORK_DIMENSION); NAME(CL_INVALID_WORK_GROUP_SIZE);
    NAME(CL_INVALID_WORK_ITEM_SIZE); NAME(CL_INVALID_GLOBAL_OFFSET); NAME(CL_INVALID_EVENT_WAIT_LIST);
    NAME(CL_INVALID_EVENT); NAME(CL_INVALID_OPERATION); NAME(CL_INVALID_BUFFER_SIZE); NAME(CL_INVALID_GLOBAL_WORK_SIZE);
    NAME(CL_INVALID_PROPERTY); NAME(CL_INVALID_IMAGE_DESCRIPTOR); NAME(CL_INVALID_COMPILER_OPTIONS);
    NAME(CL_INVALID_LINKER_OPTIONS); NAME(CL_INVALID_DEVICE_PARTITION_COUNT); NAME(CL_INVALID_SPEC_ID);
    }
#undef NAME
    snprintf(other, sizeof other, "code %d", code);
    return other;
}

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cl_int check_code = (call);                                                                                    \
        if (check_code != CL_SUCCESS) {                                                                                \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, code_name(check_code));                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;

__attribute__((unused)) static void set_up(cl_command_queue_properties properties) {
    cl_int code;
    CHECK(clGetPlatformIDs(1, &platform, NULL));
    CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    cl_context_properties list[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
    context = clCreateContext(list, 1, &device, NULL, NULL, &code);
    CHECK(code);
    queue = clCreateCommandQueue(context, device, properties, &code);
    CHECK(code);
}

// Whether a word is in what the platform says of itself.
__attribute__((unused)) static int platform_says(cl_platform_info what, const char *word) {
    char text[256] = "";
    CHECK(clGetPlatformInfo(platform, what, sizeof text, text, NULL));
    return strstr(text, word) != NULL;
}

__attribute__((unused)) static void tear_down(void) {
    CHECK(clFinish(queue));
    CHECK(clReleaseCommandQueue(queue));
    CHECK(clReleaseContext(context));
}

__attribute__((unused)) static cl_program build(const char *source, const char *options) {
    cl_int code;
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
    CHECK(code);
    code = clBuildProgram(program, 1, &device, options, NULL, NULL);
    if (code != CL_SUCCESS) {
        char log[8192];
        CHECK(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL));
        printf("%s\n%s\n", code_name(code), log);
        exit(1);
    }
    return program;
}

__attribute__((unused)) static cl_kernel kernel_of(cl_program program, const char *name) {
    cl_int code;
    cl_kernel kernel = clCreateKernel(program, name, &code);
    CHECK(code);
    return kernel;
}

__attribute__((unused)) static cl_mem buffer_of(cl_mem_flags flags, size_t size, void *host) {
    cl_int code;
    cl_mem buffer = clCreateBuffer(context, flags, size, host, &code);
    CHECK(code);
    return buffer;
}

__attribute__((unused)) static void launch(cl_kernel kernel, size_t items) {
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL));
}

__attribute__((unused)) static unsigned long sum_of(const int *values, size_t count) {
    unsigned long sum = 0;
    for (size_t i = 0; i < count; i++) sum = sum * 31 + (unsigned)values[i];
    return sum;
}
