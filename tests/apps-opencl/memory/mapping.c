// Mapped buffers: for reading, writing, and writing anew; over the program's own memory and over the driver's.
#include "check.h"

#include <unistd.h>

static const char *source = "__kernel void inc(__global int *v) { v[get_global_id(0)] += 1; }\n";

enum { N = 100000 };

static void *map(cl_mem buffer, cl_map_flags flags, size_t offset, size_t size, cl_event *event) {
    cl_int code;
    void *place = clEnqueueMapBuffer(queue, buffer, event == NULL, flags, offset, size, 0, NULL, event, &code);
    CHECK(code);
    return place;
}

// How often it is mapped, once it is so often. Drivers may count a map until after the commands that waited for its end: PoCL takes
// it off once it has told them. A minute is far more than that takes.
static cl_uint maps(cl_mem buffer, cl_uint wanted) {
    cl_uint count = 0;
    for (int i = 0; i < 60000; i++) {
        CHECK(clGetMemObjectInfo(buffer, CL_MEM_MAP_COUNT, sizeof count, &count, NULL));
        if (count == wanted) break;
        usleep(1000);
    }
    return count;
}

static void use(cl_mem buffer, cl_kernel kernel, const char *what, int *own) {
    int *v = map(buffer, CL_MAP_WRITE_INVALIDATE_REGION, 0, N * 4, NULL);
    for (int i = 0; i < N; i++) v[i] = i;
    CHECK(clEnqueueUnmapMemObject(queue, buffer, v, 0, NULL, NULL));
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    launch(kernel, N);
    cl_event ready;
    int *r = map(buffer, CL_MAP_READ, 400, 4000, &ready), *again = map(buffer, CL_MAP_READ, 800, 40, NULL);
    CHECK(clWaitForEvents(1, &ready));
    // Only for the program's own memory the standard says where it is.
    printf("%s: %d %d, mapped %u times, %s\n", what, r[0], again[0], maps(buffer, 2),
           own ? (r == own + 100 ? "in place" : "elsewhere") : (again[0] == r[100] ? "the same" : "another"));
    CHECK(clEnqueueUnmapMemObject(queue, buffer, r, 0, NULL, NULL));
    CHECK(clEnqueueUnmapMemObject(queue, buffer, again, 0, NULL, NULL));
    int *w = map(buffer, CL_MAP_READ | CL_MAP_WRITE, 40, 40, NULL);
    for (int i = 0; i < 10; i++) w[i] *= 100;
    CHECK(clEnqueueUnmapMemObject(queue, buffer, w, 0, NULL, NULL));
    launch(kernel, N);
    int back[30];
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof back, back, 0, NULL, NULL));
    printf("%s: %d %d %d %d, mapped %u times\n", what, back[9], back[10], back[19], back[20], maps(buffer, 0));
    cl_command_type type;
    CHECK(clGetEventInfo(ready, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL));
    printf("%s: the event is of a map: %s\n", what, type == CL_COMMAND_MAP_BUFFER ? "yes" : "no");
    CHECK(clReleaseEvent(ready));
}

// Maps that no thread waits for, or that may only be written to.
static void odd_ones(int *own) {
    int back[4] = {0}, *mapped;
    for (int i = 0; i < N; i++) own[i] = i;
    cl_mem buffer = buffer_of(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, N * 4, own);
    cl_event ready;
    CHECK(clEnqueueUnmapMemObject(queue, buffer, map(buffer, CL_MAP_READ | CL_MAP_WRITE, 0, N * 4, &ready), 0, NULL, NULL));
    CHECK(clReleaseEvent(ready));
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 400, sizeof back, back, 0, NULL, NULL));
    // Who has the region knows that the read before it has ended.
    mapped = map(buffer, CL_MAP_WRITE_INVALIDATE_REGION, 0, 4, NULL);
    printf("given back at once: %d %d\n", back[0], back[3]);
    mapped[0] = 1;
    CHECK(clEnqueueUnmapMemObject(queue, buffer, mapped, 0, NULL, NULL));
    CHECK(clReleaseMemObject(buffer));
    buffer = buffer_of(CL_MEM_READ_WRITE | CL_MEM_HOST_WRITE_ONLY | CL_MEM_COPY_HOST_PTR, N * 4, own);
    cl_mem copy = buffer_of(CL_MEM_READ_WRITE, N * 4, NULL);
    mapped = map(buffer, CL_MAP_WRITE, 400, 400, NULL);
    mapped[1] = -1;
    CHECK(clEnqueueUnmapMemObject(queue, buffer, mapped, 0, NULL, NULL));
    CHECK(clEnqueueCopyBuffer(queue, buffer, copy, 0, 0, N * 4, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, copy, CL_TRUE, 400, sizeof back, back, 0, NULL, NULL));
    printf("only written to: %d %d %d, read: %s\n", back[0], back[1], back[2],
           code_name(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof back, back, 0, NULL, NULL)));
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseMemObject(copy));
}

