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

static cl_mem image_of(size_t width, size_t height) {
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = width, .image_height = height};
    cl_int code;
    cl_mem image = clCreateImage(context, CL_MEM_READ_WRITE, &format, &shape, NULL, &code);
    CHECK(code);
    return image;
}

// Writes and copies of images and boxes, and an event that the program sets.
static void of_images(cl_mem *images, cl_mem buffer, cl_uint round) {
    size_t none[3] = {0, 0, 0}, corner[3] = {round % 4, 1, 0};
    size_t one[3] = {1, 1, 1}, whole[3] = {4, 4, 1}, row[3] = {8, 1, 1};
    cl_uint pixels[16];
    for (cl_uint i = 0; i < 16; i++) pixels[i] = round * 16 + i;
    CHECK(clEnqueueWriteImage(queue, images[0], CL_FALSE, none, whole, 0, 0, pixels, 0, NULL, NULL));
    CHECK(clEnqueueCopyImage(queue, images[0], images[1], none, none, whole, 0, NULL, NULL));
    CHECK(clEnqueueCopyImageToBuffer(queue, images[1], buffer, none, whole, 0, 0, NULL, NULL));
    CHECK(clEnqueueCopyBufferToImage(queue, buffer, images[0], 60, corner, one, 0, NULL, NULL));
    CHECK(clEnqueueWriteBufferRect(queue, buffer, CL_FALSE, none, none, row, 0, 0, 0, 0, pixels, 0, NULL, NULL));
    cl_int code;
    cl_event set = clCreateUserEvent(context, &code);
    CHECK(code);
    CHECK(clSetUserEventStatus(set, CL_COMPLETE));
    CHECK(clReleaseEvent(set));
}

// Maps of what was mapped before, while nothing changes it: the bytes are here.
static void maps(cl_mem image, cl_mem buffer, cl_uint rounds) {
    size_t none[3] = {0, 0, 0}, whole[3] = {4, 4, 1}, row, slice;
    for (cl_uint round = 0; round <= rounds; round++) {
        cl_map_flags flags = round == 0 ? CL_MAP_WRITE : CL_MAP_READ;
        cl_int code;
        cl_uint *pixels = clEnqueueMapImage(queue, image, CL_TRUE, flags, none, whole, &row, &slice, 0, NULL, NULL, &code);
        CHECK(code);
        cl_uint *words = clEnqueueMapBuffer(queue, buffer, CL_TRUE, flags, 64, 64, 0, NULL, NULL, &code);
        CHECK(code);
        for (cl_uint i = 0; i < 16; i++) {
            if (round == 0) pixels[i] = 3 * i, words[i] = 5 * i;
            REQUIRE(pixels[i] == 3 * i && words[i] == 5 * i);
        }
        CHECK(clEnqueueUnmapMemObject(queue, image, pixels, 0, NULL, NULL));
        CHECK(clEnqueueUnmapMemObject(queue, buffer, words, 0, NULL, NULL));
        if (round == 0) CHECK(clFinish(queue));
    }
}

// What can be wrong with them is found out where it is.
static void wrong_images(cl_mem *images, cl_mem buffer) {
    size_t none[3] = {0, 0, 0}, corner[3] = {1, 1, 0}, whole[3] = {4, 4, 1}, part[3] = {3, 3, 1};
    cl_uint pixels[16] = {0};
    cl_mem other = image_of(2, 2);
    cl_int written = clEnqueueWriteImage(queue, other, CL_FALSE, none, whole, 0, 0, pixels, 0, NULL, NULL);
    printf("write %s,", code_name(written));
    printf(" copy %s,", code_name(clEnqueueCopyImage(queue, images[0], other, none, none, whole, 0, NULL, NULL)));
    printf(" %s,", code_name(clEnqueueCopyImage(queue, images[0], images[0], none, corner, part, 0, NULL, NULL)));
    printf(" %s\n", code_name(clEnqueueCopyImageToBuffer(queue, images[0], buffer, none, whole, 500, 0, NULL, NULL)));
    cl_int code;
    cl_event set = clCreateUserEvent(context, &code);
    CHECK(clSetUserEventStatus(set, CL_COMPLETE));
    printf("set twice %s\n", code_name(clSetUserEventStatus(set, CL_COMPLETE)));
    CHECK(clReleaseEvent(set));
    CHECK(clReleaseMemObject(other));
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
    cl_mem images[] = {image_of(4, 4), image_of(4, 4)}, bytes = buffer_of(0, 512, NULL);
    CHECK(clEnqueueFillBuffer(queue, bytes, &code, 1, 0, 512, 0, NULL, NULL));
    for (int round = 1; round <= rounds; round++) {
        queries(sampler), commands(buffer, round), of_images(images, bytes, (cl_uint)round);
    }
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
    size_t none[3] = {0, 0, 0}, whole[3] = {4, 4, 1};
    cl_uint pixels[16];
    CHECK(clEnqueueReadImage(queue, images[0], CL_TRUE, none, whole, 0, 0, pixels, 0, NULL, NULL));
    cl_uint changed = 4 + (cl_uint)rounds % 4;
    for (cl_uint i = 0; i < 16; i++) REQUIRE(pixels[i] == (cl_uint)rounds * 16 + (i == changed ? 15 : i));
    CHECK(clEnqueueReadBuffer(queue, bytes, CL_TRUE, 0, sizeof pixels, pixels, 0, NULL, NULL));
    for (cl_uint i = 0; i < 16; i++) REQUIRE(pixels[i] == (cl_uint)rounds * 16 + i);
    cl_mem seen[] = {image_of(4, 4), buffer_of(0, 512, NULL)};
    maps(seen[0], seen[1], (cl_uint)rounds);
    clReleaseMemObject(seen[0]), clReleaseMemObject(seen[1]);
    wrong_images(images, bytes);
    clReleaseMemObject(images[0]), clReleaseMemObject(images[1]), clReleaseMemObject(bytes);
    clReleaseMemObject(buffer), clReleaseSampler(sampler), clReleaseKernel(kernel), clReleaseProgram(program);
    tear_down();
    return 0;
}
