// Images and buffers that are mapped again and again, while everything that can change them does between two maps: their own
// unmaps, writes, fills, copies, kernels, other names of their memory, other queues. A checksum a step.
#include "check.h"

enum { SIDE = 24, ROW = SIDE * 4, BYTES = SIDE * ROW, STEPS = 12 };

static const char *source =
    "__kernel void turn(__global uchar *b, uchar salt) { size_t i = get_global_id(0); b[i] = b[i] * 5 + salt; }\n"
    "__kernel void paint(__write_only image2d_t image, uint salt) {\n"
    "    write_imageui(image, (int2)(get_global_id(0), 3), (uint4)(salt, get_global_id(0), 7, 1));\n"
    "}\n";

static cl_kernel turn, paint;
static const size_t none[3], whole[3] = {SIDE, SIDE, 1};
// What the first image and the first buffer hold, as this side knows.
static unsigned char of_image[BYTES], of_buffer[BYTES];

static cl_mem image_of(cl_mem_flags flags, cl_mem buffer, void *host) {
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = SIDE, .image_height = SIDE};
    if (buffer) shape = (cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = SIDE, .mem_object = buffer};
    cl_int code;
    cl_mem image = clCreateImage(context, flags, &format, &shape, host, &code);
    CHECK(code);
    return image;
}

static unsigned char *image_map(cl_mem image, cl_map_flags flags, const size_t *origin, const size_t *region, size_t *row) {
    cl_int code;
    size_t slice;
    void *place = clEnqueueMapImage(queue, image, CL_TRUE, flags, origin, region, row, &slice, 0, NULL, NULL, &code);
    CHECK(code);
    return place;
}

static unsigned char *buffer_map(cl_command_queue on, cl_mem buffer, cl_map_flags flags, size_t offset, size_t size) {
    cl_int code;
    void *place = clEnqueueMapBuffer(on, buffer, CL_TRUE, flags, offset, size, 0, NULL, NULL, &code);
    CHECK(code);
    return place;
}

static void unmap(cl_command_queue on, cl_mem memory, void *place) {
    CHECK(clEnqueueUnmapMemObject(on, memory, place, 0, NULL, NULL));
}

// The image is what this side knows; maps of all of it twice, and of a part.
static void check_image(cl_mem image) {
    for (int turn_of = 0; turn_of < 3; turn_of++) {
        size_t origin[3] = {turn_of == 1 ? 5 : 0, turn_of == 1 ? 2 : 0, 0}, region[3] = {SIDE, SIDE, 1}, row;
        region[0] -= origin[0], region[1] -= origin[1];
        unsigned char *bytes = image_map(image, CL_MAP_READ, origin, region, &row);
        for (size_t y = 0; y < region[1]; y++) {
            REQUIRE(memcmp(bytes + y * row, of_image + (y + origin[1]) * ROW + origin[0] * 4, region[0] * 4) == 0);
        }
        unmap(queue, image, bytes);
    }
}

static void check_buffer(cl_command_queue on, cl_mem buffer) {
    for (int turn_of = 0; turn_of < 3; turn_of++) {
        size_t offset = turn_of == 1 ? 100 : 0;
        unsigned char *bytes = buffer_map(on, buffer, CL_MAP_READ, offset, BYTES - offset);
        REQUIRE(memcmp(bytes, of_buffer + offset, BYTES - offset) == 0);
        unmap(on, buffer, bytes);
    }
}

// A map that writes a box of the image, and one that writes a run of the buffer. Both find what is there.
static void write_by_maps(cl_mem image, cl_mem buffer, int step) {
    size_t origin[3] = {step % 5, step % 3, 0}, region[3] = {7, 9, 1}, row;
    for (int again = 0; again < 2; again++) {
        unsigned char *bytes = image_map(image, CL_MAP_READ | CL_MAP_WRITE, origin, region, &row);
        for (size_t y = 0; y < region[1]; y++) {
            unsigned char *known = of_image + (y + origin[1]) * ROW + origin[0] * 4;
            REQUIRE(memcmp(bytes + y * row, known, region[0] * 4) == 0);
            for (size_t x = 0; x < region[0] * 4; x++) bytes[y * row + x] = known[x] = (unsigned char)(x * y + step + again);
        }
        unmap(queue, image, bytes);
        size_t offset = (size_t)step * 8, size = 200;
        bytes = buffer_map(queue, buffer, again ? CL_MAP_WRITE_INVALIDATE_REGION : CL_MAP_WRITE, offset, size);
        REQUIRE(again || memcmp(bytes, of_buffer + offset, size) == 0);
        for (size_t i = 0; i < size; i++) bytes[i] = of_buffer[offset + i] = (unsigned char)(i * 3 + step + again);
        unmap(queue, buffer, bytes);
    }
}

