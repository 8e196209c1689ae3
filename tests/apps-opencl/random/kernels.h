// Kernels with arguments of every kind, and programs made in every way.
#pragma once
#include "maps.h"

static const char *main_source =
    "typedef struct { uchar add; uint times; ulong from; } how;\n"
    "#define EACH(i, n) for (ulong i = get_global_id(0) - get_global_offset(0); i < n; i += get_global_size(0))\n"
    "__kernel void salted(__global uchar *v, ulong from, ulong n, uint salt) { EACH(i, n) v[from + i] = v[from + i] * 5 + salt + i; }\n"
    "__kernel void joined(__global uchar *to, __global const uchar *from, how h, ulong n, __constant uchar *table, __local uchar *room,\n"
    "                   __global uchar *none) {\n"
    "    size_t l = get_local_id(0);\n"
    "    room[l] = table[l];\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    EACH(i, n) to[h.from + i] = from[i] * h.times + h.add + room[i % get_local_size(0)] + (none ? 1 : 0);\n"
    "}\n";

// Of images: what a sampler makes of elements; and a box written.
static const char *image_source =
    "#define PEEK(name, type, at) __kernel void name(__read_only type image, sampler_t how, __global uint4 *out, int4 from, int4 size) {\\\n"
    "    int4 p = from + (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);\\\n"
    "    out[(get_global_id(2) * size.y + get_global_id(1)) * size.x + get_global_id(0)] = read_imageui(image, how, at);\\\n"
    "}\n"
    "PEEK(peek2, image2d_t, p.xy)\n"
    "PEEK(peek3, image3d_t, p)\n"
    "PEEK(peek2s, image2d_array_t, p)\n"
    "__kernel void poke(__write_only image2d_t image, int2 from, uint4 color) {\n"
    "    int2 p = (int2)(get_global_id(0), get_global_id(1));\n"
    "    write_imageui(image, from + p, color + (uint4)(p.x, p.y, p.x + p.y, 0));\n"
    "}\n";

enum { GROUP = 32, ITEMS = 256 };

typedef struct { byte add; cl_uint times; cl_ulong from; } how;

static void enqueue(command *c, cl_kernel kernel, size_t offset) {
    size_t items = ITEMS, group = GROUP;
    CHECK(clEnqueueNDRangeKernel(queue_of(c), kernel, 1, offset ? &offset : NULL, &items, &group, waits(c), list(c), wanted(c)));
}

static void set_memory(cl_kernel kernel, cl_uint index, object *o, size_t at) {
    if (o->form == SVM) CHECK(clSetKernelArgSVMPointer(kernel, index, o->host + at));
    else CHECK(clSetKernelArg(kernel, index, sizeof o->mem, &o->mem));
}

// Whether a kernel may have a pointer and an object in turns in one place: NVIDIA's driver (580) launches none with an object that
// had a pointer there.
static int takes_turns;

// The lane's kernel, or a new one of the same; a reference of it is the caller's.
static cl_kernel some_kernel(lane *l, rng *r, cl_kernel usual, const char *name) {
    if (chance(r, 12) || !takes_turns) return kernel_of(l->program, name);
    CHECK(clRetainKernel(usual));
    return usual;
}

static void op_mix(lane *l, rng *r) {
    object *o = pick(l, r, 1, RUNS);
    if (!o) return;
    range part = some_range(r, o);
    if (part.size > 1 << 20) part.size = 1 << 20;
    cl_uint salt = (cl_uint)next(r);
    for (size_t i = 0; i < part.size; i++) part.shadow[i] = (byte)(part.shadow[i] * 5 + salt + i);
    digest_of(l, part.shadow, part.size);
    cl_kernel kernel = some_kernel(l, r, l->mix, "salted");
    int inside = o->form == SVM && chance(r, 50);
    cl_ulong from = inside ? 0 : part.at, n = part.size;
    set_memory(kernel, 0, o, inside ? part.at : 0);
    CHECK(clSetKernelArg(kernel, 1, sizeof from, &from));
    CHECK(clSetKernelArg(kernel, 2, sizeof n, &n));
    CHECK(clSetKernelArg(kernel, 3, sizeof salt, &salt));
    if (o->form == SVM && chance(r, 50)) CHECK(clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof o->host, &o->host));
    cl_int code = CL_SUCCESS;
    cl_kernel clone = chance(r, 15) ? clCloneKernel(kernel, &code) : NULL;
    if (clone) {
        // The clone keeps what its source loses.
        cl_ulong nothing = 0;
        CHECK(clSetKernelArg(kernel, 2, sizeof nothing, &nothing));
    }
    command c = begin(l, r);
    touch(&c, o, 1);
    enqueue(&c, clone ? clone : kernel, chance(r, 20) ? 7 : 0);
    end(&c, 0, NULL);
    if (clone) CHECK(clReleaseKernel(clone));
    CHECK(clReleaseKernel(kernel));
}