static void fill(cl_mem buffer, int value) {
    CHECK(clEnqueueFillBuffer(queue, buffer, &value, 4, 0, N * 4, 0, NULL, NULL));
}

static int first_of(cl_mem buffer) {
    int value;
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 40, 4, &value, 0, NULL, NULL));
    return value;
}

// Several commands have one place in the program's memory: what is there follows the order of the queue, whichever thread waits for what. Sizes
// of all ways that bytes take.
static void one_place(size_t size, cl_mem_flags flags) {
    int *h = calloc(1, N * 4);
    cl_mem a = buffer_of(CL_MEM_READ_WRITE, N * 4, NULL), b = buffer_of(flags, N * 4, NULL);
    fill(a, 1);
    CHECK(clEnqueueReadBuffer(queue, a, CL_FALSE, 0, size, h, 0, NULL, NULL));
    fill(a, 2);
    CHECK(clEnqueueReadBuffer(queue, a, CL_TRUE, 0, size, h, 0, NULL, NULL));
    printf("read twice: %d", h[10]);
    CHECK(clFinish(queue));
    printf(" %d\n", h[10]);
    CHECK(clEnqueueReadBuffer(queue, a, CL_FALSE, 0, size, h, 0, NULL, NULL));
    fill(a, 3);
    CHECK(clEnqueueReadBuffer(queue, a, CL_FALSE, 40, 4, h + 10, 0, NULL, NULL));
    CHECK(clEnqueueWriteBuffer(queue, b, CL_FALSE, 0, size, h, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, a, CL_FALSE, 0, size, h, 0, NULL, NULL));
    fill(a, 4);
    CHECK(clFinish(queue));
    printf("read and written: %d, then %d\n", first_of(b), h[10]);
    int *p = map(b, CL_MAP_WRITE, 0, size, NULL);
    CHECK(clEnqueueReadBuffer(queue, a, CL_FALSE, 0, size, p, 0, NULL, NULL));
    CHECK(clEnqueueUnmapMemObject(queue, b, p, 0, NULL, NULL));
    printf("read into a map: %d", first_of(b));
    fill(a, 5);
    cl_event ready;
    p = map(b, CL_MAP_READ | CL_MAP_WRITE, 0, size, &ready);
    CHECK(clEnqueueReadBuffer(queue, a, CL_FALSE, 0, size, p, 0, NULL, NULL));
    CHECK(clEnqueueUnmapMemObject(queue, b, p, 0, NULL, NULL));
    printf(" %d\n", first_of(b));
    CHECK(clReleaseEvent(ready));
    CHECK(clReleaseMemObject(a));
    CHECK(clReleaseMemObject(b));
    free(h);
}

// Rows of two reads lie between each other, and the one whose end is unknown keeps the other one from nothing.
static void between(void) {
    int rows[8] = {0}, value = 7;
    cl_int code;
    cl_mem a = buffer_of(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof rows, rows);
    CHECK(clEnqueueFillBuffer(queue, a, &value, 4, 0, sizeof rows, 0, NULL, NULL));
    CHECK(clFinish(queue));
    cl_command_queue other = clCreateCommandQueue(context, device, 0, &code);
    CHECK(code);
    cl_event later = clCreateUserEvent(context, &code);
    CHECK(code);
    size_t origin[3] = {0, 0, 0}, odd[3] = {4, 0, 0}, region[3] = {4, 4, 1};
    CHECK(clEnqueueReadBufferRect(other, a, CL_FALSE, origin, odd, region, 4, 0, 8, 0, rows, 1, &later, NULL));
    CHECK(clEnqueueWriteBuffer(queue, a, CL_TRUE, 0, 4, rows, 0, NULL, NULL));
    CHECK(clEnqueueReadBufferRect(queue, a, CL_TRUE, origin, origin, region, 4, 0, 8, 0, rows, 0, NULL, NULL));
    printf("between: %d %d %d %d", rows[0], rows[1], rows[2], rows[7]);
    value = 8;
    CHECK(clEnqueueFillBuffer(queue, a, &value, 4, 0, sizeof rows, 0, NULL, NULL));
    // Here they come to the same place, in no order.
    CHECK(clEnqueueReadBuffer(queue, a, CL_TRUE, 0, sizeof rows, rows, 0, NULL, NULL));
    printf(", %d %d", rows[0], rows[7]);
    rows[7] = 0;
    CHECK(clSetUserEventStatus(later, CL_COMPLETE));
    CHECK(clFinish(other));
    printf(", %d %d\n", rows[0], rows[7]);
    CHECK(clReleaseEvent(later));
    CHECK(clReleaseCommandQueue(other));
    CHECK(clReleaseMemObject(a));
}