// What changes the image, one way a step.
static void change_image(cl_mem image, cl_mem other, cl_mem bytes, int step) {
    cl_uint color[4] = {(cl_uint)step, 9, 8, 7};
    size_t corner[3] = {2, 1, 0}, part[3] = {4, 3, 1}, items = SIDE;
    unsigned char fill[16], pixels[48];
    for (int i = 0; i < 48; i++) pixels[i] = (unsigned char)(i + step);
    for (int i = 0; i < 16; i++) fill[i] = (unsigned char)color[i % 4];
    const unsigned char *from = pixels;
    size_t from_row = 16;
    switch (step % 5) {
    case 0:
        CHECK(clEnqueueFillImage(queue, image, color, corner, part, 0, NULL, NULL));
        from = fill, from_row = 0;
        break;
    case 1: CHECK(clEnqueueWriteImage(queue, image, CL_FALSE, corner, part, 0, 0, pixels, 0, NULL, NULL)); break;
    case 2:
        CHECK(clEnqueueWriteImage(queue, other, CL_TRUE, corner, part, 0, 0, pixels, 0, NULL, NULL));
        CHECK(clEnqueueCopyImage(queue, other, image, corner, corner, part, 0, NULL, NULL));
        break;
    case 3:
        CHECK(clEnqueueWriteBuffer(queue, bytes, CL_TRUE, 0, sizeof pixels, pixels, 0, NULL, NULL));
        CHECK(clEnqueueCopyBufferToImage(queue, bytes, image, 0, corner, part, 0, NULL, NULL));
        break;
    default:
        CHECK(clSetKernelArg(paint, 0, sizeof image, &image));
        CHECK(clSetKernelArg(paint, 1, sizeof *color, color));
        CHECK(clEnqueueNDRangeKernel(queue, paint, 1, NULL, &items, NULL, 0, NULL, NULL));
        for (int x = 0; x < SIDE; x++) {
            memcpy(of_image + 3 * ROW + x * 4, (unsigned char[]){(unsigned char)step, (unsigned char)x, 7, 1}, 4);
        }
        return;
    }
    for (int y = 0; y < 3; y++) memcpy(of_image + (y + 1) * ROW + 8, from + y * from_row, 16);
}

// What changes the buffer, one way a step: a kernel, a part of it, a view of it, a copy.
static void change_buffer(cl_mem buffer, cl_mem part, cl_mem view, cl_mem bytes, int step) {
    unsigned char salt = (unsigned char)(step * 17);
    size_t items = BYTES, line[3] = {SIDE, 1, 1}, row;
    switch (step % 4) {
    case 0:
        CHECK(clSetKernelArg(turn, 0, sizeof buffer, &buffer));
        CHECK(clSetKernelArg(turn, 1, sizeof salt, &salt));
        CHECK(clEnqueueNDRangeKernel(queue, turn, 1, NULL, &items, NULL, 0, NULL, NULL));
        for (int i = 0; i < BYTES; i++) of_buffer[i] = (unsigned char)(of_buffer[i] * 5 + salt);
        break;
    case 1:
        CHECK(clEnqueueFillBuffer(queue, part, &salt, 1, 4, 60, 0, NULL, NULL));
        memset(of_buffer + 1024 + 4, salt, 60);
        break;
    case 2: {
        unsigned char *pixels = image_map(view, CL_MAP_WRITE, none, line, &row);
        memset(pixels, salt, ROW), memset(of_buffer, salt, ROW);
        unmap(queue, view, pixels);
        break;
    }
    default:
        CHECK(clEnqueueFillBuffer(queue, bytes, &salt, 1, 0, BYTES, 0, NULL, NULL));
        CHECK(clEnqueueCopyBuffer(queue, bytes, buffer, 0, 500, 300, 0, NULL, NULL));
        memset(of_buffer + 500, salt, 300);
    }
}

// Where nothing has been written yet anything may be read, and what is written stays.
static void new_objects(int step) {
    cl_mem image = image_of(CL_MEM_READ_WRITE, NULL, NULL), buffer = buffer_of(CL_MEM_READ_WRITE, BYTES, NULL);
    size_t row;
    unsigned char *pixels = image_map(image, CL_MAP_WRITE, none, whole, &row);
    for (int y = 0; y < SIDE; y++) memset(pixels + y * row, step + y, ROW);
    unmap(queue, image, pixels);
    unsigned char *bytes = buffer_map(queue, buffer, CL_MAP_READ | CL_MAP_WRITE, 0, BYTES / 2);
    memset(bytes, step, BYTES / 2);
    unmap(queue, buffer, bytes);
    unsigned char back[BYTES];
    CHECK(clEnqueueReadImage(queue, image, CL_TRUE, none, whole, 0, 0, back, 0, NULL, NULL));
    for (int y = 0; y < SIDE; y++) REQUIRE(back[y * ROW] == (unsigned char)(step + y) && back[y * ROW + ROW - 1] == back[y * ROW]);
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, BYTES / 2, back, 0, NULL, NULL));
    for (int i = 0; i < BYTES / 2; i++) REQUIRE(back[i] == (unsigned char)step);
    CHECK(clReleaseMemObject(image));
    CHECK(clReleaseMemObject(buffer));
}

