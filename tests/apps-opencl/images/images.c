// Images of one to three dimensions and arrays: filled, copied, sampled, mapped, with and without pitches.
#include "check.h"

static const char *source =
    "__constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;\n"
    "__kernel void turn(__read_only image2d_t from, __write_only image2d_t to, sampler_t s) {\n"
    "    int2 at = (int2)(get_global_id(0), get_global_id(1));\n"
    "    uint4 texel = read_imageui(from, s, (int2)(at.y, at.x));\n"
    "    write_imageui(to, at, texel + (uint4)(1, 2, 3, 4));\n"
    "}\n"
    "__kernel void sum(__read_only image3d_t from, __global uint *to) {\n"
    "    int x = get_global_id(0); uint all = 0;\n"
    "    for (int z = 0; z < get_image_depth(from); z++)\n"
    "        for (int y = 0; y < get_image_height(from); y++) all += read_imageui(from, nearest, (int4)(x, y, z, 0)).x;\n"
    "    to[x] = all;\n"
    "}\n";

enum { W = 24, H = 24 };

static cl_mem image(cl_mem_flags flags, cl_channel_order order, cl_channel_type type, cl_image_desc desc, void *host) {
    cl_image_format format = {order, type};
    cl_int code;
    cl_mem made = clCreateImage(context, flags, &format, &desc, host, &code);
    CHECK(code);
    return made;
}

static void two_dimensions(cl_program program) {
    unsigned char host[H][W + 5][4], back[H][W][4], padded[H][W + 2][4];
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W + 5; x++)
            for (int c = 0; c < 4; c++) host[y][x][c] = (unsigned char)(x * 3 + y * 5 + c);
    cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = W, .image_height = H,
                          .image_row_pitch = (W + 5) * 4};
    cl_mem from = image(CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, CL_RGBA, CL_UNSIGNED_INT8, desc, host);
    desc.image_row_pitch = 0;
    cl_mem to = image(CL_MEM_READ_WRITE, CL_RGBA, CL_UNSIGNED_INT8, desc, NULL);
    size_t info;
    CHECK(clGetImageInfo(from, CL_IMAGE_WIDTH, sizeof info, &info, NULL));
    printf("width %zu", info);
    CHECK(clGetImageInfo(from, CL_IMAGE_ELEMENT_SIZE, sizeof info, &info, NULL));
    printf(", element %zu\n", info);
    cl_int code;
    cl_sampler sampler = clCreateSampler(context, CL_FALSE, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, &code);
    CHECK(code);
    cl_kernel kernel = kernel_of(program, "turn");
    CHECK(clSetKernelArg(kernel, 0, sizeof from, &from));
    CHECK(clSetKernelArg(kernel, 1, sizeof to, &to));
    CHECK(clSetKernelArg(kernel, 2, sizeof sampler, &sampler));
    size_t size[] = {W, H}, origin[3] = {0}, region[3] = {W, H, 1};
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 2, NULL, size, NULL, 0, NULL, NULL));
    CHECK(clEnqueueReadImage(queue, to, CL_TRUE, origin, region, 0, 0, back, 0, NULL, NULL));
    int good = 1;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int c = 0; c < 4; c++) good &= back[y][x][c] == (unsigned char)(host[x][y][c] + c + 1);
    printf("turned: %s\n", good ? "as expected" : "wrong");
    // A part into rows with gaps, which stay as they were.
    memset(padded, 0xee, sizeof padded);
    size_t corner[3] = {2, 3, 0}, part[3] = {5, 4, 1};
    CHECK(clEnqueueReadImage(queue, to, CL_FALSE, corner, part, sizeof padded[0], 0, padded, 0, NULL, NULL));
    CHECK(clFinish(queue));
    good = 1;
    for (int y = 0; y < 4; y++) good &= !memcmp(padded[y], back[y + 3][2], 20) && padded[y][5][0] == 0xee;
    printf("a part: %s\n", good ? "as expected" : "wrong");
    // Filled, mapped, changed, and read again.
    cl_uint color[4] = {9, 8, 7, 6};
    CHECK(clEnqueueFillImage(queue, to, color, corner, part, 0, NULL, NULL));
    size_t row, slice;
    unsigned char *mapped = clEnqueueMapImage(queue, to, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, corner, part, &row,
                                              &slice, 0, NULL, NULL, &code);
    CHECK(code);
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 5; x++) good &= mapped[y * row + x * 4] == 9, mapped[y * row + x * 4] += (unsigned char)x;
    CHECK(clEnqueueUnmapMemObject(queue, to, mapped, 0, NULL, NULL));
    CHECK(clEnqueueReadImage(queue, to, CL_TRUE, corner, part, 0, 0, padded, 0, NULL, NULL));
    printf("mapped: %d %d %d\n", (&padded[0][0][0])[0], (&padded[0][0][0])[4], (&padded[0][0][0])[16 + 60]);
    // To a buffer and back into another place.
    cl_mem buffer = buffer_of(0, 64 + 80, NULL);
    CHECK(clEnqueueCopyImageToBuffer(queue, to, buffer, corner, part, 64, 0, NULL, NULL));
    size_t elsewhere[3] = {10, 12, 0};
    CHECK(clEnqueueCopyBufferToImage(queue, buffer, to, 64, elsewhere, part, 0, NULL, NULL));
    CHECK(clEnqueueReadImage(queue, to, CL_TRUE, elsewhere, part, 0, 0, back, 0, NULL, NULL));
    printf("through a buffer: %s\n", memcmp(back, padded, 80) ? "wrong" : "as expected");
    clReleaseMemObject(buffer), clReleaseMemObject(from), clReleaseMemObject(to);
    clReleaseSampler(sampler), clReleaseKernel(kernel);
}

