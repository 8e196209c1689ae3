// What devices need not have: pipes, and images with levels. Either is used, or refused as the standard says.
#include "check.h"

#define PACKETS 64

static const char *text =
    "__kernel void give(__write_only pipe int way) { int v = get_global_id(0) * 3; write_pipe(way, &v); }\n"
    "__kernel void take(__read_only pipe int way, __global int *out) {\n"
    "    int v = -1;\n"
    "    if (read_pipe(way, &v) == 0) out[v / 3] = v;\n"
    "}\n";

// Whether the device has a pipe that keeps what goes into it.
static void through_a_pipe(void) {
    cl_int code;
    int values[PACKETS];
    cl_mem way = clCreatePipe(context, 0, sizeof(int), PACKETS, NULL, &code), out = buffer_of(0, sizeof values, NULL);
    CHECK(code);
    cl_uint packets = 0;
    CHECK(clGetPipeInfo(way, CL_PIPE_MAX_PACKETS, sizeof packets, &packets, NULL));
    REQUIRE(packets >= PACKETS);
    cl_program program = build(text, "-cl-std=CL3.0");
    cl_kernel give = kernel_of(program, "give"), take = kernel_of(program, "take");
    CHECK(clSetKernelArg(give, 0, sizeof way, &way));
    CHECK(clSetKernelArg(take, 0, sizeof way, &way));
    CHECK(clSetKernelArg(take, 1, sizeof out, &out));
    launch(give, PACKETS);
    launch(take, PACKETS);
    CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
    for (int i = 0; i < PACKETS; i++) REQUIRE(values[i] == 3 * i);
    clReleaseKernel(give), clReleaseKernel(take), clReleaseProgram(program), clReleaseMemObject(way), clReleaseMemObject(out);
}

static void pipes(void) {
    cl_bool has = CL_FALSE;
    cl_int code;
    // Drivers of before 2.0 do not know the question.
    if (clGetDeviceInfo(device, CL_DEVICE_PIPE_SUPPORT, sizeof has, &has, NULL) == CL_SUCCESS && has) {
        through_a_pipe();
    } else {
        REQUIRE(clCreatePipe(context, 0, sizeof(int), PACKETS, NULL, &code) == NULL);
        REQUIRE(code == CL_INVALID_OPERATION);
    }
    printf("a pipe: as the device says\n");
}

// The second level of an image is filled and read, and the first stays what it is.
static void level(const cl_image_format *format, const cl_image_desc *shape) {
    cl_int code;
    cl_mem image = clCreateImage(context, CL_MEM_READ_WRITE, format, shape, NULL, &code);
    CHECK(code);
    cl_uint colors[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    unsigned char texels[8 * 8 * 4];
    for (size_t at = 0; at < 2; at++) {
        size_t origin[3] = {0, 0, at}, region[3] = {16 >> at, 16 >> at, 1};
        CHECK(clEnqueueFillImage(queue, image, colors[at], origin, region, 0, NULL, NULL));
    }
    for (size_t at = 0; at < 2; at++) {
        size_t origin[3] = {0, 0, at}, region[3] = {8, 8, 1};
        CHECK(clEnqueueReadImage(queue, image, CL_TRUE, origin, region, 0, 0, texels, 0, NULL, NULL));
        for (size_t i = 0; i < sizeof texels; i++) REQUIRE(texels[i] == colors[at][i % 4]);
    }
    CHECK(clReleaseMemObject(image));
}

static void levels(void) {
    static char extensions[8192];
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, .image_height = 16, .num_mip_levels = 2};
    cl_int code = CL_SUCCESS;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof extensions, extensions, NULL));
    if (strstr(extensions, "cl_khr_mipmap_image")) {
        level(&format, &shape);
    } else if (platform_says(CL_PLATFORM_VERSION, "Katydid")) {
        // Without Katydid PoCL ends the process here.
        REQUIRE(clCreateImage(context, 0, &format, &shape, NULL, &code) == NULL);
        REQUIRE(code == CL_INVALID_IMAGE_DESCRIPTOR);
        shape.num_mip_levels = 0, shape.num_samples = 4;
        REQUIRE(clCreateImage(context, 0, &format, &shape, NULL, &code) == NULL);
        REQUIRE(code == CL_INVALID_IMAGE_DESCRIPTOR);
    }
    printf("an image with levels: as the device says\n");
}

int main(void) {
    set_up(0);
    pipes();
    levels();
    tear_down();
    return 0;
}
