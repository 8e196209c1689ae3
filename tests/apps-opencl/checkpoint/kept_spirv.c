// Programs of SPIR-V, which is written out here: their constants are specialised, they are compiled and linked with one another and
// with OpenCL C, asked what sub-groups a kernel has, and built anew at every second step. A checksum a step.
#include "check.h"

// How an instruction begins: its words, this one with them, and its number.
#define OP(number, words) (words) << 16 | (number)

enum {
    // Numbers of instructions.
    EXTENDED = 11, MODEL = 14, ENTRY = 15, CAPABILITY = 17, VOID_TYPE = 19, INTEGER_TYPE = 21, VECTOR_TYPE = 23, POINTER_TYPE = 32,
    FUNCTION_TYPE = 33, CONSTANT = 43, SPECIAL_CONSTANT = 50, FUNCTION = 54, PARAMETER = 55, FUNCTION_END = 56, CALL = 57,
    VARIABLE = 59, LOAD = 61, STORE = 62, POINTER_AT = 70, DECORATE = 71, PART = 81, CONVERT = 113, ADD = 128, MULTIPLY = 132, LABEL = 248,
    RETURN = 253, RETURN_VALUE = 254,
    // Names of what they make; one beyond all of them comes first in a module.
    OPENCL = 1, NOTHING, INT, LONG, PLACES, PLACES_INPUT, INTS, OF_KERNEL, OF_FUNCTION, PLACE, FACTOR, STEP, NAME_OF_KERNEL, OUT, MORE, BODY,
    AT_ALL, AT, AT_INT, CHANGED, SUM, TARGET, CHANGE, VALUE, CHANGE_BODY, PRODUCT, BOUND,
    // Kinds of memory, and the rest of the alphabet.
    INPUT = 1, GLOBAL = 5, PHYSICAL64 = 2, OPENCL_MODEL = 2, KERNEL = 6, BUILT_IN = 11, IS_CONSTANT = 22, IS_LINKED = 41, SPECIAL = 1,
    WHICH_ITEM = 28, EXPORT = 0, IMPORT = 1,
    // The constant as programs name it.
    FACTOR_ID = 7,
};

#define TEXT4(a, b, c, d) (cl_uint)(a) | (cl_uint)(b) << 8 | (cl_uint)(c) << 16 | (cl_uint)(d) << 24
#define HEAD 0x07230203, 0x00010000, 0, BOUND, 0
// Addresses, linkage, kernels, integers of 64 bits.
#define CAPABILITIES OP(CAPABILITY, 2), 4, OP(CAPABILITY, 2), 5, OP(CAPABILITY, 2), 6, OP(CAPABILITY, 2), 11
#define CHANGE_IS(how) OP(DECORATE, 6), CHANGE, IS_LINKED, TEXT4('c', 'h', 'a', 'n'), TEXT4('g', 'e', 0, 0), how