static void op_join(lane *l, rng *r) {
    object *to = pick(l, r, 1, RUNS), *from = pick(l, r, 0, RUNS), *table = pick(l, r, 0, BUFFERS);
    if (!to || !from || !table || table->size < GROUP || root(to) == root(from) || root(to) == root(table)) return;
    size_t n = sized(r, to->size < from->size ? to->size : from->size);
    if (n > 1 << 20) n = 1 << 20;
    how h = {(byte)next(r), (cl_uint)next(r), below(r, to->size - n + 1)};
    for (size_t i = 0; i < n; i++) to->shadow[h.from + i] = (byte)(from->shadow[i] * h.times + h.add + table->shadow[i % GROUP]);
    digest_of(l, to->shadow + h.from, n);
    cl_kernel kernel = some_kernel(l, r, l->join, "joined");
    cl_ulong count = n;
    set_memory(kernel, 0, to, 0), set_memory(kernel, 1, from, 0), set_memory(kernel, 4, table, 0);
    CHECK(clSetKernelArg(kernel, 2, sizeof h, &h));
    CHECK(clSetKernelArg(kernel, 3, sizeof count, &count));
    CHECK(clSetKernelArg(kernel, 5, GROUP, NULL));
    cl_mem none = NULL;
    CHECK(clSetKernelArg(kernel, 6, sizeof none, chance(r, 50) ? NULL : &none));
    command c = begin(l, r);
    touch(&c, from, 0), touch(&c, table, 0), touch(&c, to, 1);
    enqueue(&c, kernel, 0);
    end(&c, 0, NULL);
    CHECK(clReleaseKernel(kernel));
}

// What a sampler makes of an element.
static void sampled(const object *o, const size_t *at, cl_uint *color) {
    size_t width = bytes_of(o->format.image_channel_data_type);
    memset(color, 0, 16);
    for (size_t i = 0; i < 4; i++) memcpy(&color[i], texel(o, at[0], at[1], at[2]) + i * width, width);
}

static cl_program image_program[2];

static void op_peek(lane *l, rng *r) {
    object *o = pick(l, r, 0, IMAGES);
    const char *name = !o ? NULL : o->kind == CL_MEM_OBJECT_IMAGE2D ? "peek2" : o->kind == CL_MEM_OBJECT_IMAGE3D ? "peek3" : o->kind == CL_MEM_OBJECT_IMAGE2D_ARRAY ? "peek2s" : NULL;
    // What the channels hold that an image does not have, PoCL does not say as the standard does.
    if (!name || o->format.image_channel_order != CL_RGBA) return;
    // Of elements outside PoCL says other things at times than the standard.
    if (o->extent[0] < 8 || o->extent[1] < 4) return;
    // PoCL lets go of a sampler that commands still have, so the lane keeps it.
    cl_sampler sampler = l->samplers[below(r, 2)];
    CHECK(clRetainSampler(sampler));
    cl_int size[4] = {8, 4, 1, 0}, from[4] = {0}, code;
    for (int i = 0; i < 3; i++) from[i] = (cl_int)below(r, o->extent[i] - (i == 0 ? 7 : i == 1 ? 3 : 0));
    size_t items[3] = {8, 4, 1}, bytes = 8 * 4 * 16;
    cl_mem out = clCreateBuffer(l->context, CL_MEM_WRITE_ONLY, bytes, NULL, &code);
    CHECK(code);
    cl_kernel kernel = kernel_of(image_program[l->number % 2], name);
    CHECK(clSetKernelArg(kernel, 0, sizeof o->mem, &o->mem));
    CHECK(clSetKernelArg(kernel, 1, sizeof sampler, &sampler));
    CHECK(clSetKernelArg(kernel, 2, sizeof out, &out));
    CHECK(clSetKernelArg(kernel, 3, sizeof from, from));
    CHECK(clSetKernelArg(kernel, 4, sizeof size, size));
    command c = begin(l, r);
    c.wants = 1;
    touch(&c, o, 0);
    CHECK(clEnqueueNDRangeKernel(queue_of(&c), kernel, 3, NULL, items, NULL, waits(&c), list(&c), wanted(&c)));
    cl_event ran = c.event;
    CHECK(clRetainEvent(ran));
    end(&c, 0, NULL);
    // Released before it has run.
    CHECK(clReleaseKernel(kernel));
    CHECK(clReleaseSampler(sampler));
    check *host = expect(l, bytes);
    for (size_t y = 0; y < 4; y++)
        for (size_t x = 0; x < 8; x++) {
            size_t at[3] = {(size_t)from[0] + x, (size_t)from[1] + y, (size_t)from[2]};
            sampled(o, at, (cl_uint *)host->wanted + (y * 8 + x) * 4);
        }
    digest_of(l, host->wanted, bytes);
    command read = begin(l, r);
    read.waits[read.count++] = ran;
    CHECK(clEnqueueReadBuffer(queue_of(&read), out, CL_FALSE, 0, bytes, host->block + GUARD, waits(&read), list(&read), wanted(&read)));
    end(&read, 0, host);
    CHECK(clReleaseMemObject(out));
}

