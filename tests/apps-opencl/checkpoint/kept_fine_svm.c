// Shared virtual memory that host and device see at the same time: a tree whose parts either side makes, memory that kernels and
// transfers use in turn, blocks of all sizes that come and go. Where the device has coarse-grained memory alone, the same by maps
// and copies. A checksum a step. With the argument "fine" the device must have it, and host and kernel meet while the kernel runs.
#include "check.h"

static const char *source =
    "struct node { global struct node *left, *right; int value, sum; };\n"
    "kernel void add(global struct node *root, int more) {\n"
    "    global struct node *n = root;\n"
    "    int key = get_global_id(0);\n"
    "    while (n) { if (n->value == key) { n->sum += more * key; break; } n = key < n->value ? n->left : n->right; }\n"
    "}\n"
    "kernel void grow(global struct node *root, global struct node *new) {\n"
    "    global struct node *n = root;\n"
    "    for (;;) {\n"
    "        global struct node *next = new->value < n->value ? n->left : n->right;\n"
    "        if (next) { n = next; continue; }\n"
    "        if (new->value < n->value) n->left = new; else n->right = new;\n"
    "        return;\n"
    "    }\n"
    "}\n"
    "kernel void fill(global int *v, int first) { v[get_global_id(0)] = first + get_global_id(0) * 3; }\n"
    "kernel void twice(global int *v) { v[get_global_id(0)] *= 2; }\n"
    "kernel void meet(global int *v) {\n"
    "    volatile global int *host = v, *device = v + 1;\n"
    "    atomic_xchg(device, 1);\n"
    "    int seen = 0;\n"
    "    for (int i = 0; i < 2000000000 && !seen; i++) seen = atomic_add(host, 0);\n"
    "    v[2] = seen;\n"
    "}\n";

struct node { struct node *left, *right; int value, sum; };

enum { KEYS = 64, STEPS = 8, BLOCKS = 10, WIDTH = 16, LINES = 6, PITCH = 20 };

static const size_t sizes[BLOCKS] = {1, 100, 4096, 4097, 60000, 131072, 300000, 700000, 2000000, 8192};
static int is_fine;
static char *blocks[BLOCKS];
static struct node *nodes[KEYS];

static void *allocate(size_t size) {
    void *memory = clSVMAlloc(context, CL_MEM_READ_WRITE | (is_fine ? CL_MEM_SVM_FINE_GRAIN_BUFFER : 0), size, 64);
    REQUIRE(memory && ((size_t)memory & 63) == 0);
    return memory;
}

// Before and after the host uses memory.
static void take(void *memory, size_t size) {
    if (is_fine) CHECK(clFinish(queue));
    else CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, memory, size, 0, NULL, NULL));
}

static void give(void *memory) {
    if (!is_fine) CHECK(clEnqueueSVMUnmap(queue, memory, 0, NULL, NULL));
}

static unsigned mixed(unsigned sum, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) sum = sum * 31 + ((const unsigned char *)bytes)[i];
    return sum;
}

// A node that the kernel puts into the tree which the host has begun.
static void plant(cl_kernel grow, int at, int value) {
    nodes[at] = allocate(sizeof **nodes);
    take(nodes[at], sizeof **nodes);
    *nodes[at] = (struct node){NULL, NULL, value, 0};
    give(nodes[at]);
    if (at == 0) return;
    CHECK(clSetKernelArgSVMPointer(grow, 0, nodes[0]));
    CHECK(clSetKernelArgSVMPointer(grow, 1, nodes[at]));
    CHECK(clSetKernelExecInfo(grow, CL_KERNEL_EXEC_INFO_SVM_PTRS, at * sizeof *nodes, nodes));
    launch(grow, 1);
}

static unsigned walk(struct node *n, unsigned sum) {
    if (!n) return sum;
    take(n, sizeof *n);
    struct node here = *n;
    give(n);
    sum = walk(here.left, sum) * 31 + (unsigned)(here.value * 7 + here.sum);
    return walk(here.right, sum);
}

// Bytes of the host's between shared memory and an object: the shared memory itself where that is fine-grained.
static void *host_of(void *memory, void *own, size_t size, int is_source) {
    if (is_fine) return memory;
    if (is_source) CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, own, memory, size, 0, NULL, NULL));
    return own;
}

static void arrived(void *memory, void *own, size_t size) {
    if (!is_fine) CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, memory, own, size, 0, NULL, NULL));
}

