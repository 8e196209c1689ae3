// Objects made of others, used and released in any order: parts of devices, contexts, queues, buffers and parts of them, images,
// samplers, programs, kernels, events, shared virtual memory. Sequences are drawn from seeds; what is read is checked.
#include "check.h"

enum { SLOTS = 96, STEPS = 400, N = 64, ROUNDS = 40, SEEDS = 4 };

static unsigned long long state;
static unsigned draw(unsigned below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (unsigned)(state >> 11) % below;
}

// PoCL lets a part of a device go before the last queue on it, and then uses it: natively the parts are released last.
static int is_katydid;

typedef enum { NONE, PART, CONTEXT, QUEUE, BUFFER, PIECE, IMAGE, SAMPLER, PROGRAM, KERNEL, EVENT, USER, SHARED, KINDS } kind;

// An object, and what it was made of: slots, whose handles may be released by now. `of` says in which context of ours it is.
typedef struct {
    kind is;
    void *handle;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    unsigned of;
} object;

static object slots[SLOTS];
static unsigned contexts_made, counts[KINDS];

static void release(object *at) {
    switch (at->is) {
    case PART: CHECK(clReleaseDevice(at->handle)); break;
    case CONTEXT: CHECK(clReleaseContext(at->handle)); break;
    case QUEUE: CHECK(clReleaseCommandQueue(at->handle)); break;
    case BUFFER: case PIECE: case IMAGE: CHECK(clReleaseMemObject(at->handle)); break;
    case SAMPLER: CHECK(clReleaseSampler(at->handle)); break;
    case PROGRAM: CHECK(clReleaseProgram(at->handle)); break;
    case KERNEL: CHECK(clReleaseKernel(at->handle)); break;
    case USER: CHECK(clSetUserEventStatus(at->handle, CL_COMPLETE)); // fall through
    case EVENT: CHECK(clReleaseEvent(at->handle)); break;
    case SHARED: clSVMFree(at->context, at->handle); break;
    default: break;
    }
    at->is = NONE;
}

// A live object of a kind; of a context, unless that is 0.
static object *any(kind is, unsigned of) {
    unsigned from = draw(SLOTS);
    for (unsigned i = 0; i < SLOTS; i++) {
        object *at = &slots[(from + i) % SLOTS];
        if (at->is == is && (of == 0 || at->of == of)) return at;
    }
    return NULL;
}

static object *vacant(void) {
    for (unsigned i = 0; i < SLOTS; i++) if (slots[i].is == NONE) return &slots[i];
    // Room is made by a release, whatever it hits; a part only where that is safe natively too.
    object *at;
    do at = &slots[draw(SLOTS)]; while (at->is == PART && !is_katydid);
    if (at->is == CONTEXT && any(SHARED, at->of)) at = any(SHARED, at->of);
    release(at);
    return at;
}

static void keep(kind is, void *handle, object like) {
    object *at = vacant();
    *at = like, at->is = is, at->handle = handle, counts[is]++;
}

