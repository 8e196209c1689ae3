// Answers at further edges: what kernels may do with images, regions of no size, programs that are not built or whose build failed, and
// every command with objects and places that are none. The same must come through Katydid as from PoCL itself, whether or not a command of
// the kind has been accepted before. An argument names the one part that is wanted. What Katydid answers otherwise on purpose
// (docs/explanation/opencl.md) is not asked.
#include "answers.h"
#include <stdint.h>

static const cl_image_format RGBA = {CL_RGBA, CL_UNSIGNED_INT8};
static const size_t ZERO[3] = {0};

static cl_mem image_of(cl_mem_flags flags, const cl_image_format *format, const cl_image_desc *shape, void *host) {
    cl_mem image = clCreateImage(context, flags, format, shape, host, &code);
    return code == CL_SUCCESS ? image : NULL;
}

// A code, and whether there is an object.
static void made(const char *what, const void *object) {
    printf("  %-44s %s%s\n", what, code_name(code), (object != NULL) == (code == CL_SUCCESS) ? "" : object ? ", with an object" : ", without an object");
}

static const char *accesses_source =
    "kernel void reads(read_only image2d_t i, global int *v) { v[0] = (int)read_imageui(i, (int2)(0, 0)).x; }\n"
    "kernel void writes(write_only image2d_t i, global int *v) { write_imageui(i, (int2)(0, 0), (uint4)((uint)v[0])); }\n"
    "kernel void samples(read_only image2d_t i, sampler_t s, global int *v) { v[0] = (int)read_imageui(i, s, (float2)(0, 0)).x; }\n"
    "kernel void lines(read_only image1d_t i, global int *v) { v[0] = (int)read_imageui(i, 0).x; }\n"
    "kernel void volumes(read_only image3d_t i, global int *v) { v[0] = (int)read_imageui(i, (int4)(0)).x; }\n"
    "kernel void fixed(constant int *c, global const int *g, global int *v) { v[0] = c[0] + g[0]; }\n";

static void accesses(void) {
    SUBJECT("images that kernels have");
    cl_program program = build(accesses_source, "-cl-std=CL1.2");
    cl_image_desc plane = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
    static const struct { const char *name; cl_mem_flags flags; } kinds[] = {
        {"no flags", 0}, {"read and written", CL_MEM_READ_WRITE}, {"read alone", CL_MEM_READ_ONLY}, {"written alone", CL_MEM_WRITE_ONLY},
        {"both at once", CL_MEM_KERNEL_READ_AND_WRITE}, {"both at once, and read", CL_MEM_KERNEL_READ_AND_WRITE | CL_MEM_READ_ONLY},
        {"both at once, and written", CL_MEM_KERNEL_READ_AND_WRITE | CL_MEM_WRITE_ONLY}, {"no host", CL_MEM_READ_ONLY | CL_MEM_HOST_NO_ACCESS},
        {"host memory", CL_MEM_WRITE_ONLY | CL_MEM_ALLOC_HOST_PTR},
    };
    static const char *const names[] = {"reads", "writes", "samples", "lines", "volumes", "fixed"};
    cl_sampler sampler = clCreateSampler(context, CL_FALSE, CL_ADDRESS_NONE, CL_FILTER_NEAREST, &code);
    cl_mem out = buffer_of(0, 64, NULL), read_alone = buffer_of(CL_MEM_READ_ONLY, 64, NULL), written_alone = buffer_of(CL_MEM_WRITE_ONLY, 64, NULL);
    cl_mem buffers[] = {out, read_alone, written_alone, NULL};
    size_t one = 1;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        cl_kernel kernel = kernel_of(program, names[k]);
        cl_uint last = k == 2 || k == 5 ? 2 : 1;
        printf(" %s\n", names[k]);
        CHECK(clSetKernelArg(kernel, last, sizeof out, &out));
        if (k == 2) CHECK(clSetKernelArg(kernel, 1, sizeof sampler, &sampler));
        for (int turn = 0; turn < 2; turn++) {
            for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
                cl_mem image = image_of(kinds[i].flags, &RGBA, &plane, NULL);
                made(kinds[i].name, image);
                if (!image) continue;
                IS("argument", clSetKernelArg(kernel, 0, sizeof image, &image));
                if (k >= 3 || (kinds[i].flags & (k == 1 ? CL_MEM_READ_ONLY : CL_MEM_WRITE_ONLY))) code = CL_INVALID_VALUE;
                if (code == CL_SUCCESS) IS("launch", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL));
                CHECK(clFinish(queue));
                clReleaseMemObject(image);
            }
            for (size_t i = 0; i < 4; i++) IS("a buffer", clSetKernelArg(kernel, 0, sizeof *buffers, &buffers[i]));
            for (size_t i = 0; i < 4; i++) IS("a buffer last", clSetKernelArg(kernel, last, sizeof *buffers, &buffers[i]));
            CHECK(clSetKernelArg(kernel, last, sizeof out, &out));
            IS("no value", clSetKernelArg(kernel, 0, sizeof(cl_mem), NULL));
            IS("a size of nothing", clSetKernelArg(kernel, 0, 0, &out));
            IS("half a size", clSetKernelArg(kernel, 0, 4, &out));
            IS("a size of nothing, no value", clSetKernelArg(kernel, 0, 0, NULL));
            IS("a sampler", clSetKernelArg(kernel, 0, sizeof sampler, &sampler));
            if (k == 2) {
                IS("sampler: a buffer", clSetKernelArg(kernel, 1, sizeof out, &out));
                IS("sampler: none", clSetKernelArg(kernel, 1, sizeof out, NULL));
                IS("sampler: half a size", clSetKernelArg(kernel, 1, 4, &sampler));
            }
        }
        clReleaseKernel(kernel);
    }
    clReleaseSampler(sampler), clReleaseMemObject(out), clReleaseMemObject(read_alone), clReleaseMemObject(written_alone), clReleaseProgram(program);
}