static void op_poke(lane *l, rng *r) {
    object *o = pick(l, r, 1, IMAGES);
    if (!o || o->kind != CL_MEM_OBJECT_IMAGE2D || o->extent[0] < 4 || o->extent[1] < 4) return;
    cl_int from[2] = {(cl_int)below(r, o->extent[0] - 3), (cl_int)below(r, o->extent[1] - 3)};
    size_t items[2] = {4, 4}, width = bytes_of(o->format.image_channel_data_type);
    cl_uint color[4];
    for (int i = 0; i < 4; i++) color[i] = (cl_uint)below(r, 200);
    for (cl_uint y = 0; y < 4; y++)
        for (cl_uint x = 0; x < 4; x++) {
            cl_uint that[4] = {color[0] + x, color[1] + y, color[2] + x + y, color[3]};
            for (size_t i = 0; i < o->element / width; i++) memcpy(texel(o, (size_t)from[0] + x, (size_t)from[1] + y, 0) + i * width, &that[i], width);
        }
    cl_kernel kernel = kernel_of(image_program[l->number % 2], "poke");
    CHECK(clSetKernelArg(kernel, 0, sizeof o->mem, &o->mem));
    CHECK(clSetKernelArg(kernel, 1, sizeof from, from));
    CHECK(clSetKernelArg(kernel, 2, sizeof color, color));
    command c = begin(l, r);
    touch(&c, o, 1);
    CHECK(clEnqueueNDRangeKernel(queue_of(&c), kernel, 2, NULL, items, NULL, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
    CHECK(clReleaseKernel(kernel));
}

// Programs.

static const char *tiny = "#include \"salt.h\"\n__kernel void tiny(__global uint *v) { v[get_global_id(0)] = v[get_global_id(0)] * 3 + SALT + stir(MORE); }\n";
static const char *tiny_whole = "uint stir(uint a) { return a ^ 0x55; }\n__kernel void tiny(__global uint *v) { v[get_global_id(0)] = v[get_global_id(0)] * 3 + SALT + stir(MORE); }\n";
static const char *stir = "uint stir(uint a) { return a ^ 0x55; }\n";

static cl_program of_source(cl_context context, const char *text) {
    cl_int code;
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &code);
    CHECK(code);
    return program;
}

static void CL_CALLBACK built(cl_program program, void *flag) {
    (void)program;
    atomic_store((atomic_int *)flag, 1);
}

static cl_program compiled_and_linked(cl_context context, cl_device_id on, cl_uint salt, const char *options) {
    char text[128];
    const char *name = "salt.h";
    cl_int code;
    snprintf(text, sizeof text, "#define SALT %uu\nuint stir(uint a);\n", salt);
    cl_program header = of_source(context, text), parts[2] = {of_source(context, tiny), of_source(context, stir)};
    CHECK(clCompileProgram(parts[0], 1, &on, options, 1, &header, &name, NULL, NULL));
    CHECK(clReleaseProgram(header));
    CHECK(clCompileProgram(parts[1], 1, &on, NULL, 0, NULL, NULL, NULL, NULL));
    cl_program program = clLinkProgram(context, 1, &on, NULL, 2, parts, NULL, NULL, &code);
    CHECK(code);
    CHECK(clReleaseProgram(parts[0]));
    CHECK(clReleaseProgram(parts[1]));
    return program;
}

static cl_program of_binary(cl_context context, cl_device_id on, cl_program from) {
    size_t size = 0;
    cl_int code, status;
    CHECK(clGetProgramInfo(from, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL));
    byte *binary = malloc(size);
    CHECK(clGetProgramInfo(from, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL));
    CHECK(clReleaseProgram(from));
    cl_program program = clCreateProgramWithBinary(context, 1, &on, &size, (const byte **)&binary, &status, &code);
    CHECK(code);
    CHECK(status);
    free(binary);
    CHECK(clBuildProgram(program, 1, &on, NULL, NULL, NULL));
    return program;
}

static cl_program some_program(cl_context context, cl_device_id on, rng *r, cl_uint salt, cl_uint more) {
    char options[64];
    uint64_t way = below(r, 4);
    snprintf(options, sizeof options, "-DMORE=%uu%s", more, chance(r, 30) ? " -cl-opt-disable" : "");
    if (way == 0) return compiled_and_linked(context, on, salt, options);
    snprintf(options + strlen(options), sizeof options - strlen(options), " -DSALT=%uu", salt);
    cl_program program = of_source(context, tiny_whole);
    atomic_int flag = 0;
    if (way == 1) CHECK(clBuildProgram(program, 1, &on, options, built, &flag));
    else CHECK(clBuildProgram(program, 0, NULL, options, NULL, NULL));
    while (way == 1 && !flag) usleep(200);
    cl_build_status status;
    CHECK(clGetProgramBuildInfo(program, on, CL_PROGRAM_BUILD_STATUS, sizeof status, &status, NULL));
    REQUIRE(status == CL_BUILD_SUCCESS);
    return way == 2 ? of_binary(context, on, program) : program;
}

// A program, its kernel and a buffer in a context, used in a queue; all released as early as the standard lets them be.
static void use_program(lane *l, rng *r, cl_context context, cl_device_id on, cl_command_queue queue) {
    cl_uint salt = (cl_uint)next(r), more = (cl_uint)below(r, 1000), values[GROUP], wanted[GROUP];
    cl_int code;
    size_t items = GROUP;
    cl_program program = some_program(context, on, r, salt, more);
    cl_kernel kernel = kernel_of(program, "tiny");
    cl_program of;
    cl_uint arguments;
    CHECK(clReleaseProgram(program));
    CHECK(clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof of, &of, NULL));
    CHECK(clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof arguments, &arguments, NULL));
    REQUIRE(of == program && arguments == 1);
    for (int i = 0; i < GROUP; i++) values[i] = (cl_uint)next(r), wanted[i] = values[i] * 3 + salt + (more ^ 0x55);
    cl_mem buffer = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof values, values, &code);
    CHECK(code);
    memset(values, 0, sizeof values);
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, &items, 0, NULL, NULL));
    CHECK(clReleaseKernel(kernel));
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, sizeof values, values, 0, NULL, NULL));
    CHECK(clReleaseMemObject(buffer));
    CHECK(clFinish(queue));
    REQUIRE(memcmp(values, wanted, sizeof values) == 0);
    digest(l, wanted[7]);
}

