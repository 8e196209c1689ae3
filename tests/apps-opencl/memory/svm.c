// Coarse-grained shared virtual memory: a linked list whose pointers mean the same on both sides.
#include "check.h"

static const char *source =
    "struct node { __global struct node *next; int value; };\n"
    "__kernel void add(__global struct node *first, int more) {\n"
    "    for (__global struct node *n = first; n; n = n->next) n->value += more;\n"
    "}\n"
    "__kernel void twice(__global int *v) { v[get_global_id(0)] *= 2; }\n";

struct node { struct node *next; int value; };

enum { NODES = 1000 };

static volatile int freed;

static void CL_CALLBACK give_back(cl_command_queue q, cl_uint count, void *pointers[], void *data) {
    (void)q;
    for (cl_uint i = 0; i < count; i++) clSVMFree((cl_context)data, pointers[i]);
    freed = (int)count;
}

// Several commands have one place in the program's memory: what is there follows the order of the queue. And one address is
// mapped twice.
static void one_place(int *values, int *others) {
    int h[256] = {0}, one = 1, two = 2;
    // This driver (580) reads the program's memory when it is given a copy, not in its turn, and counts maps of one address once.
    int is_lax = platform_says(CL_PLATFORM_NAME, "NVIDIA");
    CHECK(clEnqueueSVMMemFill(queue, values, &one, 4, sizeof h, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemcpy(queue, CL_FALSE, h, values, sizeof h, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemFill(queue, values, &two, 4, sizeof h, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, h, values, sizeof h, 0, NULL, NULL));
    printf("one place: %d", h[10]);
    CHECK(clEnqueueSVMMemFill(queue, values, &one, 4, sizeof h, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemcpy(queue, CL_FALSE, h, values, sizeof h, 0, NULL, NULL));
    if (is_lax) CHECK(clFinish(queue));
    CHECK(clEnqueueSVMMemcpy(queue, CL_FALSE, others, h, sizeof h, 0, NULL, NULL));
    CHECK(clEnqueueSVMMap(queue, CL_FALSE, CL_MAP_READ, others, 40, 0, NULL, NULL));
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, others, 80, 0, NULL, NULL));
    printf(" %d %d", others[0], others[19]);
    cl_int first = clEnqueueSVMUnmap(queue, others, 0, NULL, NULL), second = clEnqueueSVMUnmap(queue, others, 0, NULL, NULL);
    printf(" %s %s\n", code_name(first), code_name(is_lax ? first : second));
}

// A region within one that is mapped for writing has what the program wrote there.
static void within_another(int *values) {
    int back[8];
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_WRITE, values, 256, 0, NULL, NULL));
    values[20] = 77;
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, values + 16, 64, 0, NULL, NULL));
    printf("within another: %d", values[20]);
    values[21] = 78;
    CHECK(clEnqueueSVMUnmap(queue, values + 16, 0, NULL, NULL));
    CHECK(clEnqueueSVMUnmap(queue, values, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, back, values + 16, sizeof back, 0, NULL, NULL));
    printf(" %d %d\n", back[4], back[5]);
}

