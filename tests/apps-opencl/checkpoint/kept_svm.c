// Blocks of shared virtual memory from one byte to many pages that point to one another, some freed and others made at
// every step: all come back at their addresses, the small ones too. A checksum a step.
#include "check.h"

static const char *source =
    "struct block { __global struct block *next; int value; };\n"
    "__kernel void walk(__global struct block *first, int more, __global int *sum) {\n"
    "    int total = 0;\n"
    "    for (__global struct block *b = first; b; b = b->next) total = total * 31 + (b->value += more);\n"
    "    *sum = total;\n"
    "}\n";

struct block { struct block *next; int value; };

enum { BLOCKS = 12, STEPS = 10 };

static const size_t sizes[] = {16, 100, 4096, 4097, 60000, 131072, 300000, 524288, 700000, 16, 8192, 2000000};
static struct block *blocks[BLOCKS];

// The block, and the one that it points to, as the host writes them.
static void set(int at, struct block *next, int value) {
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, blocks[at], sizes[at], 0, NULL, NULL));
    blocks[at]->next = next;
    if (value >= 0) blocks[at]->value = value;
    CHECK(clEnqueueSVMUnmap(queue, blocks[at], 0, NULL, NULL));
}

static void make(int at) {
    blocks[at] = clSVMAlloc(context, CL_MEM_READ_WRITE, sizes[at], 0);
    REQUIRE(blocks[at]);
    set(at, NULL, at + 1);
}

int main(void) {
    set_up(0);
    cl_kernel walk = kernel_of(build(source, "-cl-std=CL2.0"), "walk");
    cl_mem out = buffer_of(CL_MEM_WRITE_ONLY, sizeof(int), NULL);
    for (int i = 0; i < BLOCKS; i++) make(i);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < BLOCKS; i++) set(i, i + 1 < BLOCKS ? blocks[(i + 1) % BLOCKS] : NULL, -1);
        CHECK(clSetKernelArgSVMPointer(walk, 0, blocks[0]));
        CHECK(clSetKernelArg(walk, 1, sizeof step, &step));
        CHECK(clSetKernelArg(walk, 2, sizeof out, &out));
        // The kernel comes to the others through the first.
        CHECK(clSetKernelExecInfo(walk, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof blocks, blocks));
        launch(walk, 1);
        int sum;
        CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, sizeof sum, &sum, 0, NULL, NULL));
        printf("step %d: %08x\n", step, (unsigned)sum);
        fflush(stdout);
        int gone = step * 5 % BLOCKS;
        clSVMFree(context, blocks[gone]);
        make(gone);
    }
    for (int i = 0; i < BLOCKS; i++) clSVMFree(context, blocks[i]);
    CHECK(clReleaseMemObject(out));
    CHECK(clReleaseKernel(walk));
    tear_down();
    return 0;
}
