// One process with a session of OpenCL and one of CUDA: each step computes with the one and keeps its result with the other
// until the next step. Where no CUDA driver is, the process's own memory takes its part, so that the output is the same.
#include "check.h"

#include <dlfcn.h>

#define N 1024
#define STEPS 12

typedef int (*Plain)(unsigned);
typedef int (*GetDevice)(int *, int);
typedef int (*Retain)(void **, int);
typedef int (*SetCurrent)(void *);
typedef int (*Alloc)(unsigned long long *, size_t);
typedef int (*ToDevice)(unsigned long long, const void *, size_t);
typedef int (*ToHost)(void *, unsigned long long, size_t);

static void *cuda;

static void *function(const char *name) {
    void *found = dlsym(cuda, name);
    REQUIRE(found);
    return found;
}

int main(void) {
    static cl_uint values[N], kept[N];
    unsigned long long there = 0;
    set_up(0);
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (cuda) {
        int ordinal;
        void *primary;
        REQUIRE(!((Plain)function("cuInit"))(0));
        REQUIRE(!((GetDevice)function("cuDeviceGet"))(&ordinal, 0));
        REQUIRE(!((Retain)function("cuDevicePrimaryCtxRetain"))(&primary, ordinal));
        REQUIRE(!((SetCurrent)function("cuCtxSetCurrent"))(primary));
        REQUIRE(!((Alloc)function("cuMemAlloc_v2"))(&there, sizeof kept));
    }
    cl_program program = build("__kernel void next(__global uint *v, __global const uint *w, uint step) {\n"
                               "    size_t i = get_global_id(0);\n"
                               "    v[i] = v[i] * 1103515245u + w[i] + step;\n"
                               "}\n", NULL);
    cl_kernel next = kernel_of(program, "next");
    cl_mem v = buffer_of(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof values, values);
    cl_mem w = buffer_of(CL_MEM_READ_ONLY, sizeof values, NULL);
    CHECK(clSetKernelArg(next, 0, sizeof v, &v));
    CHECK(clSetKernelArg(next, 1, sizeof w, &w));
    for (cl_uint step = 0; step < STEPS; step++) {
        CHECK(clEnqueueWriteBuffer(queue, w, CL_TRUE, 0, sizeof kept, kept, 0, NULL, NULL));
        CHECK(clSetKernelArg(next, 2, sizeof step, &step));
        launch(next, N);
        CHECK(clEnqueueReadBuffer(queue, v, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
        if (cuda) {
            REQUIRE(!((ToDevice)function("cuMemcpyHtoD_v2"))(there, values, sizeof values));
            memset(kept, 0, sizeof kept);
            REQUIRE(!((ToHost)function("cuMemcpyDtoH_v2"))(kept, there, sizeof kept));
        } else {
            memcpy(kept, values, sizeof kept);
        }
        printf("step %u: %lu\n", step, sum_of((int *)kept, N));
        fflush(stdout);
    }
    clReleaseKernel(next), clReleaseProgram(program), clReleaseMemObject(v), clReleaseMemObject(w);
    tear_down();
    return 0;
}
