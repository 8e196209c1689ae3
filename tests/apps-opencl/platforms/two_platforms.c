// Platforms of two drivers in one program: the one that runs kernels, and one that has memory alone (drivers/memory.c). Data
// goes from one to the other and back, each in its own context and queue at the same time.
#include "check.h"

#define COUNT 300000

static const char *text = "__kernel void more(__global int *v) { v[get_global_id(0)] += 1 + get_global_id(0) % 5; }\n";

// What neither goes through Katydid nor is to be seen there; what is.
static const char *hidden[] = {"external_memory", "command_buffer", "gl_sharing", "unified_shared_memory"};
static const char *shown[] = {"cl_khr_icd", "cl_khr_global_int32_base_atomics"};

static cl_platform_id memory_platform;
static cl_device_id memory_device;
static cl_context memory_context;
static cl_command_queue memory_queue;

// Whether a platform is the one of memory.
static int is_of_memory(cl_platform_id one) {
    char name[256];
    CHECK(clGetPlatformInfo(one, CL_PLATFORM_NAME, sizeof name, name, NULL));
    return strcmp(name, "Memory of a test") == 0;
}

static void find(void) {
    cl_platform_id all[4];
    cl_uint count = 0;
    cl_int code;
    CHECK(clGetPlatformIDs(4, all, &count));
    // A machine may have more drivers: the first one of them that runs kernels.
    for (cl_uint i = 0; i < count && i < 4; i++) {
        cl_platform_id *its = is_of_memory(all[i]) ? &memory_platform : &platform;
        if (!*its) *its = all[i];
    }
    REQUIRE(memory_platform && platform);
    CHECK(clGetDeviceIDs(memory_platform, CL_DEVICE_TYPE_ALL, 1, &memory_device, &count));
    CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    REQUIRE(count == 1 && memory_device != device);
    cl_platform_id of;
    CHECK(clGetDeviceInfo(memory_device, CL_DEVICE_PLATFORM, sizeof of, &of, NULL));
    REQUIRE(of == memory_platform);
    cl_context_properties list[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)memory_platform, 0};
    memory_context = clCreateContext(list, 1, &memory_device, NULL, NULL, &code);
    CHECK(code);
    memory_queue = clCreateCommandQueue(memory_context, memory_device, 0, &code);
    CHECK(code);
    list[1] = (cl_context_properties)platform;
    context = clCreateContext(list, 1, &device, NULL, NULL, &code);
    CHECK(code);
    queue = clCreateCommandQueue(context, device, 0, &code);
    CHECK(code);
    printf("two platforms, a context of each\n");
}

// The driver says what it can do; of that, what a layer in between does not carry is not to be seen.
static void extensions(int through) {
    char of_platform[1024], of_device[1024];
    CHECK(clGetPlatformInfo(memory_platform, CL_PLATFORM_EXTENSIONS, sizeof of_platform, of_platform, NULL));
    CHECK(clGetDeviceInfo(memory_device, CL_DEVICE_EXTENSIONS, sizeof of_device, of_device, NULL));
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        REQUIRE((strstr(of_platform, hidden[i]) == NULL) == through);
        REQUIRE((strstr(of_device, hidden[i]) == NULL) == through);
    }
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        REQUIRE(strstr(of_platform, shown[i]) && strstr(of_device, shown[i]));
    }
    printf("extensions: those that go through\n");
}

// Objects of one platform are none of the other's. Only through Katydid: what a driver makes of another's objects is its own.
static void foreign_objects(cl_mem mine, cl_mem other) {
    cl_int code;
    cl_event events[2];
    cl_context_properties list[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
    REQUIRE(clCreateContext(list, 1, &memory_device, NULL, NULL, &code) == NULL && code == CL_INVALID_DEVICE);
    REQUIRE(clCreateCommandQueue(context, memory_device, 0, &code) == NULL && code == CL_INVALID_DEVICE);
    int value = 0;
    CHECK(clEnqueueWriteBuffer(queue, mine, CL_FALSE, 0, sizeof value, &value, 0, NULL, &events[0]));
    CHECK(clEnqueueWriteBuffer(memory_queue, other, CL_FALSE, 0, sizeof value, &value, 0, NULL, &events[1]));
    REQUIRE(clWaitForEvents(2, events) == CL_INVALID_CONTEXT);
    REQUIRE(clEnqueueReadBuffer(queue, mine, CL_TRUE, 0, sizeof value, &value, 1, &events[1], NULL) == CL_INVALID_CONTEXT);
    CHECK(clWaitForEvents(1, &events[0]));
    CHECK(clWaitForEvents(1, &events[1]));
    CHECK(clReleaseEvent(events[0]));
    CHECK(clReleaseEvent(events[1]));
}

int main(void) {
    find();
    const int through = platform_says(CL_PLATFORM_VERSION, "through Katydid");
    extensions(through);
    cl_int code;
    int *values = calloc(COUNT, sizeof *values);
    size_t size = COUNT * sizeof *values;
    cl_mem here = buffer_of(0, size, NULL), foreign = buffer_of(0, 64, NULL);
    cl_mem there[3];
    for (int i = 0; i < 3; i++) {
        there[i] = clCreateBuffer(memory_context, CL_MEM_READ_WRITE, i < 2 ? size : 64, NULL, &code);
        CHECK(code);
    }
    if (through) foreign_objects(foreign, there[2]);
    cl_program program = build(text, "");
    cl_kernel kernel = kernel_of(program, "more");
    CHECK(clSetKernelArg(kernel, 0, sizeof here, &here));
    for (int round = 0; round < 4; round++) {
        CHECK(clEnqueueWriteBuffer(queue, here, CL_TRUE, 0, size, values, 0, NULL, NULL));
        launch(kernel, COUNT);
        CHECK(clEnqueueReadBuffer(queue, here, CL_TRUE, 0, size, values, 0, NULL, NULL));
        // There and back by way of a copy.
        CHECK(clEnqueueWriteBuffer(memory_queue, there[0], CL_TRUE, 0, size, values, 0, NULL, NULL));
        CHECK(clEnqueueCopyBuffer(memory_queue, there[0], there[1], 0, 0, size, 0, NULL, NULL));
        memset(values, 0, size);
        CHECK(clEnqueueReadBuffer(memory_queue, there[1], CL_TRUE, 0, size, values, 0, NULL, NULL));
        CHECK(clFinish(memory_queue));
    }
    for (int i = 0; i < COUNT; i++) REQUIRE(values[i] == 4 * (1 + i % 5));
    printf("data went to both and back\n");
    for (int i = 0; i < 3; i++) CHECK(clReleaseMemObject(there[i]));
    clReleaseKernel(kernel), clReleaseProgram(program), clReleaseMemObject(here), clReleaseMemObject(foreign);
    CHECK(clReleaseCommandQueue(memory_queue));
    CHECK(clReleaseContext(memory_context));
    free(values);
    tear_down();
    return 0;
}