// Of several things that are wrong with an image, the first that is looked for gives the code.
static void orders(void) {
    SUBJECT("two faults of an image");
    static char host[4096];
    cl_image_format wrong = {CL_RGBA, 0x1234}, rare = {CL_RGB, CL_FLOAT};
    cl_image_desc plane = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
    cl_image_desc flat = plane, unknown = plane, pitched = plane;
    flat.image_height = 0, unknown.image_type = 0x1234 , pitched.image_row_pitch = 64;
    const struct { const char *name; const cl_image_format *format; } formats[] = {{"a format", &RGBA}, {"no format", NULL}, {"a wrong format", &wrong}, {"a rare format", &rare}};
    const struct { const char *name; const cl_image_desc *shape; } shapes[] = {{"a shape", &plane}, {"no shape", NULL}, {"no height", &flat}, {"an unknown kind", &unknown}, {"a pitch", &pitched}};
    const struct { const char *name; cl_mem_flags flags; } flags[] = {
        {"right", 0}, {"exclude", CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY}, {"unknown", 1 << 20}, {"all exclude", CL_MEM_READ_ONLY | CL_MEM_READ_WRITE},
        {"no host", CL_MEM_HOST_NO_ACCESS | CL_MEM_HOST_READ_ONLY}, {"copied", CL_MEM_COPY_HOST_PTR}, {"used and copied", CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR},
        {"used and allocated", CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR}, {"grains", CL_MEM_SVM_FINE_GRAIN_BUFFER},
    };
    for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
        for (int turn = 0; turn < 2; turn++) {
            for (int place = 0; place < 2; place++) {
                printf(" flags that are %s%s\n", flags[f].name, place ? ", memory" : "");
                for (size_t i = 0; i < 4; i++) {
                    for (size_t j = 0; j < (i == 0 ? 4 : 5); j++) {
                        cl_mem image = clCreateImage(context, flags[f].flags, formats[i].format, shapes[j].shape, place ? host : NULL, &code);
                        printf("  %s, %s: ", formats[i].name, shapes[j].name);
                        made("", image);
                        if (image) clReleaseMemObject(image);
                    }
                }
            }
        }
    }
    SUBJECT("images of other objects");
    for (int outer = 0; outer < 8; outer++) {
        cl_mem_flags of_buffer = outer < 3 ? 1u << outer : outer < 6 ? 1u << (outer + 4) : 0;
        cl_mem buffer = buffer_of(of_buffer, 4096, NULL);
        for (int inner = 0; inner < 14; inner++) {
            if (inner >= 3 && inner <= 9 && inner != 6) continue;
            cl_image_desc line = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 16, .mem_object = buffer};
            cl_mem image = image_of(1u << inner, &RGBA, &line, NULL);
            made("a line of a buffer", image);
            if (image) clReleaseMemObject(image);
        }
        cl_image_desc line = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 4096, .mem_object = buffer};
        made("a line that is too long", image_of(0, &RGBA, &line, NULL));
        line.image_width = 0;
        made("a line of nothing", image_of(0, &RGBA, &line, NULL));
        line.image_width = 16, line.mem_object = NULL;
        made("a line of no buffer", image_of(0, &RGBA, &line, NULL));
        clReleaseMemObject(buffer);
    }
    SUBJECT("formats");
    for (int bit = 0; bit < 14; bit++) {
        for (cl_mem_object_type type = CL_MEM_OBJECT_BUFFER; type <= CL_MEM_OBJECT_PIPE + 1; type++) {
            cl_uint count = 77;
            IS("of a kind", clGetSupportedImageFormats(context, 1u << bit, type, 0, NULL, &count));
            printf("  %u\n", count);
        }
    }
    cl_uint count = 77;
    cl_image_format list[2];
    IS("no list, but room", clGetSupportedImageFormats(context, 0, CL_MEM_OBJECT_IMAGE2D, 2, NULL, &count));
    IS("a short list", clGetSupportedImageFormats(context, 0, CL_MEM_OBJECT_IMAGE2D, 2, list, &count));
    IS("neither", clGetSupportedImageFormats(context, 0, CL_MEM_OBJECT_IMAGE2D, 0, NULL, NULL));
}

