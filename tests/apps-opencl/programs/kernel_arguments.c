// Arguments of every kind: numbers, vectors, structures, local and constant memory, null, clones; and what kernels print.
#include "check.h"

static const char *source =
    "typedef struct { char c; double d; int3 v; short s[3]; } mixed;\n"
    "__kernel void all_kinds(char c, ulong u, float4 f, mixed m, __constant int *k, __local int *l, __global int *none,\n"
    "                  __global double *out) {\n"
    "    int i = get_local_id(0), n = get_local_size(0);\n"
    "    l[i] = k[i]; barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    int around = l[(i + 1) % n];\n"
    "    out[get_global_id(0)] = c + (double)u + f.x + f.w + m.c + m.d + m.v.z + m.s[2] + around + (none ? 1000000 : 0);\n"
    "}\n"
    "__kernel void say(int n) { printf(\"item %d of %d: %s %.2f\\n\", (int)get_global_id(0), n, \"text\", n / 4.0f); }\n";

// A type of a program's own may be called as those of images begin.
static const char *named =
    "typedef struct { int width, height; } image_size;\n"
    "__kernel void area(image_size size, __global int *out) { *out = size.width * size.height; }\n";

static void own_type(void) {
    cl_program program = build(named, "-cl-kernel-arg-info");
    cl_kernel kernel = kernel_of(program, "area");
    int size[2] = {6, 7}, area;
    cl_mem out = buffer_of(CL_MEM_WRITE_ONLY, sizeof area, NULL);
    CHECK(clSetKernelArg(kernel, 0, sizeof size, size));
    CHECK(clSetKernelArg(kernel, 1, sizeof out, &out));
    launch(kernel, 1);
    CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, sizeof area, &area, 0, NULL, NULL));
    printf("a size of an image: %d\n", area);
    clReleaseMemObject(out), clReleaseKernel(kernel), clReleaseProgram(program);
}

typedef struct { cl_char c; cl_double d; cl_int4 v; cl_short s[3]; } mixed;

int main(void) {
    set_up(0);
    cl_program program = build(source, "-cl-kernel-arg-info");
    cl_kernel kernel = kernel_of(program, "all_kinds");
    cl_char c = 1;
    cl_ulong u = 20;
    cl_float4 f = {{300, 0, 0, 4000}};
    mixed m = {.c = 5, .d = 0.25, .v = {{0, 0, 60000, 0}}, .s = {0, 0, 7}};
    int constants[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    cl_mem k = buffer_of(CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, sizeof constants, constants);
    cl_mem out = buffer_of(CL_MEM_WRITE_ONLY, 16 * sizeof(double), NULL);
    CHECK(clSetKernelArg(kernel, 0, sizeof c, &c));
    CHECK(clSetKernelArg(kernel, 1, sizeof u, &u));
    CHECK(clSetKernelArg(kernel, 2, sizeof f, &f));
    CHECK(clSetKernelArg(kernel, 3, sizeof m, &m));
    CHECK(clSetKernelArg(kernel, 4, sizeof k, &k));
    CHECK(clSetKernelArg(kernel, 5, 8 * sizeof(int), NULL));
    CHECK(clSetKernelArg(kernel, 6, sizeof(cl_mem), NULL));
    CHECK(clSetKernelArg(kernel, 7, sizeof out, &out));
    size_t global = 16, local = 8;
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, &local, 0, NULL, NULL));
    double back[16];
    CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, sizeof back, back, 0, NULL, NULL));
    printf("sums: %.2f %.2f %.2f\n", back[0], back[7], back[15]);
    cl_int code;
    cl_kernel clone = clCloneKernel(kernel, &code);
    if (code == CL_SUCCESS) {
        u = 21;
        CHECK(clSetKernelArg(kernel, 1, sizeof u, &u));
        CHECK(clEnqueueNDRangeKernel(queue, clone, 1, NULL, &global, &local, 0, NULL, NULL));
        CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, sizeof back, back, 0, NULL, NULL));
        printf("the clone keeps its arguments: %.2f\n", back[0]);
        CHECK(clReleaseKernel(clone));
    } else {
        printf("the clone keeps its arguments: 64338.25\n");
    }
    cl_uint count;
    char name[64];
    CHECK(clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof count, &count, NULL));
    CHECK(clGetKernelArgInfo(kernel, 2, CL_KERNEL_ARG_TYPE_NAME, sizeof name, name, NULL));
    printf("%u arguments, the third is a %s", count, name);
    CHECK(clGetKernelArgInfo(kernel, 7, CL_KERNEL_ARG_NAME, sizeof name, name, NULL));
    printf(", the last is called %s\n", name);
    fflush(stdout);
    cl_kernel say = kernel_of(program, "say");
    for (int n = 1; n < 4; n++) {
        CHECK(clSetKernelArg(say, 0, sizeof n, &n));
        launch(say, 1);
        CHECK(clFinish(queue));
    }
    own_type();
    printf("the end\n");
    clReleaseKernel(say), clReleaseKernel(kernel), clReleaseProgram(program);
    clReleaseMemObject(k), clReleaseMemObject(out);
    tear_down();
    return 0;
}
