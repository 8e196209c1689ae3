// What a compiler says of programs that are wrong or odd, unchanged; functions by their names; and what a device says it runs
// besides kernels.
#include "check.h"

static const char *wrong = "__kernel void f(__global int *v) {\n    v[0] = nowhere + 1;\n}\n";
static const char *odd = "#warning a word of the program's\n__kernel void g(__global int *v) { v[0] = 7; }\n";

// Whether all lines are printed: those without a place name the device, or the driver.
static int whole;

// A line of a log without what stands before the place in the source: drivers put a file there whose name is of the moment.
static const char *from_place(const char *line) {
    const char *place = strstr(line, ".cl:");
    return place ? place + 4 : line;
}

static void log_of(const char *source, cl_int expected, cl_build_status status, const char *word) {
    cl_int code, found = 0;
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
    CHECK(code);
    code = clBuildProgram(program, 1, &device, "", NULL, NULL);
    REQUIRE(code == expected);
    cl_build_status now;
    CHECK(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_STATUS, sizeof now, &now, NULL));
    REQUIRE(now == status);
    size_t size = 0;
    CHECK(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size));
    char *log = malloc(size + 1);
    CHECK(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log, NULL));
    REQUIRE(size > 0 && log[size - 1] == 0 && strlen(log) < size);
    // There is no room for a log that is shorter than it.
    REQUIRE(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size - 1, log, NULL) == CL_INVALID_VALUE);
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        int has_word = strstr(line, word) != NULL;
        if (has_word || whole) printf("    %s\n", from_place(line));
        found += has_word;
    }
    // Of a program that it builds, a compiler need not say anything.
    REQUIRE(found > 0 || status == CL_BUILD_SUCCESS);
    CHECK(clReleaseProgram(program));
    free(log);
}

typedef cl_int (*platform_ids)(cl_uint, cl_platform_id *, cl_uint *);

static void names(void) {
    cl_uint count = 0;
    platform_ids ids = (platform_ids)clGetExtensionFunctionAddressForPlatform(platform, "clIcdGetPlatformIDsKHR");
    REQUIRE(ids && ids(0, NULL, &count) == CL_SUCCESS && count >= 1);
    cl_platform_id first;
    REQUIRE(ids(1, &first, NULL) == CL_SUCCESS && first);
    REQUIRE(clGetExtensionFunctionAddressForPlatform(platform, "clNoDriverHasThisKHR") == NULL);
    REQUIRE(clGetExtensionFunctionAddressForPlatform(platform, "") == NULL);
    printf("functions by name: found, and not found\n");
}

static void CL_CALLBACK native(void *data) { **(int **)data = 5; }

// A program's own function as a command: where the device says that it runs such, and nowhere else.
static void native_kernel(void) {
    cl_device_exec_capabilities says = 0;
    int value = 0, *place = &value;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof says, &says, NULL));
    REQUIRE(says & CL_EXEC_KERNEL);
    cl_int code = clEnqueueNativeKernel(queue, native, &place, sizeof place, 0, NULL, NULL, 0, NULL, NULL);
    CHECK(clFinish(queue));
    int ran = code == CL_SUCCESS && value == 5;
    REQUIRE(says & CL_EXEC_NATIVE_KERNEL ? ran : code == CL_INVALID_OPERATION && value == 0);
    printf("a native kernel: as the device says\n");
}

int main(int count, char **words) {
    whole = count > 1 && strcmp(words[1], "whole") == 0;
    set_up(0);
    printf("the log of a program that is wrong\n");
    log_of(wrong, CL_BUILD_PROGRAM_FAILURE, CL_BUILD_ERROR, "nowhere");
    printf("the log of one that is odd\n");
    log_of(odd, CL_SUCCESS, CL_BUILD_SUCCESS, "a word of the program's");
    names();
    native_kernel();
    tear_down();
    return 0;
}