// kernel void fill(global uint *out, uint more) { size_t i = get_global_id(0); out[i] = change(i) + more; }, and `change` is
// another module's.
static const cl_uint filling[] = {
    HEAD, CAPABILITIES, OP(MODEL, 3), PHYSICAL64, OPENCL_MODEL,
    OP(ENTRY, 6), KERNEL, NAME_OF_KERNEL, TEXT4('f', 'i', 'l', 'l'), 0, PLACE,
    OP(DECORATE, 4), PLACE, BUILT_IN, WHICH_ITEM, OP(DECORATE, 3), PLACE, IS_CONSTANT, CHANGE_IS(IMPORT),
    OP(VOID_TYPE, 2), NOTHING, OP(INTEGER_TYPE, 4), INT, 32, 0, OP(INTEGER_TYPE, 4), LONG, 64, 0,
    OP(VECTOR_TYPE, 4), PLACES, LONG, 3, OP(POINTER_TYPE, 4), PLACES_INPUT, INPUT, PLACES, OP(POINTER_TYPE, 4), INTS, GLOBAL, INT,
    OP(FUNCTION_TYPE, 5), OF_KERNEL, NOTHING, INTS, INT, OP(FUNCTION_TYPE, 4), OF_FUNCTION, INT, INT,
    OP(VARIABLE, 4), PLACES_INPUT, PLACE, INPUT,
    OP(FUNCTION, 5), INT, CHANGE, 0, OF_FUNCTION, OP(PARAMETER, 3), INT, VALUE, OP(FUNCTION_END, 1),
    OP(FUNCTION, 5), NOTHING, NAME_OF_KERNEL, 0, OF_KERNEL, OP(PARAMETER, 3), INTS, OUT, OP(PARAMETER, 3), INT, MORE,
    OP(LABEL, 2), BODY, OP(LOAD, 4), PLACES, AT_ALL, PLACE, OP(PART, 5), LONG, AT, AT_ALL, 0, OP(CONVERT, 4), INT, AT_INT, AT,
    OP(CALL, 5), INT, CHANGED, CHANGE, AT_INT, OP(ADD, 5), INT, SUM, CHANGED, MORE, OP(POINTER_AT, 5), INTS, TARGET, OUT, AT,
    OP(STORE, 5), TARGET, SUM, 2, 4, OP(RETURN, 1), OP(FUNCTION_END, 1),
};

// uint change(uint value) { return value * FACTOR + 11; }, and FACTOR is 3 unless a program says otherwise.
static const cl_uint changing[] = {
    HEAD, CAPABILITIES, OP(MODEL, 3), PHYSICAL64, OPENCL_MODEL,
    OP(DECORATE, 4), FACTOR, SPECIAL, FACTOR_ID, CHANGE_IS(EXPORT),
    OP(INTEGER_TYPE, 4), INT, 32, 0, OP(SPECIAL_CONSTANT, 4), INT, FACTOR, 3, OP(CONSTANT, 4), INT, STEP, 11,
    OP(FUNCTION_TYPE, 4), OF_FUNCTION, INT, INT,
    OP(FUNCTION, 5), INT, CHANGE, 0, OF_FUNCTION, OP(PARAMETER, 3), INT, VALUE, OP(LABEL, 2), CHANGE_BODY,
    OP(MULTIPLY, 5), INT, PRODUCT, VALUE, FACTOR, OP(ADD, 5), INT, SUM, PRODUCT, STEP, OP(RETURN_VALUE, 2), SUM, OP(FUNCTION_END, 1),
};

// The same kernel in OpenCL C.
static const char *source = "uint change(uint value);\n"
                            "kernel void fill(global uint *out, uint more) { size_t i = get_global_id(0); out[i] = change(i) + more; }\n";

enum { ITEMS = 256, GROUP = 64, STEPS = 12 };

static cl_program of_words(const cl_uint *words, size_t size) {
    cl_int code;
    cl_program program = clCreateProgramWithIL(context, words, size, &code);
    CHECK(code);
    size_t kept = 0;
    CHECK(clGetProgramInfo(program, CL_PROGRAM_IL, 0, NULL, &kept));
    REQUIRE(kept == size);
    cl_uint copy[sizeof filling / sizeof *filling];
    CHECK(clGetProgramInfo(program, CL_PROGRAM_IL, sizeof copy, copy, NULL));
    REQUIRE(memcmp(copy, words, size) == 0);
    return program;
}

static void compile(cl_program program) {
    cl_int code = clCompileProgram(program, 1, &device, NULL, 0, NULL, NULL, NULL, NULL);
    if (code == CL_SUCCESS) return;
    char log[4096] = "";
    CHECK(clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL));
    printf("%s\n%s\n", code_name(code), log);
    exit(1);
}

