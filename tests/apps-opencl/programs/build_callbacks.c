// Builds, compilations and links with a callback: the code, the state while and after, whom it is told, and what is refused.
#include "check.h"
#include <unistd.h>

static volatile int called;
static cl_program told;

static void CL_CALLBACK note(cl_program program, void *data) {
    (void)data;
    told = program;
    __sync_fetch_and_add(&called, 1);
}

static cl_program program_of(const char *text) {
    cl_int code;
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &code);
    CHECK(code);
    return program;
}

static cl_build_status status_of(cl_program program) {
    cl_build_status status = 99;
    CHECK(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_STATUS, sizeof status, &status, NULL));
    return status;
}

// What a build with a callback comes to. Drivers may call before they return, or afterwards.
static void show(const char *what, cl_program program, cl_int code) {
    cl_build_status at_once = status_of(program);
    if (code == CL_SUCCESS) while (!called) usleep(100);
    REQUIRE(called <= 1 && (!called || told == program));
    printf("%-24s %s, %s, %s\n", what, code_name(code), at_once == CL_BUILD_NONE ? "not begun" : "begun",
           status_of(program) == CL_BUILD_SUCCESS ? "well" : "failed");
    called = 0;
}

int main(void) {
    set_up(0);
    const char *text = "__kernel void k(__global int *a) { a[0] = X; }";
    cl_int code;
    char options[64] = "";
    cl_program program = program_of(text);
    show("build", program, clBuildProgram(program, 1, &device, "-DX=1", note, NULL));
    // The usual loop: a build that is not begun would be taken for one that has failed.
    for (int round = 0; round < 4; round++) {
        cl_program again = program_of(text);
        CHECK(round % 2 ? clBuildProgram(again, 1, &device, "-DX=5", note, NULL) : clCompileProgram(again, 1, &device, "-DX=5", 0, NULL, NULL, note, NULL));
        cl_build_status status;
        while ((status = status_of(again)) == CL_BUILD_IN_PROGRESS) usleep(100);
        REQUIRE(status == CL_BUILD_SUCCESS);
        while (!called) usleep(100);
        called = 0;
        CHECK(clReleaseProgram(again));
    }
    code = clBuildProgram(program, 1, &device, "-DX=2", note, NULL);
    while (code == CL_SUCCESS && !called) usleep(100);
    CHECK(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_OPTIONS, sizeof options, options, NULL));
    printf("%-24s %s, %s\n", "build again", code_name(code), options);
    called = 0;
    cl_kernel kernel = kernel_of(program, "k");
    code = clBuildProgram(program, 1, &device, "-DX=3", note, NULL);
    printf("%-24s %s\n", "build beside a kernel", code_name(code));
    called = 0;
    CHECK(clReleaseKernel(kernel));
    cl_program other = program_of(text);
    code = clBuildProgram(other, 1, &device, "-no-such-option", note, NULL);
    while (code == CL_SUCCESS && !called) usleep(100);
    printf("%-24s %s\n", "build, unknown options", code != CL_SUCCESS || status_of(other) == CL_BUILD_ERROR ? "refused" : "made");
    called = 0;
    cl_program broken = program_of("__kernel void k(");
    code = clBuildProgram(broken, 1, &device, "", note, NULL);
    while (code == CL_SUCCESS && !called) usleep(100);
    printf("%-24s %s\n", "build of nonsense", status_of(broken) == CL_BUILD_ERROR ? "failed" : "made");
    called = 0;
    cl_program first = program_of("int f(int n) { return n + 1; }"), second = program_of("int f(int n); __kernel void k(__global int *a) { a[0] = f(a[0]); }");
    show("compilation", first, clCompileProgram(first, 1, &device, "", 0, NULL, NULL, note, NULL));
    show("second compilation", second, clCompileProgram(second, 1, &device, "", 0, NULL, NULL, note, NULL));
    cl_program parts[] = {first, second};
    cl_program linked = clLinkProgram(context, 1, &device, "", 2, parts, note, NULL, &code);
    CHECK(code);
    while (!called) usleep(100);
    REQUIRE(told == linked && called == 1);
    called = 0;
    printf("link: %s\n", status_of(linked) == CL_BUILD_SUCCESS ? "well" : "failed");
    kernel = kernel_of(linked, "k");
    int value = 41;
    cl_mem buffer = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof value, &value);
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    launch(kernel, 1);
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof value, &value, 0, NULL, NULL));
    printf("value %d\n", value);
    linked = clLinkProgram(context, 1, &device, "", 1, &second, note, NULL, &code);
    printf("link without a part: %s\n", code == CL_SUCCESS && linked && status_of(linked) == CL_BUILD_SUCCESS ? "made" : "refused");
    tear_down();
    return 0;
}