static void three_dimensions(cl_program program) {
    enum { X = 6, Y = 5, Z = 4 };
    unsigned host[Z][Y][X], sums[X];
    for (int i = 0; i < X * Y * Z; i++) (&host[0][0][0])[i] = (unsigned)i;
    cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = X, .image_height = Y, .image_depth = Z};
    cl_mem volume = image(CL_MEM_READ_WRITE, CL_R, CL_UNSIGNED_INT32, desc, NULL);
    size_t origin[3] = {0}, region[3] = {X, Y, Z};
    CHECK(clEnqueueWriteImage(queue, volume, CL_FALSE, origin, region, 0, 0, host, 0, NULL, NULL));
    cl_mem result = buffer_of(CL_MEM_WRITE_ONLY, sizeof sums, NULL);
    cl_kernel kernel = kernel_of(program, "sum");
    CHECK(clSetKernelArg(kernel, 0, sizeof volume, &volume));
    CHECK(clSetKernelArg(kernel, 1, sizeof result, &result));
    launch(kernel, X);
    CHECK(clEnqueueReadBuffer(queue, result, CL_TRUE, 0, sizeof sums, sums, 0, NULL, NULL));
    printf("columns:");
    for (int x = 0; x < X; x++) printf(" %u", sums[x]);
    printf("\n");
    clReleaseMemObject(volume), clReleaseMemObject(result), clReleaseKernel(kernel);
}

static void arrays(void) {
    enum { X = 8, N = 3 };
    float host[N][X], back[N][X];
    for (int i = 0; i < X * N; i++) (&host[0][0])[i] = (float)i / 2;
    cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY, .image_width = X, .image_array_size = N};
    cl_mem lines = image(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, CL_R, CL_FLOAT, desc, host);
    cl_mem others = image(CL_MEM_READ_WRITE, CL_R, CL_FLOAT, desc, NULL);
    size_t origin[3] = {0}, region[3] = {X, N, 1};
    CHECK(clEnqueueCopyImage(queue, lines, others, origin, origin, region, 0, NULL, NULL));
    CHECK(clEnqueueReadImage(queue, others, CL_TRUE, origin, region, 0, 0, back, 0, NULL, NULL));
    printf("array: %s\n", memcmp(host, back, sizeof host) ? "wrong" : "as expected");
    clReleaseMemObject(lines), clReleaseMemObject(others);
    // A part of lines in the program's memory, which is where it was.
    float own[N][X];
    memcpy(own, host, sizeof own);
    lines = image(CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, CL_R, CL_FLOAT, desc, own);
    size_t corner[3] = {2, 1, 0}, part[3] = {4, 2, 1}, row, slice;
    cl_int code;
    float *mapped = clEnqueueMapImage(queue, lines, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, corner, part, &row, &slice, 0, NULL, NULL, &code);
    CHECK(code);
    int good = mapped == &own[1][2] && slice == sizeof own[0] && mapped[X + 3] == host[2][5];
    mapped[X + 3] = 99;
    CHECK(clEnqueueUnmapMemObject(queue, lines, mapped, 0, NULL, NULL));
    CHECK(clEnqueueReadImage(queue, lines, CL_TRUE, origin, region, 0, 0, back, 0, NULL, NULL));
    printf("lines of an array, mapped: %s\n", good && back[2][5] == 99 && back[2][4] == host[2][4] ? "as expected" : "wrong");
    clReleaseMemObject(lines);
}

int main(void) {
    set_up(0);
    cl_uint formats;
    CHECK(clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, NULL, &formats));
    printf("formats: %s\n", formats > 4 ? "some" : "few");
    cl_program program = build(source, "");
    two_dimensions(program);
    three_dimensions(program);
    arrays();
    CHECK(clReleaseProgram(program));
    tear_down();
    return 0;
}