int main(void) {
    set_up(0);
    cl_device_svm_capabilities can;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof can, &can, NULL));
    REQUIRE(can & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER);
    cl_program program = build(source, "-cl-std=CL2.0");
    cl_kernel add = kernel_of(program, "add"), twice = kernel_of(program, "twice");
    struct node *nodes = clSVMAlloc(context, CL_MEM_READ_WRITE, NODES * sizeof *nodes, 0);
    REQUIRE(nodes);
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, nodes, NODES * sizeof *nodes, 0, NULL, NULL));
    for (int i = 0; i < NODES; i++) {
        nodes[i].value = i;
        nodes[i].next = i + 1 < NODES ? &nodes[(i * 7 + 7) % NODES] : NULL;
    }
    // Every node once, in a scrambled order: 7 and 1000 have no common factor.
    for (int i = 0, at = 0; i < NODES; i++, at = (at + 7) % NODES)
        nodes[at].next = i + 1 < NODES ? &nodes[(at + 7) % NODES] : NULL;
    CHECK(clEnqueueSVMUnmap(queue, nodes, 0, NULL, NULL));
    int more = 5;
    CHECK(clSetKernelArgSVMPointer(add, 0, nodes));
    CHECK(clSetKernelArg(add, 1, sizeof more, &more));
    launch(add, 1);
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, nodes, NODES * sizeof *nodes, 0, NULL, NULL));
    long sum = 0, count = 0;
    for (struct node *n = nodes; n; n = n->next) sum += n->value, count++;
    printf("%ld nodes, sum %ld\n", count, sum);
    CHECK(clEnqueueSVMUnmap(queue, nodes, 0, NULL, NULL));

    int host[256], back[256], pattern = 21;
    for (int i = 0; i < 256; i++) host[i] = i;
    int *values = clSVMAlloc(context, CL_MEM_READ_WRITE, sizeof host, 64), *others = clSVMAlloc(context, 0, 4096 * 3, 0);
    REQUIRE(values && others && ((size_t)values & 63) == 0);
    CHECK(clEnqueueSVMMemcpy(queue, CL_FALSE, values, host, sizeof host, 0, NULL, NULL));
    CHECK(clSetKernelArgSVMPointer(twice, 0, values + 6));
    launch(twice, 250);
    CHECK(clEnqueueSVMMemcpy(queue, CL_FALSE, others + 100, values, sizeof host, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemFill(queue, others + 100, &pattern, sizeof pattern, 16, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, back, others + 100, sizeof back, 0, NULL, NULL));
    printf("copied: %d %d %d %d %d\n", back[3], back[4], back[5], back[6], back[255]);
    // A part mapped for writing.
    CHECK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_WRITE, values + 10, 40, 0, NULL, NULL));
    values[10] = -1, values[19] = -2;
    CHECK(clEnqueueSVMUnmap(queue, values + 10, 0, NULL, NULL));
    CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, back, values, sizeof back, 0, NULL, NULL));
    printf("a part: %d %d %d %d\n", back[9], back[10], back[19], back[20]);
    // A buffer of the same memory.
    cl_int code;
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, sizeof host, values, &code);
    CHECK(code);
    cl_bool uses;
    CHECK(clGetMemObjectInfo(buffer, CL_MEM_USES_SVM_POINTER, sizeof uses, &uses, NULL));
    // Some drivers make such a buffer and then let no kernel have it, NVIDIA's (580) none that had a pointer in its place.
    cl_kernel anew = kernel_of(program, "twice");
    CHECK(clSetKernelArg(anew, 0, sizeof buffer, &buffer));
    size_t items = 20;
    code = clEnqueueNDRangeKernel(queue, anew, 1, NULL, &items, NULL, 0, NULL, NULL);
    CHECK(clReleaseKernel(anew));
    CHECK(clEnqueueSVMMemcpy(queue, CL_TRUE, back, values, sizeof back, 0, NULL, NULL));
    if (code == CL_SUCCESS)
        printf("through a buffer: %d %d %d, uses the pointer: %s\n", back[9], back[10], back[20], uses ? "yes" : "no");
    else
        printf("through a buffer: %s\n", code_name(code));
    CHECK(clReleaseMemObject(buffer));
    one_place(values, others);
    within_another(values);
    CHECK(clFinish(queue));
    void *list[] = {values, others};
    cl_event gone;
    CHECK(clEnqueueSVMFree(queue, 2, list, give_back, context, 0, NULL, &gone));
    CHECK(clWaitForEvents(1, &gone));
    while (!freed) {}
    printf("freed %d\n", freed);
    CHECK(clReleaseEvent(gone));
    clSVMFree(context, nodes);
    clReleaseKernel(add), clReleaseKernel(twice), clReleaseProgram(program);
    tear_down();
    return 0;
}
