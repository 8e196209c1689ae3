// Long random sequences of calls by several threads, out of a seed, which hold every result against what the program itself knows
// must come of them. Odd mixtures of calls are what it is about: commands of all kinds on objects of all kinds in queues of
// all kinds, most of it not waited for.
//
//     random_calls [FIRST [COUNT [STEPS]]]
//
// A line a seed: a digest of what was chosen and must have come of it. The same seed has the same line every time, and with every driver that has
// images and shared virtual memory; on others both are left out.
#include "kernels.h"

enum { LANES = 3, SEEDS = 2, STEPS = 120 };

// Commands that only order others.

static void op_marker(lane *l, rng *r) {
    command c = begin(l, r);
    object *o = pick(l, r, 0, RUNS | IMAGES);
    if (o) touch(&c, o, 0);
    c.wants = 1;
    if (chance(r, 50)) CHECK(clEnqueueBarrierWithWaitList(queue_of(&c), waits(&c), list(&c), wanted(&c)));
    else CHECK(clEnqueueMarkerWithWaitList(queue_of(&c), waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

static void op_migrate(lane *l, rng *r) {
    object *o = pick(l, r, 1, BUFFERS | IMAGES);
    if (!o) return;
    command c = begin(l, r);
    touch(&c, o, 1);
    CHECK(clEnqueueMigrateMemObjects(queue_of(&c), 1, &o->mem, chance(r, 30) ? CL_MIGRATE_MEM_OBJECT_HOST : 0, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

// Ways to know that a command has ended.

static cl_int status_of(cl_event event) {
    cl_int status;
    CHECK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    return status;
}

static void CL_CALLBACK raise_flag(cl_event event, cl_int status, void *flag) {
    (void)event;
    atomic_store((atomic_int *)flag, status == CL_COMPLETE ? 1 : 2);
}

static void by_callback(cl_event event) {
    atomic_int flag = 0;
    CHECK(clSetEventCallback(event, CL_COMPLETE, raise_flag, &flag));
    while (!flag) usleep(50);
    REQUIRE(flag == 1);
}

// A command that is waited for, behind the event.
static void by_command(lane *l, rng *r, cl_event event) {
    cl_int code;
    byte one = 0;
    cl_mem buffer = clCreateBuffer(l->context, CL_MEM_COPY_HOST_PTR, 1, "x", &code);
    CHECK(code);
    cl_command_queue queue = l->queues[below(r, QUEUES)];
    if (chance(r, 50)) {
        CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 1, &one, 1, &event, NULL));
        REQUIRE(one == 'x');
    } else {
        cl_map_flags flags = chance(r, 50) ? CL_MAP_READ : CL_MAP_WRITE_INVALIDATE_REGION;
        byte *at = clEnqueueMapBuffer(queue, buffer, CL_TRUE, flags, 0, 1, 1, &event, NULL, &code);
        CHECK(code);
        if (flags == CL_MAP_READ) REQUIRE(*at == 'x');
        else *at = 'y';
        CHECK(clEnqueueUnmapMemObject(queue, buffer, at, 0, NULL, NULL));
    }
    CHECK(clReleaseMemObject(buffer));
}

static void by_marker(lane *l, rng *r, cl_event event) {
    cl_event marker;
    CHECK(clEnqueueMarkerWithWaitList(l->queues[below(r, QUEUES)], 1, &event, &marker));
    CHECK(clWaitForEvents(1, &marker));
    CHECK(clReleaseEvent(marker));
}

static void op_know(lane *l, rng *r) {
    if (!l->checks || chance(r, 20)) {
        finish(l, (int)below(r, QUEUES));
        return;
    }
    check *c = l->checks;
    for (uint64_t skip = below(r, 4); skip && c->next; skip--) c = c->next;
    uint64_t way = below(r, 5);
    if (!c->event) {
        finish(l, c->queue);
        return;
    }
    if (way == 0) CHECK(clWaitForEvents(1, &c->event));
    else if (way == 1) {
        CHECK(clFlush(l->queues[c->queue]));
        while (status_of(c->event) != CL_COMPLETE) usleep(50);
    } else if (way == 2) by_callback(c->event);
    else if (way == 3) by_command(l, r, c->event);
    else by_marker(l, r, c->event);
    settle(l, is_one, c);
}

// What is told of an object.

static void ask_event(lane *l, const check *c) {
    cl_command_queue queue;
    cl_context of;
    cl_int before = status_of(c->event), after = status_of(c->event);
    REQUIRE(before >= after && after >= CL_COMPLETE && before <= CL_QUEUED);
    CHECK(clGetEventInfo(c->event, CL_EVENT_COMMAND_QUEUE, sizeof queue, &queue, NULL));
    CHECK(clGetEventInfo(c->event, CL_EVENT_CONTEXT, sizeof of, &of, NULL));
    REQUIRE(queue == l->queues[c->queue] && of == l->context);
    if (c->queue == 0 || after != CL_COMPLETE) return;
    cl_ulong times[4];
    for (cl_uint i = 0; i < 4; i++) CHECK(clGetEventProfilingInfo(c->event, CL_PROFILING_COMMAND_QUEUED + i, sizeof *times, &times[i], NULL));
    REQUIRE(times[0] <= times[1] && times[1] <= times[2] && times[2] <= times[3]);
}

static void ask_image(const object *o) {
    size_t element, width, height, array;
    cl_image_format format;
    CHECK(clGetImageInfo(o->mem, CL_IMAGE_FORMAT, sizeof format, &format, NULL));
    CHECK(clGetImageInfo(o->mem, CL_IMAGE_ELEMENT_SIZE, sizeof element, &element, NULL));
    CHECK(clGetImageInfo(o->mem, CL_IMAGE_WIDTH, sizeof width, &width, NULL));
    CHECK(clGetImageInfo(o->mem, CL_IMAGE_HEIGHT, sizeof height, &height, NULL));
    CHECK(clGetImageInfo(o->mem, CL_IMAGE_ARRAY_SIZE, sizeof array, &array, NULL));
    REQUIRE(!memcmp(&format, &o->format, sizeof format) && element == o->element && width == o->extent[0]);
    int lines = o->kind == CL_MEM_OBJECT_IMAGE1D_ARRAY, planes = o->kind == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    int flat = o->kind == CL_MEM_OBJECT_IMAGE1D || o->kind == CL_MEM_OBJECT_IMAGE1D_BUFFER;
    REQUIRE(height == (lines || flat ? 0 : o->extent[1]) && array == (lines ? o->extent[1] : planes ? o->extent[2] : 0));
}

static void ask_memory(lane *l, const object *o) {
    cl_mem_object_type type;
    cl_mem_flags flags;
    cl_context of;
    cl_mem whole;
    void *host;
    size_t size, offset;
    cl_uint count;
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_TYPE, sizeof type, &type, NULL));
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_FLAGS, sizeof flags, &flags, NULL));
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_CONTEXT, sizeof of, &of, NULL));
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof whole, &whole, NULL));
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_HOST_PTR, sizeof host, &host, NULL));
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_SIZE, sizeof size, &size, NULL));
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_OFFSET, sizeof offset, &offset, NULL));
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_MAP_COUNT, sizeof count, &count, NULL));
    REQUIRE(type == (o->form == IMAGE ? o->kind : CL_MEM_OBJECT_BUFFER) && of == l->context && offset == o->offset);
    REQUIRE(whole == (o->whole ? o->whole->mem : NULL) && (o->form == IMAGE || size == o->size));
    // Which of the flags of a whole its parts name, drivers see differently; NVIDIA's tells other flags and memory than it was given.
    if (!o->whole && !platform_says(CL_PLATFORM_NAME, "NVIDIA")) {
        REQUIRE(!((flags ^ o->flags) & ~(cl_mem_flags)CL_MEM_READ_WRITE) && host == o->host);
    }
    if (o->form == PART && root(o)->host) REQUIRE(host == root(o)->host + o->offset);
    // PoCL does not count those of parts.
    REQUIRE(o->whole || (int)count >= maps_of(o));
    if (o->form == IMAGE) ask_image(o);
}