static void regions(void) {
    static char host[1 << 16];
    static const struct { const char *name; cl_image_desc shape; } kinds[] = {
        {"a plane", {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 8, .image_height = 4}},
        {"a line", {.image_type = CL_MEM_OBJECT_IMAGE1D, .image_width = 8}},
        {"lines", {.image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY, .image_width = 8, .image_array_size = 4}},
        {"planes", {.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY, .image_width = 8, .image_height = 4, .image_array_size = 2}},
        {"a volume", {.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = 8, .image_height = 4, .image_depth = 2}},
    };
    static const size_t boxes[][3] = {{0, 0, 0}, {0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {1, 1, 1}, {8, 1, 1}, {9, 1, 1}, {1, 5, 1}, {1, 1, 5}};
    static const size_t origins[][3] = {{0, 0, 0}, {7, 0, 0}, {8, 0, 0}, {0, 3, 0}, {0, 4, 0}, {0, 0, 1}, {0, 0, 2}};
    cl_mem buffer = buffer_of(0, 1 << 16, NULL);
    cl_uint colour[4] = {1, 2, 3, 4};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        printf("regions of %s\n", kinds[k].name);
        cl_mem image = clCreateImage(context, 0, &RGBA, &kinds[k].shape, NULL, &code);
        CHECK(code);
        for (int turn = 0; turn < 2; turn++) {
            // Beyond images of other kinds PoCL 3.1 writes.
            const size_t last = k == 0 || k == 4 ? sizeof boxes / sizeof *boxes : 5;
            for (size_t b = 0; b < last; b++) {
                for (size_t o = 0; o < sizeof origins / sizeof *origins; o++) {
                    // The end of arrays PoCL 3.1 does not look at.
                    if ((k == 2 && o == 4) || (k == 3 && o == 6)) continue;
                    const size_t *box = boxes[b], *origin = origins[o];
                    size_t row = 77, slice = 77;
                    printf(" box %zu, origin %zu\n", b, o);
                    IS("read", clEnqueueReadImage(queue, image, CL_TRUE, origin, box, 0, 0, host, 0, NULL, NULL));
                    IS("read, not waited for", clEnqueueReadImage(queue, image, CL_FALSE, origin, box, 0, 0, host, 0, NULL, NULL));
                    IS("write", clEnqueueWriteImage(queue, image, CL_TRUE, origin, box, 0, 0, host, 0, NULL, NULL));
                    IS("write, not waited for", clEnqueueWriteImage(queue, image, CL_FALSE, origin, box, 0, 0, host, 0, NULL, NULL));
                    IS("fill", clEnqueueFillImage(queue, image, colour, origin, box, 0, NULL, NULL));
                    IS("copy", clEnqueueCopyImage(queue, image, image, origin, origin, box, 0, NULL, NULL));
                    IS("to a buffer", clEnqueueCopyImageToBuffer(queue, image, buffer, origin, box, 0, 0, NULL, NULL));
                    IS("from a buffer", clEnqueueCopyBufferToImage(queue, buffer, image, 0, origin, box, 0, NULL, NULL));
                    if (b <= 3 || (last == 5 && o > 0)) continue;
                    void *at = clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, origin, box, &row, &slice, 0, NULL, NULL, &code);
                    made("map", at);
                    if (at) IS("unmap", clEnqueueUnmapMemObject(queue, image, at, 0, NULL, NULL));
                    at = clEnqueueMapImage(queue, image, CL_FALSE, CL_MAP_WRITE_INVALIDATE_REGION, origin, box, &row, &slice, 0, NULL, NULL, &code);
                    made("map, not waited for", at);
                    if (at) IS("unmap", clEnqueueUnmapMemObject(queue, image, at, 0, NULL, NULL));
                    CHECK(clFinish(queue));
                }
            }
            const size_t *one = boxes[4];
            size_t row = 77, slice = 77;
            IS("read to nowhere", clEnqueueReadImage(queue, image, CL_TRUE, ZERO, one, 0, 0, NULL, 0, NULL, NULL));
            IS("write from nowhere", clEnqueueWriteImage(queue, image, CL_TRUE, ZERO, one, 0, 0, NULL, 0, NULL, NULL));
            IS("read, no origin", clEnqueueReadImage(queue, image, CL_TRUE, NULL, one, 0, 0, host, 0, NULL, NULL));
            IS("read, no region", clEnqueueReadImage(queue, image, CL_TRUE, ZERO, NULL, 0, 0, host, 0, NULL, NULL));
            IS("write, no origin", clEnqueueWriteImage(queue, image, CL_TRUE, NULL, one, 0, 0, host, 0, NULL, NULL));
            IS("write, no region", clEnqueueWriteImage(queue, image, CL_TRUE, ZERO, NULL, 0, 0, host, 0, NULL, NULL));
            for (int bit = 0; bit < 3; bit++) {
                void *at = clEnqueueMapImage(queue, image, CL_TRUE, 1u << bit, ZERO, one, &row, &slice, 0, NULL, NULL, &code);
                made("map with a flag", at);
                if (at) CHECK(clEnqueueUnmapMemObject(queue, image, at, 0, NULL, NULL));
            }
            made("map without flags", clEnqueueMapImage(queue, image, CL_TRUE, 0, ZERO, one, &row, &slice, 0, NULL, NULL, &code));
            made("map, no origin", clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, NULL, one, &row, &slice, 0, NULL, NULL, &code));
            made("map, no region", clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, ZERO, NULL, &row, &slice, 0, NULL, NULL, &code));
            made("map, no row pitch", clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, ZERO, one, NULL, &slice, 0, NULL, NULL, &code));
            made("map, no slice pitch", clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, ZERO, one, &row, NULL, 0, NULL, NULL, &code));
            CHECK(clFinish(queue));
        }
        clReleaseMemObject(image);
    }
    SUBJECT("images that are not the host's");
    for (int bit = 7; bit < 10; bit++) {
        cl_mem image = clCreateImage(context, 1u << bit, &RGBA, &kinds[0].shape, NULL, &code);
        CHECK(code);
        for (int turn = 0; turn < 2; turn++) {
            for (size_t b = 0; b < 5; b += 4) {
                size_t row, slice;
                IS("read", clEnqueueReadImage(queue, image, CL_TRUE, ZERO, boxes[b], 0, 0, host, 0, NULL, NULL));
                IS("read to nowhere", clEnqueueReadImage(queue, image, CL_TRUE, ZERO, boxes[b], 0, 0, NULL, 0, NULL, NULL));
                IS("write", clEnqueueWriteImage(queue, image, CL_TRUE, ZERO, boxes[b], 0, 0, host, 0, NULL, NULL));
                made("map to read", clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, ZERO, boxes[b], &row, &slice, 0, NULL, NULL, &code));
                made("map to write", clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_WRITE, ZERO, boxes[b], &row, &slice, 0, NULL, NULL, &code));
            }
        }
        CHECK(clFinish(queue));
        clReleaseMemObject(image);
    }
    clReleaseMemObject(buffer);
}