// What a kernel makes goes to an object and back to other memory, whole and with gaps, and a kernel goes on with it; no thread waits.
static unsigned in_turn(cl_kernel fill, cl_kernel twice, cl_mem buffer, cl_mem image, cl_mem lines, int step) {
    enum { COUNT = PITCH * LINES };
    static int out[COUNT], in[COUNT];
    const size_t bytes = sizeof out, zero[3] = {0}, box[3] = {WIDTH * 4, LINES, 1}, texels[3] = {WIDTH, LINES, 1};
    int *from = allocate(bytes), *to = allocate(bytes), first = step * 100, none = 0;
    unsigned sum = 0;
    for (int way = 0; way < 4; way++) {
        first++;
        CHECK(clSetKernelArgSVMPointer(fill, 0, from));
        CHECK(clSetKernelArg(fill, 1, sizeof first, &first));
        CHECK(clSetKernelArgSVMPointer(twice, 0, to));
        CHECK(clEnqueueSVMMemFill(queue, to, &none, sizeof none, bytes, 0, NULL, NULL));
        launch(fill, COUNT);
        const void *source_bytes = host_of(from, out, bytes, 1);
        void *target = host_of(to, in, bytes, 1);
        cl_bool waits = !is_fine;
        const size_t row = PITCH * 4;
        cl_mem object = way < 2 ? buffer : way == 2 ? image : lines;
        switch (way) {
        case 0:
            CHECK(clEnqueueWriteBuffer(queue, object, waits, 8, bytes, source_bytes, 0, NULL, NULL));
            CHECK(clEnqueueReadBuffer(queue, object, waits, 8, bytes, target, 0, NULL, NULL));
            break;
        case 1:
            CHECK(clEnqueueWriteBufferRect(queue, object, waits, zero, zero, box, 0, 0, row, 0, source_bytes, 0, NULL, NULL));
            CHECK(clEnqueueReadBufferRect(queue, object, waits, zero, zero, box, 0, 0, row, 0, target, 0, NULL, NULL));
            break;
        case 2:
            CHECK(clEnqueueWriteImage(queue, object, waits, zero, texels, row, 0, source_bytes, 0, NULL, NULL));
            CHECK(clEnqueueReadImage(queue, object, waits, zero, texels, row, 0, target, 0, NULL, NULL));
            break;
        default:
            CHECK(clEnqueueWriteImage(queue, object, waits, zero, texels, row, row, source_bytes, 0, NULL, NULL));
            CHECK(clEnqueueReadImage(queue, object, waits, zero, texels, row, row, target, 0, NULL, NULL));
        }
        arrived(to, in, bytes);
        launch(twice, COUNT);
        take(to, bytes);
        sum = mixed(sum, to, bytes);
        give(to);
    }
    clSVMFree(context, from), clSVMFree(context, to);
    return sum;
}

// Maps, copies and a buffer of the same memory.
static unsigned by_name(cl_kernel twice, int *memory) {
    int own[64], back[64], pattern = 5;
    cl_int code;
    for (int i = 0; i < 64; i++) own[i] = i * 9;
    CHECK(clEnqueueSVMMemFill(queue, memory, &pattern, sizeof pattern, 512, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemcpy(queue, CL_FALSE, memory + 16, own, sizeof own, 0, NULL, NULL));
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, memory, 512, 0, NULL, NULL));
    memory[3] = memory[20] + 1;
    CHECK(clEnqueueSVMUnmap(queue, memory, 0, NULL, NULL));
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, 512, memory, &code);
    CHECK(code);
    cl_event gone;
    if (is_fine) {
        CHECK(clSetKernelArg(twice, 0, sizeof buffer, &buffer));
        launch(twice, 32);
        int *map = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, 512, 0, NULL, NULL, &code);
        CHECK(code);
        REQUIRE(map == memory);
        map[5] += 1;
        CHECK(clEnqueueUnmapMemObject(queue, buffer, map, 0, NULL, &gone));
    } else {
        CHECK(clSetKernelArgSVMPointer(twice, 0, memory));
        launch(twice, 32);
        take(memory, 512);
        memory[5] += 1;
        give(memory);
        CHECK(clEnqueueMarkerWithWaitList(queue, 0, NULL, &gone));
    }
    CHECK(clWaitForEvents(1, &gone));
    CHECK(clReleaseEvent(gone));
    CHECK(clReleaseMemObject(buffer));
    CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, back, memory, sizeof back, 0, NULL, NULL));
    return mixed(0, back, sizeof back);
}

// The kernel waits for the host, which waits for the kernel to have begun.
static void meet(cl_kernel kernel) {
    int *words = clSVMAlloc(context, CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER | CL_MEM_SVM_ATOMICS, 12, 0);
    REQUIRE(words);
    memset(words, 0, 12);
    CHECK(clSetKernelArgSVMPointer(kernel, 0, words));
    launch(kernel, 1);
    CHECK(clFlush(queue));
    while (!__atomic_load_n(words + 1, __ATOMIC_SEQ_CST)) {}
    __atomic_store_n(words, 77, __ATOMIC_SEQ_CST);
    CHECK(clFinish(queue));
    REQUIRE(words[2] == 77);
    clSVMFree(context, words);
    void *wrong = clSVMAlloc(context, CL_MEM_READ_WRITE | CL_MEM_SVM_ATOMICS, 12, 0);
    REQUIRE(wrong == NULL);
}