// References that are taken and given back are counted.
static void retain(const object *o, rng *r) {
    cl_uint before, after, more = 1 + (cl_uint)below(r, 3);
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_REFERENCE_COUNT, sizeof before, &before, NULL));
    for (cl_uint i = 0; i < more; i++) CHECK(clRetainMemObject(o->mem));
    CHECK(clGetMemObjectInfo(o->mem, CL_MEM_REFERENCE_COUNT, sizeof after, &after, NULL));
    REQUIRE(before >= 1 && after >= more + 1);
    for (cl_uint i = 0; i < more; i++) CHECK(clReleaseMemObject(o->mem));
}

static void op_ask(lane *l, rng *r) {
    object *o = l->objects[below(r, POOL)];
    if (l->checks && l->checks->event) ask_event(l, l->checks);
    if (!o || o->form == SVM) return;
    ask_memory(l, o);
    if (chance(r, 30)) retain(o, r);
}

// The end of an object, while commands that have it may be under way.

static void CL_CALLBACK freed(cl_command_queue queue, cl_uint count, void *pointers[], void *of) {
    (void)queue;
    for (cl_uint i = 0; i < count; i++) clSVMFree(of, pointers[i]);
    atomic_fetch_add(&destructors_told, 1);
}

static void free_svm(lane *l, rng *r, object *o) {
    void *pointer = o->host;
    if (chance(r, 30)) {
        for (int i = 0; i < QUEUES; i++) finish(l, i);
        clSVMFree(l->context, pointer);
        return;
    }
    command c = begin(l, r);
    touch(&c, o, 1);
    int own = chance(r, 50);
    if (own) atomic_fetch_add(&destructors_due, 1);
    CHECK(clEnqueueSVMFree(queue_of(&c), 1, &pointer, own ? freed : NULL, own ? l->context : NULL, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

static void drop(lane *l, rng *r, object **place) {
    object *o = *place;
    if (o->form == SVM) free_svm(l, r, o);
    else CHECK(clReleaseMemObject(o->mem));
    *place = NULL;
    if (o->whole) {
        o->whole->parts--;
    } else {
        drop_dependencies(o);
        l->all -= o->size;
        free(o->shadow);
    }
    free(o);
}

static void op_release(lane *l, rng *r) {
    object **place = &l->objects[below(r, POOL)], *o = *place;
    if (!o || o->parts || maps_of(o)) return;
    drop(l, r, place);
}

// An object that all lanes have: who has the lock enqueues next, behind what others did.

typedef struct { object object; pthread_mutex_t lock; } common;

static common shared_by_all[2];

static void op_shared(lane *l, rng *r) {
    common *all = &shared_by_all[l->number % 2];
    object *o = &all->object, *own = l->objects[0];
    pthread_mutex_lock(&all->lock);
    l->objects[0] = o;
    rng same = {0};
    for (int i = 0; i < 2; i++) {
        // Only what takes the first object it sees, which is this one.
        same.state = next(r);
        object *objects[POOL];
        memcpy(objects, l->objects, sizeof objects);
        for (int k = 0; k < POOL; k++) l->objects[k] = o;
        uint64_t before = l->digest;
        uint64_t what = below(&same, 5);
        if (what == 0) op_write(l, &same);
        else if (what == 1) op_read(l, &same);
        else if (what == 2) op_fill(l, &same);
        else if (what == 3) op_mix(l, &same);
        else op_copy(l, &same);
        // What it holds depends on who came first.
        l->digest = before;
        memcpy(l->objects, objects, sizeof objects);
    }
    l->objects[0] = own;
    pthread_mutex_unlock(&all->lock);
}

// Commands that wait for an event that fails do not run, and say so.

static void op_failure(lane *l, rng *r) {
    cl_int code, reason = -1000 - (cl_int)below(r, 100);
    cl_command_queue queue = clCreateCommandQueue(l->context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    CHECK(code);
    cl_event gate = clCreateUserEvent(l->context, &code), first, second, third;
    CHECK(code);
    byte bytes[64], back[64];
    memset(bytes, 1, sizeof bytes), memset(back, 2, sizeof back);
    cl_mem buffer = clCreateBuffer(l->context, CL_MEM_COPY_HOST_PTR, sizeof bytes, bytes, &code);
    CHECK(code);
    CHECK(clEnqueueFillBuffer(queue, buffer, "\3", 1, 0, sizeof bytes, 1, &gate, &first));
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, sizeof back, back, 1, &first, &second));
    CHECK(clEnqueueMarkerWithWaitList(queue, 1, &second, &third));
    CHECK(clFlush(queue));
    CHECK(clSetUserEventStatus(gate, reason));
    REQUIRE(clWaitForEvents(1, &third) == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    REQUIRE(status_of(gate) == reason && status_of(first) < 0 && status_of(second) < 0 && status_of(third) < 0);
    for (size_t i = 0; i < sizeof back; i++) REQUIRE(back[i] == 2);
    cl_event all[] = {gate, first, second, third};
    for (int i = 0; i < 4; i++) CHECK(clReleaseEvent(all[i]));
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseCommandQueue(queue));
}

// A thread that comes for one thing and goes.

typedef struct { lane *of; uint64_t seed; } guest;

static void *visit(void *data) {
    guest *g = data;
    rng r = {g->seed};
    cl_int code;
    size_t size = sized(&r, 1 << 20);
    byte *from = malloc(size), *to = calloc(1, size);
    scribble(from, size, next(&r));
    cl_command_queue queue = clCreateCommandQueue(g->of->context, device, 0, &code);
    CHECK(code);
    cl_mem buffer = clCreateBuffer(g->of->context, CL_MEM_USE_HOST_PTR, size, from, &code);
    CHECK(code);
    byte *at = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, size, 0, NULL, NULL, &code);
    CHECK(code);
    REQUIRE(at == from);
    at[size / 2] ^= 1;
    CHECK(clEnqueueUnmapMemObject(queue, buffer, at, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, size, to, 0, NULL, NULL));
    at = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 0, size, 0, NULL, NULL, &code);
    CHECK(code);
    REQUIRE(memcmp(to, at, size) == 0);
    CHECK(clEnqueueUnmapMemObject(queue, buffer, at, 0, NULL, NULL));
    CHECK(clFinish(queue));
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseCommandQueue(queue));
    free(from), free(to), free(g);
    return NULL;
}