// An image that stays mapped from step to step: what was written there before the step and what is written in it come together.
static unsigned char *held_map(cl_mem image, unsigned char *place, size_t row, int step) {
    static unsigned char known[BYTES];
    size_t next;
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < ROW; x++) {
            if ((x + y) % 3 == step % 3) place[(size_t)y * row + (size_t)x] = known[y * ROW + x] = (unsigned char)(x + y * step);
            REQUIRE(place[(size_t)y * row + (size_t)x] == known[y * ROW + x]);
        }
    }
    unmap(queue, image, place);
    unsigned char back[BYTES];
    CHECK(clEnqueueReadImage(queue, image, CL_TRUE, none, whole, 0, 0, back, 0, NULL, NULL));
    REQUIRE(memcmp(back, known, BYTES) == 0);
    place = image_map(image, CL_MAP_READ | CL_MAP_WRITE, none, whole, &next);
    REQUIRE(next == row);
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < ROW; x++) {
            REQUIRE(place[(size_t)y * row + (size_t)x] == known[y * ROW + x]);
            if ((x + y) % 3 == (step + 1) % 3) place[(size_t)y * row + (size_t)x] = known[y * ROW + x] = (unsigned char)(x * 3 + step);
        }
    }
    return place;
}

int main(void) {
    set_up(0);
    cl_program program = build(source, "");
    turn = kernel_of(program, "turn"), paint = kernel_of(program, "paint");
    for (int i = 0; i < BYTES; i++) of_image[i] = (unsigned char)(i * 7), of_buffer[i] = (unsigned char)(i * 11);
    cl_mem image = image_of(CL_MEM_COPY_HOST_PTR, NULL, of_image), other = image_of(0, NULL, NULL);
    cl_mem buffer = buffer_of(CL_MEM_COPY_HOST_PTR, BYTES, of_buffer), bytes = buffer_of(0, BYTES, NULL);
    cl_mem part = NULL, view = NULL;
    cl_command_queue second = NULL;
    cl_mem held = image_of(0, NULL, NULL);
    size_t row;
    unsigned char *place = image_map(held, CL_MAP_WRITE, none, whole, &row);
    for (int y = 0; y < SIDE; y++) memset(place + (size_t)y * row, 0, ROW);
    for (int step = 0; step < STEPS; step++) {
        // Other names come late: what was known before is not taken for known any more.
        if (step == STEPS / 2) {
            cl_int code;
            cl_buffer_region region = {1024, 512};
            part = clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
            CHECK(code);
            view = image_of(0, buffer, NULL);
            second = clCreateCommandQueue(context, device, 0, &code);
            CHECK(code);
        }
        place = held_map(held, place, row, step);
        check_image(image), check_buffer(queue, buffer);
        write_by_maps(image, buffer, step);
        check_image(image), check_buffer(queue, buffer);
        change_image(image, other, bytes, step);
        if (part) change_buffer(buffer, part, view, bytes, step);
        else change_buffer(buffer, NULL, NULL, bytes, step % 2 ? 3 : 0);
        check_image(image), check_buffer(queue, buffer);
        if (second) {
            unsigned char salt = (unsigned char)step;
            CHECK(clEnqueueFillBuffer(second, buffer, &salt, 1, 40, 20, 0, NULL, NULL));
            CHECK(clFinish(second));
            memset(of_buffer + 40, salt, 20);
            check_buffer(queue, buffer), check_buffer(second, buffer);
        }
        new_objects(step);
        unsigned sum = 0;
        for (int i = 0; i < BYTES; i++) sum = (sum * 31 + of_image[i]) * 31 + of_buffer[i];
        printf("step %d: %08x\n", step, sum);
        fflush(stdout);
    }
    unmap(queue, held, place);
    clReleaseMemObject(held);
    clReleaseMemObject(image), clReleaseMemObject(other), clReleaseMemObject(part), clReleaseMemObject(view);
    clReleaseMemObject(buffer), clReleaseMemObject(bytes), clReleaseKernel(turn), clReleaseKernel(paint);
    clReleaseCommandQueue(second), clReleaseProgram(program);
    tear_down();
    return 0;
}
