// Compiled apart with headers, linked, linked as a library, kept as binaries and made again; and a log of what fails.
#include "check.h"
#include <unistd.h>

static const char *header = "int square(int x);\n#define BIAS 3\n";
static const char *one = "#include \"lib/square.h\"\n__kernel void apply(__global int *v) { size_t i = get_global_id(0); v[i] = square(v[i]) + BIAS + EXTRA; }\n";
static const char *two = "int square(int x) { return x * x; }\n";

static cl_program source(const char *text) {
    cl_int code;
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &code);
    CHECK(code);
    return program;
}

static void use(cl_program program, const char *what) {
    int values[4] = {1, 2, 3, 4};
    cl_mem buffer = buffer_of(CL_MEM_COPY_HOST_PTR, sizeof values, values);
    cl_kernel kernel = kernel_of(program, "apply");
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    launch(kernel, 4);
    CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
    printf("%s: %d %d %d %d\n", what, values[0], values[1], values[2], values[3]);
    clReleaseKernel(kernel), clReleaseMemObject(buffer);
}

static volatile int built;

static void CL_CALLBACK note(cl_program program, void *data) {
    (void)program;
    built = *(int *)data;
}

int main(void) {
    set_up(0);
    cl_int code;
    cl_program h = source(header), a = source(one), b = source(two);
    const char *name = "lib/square.h";
    CHECK(clCompileProgram(a, 1, &device, "-DEXTRA=100", 1, &h, &name, NULL, NULL));
    CHECK(clCompileProgram(b, 1, &device, NULL, 0, NULL, NULL, NULL, NULL));
    cl_program parts[] = {a, b};
    cl_program linked = clLinkProgram(context, 1, &device, "", 2, parts, NULL, NULL, &code);
    CHECK(code);
    use(linked, "linked");
    cl_program_binary_type type;
    CHECK(clGetProgramBuildInfo(linked, device, CL_PROGRAM_BINARY_TYPE, sizeof type, &type, NULL));
    printf("type: %s\n", type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE ? "executable" : "other");
    cl_uint devices;
    CHECK(clGetProgramInfo(linked, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL));
    size_t size, names;
    CHECK(clGetProgramInfo(linked, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL));
    CHECK(clGetProgramInfo(linked, CL_PROGRAM_NUM_KERNELS, sizeof names, &names, NULL));
    printf("%u device, %zu kernel, a binary: %s\n", devices, names, size ? "yes" : "no");
    unsigned char *bytes = malloc(size), *places[] = {bytes};
    CHECK(clGetProgramInfo(linked, CL_PROGRAM_BINARIES, sizeof places, places, NULL));
    cl_int status;
    cl_program again = clCreateProgramWithBinary(context, 1, &device, &size, (const unsigned char **)places, &status, &code);
    CHECK(code);
    CHECK(status);
    int flag = 42;
    CHECK(clBuildProgram(again, 1, &device, NULL, note, &flag));
    while (!built) {}
    printf("built with a callback: %d\n", built);
    use(again, "from its binary");
    // What goes into a compilation may be let go of before that ends.
    int right = 0;
    for (int i = 0; i < 8; i++) {
        cl_program part = source(one), gone = source(header);
        cl_build_status done;
        built = 0;
        CHECK(clCompileProgram(part, 1, &device, "-DEXTRA=1", 1, &gone, &name, note, &flag));
        CHECK(clReleaseProgram(gone));
        while (!built) usleep(100);
        CHECK(clGetProgramBuildInfo(part, device, CL_PROGRAM_BUILD_STATUS, sizeof done, &done, NULL));
        right += done == CL_BUILD_SUCCESS;
        CHECK(clReleaseProgram(part));
    }
    printf("compiled without their headers: %d\n", right);
    // A driver may return what it could not link, for its log.
    size_t logged = 0;
    cl_program without = clLinkProgram(context, 1, &device, "", 1, &a, NULL, NULL, &code);
    if (without) CHECK(clGetProgramBuildInfo(without, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &logged));
    printf("linked without a part: %s, a program: %s, a log: %s\n", code_name(code), without ? "yes" : "no", logged > 1 ? "yes" : "no");
    if (without) CHECK(clReleaseProgram(without));
    // The text comes back as it was given.
    char text[256];
    CHECK(clGetProgramInfo(b, CL_PROGRAM_SOURCE, sizeof text, text, NULL));
    printf("source: %s", text);
    cl_program wrong = source("__kernel void f(__global int *v) { v[0] = no_such_name; }\n");
    printf("wrong source: %s\n", code_name(clBuildProgram(wrong, 0, NULL, "-cl-std=CL1.2", NULL, NULL)));
    cl_build_status state;
    size_t length;
    CHECK(clGetProgramBuildInfo(wrong, device, CL_PROGRAM_BUILD_STATUS, sizeof state, &state, NULL));
    CHECK(clGetProgramBuildInfo(wrong, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &length));
    char *log = malloc(length), options[64];
    CHECK(clGetProgramBuildInfo(wrong, device, CL_PROGRAM_BUILD_LOG, length, log, NULL));
    CHECK(clGetProgramBuildInfo(wrong, device, CL_PROGRAM_BUILD_OPTIONS, sizeof options, options, NULL));
    printf("state %s, the log names it: %s, options %s\n", state == CL_BUILD_ERROR ? "error" : "other",
           strstr(log, "no_such_name") ? "yes" : "no", options);
    printf("linked with what is not compiled: %s\n", (clLinkProgram(context, 1, &device, "", 1, &wrong, NULL, NULL, &code), code_name(code)));
    clReleaseProgram(h), clReleaseProgram(a), clReleaseProgram(b), clReleaseProgram(linked), clReleaseProgram(again);
    clReleaseProgram(wrong);
    free(bytes), free(log);
    tear_down();
    return 0;
}