static void op_guest(lane *l, rng *r) {
    guest *g = malloc(sizeof *g);
    *g = (guest){l, next(r)};
    help(l, visit, g);
}

// What is wrong is refused, and changes nothing.
static void op_wrong(lane *l, rng *r) {
    object *o = pick(l, r, 1, BUFFERS);
    if (!o) return;
    byte word[8] = {0};
    cl_command_queue queue = l->queues[below(r, QUEUES)];
    REQUIRE(clEnqueueFillBuffer(queue, o->mem, word, 8, 0, o->size + 8 - o->size % 8, 0, NULL, NULL) == CL_INVALID_VALUE);
    REQUIRE(clEnqueueFillBuffer(queue, o->mem, word, 3, 0, 3, 0, NULL, NULL) == CL_INVALID_VALUE);
    cl_int read = clEnqueueReadBuffer(queue, o->mem, CL_FALSE, o->size, 1, word, 0, NULL, NULL);
    REQUIRE(read == CL_INVALID_VALUE || (!host_reads(o) && read == CL_INVALID_OPERATION));
    REQUIRE(clReleaseEvent(NULL) == CL_INVALID_EVENT);
    REQUIRE(clSetKernelArg(l->mix, 9, sizeof word, word) == CL_INVALID_ARG_INDEX);
    REQUIRE(clSetKernelArg(l->mix, 3, sizeof word, word) == CL_INVALID_ARG_SIZE);
}