// What a program says of itself: sizes and values, into room that is too small, enough and more.
static void ask_of_program(const char *name, cl_program program) {
    printf("program %s\n", name);
    for (cl_uint parameter = CL_PROGRAM_REFERENCE_COUNT - 1; parameter <= CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT + 1; parameter++) {
        size_t size = 77, needed = 77;
        cl_int is = clGetProgramInfo(program, parameter, 0, NULL, &size);
        // Sources go without saying, and a binary's size is what the driver makes of it.
        show(is, "size", parameter, size, 0);
        show(clGetProgramInfo(program, parameter, 0, NULL, NULL), "none", parameter, 0, 0);
        show(clGetProgramInfo(program, parameter, 64, NULL, &needed), "nowhere", parameter, needed, 0);
        needed = 77;
        is = clGetProgramInfo(program, parameter, 0, value, &needed);
        show(is, "empty", parameter, needed, 0);
        printf("  %zu\n", needed);
        if (parameter == CL_PROGRAM_BINARIES) continue;
        memset(value, 0x55, 1024);
        needed = 77;
        is = clGetProgramInfo(program, parameter, 1024, value, &needed);
        show(is, "value", parameter, needed, (parameter == CL_PROGRAM_KERNEL_NAMES && needed > 1) || parameter == CL_PROGRAM_NUM_KERNELS || parameter == CL_PROGRAM_NUM_DEVICES || parameter == CL_PROGRAM_SOURCE || parameter > CL_PROGRAM_KERNEL_NAMES);
        if (is == CL_SUCCESS && parameter == CL_PROGRAM_BINARY_SIZES) printf("  %s\n", *(size_t *)value ? "some bytes" : "no bytes");
        if (is != CL_SUCCESS || size == 0) continue;
        needed = 77;
        show(clGetProgramInfo(program, parameter, size - 1, value, &needed), "short", parameter, needed, 0);
        printf("  %zu\n", needed);
    }
    static unsigned char bytes[1 << 20];
    unsigned char *places[4] = {bytes, NULL, NULL, NULL};
    size_t needed = 77;
    memset(bytes, 0x55, 64);
    IS("binaries", clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof *places, places, &needed));
    int touched = 0;
    for (int i = 0; i < 64; i++) touched |= bytes[i] != 0x55;
    printf("  %zu, %s, %s\n", needed, touched ? "written" : "not written", places[0] == bytes ? "there" : "elsewhere");
    needed = 77;
    IS("binaries, more room", clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof places, places, &needed));
    printf("  %zu\n", needed);
    needed = 77;
    IS("binaries, a short list", clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof *places - 1, places, &needed));
    printf("  %zu\n", needed);
    for (cl_uint parameter = CL_PROGRAM_BUILD_STATUS - 1; parameter <= CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE + 1; parameter++) {
        size_t size = 77;
        cl_int is = clGetProgramBuildInfo(program, device, parameter, 0, NULL, &size);
        show(is, "size", parameter, parameter == CL_PROGRAM_BUILD_LOG ? size > 1 : size, 0);
        show(clGetProgramBuildInfo(program, device, parameter, 0, NULL, NULL), "none", parameter, 0, 0);
        is = clGetProgramBuildInfo(program, device, parameter, ROOM, value, &size);
        show(is, "value", parameter, parameter == CL_PROGRAM_BUILD_LOG ? size > 1 : size, parameter != CL_PROGRAM_BUILD_LOG);
        show(clGetProgramBuildInfo(program, NULL, parameter, ROOM, value, &size), "no one", parameter, 0, 0);
        if (is == CL_SUCCESS && size > 0) show(clGetProgramBuildInfo(program, device, parameter, size - 1, value, &size), "short", parameter, 0, 0);
    }
    cl_uint count = 77;
    cl_kernel kernel = clCreateKernel(program, "f", &code);
    made("a kernel", kernel);
    if (kernel) clReleaseKernel(kernel);
    made("an unknown kernel", clCreateKernel(program, "nothing", &code));
    IS("all kernels", clCreateKernelsInProgram(program, 0, NULL, &count));
    printf("  %u\n", count);
}