// Who lets go of a buffer that he has mapped, and waits for nothing, gets nothing; a refused unmap changes nothing.
static void let_go(void) {
    cl_int code;
    cl_mem buffer = buffer_of(CL_MEM_READ_WRITE, N * 4, NULL), a = buffer_of(CL_MEM_READ_WRITE, N * 4, NULL);
    fill(buffer, 5), fill(a, 6);
    int *p = map(buffer, CL_MAP_READ | CL_MAP_WRITE, 0, N * 4, NULL);
    p[10] = 9;
    cl_context another = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    CHECK(code);
    cl_command_queue theirs = clCreateCommandQueue(another, device, 0, &code);
    CHECK(code);
    printf("by another context: %s, ", code_name(clEnqueueUnmapMemObject(theirs, buffer, p, 0, NULL, NULL)));
    printf("%s", code_name(clEnqueueUnmapMemObject(queue, buffer, p, 0, NULL, NULL)));
    printf(", %d\n", first_of(buffer));
    CHECK(clReleaseCommandQueue(theirs));
    CHECK(clReleaseContext(another));
    p = map(buffer, CL_MAP_WRITE_INVALIDATE_REGION, 0, N * 4, NULL);
    CHECK(clEnqueueReadBuffer(queue, a, CL_FALSE, 0, N * 4, p, 0, NULL, NULL));
    CHECK(clEnqueueUnmapMemObject(queue, buffer, p, 0, NULL, NULL));
    CHECK(clReleaseMemObject(buffer));
    buffer = buffer_of(CL_MEM_READ_WRITE, N * 4, NULL);
    cl_event ready;
    map(buffer, CL_MAP_READ, 0, N * 4, &ready);
    CHECK(clReleaseEvent(ready));
    CHECK(clReleaseMemObject(buffer));
    CHECK(clFinish(queue));
    printf("let go of while mapped\n");
    CHECK(clReleaseMemObject(a));
}

int main(void) {
    set_up(0);
    cl_program program = build(source, "");
    cl_kernel kernel = kernel_of(program, "inc");
    int *own = aligned_alloc(4096, N * 4 + 4096);
    cl_mem plain = buffer_of(CL_MEM_READ_WRITE, N * 4, NULL);
    cl_mem theirs = buffer_of(CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, N * 4, NULL);
    cl_mem ours = buffer_of(CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, N * 4, own);
    use(plain, kernel, "plain", NULL);
    use(theirs, kernel, "driver's", NULL);
    use(ours, kernel, "program's", own);
    void *host;
    CHECK(clGetMemObjectInfo(ours, CL_MEM_HOST_PTR, sizeof host, &host, NULL));
    printf("host pointer: %s\n", host == own ? "the program's" : "another");
    cl_int code;
    clEnqueueMapBuffer(queue, plain, CL_TRUE, CL_MAP_READ, N * 4, 4, 0, NULL, NULL, &code);
    printf("beyond the end: %s\n", code_name(code));
    printf("unmapped twice: %s\n", code_name(clEnqueueUnmapMemObject(queue, plain, own, 0, NULL, NULL)));
    CHECK(clReleaseMemObject(plain));
    CHECK(clReleaseMemObject(theirs));
    CHECK(clReleaseMemObject(ours));
    clReleaseKernel(kernel), clReleaseProgram(program);
    odd_ones(own);
    one_place(400, CL_MEM_READ_WRITE);
    one_place(N * 4, CL_MEM_READ_WRITE);
    one_place(N * 4, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR);
    between();
    let_go();
    free(own);
    tear_down();
    return 0;
}