static const struct { const char *name; int weight; void (*work)(lane *, rng *); } operations[] = {
    {"make", 12, op_make}, {"image", 8, op_make_image}, {"release", 6, op_release}, {"write", 12, op_write}, {"read", 14, op_read},
    {"copy", 8, op_copy}, {"fill", 6, op_fill}, {"rect", 8, op_rect}, {"map", 14, op_map}, {"unmap", 6, op_unmap}, {"pixels", 8, op_image},
    {"paint", 4, op_fill_image}, {"images", 4, op_copy_image}, {"across", 5, op_image_and_buffer}, {"mix", 10, op_mix}, {"join", 8, op_join},
    {"peek", 5, op_peek}, {"poke", 3, op_poke}, {"marker", 5, op_marker}, {"migrate", 3, op_migrate}, {"know", 12, op_know}, {"ask", 8, op_ask},
    {"shared", 6, op_shared}, {"failure", 2, op_failure}, {"guest", 3, op_guest}, {"wrong", 2, op_wrong}, {"program", 1, op_program}, {"context", 1, op_context}};

enum { OPERATIONS = sizeof operations / sizeof *operations };

static int one_of_all(rng *r) {
    int all = 0, at = 0;
    for (int i = 0; i < OPERATIONS; i++) all += operations[i].weight;
    for (int left = (int)below(r, (uint64_t)all); left >= operations[at].weight; at++) left -= operations[at].weight;
    return at;
}

