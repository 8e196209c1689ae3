// Many threads, each with a queue and objects of its own, and one that all of them share.
#include "check.h"
#include <pthread.h>

static const char *source = "__kernel void add(__global int *v, int n) { atomic_add(&v[get_global_id(0)], n); }\n";

enum { THREADS = 8, ROUNDS = 50, N = 512 };

static cl_program program;
static cl_mem shared;
static int good[THREADS];

static void *work(void *number) {
    int me = (int)(size_t)number, host[N];
    cl_int code;
    cl_command_queue own = clCreateCommandQueue(context, device, 0, &code);
    CHECK(code);
    cl_kernel kernel = kernel_of(program, "add");
    good[me] = 1;
    for (int round = 0; round < ROUNDS; round++) {
        memset(host, 0, sizeof host);
        cl_mem mine = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof host, host);
        size_t size = N;
        int n = me + round;
        CHECK(clSetKernelArg(kernel, 0, sizeof mine, &mine));
        CHECK(clSetKernelArg(kernel, 1, sizeof n, &n));
        CHECK(clEnqueueNDRangeKernel(own, kernel, 1, NULL, &size, NULL, 0, NULL, NULL));
        CHECK(clSetKernelArg(kernel, 0, sizeof shared, &shared));
        CHECK(clEnqueueNDRangeKernel(own, kernel, 1, NULL, &size, NULL, 0, NULL, NULL));
        CHECK(clEnqueueReadBuffer(own, mine, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
        for (int i = 0; i < N; i++) good[me] &= host[i] == n;
        CHECK(clReleaseMemObject(mine));
    }
    CHECK(clFinish(own));
    CHECK(clReleaseKernel(kernel));
    CHECK(clReleaseCommandQueue(own));
    return NULL;
}

int main(void) {
    set_up(0);
    program = build(source, "");
    int zero[N] = {0};
    shared = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof zero, zero);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(size_t)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) printf("thread %d: %s\n", i, good[i] ? "as expected" : "wrong");
    CHECK(clEnqueueReadBuffer(queue, shared, CL_TRUE, 0, sizeof zero, zero, 0, NULL, NULL));
    printf("shared: %d %d\n", zero[0], zero[N - 1]);
    clReleaseMemObject(shared), clReleaseProgram(program);
    tear_down();
    return 0;
}