static const char *right = "kernel void f(global int *v) { v[0] = 1; }\nkernel void g(global int *v, read_only image2d_t i) { v[0] = get_image_width(i); }\n";
static const char *wrong = "kernel void f(global int *v) { v[0] = nothing; }\n";

static cl_program of_text(const char *text) {
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &code);
    CHECK(code);
    return program;
}

static void programs(void) {
    cl_program fresh = of_text(right);
    ask_of_program("that is not built", fresh);
    IS("compile", clCompileProgram(fresh, 1, &device, "", 0, NULL, NULL, NULL, NULL));
    ask_of_program("that is compiled", fresh);
    cl_program linked = clLinkProgram(context, 1, &device, "", 1, &fresh, NULL, NULL, &code);
    made("link", linked);
    if (linked) ask_of_program("that is linked", linked);
    cl_program library = clLinkProgram(context, 1, &device, "-create-library", 1, &fresh, NULL, NULL, &code);
    made("link to a library", library);
    if (library) ask_of_program("that is a library", library);
    IS("build", clBuildProgram(fresh, 1, &device, "", NULL, NULL));
    ask_of_program("that is built", fresh);
    size_t size = 0;
    CHECK(clGetProgramInfo(fresh, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL));
    unsigned char *binary = malloc(size);
    CHECK(clGetProgramInfo(fresh, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL));
    IS("build with wrong options", clBuildProgram(fresh, 1, &device, "-no-such-option", NULL, NULL));
    ask_of_program("that was built with wrong options", fresh);
    IS("build again", clBuildProgram(fresh, 1, &device, "-DX=2", NULL, NULL));
    ask_of_program("that is built again", fresh);
    cl_program broken = of_text(wrong);
    IS("build of a wrong text", clBuildProgram(broken, 1, &device, "", NULL, NULL));
    ask_of_program("whose build failed", broken);
    IS("compilation of a wrong text", clCompileProgram(broken, 1, &device, "", 0, NULL, NULL, NULL, NULL));
    ask_of_program("whose compilation failed", broken);
    const unsigned char *bytes = binary, *none = NULL;
    cl_int status = 77;
    cl_program kept = clCreateProgramWithBinary(context, 1, &device, &size, &bytes, &status, &code);
    made("of a binary", kept);
    printf("  %s\n", code_name(status));
    if (kept) {
        ask_of_program("of a binary", kept);
        IS("build of a binary", clBuildProgram(kept, 1, &device, "", NULL, NULL));
        ask_of_program("of a binary that is built", kept);
        clReleaseProgram(kept);
    }
    size_t nothing = 0;
    made("of nothing of a binary", clCreateProgramWithBinary(context, 1, &device, &nothing, &bytes, &status, &code));
    made("of no binary", clCreateProgramWithBinary(context, 1, &device, &size, &none, &status, &code));
    if (linked) clReleaseProgram(linked);
    if (library) clReleaseProgram(library);
    clReleaseProgram(fresh), clReleaseProgram(broken);
    free(binary);
}

// Each query into places of every size, with and without a count.
typedef cl_int ask_fn(const void *of, cl_uint parameter, size_t size, void *place, size_t *needed);
#define ASK(name, type, call)                                                                                          \
    static cl_int name(const void *of, cl_uint p, size_t size, void *place, size_t *needed) { type o = (type)of; return call; }
ASK(ask_platform, cl_platform_id, clGetPlatformInfo(o, p, size, place, needed))
ASK(ask_device, cl_device_id, clGetDeviceInfo(o, p, size, place, needed))
ASK(ask_context, cl_context, clGetContextInfo(o, p, size, place, needed))
ASK(ask_queue, cl_command_queue, clGetCommandQueueInfo(o, p, size, place, needed))
ASK(ask_memory, cl_mem, clGetMemObjectInfo(o, p, size, place, needed))
ASK(ask_image, cl_mem, clGetImageInfo(o, p, size, place, needed))
ASK(ask_pipe, cl_mem, clGetPipeInfo(o, p, size, place, needed))
ASK(ask_sampler, cl_sampler, clGetSamplerInfo(o, p, size, place, needed))
ASK(ask_kernel, cl_kernel, clGetKernelInfo(o, p, size, place, needed))
ASK(ask_argument, cl_kernel, clGetKernelArgInfo(o, 0, p, size, place, needed))
ASK(ask_image_argument, cl_kernel, clGetKernelArgInfo(o, 1, p, size, place, needed))
ASK(ask_groups, cl_kernel, clGetKernelWorkGroupInfo(o, device, p, size, place, needed))
ASK(ask_event, cl_event, clGetEventInfo(o, p, size, place, needed))
ASK(ask_times, cl_event, clGetEventProfilingInfo(o, p, size, place, needed))