// A part of the device has it as well.
static void meet_in_part(void) {
    cl_uint units;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL));
    if (units < 2) return;
    const cl_device_partition_property equally[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    cl_device_id parts[64], whole = device;
    CHECK(clCreateSubDevices(device, equally, units < 64 ? units : 64, parts, &units));
    cl_context whole_context = context;
    cl_command_queue whole_queue = queue;
    cl_int code;
    context = clCreateContext(NULL, 1, parts, NULL, NULL, &code);
    CHECK(code);
    queue = clCreateCommandQueue(context, parts[0], 0, &code);
    CHECK(code);
    device = parts[0];
    cl_program program = build(source, "-cl-std=CL2.0");
    cl_kernel kernel = kernel_of(program, "meet");
    meet(kernel);
    CHECK(clReleaseKernel(kernel));
    CHECK(clReleaseProgram(program));
    tear_down();
    for (cl_uint i = 0; i < units; i++) CHECK(clReleaseDevice(parts[i]));
    device = whole, context = whole_context, queue = whole_queue;
}

int main(int count, char **arguments) {
    set_up(0);
    cl_device_svm_capabilities can;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof can, &can, NULL));
    is_fine = (can & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0;
    if (!is_fine) REQUIRE(!clSVMAlloc(context, CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, 64, 0));
    int *words = allocate(512);
    cl_program program = build(source, "-cl-std=CL2.0");
    cl_kernel add = kernel_of(program, "add"), grow = kernel_of(program, "grow"), fill = kernel_of(program, "fill");
    cl_kernel twice = kernel_of(program, "twice"), meeting = kernel_of(program, "meet");
    if (count > 1) {
        REQUIRE(!strcmp(arguments[1], "fine") && is_fine && (can & CL_DEVICE_SVM_ATOMICS));
        meet(meeting);
        meet_in_part();
    }
    cl_int code;
    cl_mem buffer = buffer_of(CL_MEM_READ_WRITE, 4096, NULL);
    const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc flat = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = WIDTH, .image_height = LINES};
    cl_mem image = clCreateImage(context, CL_MEM_READ_WRITE, &format, &flat, NULL, &code);
    CHECK(code);
    cl_image_desc array = {.image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY, .image_width = WIDTH, .image_array_size = LINES};
    cl_mem lines = clCreateImage(context, CL_MEM_READ_WRITE, &format, &array, NULL, &code);
    CHECK(code);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = allocate(sizes[i]);
    int planted = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < KEYS / STEPS; i++, planted++) plant(grow, planted, planted * 37 % KEYS);
        int more = step + 1;
        CHECK(clSetKernelArgSVMPointer(add, 0, nodes[0]));
        CHECK(clSetKernelArg(add, 1, sizeof more, &more));
        CHECK(clSetKernelExecInfo(add, CL_KERNEL_EXEC_INFO_SVM_PTRS, planted * sizeof *nodes, nodes));
        launch(add, KEYS);
        unsigned tree = walk(nodes[0], 0);
        // The last byte of each block, which is written by either side in turn.
        unsigned ends = 0;
        for (int i = 0; i < BLOCKS; i++) {
            char *end = blocks[i] + sizes[i] - 1, mark = (char)(step * 16 + i);
            take(end, 1);
            ends = ends * 31 + (unsigned char)(step ? *end : 0);
            *end = mark;
            give(end);
            if ((step + i) % 2) CHECK(clEnqueueSVMMemFill(queue, end, &mark, 1, 1, 0, NULL, NULL));
        }
        unsigned turns = in_turn(fill, twice, buffer, image, lines, step), names = by_name(twice, words);
        printf("step %d: %08x %08x %08x %08x\n", step, tree, ends, turns, names);
        fflush(stdout);
        int gone = step * 3 % BLOCKS;
        char mark = 0;
        take(blocks[gone], sizes[gone]);
        mark = blocks[gone][sizes[gone] - 1];
        give(blocks[gone]);
        CHECK(clFinish(queue));
        clSVMFree(context, blocks[gone]);
        blocks[gone] = allocate(sizes[gone]);
        CHECK(clEnqueueSVMMemFill(queue, blocks[gone] + sizes[gone] - 1, &mark, 1, 1, 0, NULL, NULL));
    }
    CHECK(clFinish(queue));
    for (int i = 0; i < BLOCKS; i++) clSVMFree(context, blocks[i]);
    for (int i = 0; i < planted; i++) clSVMFree(context, nodes[i]);
    clSVMFree(context, words);
    CHECK(clReleaseMemObject(buffer)); CHECK(clReleaseMemObject(image)); CHECK(clReleaseMemObject(lines));
    CHECK(clReleaseKernel(add)); CHECK(clReleaseKernel(grow)); CHECK(clReleaseKernel(fill)); CHECK(clReleaseKernel(twice));
    CHECK(clReleaseKernel(meeting)); CHECK(clReleaseProgram(program));
    tear_down();
    return 0;
}