// A lane's life.

static uint64_t steps;
static cl_context contexts[2];
static cl_program programs[2];

static void open_lane(lane *l, uint64_t seed, int number) {
    cl_int code;
    cl_command_queue_properties orders[QUEUES] = {0, CL_QUEUE_PROFILING_ENABLE, CL_QUEUE_PROFILING_ENABLE | CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE};
    *l = (lane){.number = number, .choices = {seed * 1000 + (uint64_t)number}, .digest = 0xcbf29ce484222325u};
    l->context = contexts[number % 2], l->program = programs[number % 2];
    l->mix = kernel_of(l->program, "salted"), l->join = kernel_of(l->program, "joined");
    cl_sampler_properties list[] = {CL_SAMPLER_NORMALIZED_COORDS, CL_FALSE, CL_SAMPLER_ADDRESSING_MODE, CL_ADDRESS_CLAMP, CL_SAMPLER_FILTER_MODE, CL_FILTER_NEAREST, 0};
    if (has_images) {
        l->samplers[0] = clCreateSampler(l->context, CL_FALSE, CL_ADDRESS_CLAMP_TO_EDGE, CL_FILTER_NEAREST, &code);
        CHECK(code);
        l->samplers[1] = clCreateSamplerWithProperties(l->context, list, &code);
        CHECK(code);
    }
    for (int i = 0; i < QUEUES; i++) {
        l->queues[i] = clCreateCommandQueue(l->context, device, orders[i], &code);
        CHECK(code);
    }
}

// All that is left is looked at and given up; what others still wait for of this lane is over.
static void close_lane(lane *l) {
    rng r = {l->digest};
    for (int i = 0; i < POOL; i++) {
        object *o = l->objects[i];
        while (o && maps_of(o)) {
            look_at(l, o, &o->maps[0]);
            op_unmap_of(l, &r, o, 0);
        }
    }
    for (int i = 0; i < POOL; i++)
        if (l->objects[i]) digest_of(l, l->objects[i]->shadow, l->objects[i]->size);
    for (int wholes = 0; wholes < 2; wholes++)
        for (int i = 0; i < POOL; i++)
            if (l->objects[i] && (wholes || l->objects[i]->whole)) drop(l, &r, &l->objects[i]);
    common *all = &shared_by_all[l->number % 2];
    pthread_mutex_lock(&all->lock);
    for (int i = 0; i < QUEUES; i++) finish(l, i);
    object *o = &all->object;
    for (int i = o->count - 1; i >= 0; i--) {
        int own = 0;
        for (int k = 0; k < QUEUES; k++) own |= o->dependencies[i].queue == l->queues[k];
        if (!own) continue;
        if (o->dependencies[i].event) CHECK(clReleaseEvent(o->dependencies[i].event));
        o->dependencies[i] = o->dependencies[--o->count];
    }
    pthread_mutex_unlock(&all->lock);
    REQUIRE(!l->checks);
    for (int i = 0; i < QUEUES; i++) CHECK(clReleaseCommandQueue(l->queues[i]));
    while (l->helping) pthread_join(l->helpers[--l->helping], NULL);
    for (int i = 0; i < 2 && has_images; i++) CHECK(clReleaseSampler(l->samplers[i]));
    CHECK(clReleaseKernel(l->mix));
    CHECK(clReleaseKernel(l->join));
}