static void op_program(lane *l, rng *r) { use_program(l, r, l->context, device, l->queues[0]); }

// Parts of the device are kept until the end: PoCL lets go of a command after it has said that the command has ended, and looks
// into the device for that.
enum { PARTS = 4096 };
static cl_device_id parts_in_use[PARTS];
static atomic_int parts_used;

static void keep_part(cl_device_id part) {
    int at = atomic_fetch_add(&parts_used, 1);
    REQUIRE(at < PARTS);
    parts_in_use[at] = part;
}

// A context of its own, with a part of the device if it can be parted.
static void op_context(lane *l, rng *r) {
    cl_int code;
    cl_uint units = 0;
    cl_device_id on = device, parts[64];
    cl_device_partition_property equally[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    CHECK(clGetDeviceInfo(device, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof units, &units, NULL));
    cl_uint count = 0;
    int parted = chance(r, 60) && units > 1 && clCreateSubDevices(device, equally, 0, NULL, &count) == CL_SUCCESS && count <= 64;
    if (parted) {
        CHECK(clCreateSubDevices(device, equally, count, parts, NULL));
        on = parts[0];
        cl_device_id parent;
        CHECK(clGetDeviceInfo(on, CL_DEVICE_PARENT_DEVICE, sizeof parent, &parent, NULL));
        REQUIRE(parent == device);
    }
    cl_context context = clCreateContext(NULL, 1, &on, NULL, NULL, &code);
    CHECK(code);
    cl_command_queue queue = clCreateCommandQueue(context, on, 0, &code);
    CHECK(code);
    for (cl_uint i = 1; parted && i < count; i++) CHECK(clReleaseDevice(parts[i]));
    cl_context of;
    CHECK(clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof of, &of, NULL));
    REQUIRE(of == context);
    cl_uint word = (cl_uint)next(r), back = 0;
    cl_mem buffer = clCreateBuffer(context, 0, 4096, NULL, &code);
    CHECK(code);
    CHECK(clEnqueueFillBuffer(queue, buffer, &word, 4, 0, 4096, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 4092, 4, &back, 0, NULL, NULL));
    REQUIRE(back == word);
    CHECK(clReleaseMemObject(buffer));
    if (chance(r, 20)) use_program(l, r, context, on, queue);
    CHECK(clReleaseContext(context));
    CHECK(clReleaseCommandQueue(queue));
    if (parted) keep_part(on);
}
