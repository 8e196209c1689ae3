// Images of many kinds over steps: what they begin with, what kernels, fills, writes, copies and maps make of them, and one that
// stays mapped while the others change. A checksum a step, for checkpoints, and for moves to devices that copy images.
#include "check.h"

enum { W = 40, H = 24, BYTES = W * H * 4, KINDS = 4, STEPS = 10 };

static const char *source =
    "__kernel void turn(__read_only image2d_t from, __write_only image2d_t to, uint salt) {\n"
    "    const sampler_t s = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;\n"
    "    int2 at = (int2)(get_global_id(0), get_global_id(1));\n"
    "    uint4 texel = read_imageui(from, s, (int2)(at.x, get_image_height(from) - 1 - at.y));\n"
    "    write_imageui(to, at, (texel.yzwx * 3 + (uint4)(salt, at.x, at.y, 1)) & 255);\n"
    "}\n";

static cl_kernel turn;
static unsigned char host[BYTES];

// Kinds of as many bytes each, of elements of four.
static const cl_image_desc shapes[KINDS] = {
    {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = W, .image_height = H},
    {.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = W, .image_height = H / 6, .image_depth = 6},
    {.image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY, .image_width = W, .image_array_size = H},
    {.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY, .image_width = W, .image_height = H / 4, .image_array_size = 4},
};
static const size_t none[3], wholes[KINDS][3] = {{W, H, 1}, {W, H / 6, 6}, {W, H, 1}, {W, H / 4, 4}};

static cl_mem image_of(int kind, cl_mem_flags flags, void *from) {
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_int code;
    cl_mem image = clCreateImage(context, flags, &format, &shapes[kind], from, &code);
    CHECK(code);
    return image;
}

static void fill_host(unsigned seed) {
    for (unsigned i = 0; i < BYTES; i++) host[i] = (unsigned char)((i * 2654435761u + seed * 977u) >> 9);
}

static unsigned checksum(cl_mem image, int kind) {
    unsigned char back[BYTES];
    unsigned sum = 1;
    CHECK(clEnqueueReadImage(queue, image, CL_TRUE, none, wholes[kind], 0, 0, back, 0, NULL, NULL));
    for (int i = 0; i < BYTES; i++) sum = sum * 16777619u ^ back[i];
    return sum;
}

// Writes a box by a map, or begins to: it is unmapped later.
static unsigned char *write_mapped(int kind, cl_mem image, const size_t *origin, const size_t *region, int step) {
    cl_int code;
    size_t row, slice;
    unsigned char *bytes = clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, origin, region, &row, &slice, 0,
                                             NULL, NULL, &code);
    CHECK(code);
    // Lines of an array are a slice apart.
    size_t apart = kind == 2 ? slice : row;
    for (size_t y = 0; y < region[1]; y++)
        for (size_t x = 0; x < region[0] * 4; x++) bytes[y * apart + x] ^= (unsigned char)(x + y * 3 + step);
    return bytes;
}

static void unmap(cl_mem image, void *bytes) { CHECK(clEnqueueUnmapMemObject(queue, image, bytes, 0, NULL, NULL)); }

// What a kernel makes of the first image comes by way of a second one, which begins anew each time.
static void turned(cl_mem plane, int step) {
    fill_host((unsigned)step);
    cl_mem brief = image_of(0, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, host);
    size_t corner[3] = {1, 2, 0}, box[3] = {W / 2, H / 2, 1}, all[] = {W, H};
    cl_uint salt = (cl_uint)step, color[4] = {salt, 2, 3, 4};
    CHECK(clEnqueueCopyImage(queue, plane, brief, corner, none, box, 0, NULL, NULL));
    CHECK(clSetKernelArg(turn, 0, sizeof brief, &brief));
    CHECK(clSetKernelArg(turn, 1, sizeof plane, &plane));
    CHECK(clSetKernelArg(turn, 2, sizeof salt, &salt));
    CHECK(clEnqueueNDRangeKernel(queue, turn, 2, NULL, all, NULL, 0, NULL, NULL));
    CHECK(clEnqueueFillImage(queue, plane, color, (size_t[]){step, 3, 0}, (size_t[]){5, 4, 1}, 0, NULL, NULL));
    unsigned char *bytes = write_mapped(0, brief, corner, (size_t[]){6, 5, 1}, step);
    unmap(brief, bytes);
    CHECK(clEnqueueCopyImage(queue, brief, plane, corner, (size_t[]){20, 10, 0}, (size_t[]){8, 8, 1}, 0, NULL, NULL));
    CHECK(clReleaseMemObject(brief));
}

// The others change by writes, which are not waited for, by copies and by maps.
static void changed(cl_mem *images, int step) {
    for (int kind = 1; kind < KINDS; kind++) {
        size_t region[3] = {9, wholes[kind][1] - 1, wholes[kind][2]}, origin[3] = {step, 1, 0};
        fill_host((unsigned)(step * 7 + kind));
        CHECK(clEnqueueWriteImage(queue, images[kind], kind == 2, origin, region, 0, 0, host, 0, NULL, NULL));
        CHECK(clFinish(queue));
        region[2] = 1;
        unsigned char *bytes = write_mapped(kind, images[kind], (size_t[]){30 - step, 0, 0}, region, step);
        unmap(images[kind], bytes);
    }
    CHECK(clEnqueueCopyImage(queue, images[0], images[3], none, (size_t[]){3, 1, step % 4}, (size_t[]){10, 5, 1}, 0, NULL, NULL));
}

int main(void) {
    set_up(0);
    cl_program program = build(source, "");
    turn = kernel_of(program, "turn");
    cl_mem images[KINDS], held;
    for (int kind = 0; kind < KINDS; kind++) {
        fill_host((unsigned)kind + 100);
        // The second begins with nothing, and is filled.
        images[kind] = image_of(kind, CL_MEM_READ_WRITE | (kind == 1 ? 0 : CL_MEM_COPY_HOST_PTR), kind == 1 ? NULL : host);
    }
    CHECK(clEnqueueFillImage(queue, images[1], (cl_uint[]){1, 2, 3, 4}, none, wholes[1], 0, NULL, NULL));
    held = image_of(2, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, host);
    for (int step = 0; step < STEPS; step++) {
        unsigned char *stays = write_mapped(2, held, (size_t[]){step, 2, 0}, (size_t[]){7, 11, 1}, step);
        turned(images[0], step);
        changed(images, step);
        // Still the program's.
        for (int x = 0; x < 28; x++) stays[x] = (unsigned char)(stays[x] * 5 + x);
        unmap(held, stays);
        CHECK(clEnqueueCopyImage(queue, held, images[2], none, (size_t[]){20, 4, 0}, (size_t[]){12, 9, 1}, 0, NULL, NULL));
        printf("step %d:", step);
        for (int kind = 0; kind < KINDS; kind++) printf(" %08x", checksum(images[kind], kind));
        printf(" %08x\n", checksum(held, 2));
        fflush(stdout);
    }
    for (int kind = 0; kind < KINDS; kind++) CHECK(clReleaseMemObject(images[kind]));
    CHECK(clReleaseMemObject(held));
    clReleaseKernel(turn), clReleaseProgram(program);
    tear_down();
    return 0;
}
