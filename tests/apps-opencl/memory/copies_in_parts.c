// Copies of every shape that are large enough to be cut into parts: boxes and images, waited for or not, in queues of every
// kind. Each goes out, comes back, and is compared.
#include "check.h"

#define WIDTH 1000
#define HEIGHT 300
#define DEPTH 5
#define GAP 24
#define BYTES ((WIDTH + GAP) * (HEIGHT + 3) * DEPTH * 4)

static unsigned char *sent, *back;
static cl_mem buffer, image, layers;

static void fill(unsigned seed) {
    for (size_t i = 0; i < BYTES; i++) sent[i] = (unsigned char)((i * 2654435761u + seed) >> 13), back[i] = 0xee;
}

// Bytes of the box in the program's memory are as they were sent, and the gaps as they were before.
static void same(size_t width, size_t height, size_t depth, size_t row, size_t slice) {
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++) {
            size_t at = z * slice + y * row;
            REQUIRE(memcmp(back + at, sent + at, width) == 0);
            if (row > width) REQUIRE(back[at + width] == 0xee);
        }
}

// A command's event, or one of the last commands of a queue without order.
static void wait(cl_command_queue in, cl_event *events, cl_uint count) {
    CHECK(clFlush(in));
    CHECK(clWaitForEvents(count, events));
    for (cl_uint i = 0; i < count; i++) CHECK(clReleaseEvent(events[i]));
}

static void boxes(cl_command_queue in, cl_bool blocking) {
    size_t origin[3] = {4, 1, 0}, none[3] = {0}, region[3] = {WIDTH * 4, HEIGHT, DEPTH};
    size_t row = (WIDTH + GAP) * 4, slice = row * (HEIGHT + 3);
    cl_event events[2];
    fill(1);
    CHECK(clEnqueueWriteBufferRect(in, buffer, blocking, origin, none, region, row, slice, row, slice, sent, 0, NULL, &events[0]));
    CHECK(clEnqueueReadBufferRect(in, buffer, blocking, origin, none, region, row, slice, row, slice, back, 1, events, &events[1]));
    wait(in, events, 2);
    same(WIDTH * 4, HEIGHT, DEPTH, row, slice);
}

static void images(cl_command_queue in, cl_bool blocking, cl_mem of, size_t depth) {
    size_t origin[3] = {0}, region[3] = {WIDTH, HEIGHT, depth}, row = (WIDTH + GAP) * 4, slice = depth > 1 ? row * (HEIGHT + 2) : 0;
    cl_event events[2];
    fill(2);
    CHECK(clEnqueueWriteImage(in, of, blocking, origin, region, row, slice, sent, 0, NULL, &events[0]));
    CHECK(clEnqueueReadImage(in, of, blocking, origin, region, row, slice, back, 1, events, &events[1]));
    wait(in, events, 2);
    same(WIDTH * 4, HEIGHT, depth, row, slice);
}

// Many at once, so that not all find a place on their way; each takes what the one before it wrote.
static void runs(cl_command_queue in, cl_bool blocking) {
    enum { COUNT = 6 };
    size_t each = BYTES / COUNT;
    cl_event events[2 * COUNT];
    fill(3);
    for (int i = 0; i < COUNT; i++) {
        CHECK(clEnqueueWriteBuffer(in, buffer, blocking, i * each, each, sent + i * each, 0, NULL, &events[2 * i]));
        // The bytes of a write that is not waited for are the command's until it has ended.
        CHECK(clEnqueueReadBuffer(in, buffer, blocking, i * each, each, back + i * each, 1, &events[2 * i], &events[2 * i + 1]));
    }
    wait(in, events, 2 * COUNT);
    same(COUNT * each, 1, 1, COUNT * each, COUNT * each);
}

// Held back by an event that is set when all is enqueued.
static void held_back(cl_command_queue in) {
    cl_int code;
    cl_event gate = clCreateUserEvent(context, &code), events[2];
    CHECK(code);
    fill(4);
    CHECK(clEnqueueWriteBuffer(in, buffer, CL_FALSE, 0, BYTES, sent, 1, &gate, &events[0]));
    CHECK(clEnqueueReadBuffer(in, buffer, CL_FALSE, 0, BYTES, back, 1, &events[0], &events[1]));
    CHECK(clSetUserEventStatus(gate, CL_COMPLETE));
    wait(in, events, 2);
    CHECK(clReleaseEvent(gate));
    same(BYTES, 1, 1, BYTES, BYTES);
}

int main(void) {
    cl_int code;
    set_up(0);
    sent = malloc(BYTES), back = malloc(BYTES);
    buffer = buffer_of(CL_MEM_READ_WRITE, BYTES + 4096, NULL);
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = WIDTH, .image_height = HEIGHT};
    image = clCreateImage(context, CL_MEM_READ_WRITE, &format, &shape, NULL, &code);
    CHECK(code);
    shape.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY, shape.image_array_size = DEPTH;
    layers = clCreateImage(context, CL_MEM_READ_WRITE, &format, &shape, NULL, &code);
    CHECK(code);
    cl_command_queue_properties kinds[] = {0, CL_QUEUE_PROFILING_ENABLE, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE};
    for (int kind = 0; kind < 3; kind++) {
        cl_command_queue in = clCreateCommandQueue(context, device, kinds[kind], &code);
        CHECK(code);
        for (cl_bool blocking = CL_FALSE; blocking <= CL_TRUE; blocking++) {
            runs(in, blocking);
            boxes(in, blocking);
            images(in, blocking, image, 1);
            images(in, blocking, layers, DEPTH);
        }
        held_back(in);
        CHECK(clReleaseCommandQueue(in));
        printf("queue %d: all copies came back as they were sent\n", kind);
    }
    clReleaseMemObject(buffer), clReleaseMemObject(image), clReleaseMemObject(layers);
    tear_down();
    free(sent), free(back);
    return 0;
}