static void sweep(const char *name, const void *of, ask_fn *ask, cl_uint first, cl_uint count) {
    SUBJECT(name);
    for (cl_uint i = 0; i <= count + 1; i++) {
        cl_uint parameter = i == count + 1 ? 0x7fffffff : first - 1 + i;
        // Katydid marks versions and takes extensions out.
        int is_other = ask == ask_platform ? parameter == CL_PLATFORM_VERSION || parameter == CL_PLATFORM_EXTENSIONS || parameter == CL_PLATFORM_EXTENSIONS_WITH_VERSION
                                           : ask == ask_device && (parameter == CL_DEVICE_EXTENSIONS || parameter == CL_DEVICE_EXTENSIONS_WITH_VERSION);
        const int is_unknown = i == 0 || i > 5;
        if (is_other || (ask == ask_times && is_unknown)) continue;
        size_t size = 77, needed = 77;
        cl_int is = ask(of, parameter, 0, NULL, &size);
        show(is, "size", parameter, size, 0);
        size_t rooms[] = {0, 1, 4, 7, 8, size - 1, size + 1, ROOM};
        for (size_t j = 0; j < sizeof rooms / sizeof *rooms; j++) {
            needed = 77;
            printf("  room %zu", j);
            show(ask(of, parameter, rooms[j], NULL, &needed), "nowhere", parameter, needed, 0);
            if (rooms[j] > ROOM) continue;
            memset(value, 0x55, 32);
            needed = 77;
            is = ask(of, parameter, rooms[j], value, &needed);
            printf("  room %zu", j);
            show(is, "value", parameter, needed, 0);
            if (is != CL_SUCCESS) printf("  %zu, %s\n", needed, value[0] == 0x55 && value[31] == 0x55 ? "not written" : "written");
        }
    }
}

static void queries(void) {
    static char host[256];
    cl_program program = build(right, "-cl-kernel-arg-info");
    cl_kernel kernel = kernel_of(program, "g");
    cl_image_desc plane = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
    cl_mem buffer = buffer_of(0, 256, NULL), used = buffer_of(CL_MEM_USE_HOST_PTR, 256, host), image = image_of(0, &RGBA, &plane, NULL);
    cl_sampler sampler = clCreateSampler(context, CL_FALSE, CL_ADDRESS_NONE, CL_FILTER_NEAREST, &code);
    cl_event event, user = clCreateUserEvent(context, &code);
    CHECK(clEnqueueMarkerWithWaitList(queue, 0, NULL, &event));
    CHECK(clWaitForEvents(1, &event));
    sweep("platform", platform, ask_platform, CL_PLATFORM_PROFILE, 8);
    sweep("device", device, ask_device, CL_DEVICE_TYPE, 0x75);
    sweep("context", context, ask_context, CL_CONTEXT_REFERENCE_COUNT, 6);
    sweep("queue", queue, ask_queue, CL_QUEUE_CONTEXT, 10);
    sweep("buffer", buffer, ask_memory, CL_MEM_TYPE, 13);
    sweep("buffer of the host's", used, ask_memory, CL_MEM_TYPE, 13);
    sweep("buffer as a pipe", buffer, ask_pipe, CL_PIPE_PACKET_SIZE, 4);
    sweep("image", image, ask_image, CL_IMAGE_FORMAT, 12);
    sweep("image as memory", image, ask_memory, CL_MEM_TYPE, 13);
    sweep("sampler", sampler, ask_sampler, CL_SAMPLER_REFERENCE_COUNT, 9);
    sweep("kernel", kernel, ask_kernel, CL_KERNEL_FUNCTION_NAME, 8);
    sweep("argument", kernel, ask_argument, CL_KERNEL_ARG_ADDRESS_QUALIFIER, 6);
    sweep("argument that is an image", kernel, ask_image_argument, CL_KERNEL_ARG_ADDRESS_QUALIFIER, 6);
    sweep("groups", kernel, ask_groups, CL_KERNEL_WORK_GROUP_SIZE, 7);
    sweep("event", event, ask_event, CL_EVENT_COMMAND_QUEUE, 6);
    sweep("event of the program's", user, ask_event, CL_EVENT_COMMAND_QUEUE, 6);
    sweep("times", event, ask_times, CL_PROFILING_COMMAND_QUEUED, 6);
    sweep("times of the program's event", user, ask_times, CL_PROFILING_COMMAND_QUEUED, 6);
    clReleaseEvent(event), clReleaseEvent(user), clReleaseSampler(sampler), clReleaseMemObject(image), clReleaseMemObject(used);
    clReleaseMemObject(buffer), clReleaseKernel(kernel), clReleaseProgram(program);
}