// A kernel of SPIR-V, or of OpenCL C, linked with the function, whose factor is the default one if it is null.
static cl_kernel linked(int is_source, const cl_uint *factor) {
    cl_int code;
    cl_program parts[2] = {of_words(changing, sizeof changing), NULL};
    if (factor) CHECK(clSetProgramSpecializationConstant(parts[0], FACTOR_ID, sizeof *factor, factor));
    if (is_source) {
        parts[1] = clCreateProgramWithSource(context, 1, &source, NULL, &code);
        CHECK(code);
    } else {
        parts[1] = of_words(filling, sizeof filling);
    }
    for (int i = 0; i < 2; i++) compile(parts[i]);
    cl_program whole = clLinkProgram(context, 1, &device, NULL, 2, parts, NULL, NULL, &code);
    CHECK(code);
    cl_kernel kernel = kernel_of(whole, "fill");
    for (int i = 0; i < 2; i++) CHECK(clReleaseProgram(parts[i]));
    CHECK(clReleaseProgram(whole));
    return kernel;
}

// Sub-groups of a group as large as ours: together they hold it, and a group for as many of them is no smaller. How large they are
// is the device's affair.
static void sub_groups(cl_kernel kernel) {
    size_t group = GROUP, size = 0, count = 0, local = 0;
    CHECK(clGetKernelSubGroupInfo(kernel, device, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, sizeof group, &group, sizeof size, &size, NULL));
    CHECK(clGetKernelSubGroupInfo(kernel, device, CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE, sizeof group, &group, sizeof count, &count, NULL));
    REQUIRE(size > 0 && count > 0 && size * count >= GROUP);
    CHECK(clGetKernelSubGroupInfo(kernel, device, CL_KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT, sizeof count, &count, sizeof local, &local, NULL));
    REQUIRE(local >= GROUP);
    printf("sub-groups hold a group\n");
}

// What is no SPIR-V, and a constant that is not there.
static void wrong(void) {
    cl_int code;
    cl_uint words[] = {1, 2, 3, 4, 5}, factor = 5;
    REQUIRE(!clCreateProgramWithIL(context, NULL, 20, &code));
    printf("no words: %s\n", code_name(code));
    REQUIRE(!clCreateProgramWithIL(context, words, 0, &code));
    printf("none of them: %s\n", code_name(code));
    cl_program program = clCreateProgramWithIL(context, words, sizeof words, &code);
    printf("other words: %s\n", code_name(code));
    if (program) CHECK(clReleaseProgram(program));
    program = of_words(changing, sizeof changing);
    printf("a size too many: %s\n", code_name(clSetProgramSpecializationConstant(program, FACTOR_ID, 8, &factor)));
    printf("no such constant: %s\n", code_name(clSetProgramSpecializationConstant(program, 8, sizeof factor, &factor)));
    CHECK(clReleaseProgram(program));
}

int main(void) {
    set_up(0);
    wrong();
    size_t items = ITEMS, group = GROUP;
    cl_mem out = buffer_of(CL_MEM_READ_WRITE, ITEMS * sizeof(cl_uint), NULL);
    cl_kernel kernels[2] = {linked(0, NULL), linked(1, NULL)};
    cl_uint factors[2] = {3, 3};
    sub_groups(kernels[0]);
    for (cl_uint step = 0; step < STEPS; step++) {
        if (step % 2) {
            int which = step / 2 % 2;
            CHECK(clReleaseKernel(kernels[which]));
            kernels[which] = linked(which, &step);
            factors[which] = step;
        }
        unsigned long sum = 0;
        for (int i = 0; i < 2; i++) {
            int found[ITEMS];
            CHECK(clSetKernelArg(kernels[i], 0, sizeof out, &out));
            CHECK(clSetKernelArg(kernels[i], 1, sizeof step, &step));
            CHECK(clEnqueueNDRangeKernel(queue, kernels[i], 1, NULL, &items, &group, 0, NULL, NULL));
            CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, sizeof found, found, 0, NULL, NULL));
            for (cl_uint at = 0; at < ITEMS; at++) REQUIRE((cl_uint)found[at] == at * factors[i] + 11 + step);
            sum = sum * 31 + sum_of(found, ITEMS);
        }
        printf("step %u: %016lx\n", step, sum);
        fflush(stdout);
    }
    for (int i = 0; i < 2; i++) CHECK(clReleaseKernel(kernels[i]));
    CHECK(clReleaseMemObject(out));
    tear_down();
    return 0;
}
