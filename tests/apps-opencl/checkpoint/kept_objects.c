// Objects of every kind, made once and used over many steps: what a checkpoint between any two of its calls must bring
// back. A checksum a step.
#include "check.h"

#define N 4096
#define WIDTH 32
#define HEIGHT 16
#define STEPS 16

static const char *header = "uint stir(uint a, uint b);\n";
static const char *library = "uint stir(uint a, uint b) { return (a ^ b) * 2654435761u + 1u; }\n";
static const char *text =
    "#include \"stir.h\"\n"
    "__kernel void turn(__global uint *v, __global const uint *w, uint salt, __local uint *room) {\n"
    "    size_t i = get_global_id(0), l = get_local_id(0);\n"
    "    room[l] = v[i] + SALT;\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    v[i] = stir(room[get_local_size(0) - 1 - l], w[i] + salt);\n"
    "}\n";
static const char *plain =
    "__kernel void blend(__read_only image2d_t from, __write_only image2d_t to, sampler_t how, __global uint *v) {\n"
    "    int2 at = (int2)(get_global_id(0), get_global_id(1));\n"
    "    uint4 t = read_imageui(from, how, at);\n"
    "    t.x = t.x * 31u + v[at.y * get_global_size(0) + at.x];\n"
    "    write_imageui(to, at, t);\n"
    "}\n"
    "__kernel void bump(__global uint *v, uint by) { v[get_global_id(0)] += by; }\n";

static cl_program compiled(const char *source, const char *options, cl_program with) {
    cl_int code;
    const char *name = "stir.h";
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
    CHECK(code);
    CHECK(clCompileProgram(program, 1, &device, options, with ? 1 : 0, with ? &with : NULL, with ? &name : NULL, NULL, NULL));
    return program;
}

// What went into the linked program is gone afterwards.
static cl_program linked(void) {
    cl_int code;
    cl_program h = clCreateProgramWithSource(context, 1, &header, NULL, &code);
    CHECK(code);
    cl_program parts[] = {compiled(text, "-DSALT=5u", h), compiled(library, NULL, NULL)};
    cl_program program = clLinkProgram(context, 1, &device, "", 2, parts, NULL, NULL, &code);
    CHECK(code);
    CHECK(clReleaseProgram(h));
    CHECK(clReleaseProgram(parts[0]));
    CHECK(clReleaseProgram(parts[1]));
    return program;
}

static volatile int calls;

static void CL_CALLBACK called(cl_event event, cl_int state, void *data) {
    (void)event;
    calls += state == CL_COMPLETE ? *(int *)data : 1000;
}