static void part(void) {
    cl_device_partition_property one[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    cl_device_id made;
    cl_uint count;
    // Devices without parts, such as GPUs, have none.
    if (clCreateSubDevices(device, one, 1, &made, &count) == CL_SUCCESS) keep(PART, made, (object){.device = made});
}

static void context_on(void) {
    cl_int code;
    object *on = draw(3) ? any(PART, 0) : NULL;
    cl_device_id list[] = {on ? on->handle : device, device};
    cl_context made = clCreateContext(NULL, on && draw(2) ? 2 : 1, list, NULL, NULL, &code);
    CHECK(code);
    keep(CONTEXT, made, (object){.device = list[0], .context = made, .of = ++contexts_made});
}

static const char *source = "__kernel void turn(__global uint *v, uint salt) { size_t i = get_global_id(0); v[i] = i * 3 + salt; }\n";

// One object made of a live context, or of what is in it.
static void in_context(void) {
    object *found = any(CONTEXT, 0);
    if (!found) return context_on();
    object of = *found, *other;
    cl_int code;
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc plane = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 8, .image_height = 8};
    cl_bool has_images = CL_FALSE;
    cl_device_svm_capabilities svm = 0;
    void *made;
    switch (draw(11)) {
    case 0: case 1: case 2:
        made = clCreateCommandQueue(of.context, of.device, draw(2) ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &code);
        // Devices may have no queues without order.
        if (code == CL_INVALID_QUEUE_PROPERTIES) made = clCreateCommandQueue(of.context, of.device, 0, &code);
        CHECK(code);
        of.queue = made;
        return keep(QUEUE, made, of);
    case 3: case 4:
        made = clCreateBuffer(of.context, draw(2) ? CL_MEM_READ_WRITE : CL_MEM_ALLOC_HOST_PTR, 4096, NULL, &code);
        CHECK(code);
        return keep(BUFFER, made, of);
    case 5:
        if (!(other = any(BUFFER, of.of))) return;
        made = clCreateSubBuffer(other->handle, 0, CL_BUFFER_CREATE_TYPE_REGION, &(cl_buffer_region){0, 4 * N}, &code);
        CHECK(code);
        return keep(PIECE, made, of);
    case 6:
        CHECK(clGetDeviceInfo(of.device, CL_DEVICE_IMAGE_SUPPORT, sizeof has_images, &has_images, NULL));
        if (!has_images) return;
        made = clCreateImage(of.context, 0, &format, &plane, NULL, &code);
        CHECK(code);
        return keep(IMAGE, made, of);
    case 7:
        CHECK(clGetDeviceInfo(of.device, CL_DEVICE_IMAGE_SUPPORT, sizeof has_images, &has_images, NULL));
        if (!has_images) return;
        made = clCreateSampler(of.context, CL_TRUE, CL_ADDRESS_REPEAT, CL_FILTER_NEAREST, &code);
        CHECK(code);
        return keep(SAMPLER, made, of);
    case 8:
        made = clCreateProgramWithSource(of.context, 1, &source, NULL, &code);
        CHECK(code);
        return keep(PROGRAM, made, of);
    case 9:
        made = clCreateUserEvent(of.context, &code);
        CHECK(code);
        return keep(USER, made, of);
    default:
        if (clGetDeviceInfo(of.device, CL_DEVICE_SVM_CAPABILITIES, sizeof svm, &svm, NULL) || !svm) return;
        if ((made = clSVMAlloc(of.context, CL_MEM_READ_WRITE, 4096, 0))) keep(SHARED, made, of);
    }
}

// Commands of a live queue; the event of the last is kept, and what was read is as it was written.
static void command(void) {
    object *found = any(QUEUE, 0), *memory;
    if (!found) return in_context();
    object on = *found;
    cl_event event;
    unsigned written[N], read[N] = {0};
    for (unsigned i = 0; i < N; i++) written[i] = draw(1 << 20);
    memory = any(draw(2) ? BUFFER : PIECE, on.of);
    if (!memory || draw(4) == 0) {
        CHECK(clEnqueueMarkerWithWaitList(on.queue, 0, NULL, &event));
    } else {
        CHECK(clEnqueueWriteBuffer(on.queue, memory->handle, CL_TRUE, 0, sizeof written, written, 0, NULL, NULL));
        CHECK(clEnqueueReadBuffer(on.queue, memory->handle, CL_TRUE, 0, sizeof read, read, 0, NULL, &event));
        REQUIRE(memcmp(written, read, sizeof read) == 0);
    }
    if (draw(2)) CHECK(clFlush(on.queue));
    if (draw(8) == 0) CHECK(clFinish(on.queue));
    keep(EVENT, event, on);
}