static void *live(void *data) {
    lane *l = data;
    int traced = getenv("RANDOM_CALLS_TRACE") != NULL;
    for (uint64_t step = 0; step < steps; step++) {
        int what = one_of_all(&l->choices);
        rng r = {next(&l->choices)};
        l->step = step, l->what = operations[what].name;
        digest(l, (uint64_t)what);
        if (traced) fprintf(stderr, "%d.%lu %s\n", l->number, (unsigned long)step, l->what);
        operations[what].work(l, &r);
    }
    close_lane(l);
    return NULL;
}

static void open_shared(int number) {
    common *all = &shared_by_all[number];
    *all = (common){.object = {.form = BUFFER, .size = 300000, .shadow = calloc(1, 300000)}};
    pthread_mutex_init(&all->lock, NULL);
    cl_int code;
    all->object.mem = clCreateBuffer(contexts[number], CL_MEM_COPY_HOST_PTR, all->object.size, all->object.shadow, &code);
    CHECK(code);
}

static void close_shared(int number) {
    common *all = &shared_by_all[number];
    REQUIRE(all->object.count == 0);
    CHECK(clReleaseMemObject(all->object.mem));
    free(all->object.shadow);
    pthread_mutex_destroy(&all->lock);
}

static void one_seed(uint64_t seed) {
    static lane lanes[LANES];
    pthread_t threads[LANES];
    for (int i = 0; i < 2; i++) open_shared(i);
    for (int i = 0; i < LANES; i++) open_lane(&lanes[i], seed, i);
    for (int i = 0; i < LANES; i++) REQUIRE(pthread_create(&threads[i], NULL, live, &lanes[i]) == 0);
    uint64_t sum = seed;
    for (int i = 0; i < LANES; i++) {
        pthread_join(threads[i], NULL);
        sum = sum * 31 + lanes[i].digest;
    }
    for (int i = 0; i < 2; i++) close_shared(i);
    for (int i = 0; callbacks_told != callbacks_due || destructors_told != destructors_due; i++) {
        if (i == 600000) printf("%d of %d callbacks of events, %d of %d of objects\n", callbacks_told, callbacks_due, destructors_told, destructors_due);
        REQUIRE(i < 600000);
        usleep(100);
    }
    printf("seed %lu, %lu steps: %016lx\n", (unsigned long)seed, (unsigned long)steps, (unsigned long)sum);
    fflush(stdout);
}

static void ask_device(void) {
    cl_uint bits;
    cl_device_svm_capabilities can = 0;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, NULL));
    CHECK(clGetDeviceInfo(device, CL_DEVICE_IMAGE_SUPPORT, sizeof has_images, &has_images, NULL));
    REQUIRE(bits / 8 <= ALIGNMENT);
    takes_turns = !platform_says(CL_PLATFORM_NAME, "NVIDIA");
    has_svm = clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof can, &can, NULL) == CL_SUCCESS && can & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER;
}

int main(int count, char **arguments) {
    uint64_t first = count > 1 ? strtoull(arguments[1], NULL, 0) : 1, seeds = count > 2 ? strtoull(arguments[2], NULL, 0) : SEEDS;
    cl_int code;
    steps = count > 3 ? strtoull(arguments[3], NULL, 0) : STEPS;
    set_up(0);
    ask_device();
    contexts[0] = context;
    contexts[1] = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    CHECK(code);
    for (int i = 0; i < 2; i++) {
        context = contexts[i];
        programs[i] = build(main_source, "");
        if (has_images) image_program[i] = build(image_source, "");
    }
    context = contexts[0];
    for (uint64_t seed = first; seed < first + seeds; seed++) one_seed(seed);
    for (int i = 0; i < 2; i++) {
        CHECK(clReleaseProgram(programs[i]));
        if (has_images) CHECK(clReleaseProgram(image_program[i]));
    }
    for (int i = 0; i < parts_used; i++) CHECK(clReleaseDevice(parts_in_use[i]));
    CHECK(clReleaseContext(contexts[1]));
    tear_down();
    return 0;
}