int main(void) {
    cl_int code;
    static cl_uint values[N], weights[N], texels[WIDTH * HEIGHT * 4];
    set_up(CL_QUEUE_PROFILING_ENABLE);
    cl_command_queue other = clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    CHECK(code);
    for (int i = 0; i < N; i++) values[i] = i * 7, weights[i] = i ^ 0x55;
    for (int i = 0; i < WIDTH * HEIGHT * 4; i++) texels[i] = i;
    cl_mem v = buffer_of(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof values, values);
    cl_mem w = buffer_of(CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, sizeof weights, weights);
    // Only kernels and copies may reach it.
    cl_mem hidden = buffer_of(CL_MEM_READ_WRITE | CL_MEM_HOST_NO_ACCESS, sizeof values, NULL);
    cl_buffer_region region = {sizeof values / 2, sizeof values / 2};
    cl_mem half = clCreateSubBuffer(v, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    CHECK(code);
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT32};
    cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = WIDTH, .image_height = HEIGHT};
    cl_mem images[2];
    for (int i = 0; i < 2; i++) {
        images[i] = clCreateImage(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, &format, &shape, texels, &code);
        CHECK(code);
    }
    cl_sampler sampler = clCreateSampler(context, CL_FALSE, CL_ADDRESS_CLAMP_TO_EDGE, CL_FILTER_NEAREST, &code);
    CHECK(code);
    cl_program first = linked(), second = build(plain, "-cl-std=CL1.2");
    cl_kernel turn = kernel_of(first, "turn"), blend = kernel_of(second, "blend"), bump = kernel_of(second, "bump");
    CHECK(clSetKernelArg(turn, 0, sizeof v, &v));
    CHECK(clSetKernelArg(turn, 1, sizeof w, &w));
    CHECK(clSetKernelArg(turn, 3, 64 * sizeof(cl_uint), NULL));
    CHECK(clSetKernelArg(blend, 2, sizeof sampler, &sampler));
    CHECK(clSetKernelArg(blend, 3, sizeof v, &v));
    cl_event gate = clCreateUserEvent(context, &code), old = NULL;
    CHECK(code);
    int ten = 10;
    CHECK(clSetEventCallback(gate, CL_COMPLETE, called, &ten));
    // Mapped all the time; written back at the end.
    cl_uint *mapped = clEnqueueMapBuffer(queue, w, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, 64, 0, NULL, NULL, &code);
    CHECK(code);
    cl_ulong was = 0;
    for (cl_uint step = 0; step < STEPS; step++) {
        size_t items = N, group = 64, area[2] = {WIDTH, HEIGHT}, start[3] = {0}, whole[3] = {WIDTH, HEIGHT, 1};
        cl_event done;
        CHECK(clSetKernelArg(turn, 2, sizeof step, &step));
        CHECK(clEnqueueNDRangeKernel(queue, turn, 1, NULL, &items, &group, old ? 1 : 0, old ? &old : NULL, &done));
        // In groups that no device has: refused, and so nothing that a restore has to look for.
        size_t huge = (size_t)1 << 30;
        cl_int wide = step == 0 ? clEnqueueNDRangeKernel(queue, turn, 1, NULL, &huge, &huge, 0, NULL, NULL) : CL_INVALID_WORK_GROUP_SIZE;
        REQUIRE(wide == CL_INVALID_WORK_GROUP_SIZE);
        CHECK(clSetKernelArg(blend, 0, sizeof images[0], &images[step % 2]));
        CHECK(clSetKernelArg(blend, 1, sizeof images[1], &images[1 - step % 2]));
        CHECK(clEnqueueNDRangeKernel(queue, blend, 2, NULL, area, NULL, 0, NULL, NULL));
        CHECK(clSetKernelArg(bump, 0, sizeof half, &half));
        CHECK(clSetKernelArg(bump, 1, sizeof step, &step));
        launch(bump, N / 2);
        CHECK(clEnqueueCopyBuffer(queue, v, hidden, 0, 0, sizeof values, 0, NULL, NULL));
        CHECK(clFinish(queue));
        cl_ulong started, ended;
        CHECK(clGetEventProfilingInfo(done, CL_PROFILING_COMMAND_START, sizeof started, &started, NULL));
        CHECK(clGetEventProfilingInfo(done, CL_PROFILING_COMMAND_END, sizeof ended, &ended, NULL));
        REQUIRE(started <= ended);
        if (old) {
            cl_ulong now;
            cl_int state;
            CHECK(clGetEventProfilingInfo(old, CL_PROFILING_COMMAND_END, sizeof now, &now, NULL));
            CHECK(clGetEventInfo(old, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
            REQUIRE(now == was && state == CL_COMPLETE);
            CHECK(clReleaseEvent(old));
        }
        was = ended, old = done;
        if (step == STEPS - 2) CHECK(clSetUserEventStatus(gate, CL_COMPLETE));
        CHECK(clEnqueueCopyBuffer(other, hidden, v, 0, 0, sizeof values / 4, 1, &old, NULL));
        CHECK(clFinish(other));
        CHECK(clEnqueueReadBuffer(queue, v, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
        CHECK(clEnqueueReadImage(queue, images[step % 2], CL_TRUE, start, whole, 0, 0, texels, 0, NULL, NULL));
        printf("step %u: %lu %lu\n", step, sum_of((int *)values, N), sum_of((int *)texels, WIDTH * HEIGHT * 4));
        fflush(stdout);
    }
    CHECK(clWaitForEvents(1, &gate));
    while (calls == 0) {}
    mapped[0] = 99;
    CHECK(clEnqueueUnmapMemObject(queue, w, mapped, 0, NULL, NULL));
    CHECK(clEnqueueReadBuffer(queue, w, CL_TRUE, 0, 8, values, 0, NULL, NULL));
    printf("at last: %d %u %u\n", calls, values[0], values[1]);
    clReleaseEvent(gate), clReleaseEvent(old), clReleaseSampler(sampler);
    clReleaseKernel(turn), clReleaseKernel(blend), clReleaseKernel(bump), clReleaseProgram(first), clReleaseProgram(second);
    clReleaseMemObject(half), clReleaseMemObject(v), clReleaseMemObject(w), clReleaseMemObject(hidden);
    clReleaseMemObject(images[0]), clReleaseMemObject(images[1]);
    CHECK(clReleaseCommandQueue(other));
    tear_down();
    return 0;
}