// A kernel of a program whose handle, and that of its context, may be gone before it is launched.
static void launched(void) {
    cl_int code;
    context_on();
    object *of = any(CONTEXT, contexts_made);
    object in = *of;
    size_t items = N;
    unsigned salt = draw(1000), read[N];
    cl_program program = clCreateProgramWithSource(in.context, 1, &source, NULL, &code);
    CHECK(code);
    CHECK(clBuildProgram(program, 0, NULL, "", NULL, NULL));
    cl_kernel kernel = clCreateKernel(program, "turn", &code);
    CHECK(code);
    CHECK(clReleaseProgram(program));
    cl_mem buffer = clCreateBuffer(in.context, 0, sizeof read, NULL, &code);
    CHECK(code);
    cl_command_queue on = clCreateCommandQueue(in.context, in.device, 0, &code);
    CHECK(code);
    of->is = NONE;
    CHECK(clReleaseContext(in.context));
    cl_kernel clone = clCloneKernel(kernel, &code);
    // Drivers before 2.1 have no clones.
    if (code == CL_SUCCESS) {
        CHECK(clReleaseKernel(kernel));
        kernel = clone;
    }
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    CHECK(clSetKernelArg(kernel, 1, sizeof salt, &salt));
    cl_event event;
    CHECK(clEnqueueNDRangeKernel(on, kernel, 1, NULL, &items, NULL, 0, NULL, &event));
    CHECK(clReleaseKernel(kernel));
    CHECK(clEnqueueReadBuffer(on, buffer, CL_TRUE, 0, sizeof read, read, 0, NULL, NULL));
    for (unsigned i = 0; i < N; i++) REQUIRE(read[i] == i * 3 + salt);
    CHECK(clReleaseCommandQueue(on));
    CHECK(clReleaseMemObject(buffer));
    cl_int status;
    CHECK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    REQUIRE(status == CL_COMPLETE);
    CHECK(clReleaseEvent(event));
}

static void one_seed(unsigned seed) {
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    memset(counts, 0, sizeof counts);
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned what = draw(20);
        if (what < 1) part();
        else if (what < 2) context_on();
        else if (what < 8) in_context();
        else if (what < 14) command();
        else {
            object *at = &slots[draw(SLOTS)];
            if (at->is == CONTEXT && any(SHARED, at->of)) continue;
            if (at->is != PART || is_katydid) release(at);
        }
    }
    launched();
    // What is left goes in any order, but that memory is freed in a context that is there.
    for (unsigned i = 0; i < SLOTS; i++) if (slots[i].is == SHARED) release(&slots[i]);
    for (unsigned left = SLOTS; left > 0; left--) {
        object *at = &slots[draw(SLOTS)];
        if (at->is != PART || is_katydid) release(at);
    }
    for (unsigned i = 0; i < SLOTS; i++) if (slots[i].is != PART) release(&slots[i]);
    for (unsigned i = 0; i < SLOTS; i++) release(&slots[i]);
    for (kind is = CONTEXT; is < KINDS; is++) if (is != IMAGE && is != SAMPLER && is != SHARED && is != KERNEL) REQUIRE(counts[is] > 0);
    printf("seed %u: well\n", seed);
}

// A part of a device, with a queue that is released before what it was made of, or after.
static void one_round(unsigned round) {
    cl_int code;
    cl_device_partition_property one[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    cl_device_id on;
    if (clCreateSubDevices(device, one, 1, &on, NULL) != CL_SUCCESS) on = device;
    cl_context in = clCreateContext(NULL, 1, &on, NULL, NULL, &code);
    CHECK(code);
    cl_command_queue made = clCreateCommandQueue(in, on, 0, &code);
    CHECK(code);
    cl_mem buffer = clCreateBuffer(in, 0, 64, NULL, &code);
    CHECK(code);
    int value = (int)round, read = 0;
    cl_event event;
    CHECK(clEnqueueWriteBuffer(made, buffer, CL_FALSE, 0, sizeof value, &value, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(made, buffer, CL_TRUE, 0, sizeof read, &read, 0, NULL, &event));
    REQUIRE(read == value);
    int device_first = is_katydid && round % 2;
    if (device_first) {
        CHECK(clReleaseDevice(on));
        CHECK(clReleaseContext(in));
    }
    if (round % 4 < 2) CHECK(clReleaseEvent(event));
    CHECK(clReleaseCommandQueue(made));
    CHECK(clReleaseMemObject(buffer));
    if (round % 4 >= 2) CHECK(clReleaseEvent(event));
    if (!device_first) {
        CHECK(clReleaseContext(in));
        CHECK(clReleaseDevice(on));
    }
}

int main(int argc, char **argv) {
    set_up(0);
    is_katydid = platform_says(CL_PLATFORM_VERSION, "Katydid");
    for (unsigned round = 0; round < ROUNDS; round++) one_round(round);
    printf("%d rounds: well\n", ROUNDS);
    unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : 1, count = argc > 2 ? (unsigned)atoi(argv[2]) : SEEDS;
    for (unsigned seed = first; seed < first + count; seed++) one_seed(seed);
    tear_down();
    return 0;
}
