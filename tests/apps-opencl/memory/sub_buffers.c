// Parts of buffers: their offsets, flags, parents, and that they are the same memory.
#include "check.h"

static const char *source = "__kernel void put(__global int *v, int x) { v[get_global_id(0)] = x + (int)get_global_id(0); }\n";

int main(void) {
    set_up(0);
    cl_uint bits;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, NULL));
    size_t align = bits / 8, size = align * 8;
    REQUIRE(align >= 4);
    cl_program program = build(source, "");
    cl_kernel kernel = kernel_of(program, "put");
    int *host = calloc(1, size);
    cl_mem whole = buffer_of(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, size, host), parts[4];
    for (int k = 0; k < 4; k++) {
        cl_buffer_region region = {(size_t)k * 2 * align, align};
        cl_int code;
        parts[k] = clCreateSubBuffer(whole, k ? 0 : CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
        CHECK(code);
        int x = 1000 * (k + 1);
        CHECK(clSetKernelArg(kernel, 0, sizeof parts[k], &parts[k]));
        CHECK(clSetKernelArg(kernel, 1, sizeof x, &x));
        launch(kernel, 1);
    }
    cl_mem parent;
    size_t offset, length;
    cl_mem_flags flags;
    CHECK(clGetMemObjectInfo(parts[2], CL_MEM_ASSOCIATED_MEMOBJECT, sizeof parent, &parent, NULL));
    CHECK(clGetMemObjectInfo(parts[2], CL_MEM_OFFSET, sizeof offset, &offset, NULL));
    CHECK(clGetMemObjectInfo(parts[2], CL_MEM_SIZE, sizeof length, &length, NULL));
    CHECK(clGetMemObjectInfo(parts[2], CL_MEM_FLAGS, sizeof flags, &flags, NULL));
    printf("parent %s, offset %zu, size %zu, flags %s\n", parent == whole ? "right" : "wrong", offset / align,
           length / align, flags & CL_MEM_READ_WRITE ? "inherited" : "none");
    // The whole may go first: its parts keep it.
    CHECK(clEnqueueReadBuffer(queue, whole, CL_TRUE, 0, size, host, 0, NULL, NULL));
    printf("whole:");
    for (int k = 0; k < 8; k++) printf(" %d", host[(size_t)k * align / 4]);
    printf("\n");
    CHECK(clReleaseMemObject(whole));
    for (int k = 0; k < 4; k++) {
        int value;
        CHECK(clEnqueueReadBuffer(queue, parts[k], CL_TRUE, 0, 4, &value, 0, NULL, NULL));
        printf("part %d: %d\n", k, value);
        CHECK(clReleaseMemObject(parts[k]));
    }
    cl_int code;
    cl_mem plain = buffer_of(0, size, NULL);
    cl_buffer_region wrong[] = {{0, 0}, {align * 7, align * 2}, {1, align}};
    for (int k = 0; k < 3; k++) {
        cl_mem made = clCreateSubBuffer(plain, 0, CL_BUFFER_CREATE_TYPE_REGION, &wrong[k], &code);
        printf("wrong %d: %s, %s\n", k, made ? "made" : "none", code_name(code));
    }
    CHECK(clReleaseMemObject(plain));
    clReleaseKernel(kernel), clReleaseProgram(program);
    free(host);
    tear_down();
    return 0;
}