// Every command with objects that are none, lists without lengths and sizes of nothing; before and after one of its kind was accepted.
static void commands(void) {
    SUBJECT("commands");
    static char host[4096];
    cl_program program = build("kernel void f(global int *v, int n) { v[0] = n; }\n", "");
    cl_kernel kernel = kernel_of(program, "f"), fresh = kernel_of(program, "f");
    cl_image_desc plane = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
    cl_mem buffer = buffer_of(0, 4096, NULL), other = buffer_of(0, 4096, NULL), image = image_of(0, &RGBA, &plane, NULL), second = image_of(0, &RGBA, &plane, NULL), pair[] = {buffer, NULL};
    cl_event none[2] = {NULL, NULL}, user = clCreateUserEvent(context, &code);
    CHECK(clSetUserEventStatus(user, CL_COMPLETE));
    int number = 1;
    size_t zero[3] = {0}, one[3] = {1, 1, 1}, no_middle[3] = {1, 0, 1}, no_last[3] = {1, 1, 0}, huge[3] = {(size_t)-1, 1, 1};
    cl_uint colour[4] = {0};
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    CHECK(clSetKernelArg(kernel, 1, sizeof number, &number));
    const size_t *boxes[] = {zero, one, no_middle, no_last, huge, NULL};
    // Lists of events: none, a length without a list, a list without a length, null in a list, one that is complete.
    const struct { cl_uint count; const cl_event *list; } waits[] = {{0, NULL}, {1, NULL}, {0, none}, {2, none}, {1, &user}};
    for (int turn = 0; turn < 2; turn++) {
        for (size_t w = 0; w < sizeof waits / sizeof *waits; w++) {
            const cl_uint n = waits[w].count;
            const cl_event *list = waits[w].list;
            const int is_right = w == 0 || w == 4;
            printf(" events %zu\n", w);
            IS("read", clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, host, n, list, NULL));
            IS("read of null", clEnqueueReadBuffer(queue, NULL, CL_TRUE, 0, 4, host, n, list, NULL));
            IS("read of nothing to nowhere", clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 0, NULL, n, list, NULL));
            IS("write", clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, 4, host, n, list, NULL));
            IS("write of null", clEnqueueWriteBuffer(queue, NULL, CL_TRUE, 0, 4, host, n, list, NULL));
            IS("write of nothing from nowhere", clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 0, 0, NULL, n, list, NULL));
            IS("write of nothing at the end", clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 4096, 0, host, n, list, NULL));
            IS("write of nothing beyond", clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 4097, 0, host, n, list, NULL));
            IS("copy", clEnqueueCopyBuffer(queue, buffer, other, 0, 0, 4, n, list, NULL));
            IS("copy of null", clEnqueueCopyBuffer(queue, NULL, other, 0, 0, 4, n, list, NULL));
            IS("copy to null", clEnqueueCopyBuffer(queue, buffer, NULL, 0, 0, 4, n, list, NULL));
            if (is_right) IS("copy of nothing", clEnqueueCopyBuffer(queue, buffer, other, 0, 0, 0, n, list, NULL));
            IS("copy of nothing beyond", clEnqueueCopyBuffer(queue, buffer, other, 4097, 0, 0, n, list, NULL));
            IS("copy of an image", clEnqueueCopyBuffer(queue, image, other, 0, 0, 4, n, list, NULL));
            IS("fill", clEnqueueFillBuffer(queue, buffer, host, 4, 0, 4, n, list, NULL));
            IS("fill of null", clEnqueueFillBuffer(queue, NULL, host, 4, 0, 4, n, list, NULL));
            IS("fill of nothing", clEnqueueFillBuffer(queue, buffer, host, 4, 0, 0, n, list, NULL));
            IS("fill of nothing beyond", clEnqueueFillBuffer(queue, buffer, host, 4, 4100, 0, n, list, NULL));
            IS("fill with nothing", clEnqueueFillBuffer(queue, buffer, NULL, 0, 0, 4, n, list, NULL));
            IS("fill of an image", clEnqueueFillImage(queue, image, colour, zero, one, n, list, NULL));
            IS("fill of a null image", clEnqueueFillImage(queue, NULL, colour, zero, one, n, list, NULL));
            IS("read of an image", clEnqueueReadImage(queue, image, CL_TRUE, zero, one, 0, 0, host, n, list, NULL));
            IS("read of a null image", clEnqueueReadImage(queue, NULL, CL_TRUE, zero, one, 0, 0, host, n, list, NULL));
            IS("read of a buffer as an image", clEnqueueReadImage(queue, buffer, CL_TRUE, zero, one, 0, 0, host, n, list, NULL));
            IS("write of an image", clEnqueueWriteImage(queue, image, CL_TRUE, zero, one, 0, 0, host, n, list, NULL));
            IS("write of a null image", clEnqueueWriteImage(queue, NULL, CL_TRUE, zero, one, 0, 0, host, n, list, NULL));
            IS("write of a buffer as an image", clEnqueueWriteImage(queue, buffer, CL_TRUE, zero, one, 0, 0, host, n, list, NULL));
            IS("copy of an image", clEnqueueCopyImage(queue, image, second, zero, zero, one, n, list, NULL));
            IS("copy of a null image", clEnqueueCopyImage(queue, NULL, image, zero, zero, one, n, list, NULL));
            IS("copy to a null image", clEnqueueCopyImage(queue, image, NULL, zero, zero, one, n, list, NULL));
            IS("copy of an image to a buffer", clEnqueueCopyImageToBuffer(queue, image, buffer, zero, one, 0, n, list, NULL));
            IS("copy of a null image to a buffer", clEnqueueCopyImageToBuffer(queue, NULL, buffer, zero, one, 0, n, list, NULL));
            IS("copy of a buffer to an image", clEnqueueCopyBufferToImage(queue, buffer, image, 0, zero, one, n, list, NULL));
            IS("copy of null to an image", clEnqueueCopyBufferToImage(queue, NULL, image, 0, zero, one, n, list, NULL));
            IS("copy of a buffer to a null image", clEnqueueCopyBufferToImage(queue, buffer, NULL, 0, zero, one, n, list, NULL));
            made("map of null", clEnqueueMapBuffer(queue, NULL, CL_TRUE, CL_MAP_READ, 0, 4, n, list, NULL, &code));
            made("map of an image", clEnqueueMapBuffer(queue, image, CL_TRUE, CL_MAP_READ, 0, 4, n, list, NULL, &code));
            void *at = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 0, 4, n, list, NULL, &code);
            made("map", at);
            IS("unmap of null", clEnqueueUnmapMemObject(queue, NULL, host, n, list, NULL));
            if (at) IS("unmap", clEnqueueUnmapMemObject(queue, buffer, at, n, list, NULL));
            if (at && code != CL_SUCCESS) CHECK(clEnqueueUnmapMemObject(queue, buffer, at, 0, NULL, NULL));
            // A launch behind a list that is wrong ends the process in PoCL 3.1, or is taken.
            if (is_right) IS("launch", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, one, NULL, n, list, NULL));
            if (is_right) IS("launch before arguments", clEnqueueNDRangeKernel(queue, fresh, 1, NULL, one, NULL, n, list, NULL));
            if (is_right) IS("launch of one item", clEnqueueTask(queue, kernel, n, list, NULL));
            IS("migrate", clEnqueueMigrateMemObjects(queue, 1, pair, 0, n, list, NULL));
            IS("migrate null", clEnqueueMigrateMemObjects(queue, 2, pair, 0, n, list, NULL));
            IS("marker", clEnqueueMarkerWithWaitList(queue, n, list, NULL));
            IS("barrier", clEnqueueBarrierWithWaitList(queue, n, list, NULL));
            IS("wait", clWaitForEvents(n, list));
        }
        for (size_t b = 0; b < sizeof boxes / sizeof *boxes; b++) {
            const size_t *box = boxes[b];
            printf(" box %zu\n", b);
            for (size_t o = 0; o < 6; o += o ? 4 : 1) {
                const size_t *origin = o == 1 ? one : boxes[o];
                IS("box read", clEnqueueReadBufferRect(queue, buffer, CL_TRUE, origin, zero, box, 0, 0, 0, 0, host, 0, NULL, NULL));
                IS("box write", clEnqueueWriteBufferRect(queue, buffer, CL_FALSE, origin, zero, box, 0, 0, 0, 0, host, 0, NULL, NULL));
                IS("box read to a place", clEnqueueReadBufferRect(queue, buffer, CL_TRUE, zero, origin, box, 0, 0, 0, 0, host, 0, NULL, NULL));
                IS("box write to nowhere", clEnqueueWriteBufferRect(queue, buffer, CL_TRUE, zero, origin, box, 0, 0, 0, 0, NULL, 0, NULL, NULL));
                IS("box copy", clEnqueueCopyBufferRect(queue, buffer, other, origin, zero, box, 0, 0, 0, 0, 0, NULL, NULL));
                IS("box copy to a place", clEnqueueCopyBufferRect(queue, buffer, other, zero, origin, box, 0, 0, 0, 0, 0, NULL, NULL));
            }
            IS("box read of null", clEnqueueReadBufferRect(queue, NULL, CL_TRUE, zero, zero, box, 0, 0, 0, 0, host, 0, NULL, NULL));
            IS("box read of an image", clEnqueueReadBufferRect(queue, image, CL_TRUE, zero, zero, box, 0, 0, 0, 0, host, 0, NULL, NULL));
            for (size_t l = 0; l < 6; l++) {
                if (b == 4) break;
                for (cl_uint dimensions = 1; dimensions <= 3; dimensions++) {
                    // Groups of nothing in further dimensions end the process in PoCL 3.1.
                    if (dimensions > 1 && l != 1 && l != 5) continue;
                    IS("launch", clEnqueueNDRangeKernel(queue, kernel, dimensions, NULL, box, boxes[l], 0, NULL, NULL));
                    IS("launch from somewhere", clEnqueueNDRangeKernel(queue, kernel, dimensions, boxes[l], box, NULL, 0, NULL, NULL));
                }
            }
        }
        for (size_t size = 0; size < 2; size++) {
            made("map", clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 4096 - size, size, 0, NULL, NULL, &code));
            made("map beyond", clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 4097 - size, size, 0, NULL, NULL, &code));
            for (int bit = 0; bit < 3; bit++) {
                made("map with a flag", clEnqueueMapBuffer(queue, buffer, CL_FALSE, 1u << bit, 0, size, 0, NULL, NULL, &code));
                made("map with a flag more", clEnqueueMapBuffer(queue, buffer, CL_FALSE, CL_MAP_WRITE | 1u << bit, 0, size, 0, NULL, NULL, &code));
            }
        }
        CHECK(clFinish(queue));
    }
    clReleaseEvent(user), clReleaseMemObject(second), clReleaseMemObject(image), clReleaseMemObject(other), clReleaseMemObject(buffer);
    clReleaseKernel(fresh), clReleaseKernel(kernel), clReleaseProgram(program);
}

int main(int count, char **wanted) {
    static const struct { const char *name; void (*show)(void); } parts[] = {
        {"accesses", accesses}, {"orders", orders}, {"regions", regions}, {"programs", programs}, {"queries", queries}, {"commands", commands},
    };
    set_up(CL_QUEUE_PROFILING_ENABLE);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (count < 2 || strcmp(wanted[1], parts[i].name) == 0) parts[i].show();
    }
    return 0;
}
