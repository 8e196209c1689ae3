// Every function with arguments at the edges, and every query with every parameter: codes, sizes and values. The same must come
// through Katydid as from PoCL itself; other drivers end the program at some arguments. What Katydid answers otherwise on purpose is not asked.
#include "answers.h"

// What Katydid marks, or takes extensions out of.
enum { CHANGED = -1 };

// What is asked in four ways of each parameter; `is_told`: whether the value is the same in every process.
typedef cl_int ask_fn(const void *of, cl_uint parameter, size_t size, void *place, size_t *needed);
typedef int told_fn(cl_uint parameter);
static void sweep(const char *name, const void *of, ask_fn *ask, cl_uint first, cl_uint last, told_fn *is_told) {
    SUBJECT(name);
    for (cl_uint parameter = first; parameter <= last; parameter++) {
        size_t size = 77;
        if (is_told(parameter) == CHANGED) continue;
        cl_int is = ask(of, parameter, 0, NULL, &size);
        show(is, "size", parameter, size, 0);
        cl_int nothing = ask(of, parameter, 0, NULL, NULL);
        if (nothing != is) show(nothing, "none", parameter, 0, 0);
        if (is != CL_SUCCESS) {
            is = ask(of, parameter, ROOM, value, NULL);
            show(is, "value", parameter, 0, 0);
            continue;
        }
        if (size > ROOM) continue;
        memset(value, 0, sizeof value);
        is = ask(of, parameter, ROOM, value, NULL);
        show(is, "value", parameter, size, is_told(parameter));
        if (size > 0) show(ask(of, parameter, size - 1, value, NULL), "short", parameter, 0, 0);
        if (size > 0) show(ask(of, parameter, 0, value, NULL), "empty", parameter, 0, 0);
    }
}

// Values with handles, counts of references, and what Katydid marks or takes away.
static int of_platform(cl_uint p) { return p == CL_PLATFORM_VERSION || p == CL_PLATFORM_EXTENSIONS || p == CL_PLATFORM_EXTENSIONS_WITH_VERSION ? CHANGED : 1; }
static int of_device(cl_uint p) {
    if (p == CL_DEVICE_EXTENSIONS || p == CL_DEVICE_EXTENSIONS_WITH_VERSION) return CHANGED;
    return p != CL_DEVICE_PLATFORM && p != CL_DEVICE_PARENT_DEVICE && p != CL_DEVICE_SVM_CAPABILITIES &&
           p != CL_DEVICE_EXECUTION_CAPABILITIES && p != CL_DEVICE_REFERENCE_COUNT;
}
static int of_context(cl_uint p) { return p == CL_CONTEXT_NUM_DEVICES; }
static int of_queue(cl_uint p) { return p == CL_QUEUE_PROPERTIES || p == CL_QUEUE_SIZE || p == CL_QUEUE_DEVICE_DEFAULT || p == CL_QUEUE_PROPERTIES_ARRAY; }
static int of_memory(cl_uint p) { return p == CL_MEM_TYPE || p == CL_MEM_FLAGS || p == CL_MEM_SIZE || p == CL_MEM_MAP_COUNT || p == CL_MEM_OFFSET || p == CL_MEM_USES_SVM_POINTER || p == CL_MEM_PROPERTIES; }
static int of_image(cl_uint p) { return p != CL_IMAGE_BUFFER; }
static int of_sampler(cl_uint p) { return p != CL_SAMPLER_REFERENCE_COUNT && p != CL_SAMPLER_CONTEXT; }
static int of_program(cl_uint p) { return p == CL_PROGRAM_NUM_DEVICES || p == CL_PROGRAM_SOURCE || p == CL_PROGRAM_NUM_KERNELS || p == CL_PROGRAM_KERNEL_NAMES; }
static int of_build(cl_uint p) { return p != CL_PROGRAM_BUILD_LOG; }
static int of_kernel(cl_uint p) { return p == CL_KERNEL_FUNCTION_NAME || p == CL_KERNEL_NUM_ARGS || p == CL_KERNEL_ATTRIBUTES; }
static int of_event(cl_uint p) { return p == CL_EVENT_COMMAND_TYPE || p == CL_EVENT_COMMAND_EXECUTION_STATUS; }
static int all(cl_uint p) { return (void)p, 1; }
static int none(cl_uint p) { return (void)p, 0; }

#define ASK(name, type, function)                                                                                      \
    static cl_int name(const void *of, cl_uint p, size_t size, void *place, size_t *needed) {                          \
        return function((type)of, p, size, place, needed);                                                             \
    }
ASK(ask_platform, cl_platform_id, clGetPlatformInfo)
ASK(ask_device, cl_device_id, clGetDeviceInfo)
ASK(ask_context, cl_context, clGetContextInfo)
ASK(ask_queue, cl_command_queue, clGetCommandQueueInfo)
ASK(ask_memory, cl_mem, clGetMemObjectInfo)
ASK(ask_image, cl_mem, clGetImageInfo)
ASK(ask_pipe, cl_mem, clGetPipeInfo)
ASK(ask_sampler, cl_sampler, clGetSamplerInfo)
ASK(ask_kernel, cl_kernel, clGetKernelInfo)
ASK(ask_event, cl_event, clGetEventInfo)
ASK(ask_times, cl_event, clGetEventProfilingInfo)
// Binaries are written to places that the value names.
static cl_int ask_program(const void *of, cl_uint p, size_t size, void *place, size_t *needed) {
    return p == CL_PROGRAM_BINARIES ? CL_INVALID_VALUE : clGetProgramInfo((cl_program)of, p, size, place, needed);
}
static cl_int ask_build(const void *of, cl_uint p, size_t size, void *place, size_t *needed) {
    return clGetProgramBuildInfo((cl_program)of, device, p, size, place, needed);
}
static cl_int ask_argument(const void *of, cl_uint p, size_t size, void *place, size_t *needed) {
    return clGetKernelArgInfo((cl_kernel)of, 1, p, size, place, needed);
}
static cl_int ask_no_argument(const void *of, cl_uint p, size_t size, void *place, size_t *needed) {
    return clGetKernelArgInfo((cl_kernel)of, 9, p, size, place, needed);
}
static cl_int ask_groups(const void *of, cl_uint p, size_t size, void *place, size_t *needed) {
    return clGetKernelWorkGroupInfo((cl_kernel)of, device, p, size, place, needed);
}
static cl_int ask_groups_of_any(const void *of, cl_uint p, size_t size, void *place, size_t *needed) {
    return clGetKernelWorkGroupInfo((cl_kernel)of, NULL, p, size, place, needed);
}

static void CL_CALLBACK ignore_context(const char *text, const void *p, size_t size, void *data) { (void)text, (void)p, (void)size, (void)data; }
static void CL_CALLBACK ignore_memory(cl_mem memory, void *data) { (void)memory, (void)data; }
static void CL_CALLBACK ignore_program(cl_program program, void *data) { (void)program, (void)data; }
static void CL_CALLBACK ignore_event(cl_event event, cl_int state, void *data) { (void)event, (void)state, (void)data; }
static void CL_CALLBACK ignore_end(cl_context of, void *data) { (void)of, (void)data; }

static void devices(void) {
    SUBJECT("devices");
    cl_device_id found[8];
    cl_uint count = 77;
    cl_device_type types[] = {0, CL_DEVICE_TYPE_DEFAULT, CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_CUSTOM, 1 << 5, 1 << 10, CL_DEVICE_TYPE_ALL};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        IS("of a type", clGetDeviceIDs(platform, types[i], 8, found, &count));
        SHOW("context of a type", clCreateContextFromType(NULL, types[i], NULL, NULL, &code));
    }
    IS("no entries for a list", clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, found, &count));
    IS("neither list nor count", clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 8, NULL, NULL));
    IS("a whole device retained", clRetainDevice(device));
    IS("a whole device released", clReleaseDevice(device));
    IS("both clocks, no place", clGetDeviceAndHostTimer(device, NULL, NULL));
    cl_ulong first, second;
    IS("both clocks", clGetDeviceAndHostTimer(device, &first, &second));
    IS("both clocks, one place", clGetDeviceAndHostTimer(device, &first, NULL));
    IS("the host's clock, no place", clGetHostTimer(device, NULL));
    IS("the host's clock", clGetHostTimer(device, &first));
    IS("unload a compiler", clUnloadPlatformCompiler(platform));
    printf("  a function that no driver has: %s\n", clGetExtensionFunctionAddressForPlatform(platform, "clNothing") ? "found" : "none");
}

static void parts(void) {
    SUBJECT("parts of devices");
    cl_device_id out[64];
    cl_uint count = 77;
    cl_device_partition_property lists[][6] = {
        {0}, {CL_DEVICE_PARTITION_EQUALLY, 0, 0}, {CL_DEVICE_PARTITION_EQUALLY, 1 << 20, 0}, {CL_DEVICE_PARTITION_BY_COUNTS, 0, 0},
        {CL_DEVICE_PARTITION_BY_COUNTS, 1 << 20, 0, 0}, {CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, CL_DEVICE_AFFINITY_DOMAIN_NUMA, 0},
        {CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, 0, 0}, {0x7777, 1, 0}, {CL_DEVICE_PARTITION_BY_COUNTS, 1, 0, 0},
    };
    IS("no properties", clCreateSubDevices(device, NULL, 64, out, &count));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        count = 77;
        IS("how many", clCreateSubDevices(device, lists[i], 0, NULL, &count));
        if (code == CL_SUCCESS) printf("  %u\n", count);
        if (i == 7) continue;
        IS("no place, and no count", clCreateSubDevices(device, lists[i], 0, NULL, NULL));
    }
    IS("a list without room", clCreateSubDevices(device, lists[8], 0, out, &count));
}

static void contexts(void) {
    SUBJECT("contexts");
    cl_context_properties twice[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
    cl_context_properties unknown[] = {0x7777, 1, 0}, nowhere[] = {CL_CONTEXT_PLATFORM, 0, 0}, empty[] = {0};
    cl_context_properties sync[] = {CL_CONTEXT_INTEROP_USER_SYNC, CL_TRUE, 0};
    cl_device_id same[] = {device, device}, null[] = {NULL};
    SHOW("platform named twice", clCreateContext(twice, 1, &device, NULL, NULL, &code));
    SHOW("unknown property", clCreateContext(unknown, 1, &device, NULL, NULL, &code));
    SHOW("no platform", clCreateContext(nowhere, 1, &device, NULL, NULL, &code));
    SHOW("an empty list", clCreateContext(empty, 1, &device, NULL, NULL, &code));
    SHOW("who synchronises", clCreateContext(sync, 1, &device, NULL, NULL, &code));
    SHOW("no device", clCreateContext(NULL, 0, NULL, NULL, NULL, &code));
    SHOW("no device in a list", clCreateContext(NULL, 0, &device, NULL, NULL, &code));
    SHOW("devices without a list", clCreateContext(NULL, 1, NULL, NULL, NULL, &code));
    SHOW("a device that is none", clCreateContext(NULL, 1, null, NULL, NULL, &code));
    SHOW("data without a function", clCreateContext(NULL, 1, &device, NULL, &code, &code));
    SHOW("a function", clCreateContext(NULL, 1, &device, ignore_context, NULL, &code));
    cl_context of = clCreateContext(NULL, 2, same, NULL, NULL, &code);
    printf("  a device twice: %s\n", code_name(code));
    if (of) {
        cl_uint number = 77;
        clGetContextInfo(of, CL_CONTEXT_NUM_DEVICES, sizeof number, &number, NULL);
        printf("  which has %u\n", number);
    }
    SHOW("by type, unknown property", clCreateContextFromType(unknown, CL_DEVICE_TYPE_ALL, NULL, NULL, &code));
    SHOW("by type, data without a function", clCreateContextFromType(NULL, CL_DEVICE_TYPE_ALL, NULL, &of, &code));
    IS("end told to no function", clSetContextDestructorCallback(context, NULL, NULL));
    IS("end told", clSetContextDestructorCallback(context, ignore_end, NULL));
}

static void queues(void) {
    SUBJECT("queues");
    for (int bit = 0; bit < 8; bit++) SHOW("a flag", clCreateCommandQueue(context, device, 1u << bit, &code));
    SHOW("both flags", clCreateCommandQueue(context, device, 3, &code));
    cl_queue_properties none[] = {0}, flags[] = {CL_QUEUE_PROPERTIES, 2, 0}, wrong[] = {CL_QUEUE_PROPERTIES, 1 << 20, 0};
    cl_queue_properties unknown[] = {0x7777, 1, 0}, size[] = {CL_QUEUE_SIZE, 1024, 0};
    cl_queue_properties twice[] = {CL_QUEUE_PROPERTIES, 2, CL_QUEUE_PROPERTIES, 2, 0};
    SHOW("no list", clCreateCommandQueueWithProperties(context, device, NULL, &code));
    SHOW("an empty list", clCreateCommandQueueWithProperties(context, device, none, &code));
    SHOW("flags in a list", clCreateCommandQueueWithProperties(context, device, flags, &code));
    SHOW("wrong flags in a list", clCreateCommandQueueWithProperties(context, device, wrong, &code));
    SHOW("unknown property", clCreateCommandQueueWithProperties(context, device, unknown, &code));
    SHOW("size of a queue of the host's", clCreateCommandQueueWithProperties(context, device, size, &code));
    SHOW("flags twice", clCreateCommandQueueWithProperties(context, device, twice, &code));
    SHOW("no device", clCreateCommandQueue(context, NULL, 0, &code));
    IS("default queue", clSetDefaultDeviceCommandQueue(context, device, queue));
    IS("default queue null", clSetDefaultDeviceCommandQueue(context, device, NULL));
    IS("flush", clFlush(queue));
    IS("finish", clFinish(queue));
}

static void memory(void) {
    SUBJECT("buffers");
    static char host[4096];
    for (int bit = 0; bit < 14; bit++) {
        SHOW("a flag", clCreateBuffer(context, 1ull << bit, 64, NULL, &code));
        SHOW("a flag, and memory", clCreateBuffer(context, 1ull << bit, 64, host, &code));
    }
    for (int first = 0; first < 10; first++) {
        for (int second = first + 1; second < 10; second++) {
            cl_mem_flags both = 1ull << first | 1ull << second;
            SHOW("two flags", clCreateBuffer(context, both, 64, both & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR) ? host : NULL, &code));
        }
    }
    SHOW("no size", clCreateBuffer(context, 0, 0, NULL, &code));
    SHOW("too large", clCreateBuffer(context, 0, (size_t)-1, NULL, &code));
    cl_mem_properties empty[] = {0};
    SHOW("an empty list", clCreateBufferWithProperties(context, empty, 0, 64, NULL, &code));
    SHOW("no list", clCreateBufferWithProperties(context, NULL, 0, 64, NULL, &code));
    cl_mem buffer = buffer_of(CL_MEM_READ_ONLY | CL_MEM_HOST_READ_ONLY, 4096, NULL);
    cl_buffer_region region = {0, 1024}, odd = {1, 1024}, empty_region = {0, 0}, outside = {4096, 1}, long_one = {2048, 4096};
    SHOW("part", clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code));
    cl_mem part = clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    SHOW("part of a part", clCreateSubBuffer(part, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code));
    SHOW("part, unknown kind", clCreateSubBuffer(buffer, 0, 0x1234, &region, &code));
    SHOW("part of no region", clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, NULL, &code));
    SHOW("part at an odd place", clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &odd, &code));
    SHOW("part of no size", clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &empty_region, &code));
    SHOW("part outside", clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &outside, &code));
    SHOW("part beyond the end", clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &long_one, &code));
    for (int bit = 0; bit < 10; bit++) SHOW("part with a flag", clCreateSubBuffer(buffer, 1ull << bit, CL_BUFFER_CREATE_TYPE_REGION, &region, &code));
    IS("end told to no function", clSetMemObjectDestructorCallback(buffer, NULL, NULL));
    IS("end told", clSetMemObjectDestructorCallback(buffer, ignore_memory, NULL));
    SHOW("pipe", clCreatePipe(context, 0, 4, 16, NULL, &code));
    SHOW("pipe of nothing", clCreatePipe(context, 0, 0, 0, NULL, &code));
    sweep("query of a buffer", buffer, ask_memory, CL_MEM_TYPE, CL_MEM_TYPE + 12, of_memory);
    sweep("query of a part", part, ask_memory, CL_MEM_TYPE, CL_MEM_TYPE + 12, of_memory);
    sweep("query of a buffer as a pipe", buffer, ask_pipe, CL_PIPE_PACKET_SIZE, CL_PIPE_PACKET_SIZE + 1, none);
    clReleaseMemObject(part), clReleaseMemObject(buffer);
}

static void images(void) {
    SUBJECT("images");
    static char host[1 << 16];
    cl_image_format rgba = {CL_RGBA, CL_UNSIGNED_INT8}, wrong = {CL_RGBA, 0x1234}, odd = {0x1234, CL_UNSIGNED_INT8}, pair = {CL_RGB, CL_UNSIGNED_INT8};
    cl_image_desc plane = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, .image_height = 8}, shape = plane;
    cl_uint count = 77;
    cl_image_format list[256];
    IS("formats", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 256, list, &count));
    IS("formats, no list", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, NULL, &count));
    IS("formats, no room", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, list, &count));
    IS("formats of a buffer", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_BUFFER, 256, list, &count));
    IS("formats, flags that exclude", clGetSupportedImageFormats(context, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, CL_MEM_OBJECT_IMAGE2D, 256, list, &count));
    SHOW("format unknown", clCreateImage(context, 0, &wrong, &plane, NULL, &code));
    SHOW("order unknown", clCreateImage(context, 0, &odd, &plane, NULL, &code));
    SHOW("format that goes with no order", clCreateImage(context, 0, &pair, &plane, NULL, &code));
    SHOW("memory without flag", clCreateImage(context, 0, &rgba, &plane, host, &code));
    SHOW("flag without memory", clCreateImage(context, CL_MEM_COPY_HOST_PTR, &rgba, &plane, NULL, &code));
    SHOW("flags that exclude", clCreateImage(context, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, &rgba, &plane, NULL, &code));
    SHOW("flag unknown", clCreateImage(context, 1 << 20, &rgba, &plane, NULL, &code));
    shape.image_width = 0;
    SHOW("no width", clCreateImage(context, 0, &rgba, &shape, NULL, &code));
    shape = plane, shape.image_height = 0;
    SHOW("no height", clCreateImage(context, 0, &rgba, &shape, NULL, &code));
    shape = plane, shape.image_width = (size_t)1 << 30;
    SHOW("too wide", clCreateImage(context, 0, &rgba, &shape, NULL, &code));
    shape = plane, shape.image_type = CL_MEM_OBJECT_BUFFER;
    SHOW("kind of a buffer", clCreateImage(context, 0, &rgba, &shape, NULL, &code));
    shape = plane, shape.image_type = CL_MEM_OBJECT_IMAGE3D, shape.image_depth = 0;
    SHOW("no depth", clCreateImage(context, 0, &rgba, &shape, NULL, &code));
    shape = plane, shape.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY, shape.image_array_size = 0;
    SHOW("no images in an array", clCreateImage(context, 0, &rgba, &shape, NULL, &code));
    cl_mem image = clCreateImage(context, CL_MEM_READ_WRITE, &rgba, &plane, NULL, &code);
    printf("  image: %s\n", code_name(code));
    sweep("query of an image", image, ask_image, CL_IMAGE_FORMAT - 1, CL_IMAGE_FORMAT + 0xb, of_image);
    sweep("query of an image as memory", image, ask_memory, CL_MEM_TYPE, CL_MEM_TYPE + 12, of_memory);
    shape = plane, shape.image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY, shape.image_array_size = 3;
    cl_mem lines = clCreateImage(context, CL_MEM_COPY_HOST_PTR, &rgba, &shape, host, &code);
    sweep("query of lines", lines, ask_image, CL_IMAGE_FORMAT, CL_IMAGE_FORMAT + 0xb, of_image);
    shape = plane, shape.image_type = CL_MEM_OBJECT_IMAGE3D, shape.image_depth = 4;
    cl_mem volume = clCreateImage(context, CL_MEM_COPY_HOST_PTR, &rgba, &shape, host, &code);
    sweep("query of a volume", volume, ask_image, CL_IMAGE_FORMAT, CL_IMAGE_FORMAT + 0xb, of_image);
    SUBJECT("commands of images");
    size_t zero[3] = {0}, all_of_it[3] = {16, 8, 1}, nothing[3] = {0, 8, 1}, deep[3] = {16, 8, 2}, far[3] = {16, 0, 0}, slice_of[3] = {0, 0, 1};
    unsigned color[4] = {1, 2, 3, 4};
    IS("fill", clEnqueueFillImage(queue, image, color, zero, all_of_it, 0, NULL, NULL));
    IS("fill with no colour", clEnqueueFillImage(queue, image, NULL, zero, all_of_it, 0, NULL, NULL));
    IS("fill from nowhere", clEnqueueFillImage(queue, image, color, NULL, all_of_it, 0, NULL, NULL));
    IS("fill of no region", clEnqueueFillImage(queue, image, color, zero, NULL, 0, NULL, NULL));
    IS("fill of slices", clEnqueueFillImage(queue, image, color, zero, deep, 0, NULL, NULL));
    IS("fill from beyond", clEnqueueFillImage(queue, image, color, far, all_of_it, 0, NULL, NULL));
    IS("fill of nothing", clEnqueueFillImage(queue, image, color, zero, nothing, 0, NULL, NULL));
    IS("read to nowhere", clEnqueueReadImage(queue, image, CL_TRUE, zero, all_of_it, 0, 0, NULL, 0, NULL, NULL));
    IS("read from nowhere", clEnqueueReadImage(queue, image, CL_TRUE, NULL, all_of_it, 0, 0, host, 0, NULL, NULL));
    IS("read, a pitch", clEnqueueReadImage(queue, image, CL_TRUE, zero, all_of_it, 128, 0, host, 0, NULL, NULL));
    IS("copy", clEnqueueCopyImage(queue, image, image, zero, zero, all_of_it, 0, NULL, NULL));
    IS("copy of nothing", clEnqueueCopyImage(queue, image, volume, zero, zero, nothing, 0, NULL, NULL));
    IS("copy to slices", clEnqueueCopyImage(queue, image, volume, zero, slice_of, all_of_it, 0, NULL, NULL));
    IS("copy of slices", clEnqueueCopyImage(queue, image, volume, zero, zero, deep, 0, NULL, NULL));
    cl_mem buffer = buffer_of(0, 512, NULL);
    IS("copy to a buffer", clEnqueueCopyImageToBuffer(queue, image, buffer, zero, all_of_it, 0, 0, NULL, NULL));
    IS("copy beyond a buffer", clEnqueueCopyImageToBuffer(queue, image, buffer, zero, all_of_it, 4, 0, NULL, NULL));
    IS("copy from a buffer", clEnqueueCopyBufferToImage(queue, buffer, image, 0, zero, all_of_it, 0, NULL, NULL));
    IS("copy from beyond a buffer", clEnqueueCopyBufferToImage(queue, buffer, image, 4, zero, all_of_it, 0, NULL, NULL));
    IS("a buffer as an image", clEnqueueFillImage(queue, buffer, color, zero, all_of_it, 0, NULL, NULL));
    IS("an image as a buffer", clEnqueueFillBuffer(queue, image, color, 4, 0, 16, 0, NULL, NULL));
    size_t row = 77, slice = 77;
    SHOW("map", clEnqueueMapImage(queue, volume, CL_TRUE, CL_MAP_READ, zero, deep, &row, &slice, 0, NULL, NULL, &code));
    SHOW("map to read, and the texels are undefined", clEnqueueMapImage(queue, volume, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE_INVALIDATE_REGION, zero, deep, &row, &slice, 0, NULL, NULL, &code));
    SHOW("map, no row pitch", clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, zero, all_of_it, NULL, &slice, 0, NULL, NULL, &code));
    SHOW("map, no slice pitch", clEnqueueMapImage(queue, volume, CL_TRUE, CL_MAP_READ, zero, deep, &row, NULL, 0, NULL, NULL, &code));
    CHECK(clFinish(queue));
    clReleaseMemObject(buffer), clReleaseMemObject(lines);
}

static void shared_memory(void) {
    SUBJECT("shared virtual memory");
    cl_device_svm_capabilities has = 0;
    if (clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof has, &has, NULL) || !has) return;
    cl_svm_mem_flags flags[] = {0, CL_MEM_READ_WRITE, CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, CL_MEM_SVM_ATOMICS, 1 << 20};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) printf("  allocated: %s\n", clSVMAlloc(context, flags[i], 64, 0) ? "yes" : "no");
    cl_uint alignments[] = {1, 3, 8, 128, 256, 4096};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) printf("  aligned to %u: %s\n", alignments[i], clSVMAlloc(context, 0, 64, alignments[i]) ? "yes" : "no");
    printf("  of no size: %s\n", clSVMAlloc(context, 0, 0, 0) ? "yes" : "no");
    printf("  too large: %s\n", clSVMAlloc(context, 0, (size_t)-1 / 2, 0) ? "yes" : "no");
    static char from[4096], to[4096];
    char *memory = clSVMAlloc(context, CL_MEM_READ_WRITE, 4096, 0);
    void *list[] = {memory}, *nulls[] = {NULL};
    const void *constant[] = {memory};
    size_t size = 4096, beyond = 4097;
    cl_event event = NULL;
    memset(from, 7, sizeof from);
    IS("copy from memory to memory", clEnqueueSVMMemcpy(queue, CL_TRUE, to, from, sizeof to, 0, NULL, &event));
    printf("  %s\n", memcmp(to, from, sizeof to) ? "other bytes" : "the same bytes");
    cl_command_type kind = 0;
    if (event) clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof kind, &kind, NULL);
    printf("  kind %#x\n", kind);
    IS("copy from", clEnqueueSVMMemcpy(queue, CL_TRUE, memory, from, sizeof to, 0, NULL, NULL));
    IS("copy to", clEnqueueSVMMemcpy(queue, CL_TRUE, to, memory, sizeof to, 0, NULL, NULL));
    IS("copy within", clEnqueueSVMMemcpy(queue, CL_TRUE, memory, memory + 2048, 2048, 0, NULL, NULL));
    IS("copy over itself", clEnqueueSVMMemcpy(queue, CL_TRUE, memory, memory + 1, 2048, 0, NULL, NULL));
    IS("copy of memory over itself", clEnqueueSVMMemcpy(queue, CL_TRUE, from, from + 1, 2048, 0, NULL, NULL));
    IS("copy of nothing", clEnqueueSVMMemcpy(queue, CL_TRUE, memory, from, 0, 0, NULL, NULL));
    IS("copy of nothing between memories", clEnqueueSVMMemcpy(queue, CL_TRUE, to, from, 0, 0, NULL, NULL));
    IS("copy to nowhere", clEnqueueSVMMemcpy(queue, CL_TRUE, NULL, from, 16, 0, NULL, NULL));
    IS("copy from nowhere", clEnqueueSVMMemcpy(queue, CL_TRUE, memory, NULL, 16, 0, NULL, NULL));
    size_t patterns[] = {0, 1, 3, 4, 16, 128, 256};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) IS("fill", clEnqueueSVMMemFill(queue, memory, from, patterns[i], 1024, 0, NULL, NULL));
    IS("fill, not a multiple", clEnqueueSVMMemFill(queue, memory, from, 16, 1000, 0, NULL, NULL));
    IS("fill at an odd place", clEnqueueSVMMemFill(queue, memory + 4, from, 16, 1024, 0, NULL, NULL));
    IS("fill of nowhere", clEnqueueSVMMemFill(queue, NULL, from, 16, 1024, 0, NULL, NULL));
    IS("fill of nothing", clEnqueueSVMMemFill(queue, memory, from, 16, 0, 0, NULL, NULL));
    IS("map", clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, memory, 4096, 0, NULL, NULL));
    IS("unmap", clEnqueueSVMUnmap(queue, memory, 0, NULL, NULL));
    IS("map of nothing", clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, memory, 0, 0, NULL, NULL));
    IS("map of nowhere", clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, NULL, 16, 0, NULL, NULL));
    IS("map, flags that exclude", clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION, memory, 16, 0, NULL, NULL));
    IS("map, unknown flags", clEnqueueSVMMap(queue, CL_TRUE, 1 << 10, memory, 16, 0, NULL, NULL));
    IS("unmap of nowhere", clEnqueueSVMUnmap(queue, NULL, 0, NULL, NULL));
    IS("free of none", clEnqueueSVMFree(queue, 0, NULL, NULL, NULL, 0, NULL, NULL));
    IS("free of none in a list", clEnqueueSVMFree(queue, 0, list, NULL, NULL, 0, NULL, NULL));
    IS("free without a list", clEnqueueSVMFree(queue, 1, NULL, NULL, NULL, 0, NULL, NULL));
    IS("free of nowhere", clEnqueueSVMFree(queue, 1, nulls, NULL, NULL, 0, NULL, NULL));
    IS("migrate", clEnqueueSVMMigrateMem(queue, 1, constant, &size, 0, 0, NULL, NULL));
    IS("migrate, no sizes", clEnqueueSVMMigrateMem(queue, 1, constant, NULL, 0, 0, NULL, NULL));
    IS("migrate none", clEnqueueSVMMigrateMem(queue, 0, constant, &size, 0, 0, NULL, NULL));
    IS("migrate no list", clEnqueueSVMMigrateMem(queue, 1, NULL, &size, 0, 0, NULL, NULL));
    IS("migrate, unknown flags", clEnqueueSVMMigrateMem(queue, 1, constant, &size, 1 << 10, 0, NULL, NULL));
    SHOW("buffer over it", clCreateBuffer(context, CL_MEM_USE_HOST_PTR, size, memory, &code));
    SHOW("buffer larger than it", clCreateBuffer(context, CL_MEM_USE_HOST_PTR, beyond, memory, &code));
    SHOW("buffer twice as large", clCreateBuffer(context, CL_MEM_USE_HOST_PTR, 2 * size, memory, &code));
    clSVMFree(context, NULL);
    CHECK(clFinish(queue));
}

static void samplers(void) {
    SUBJECT("samplers");
    for (cl_uint mode = CL_ADDRESS_NONE - 1; mode <= CL_ADDRESS_MIRRORED_REPEAT + 1; mode++) {
        SHOW("mode", clCreateSampler(context, CL_TRUE, mode, CL_FILTER_NEAREST, &code));
        SHOW("mode, not normalized", clCreateSampler(context, CL_FALSE, mode, CL_FILTER_LINEAR, &code));
    }
    SHOW("filter below", clCreateSampler(context, CL_TRUE, CL_ADDRESS_NONE, CL_FILTER_NEAREST - 1, &code));
    SHOW("filter above", clCreateSampler(context, CL_TRUE, CL_ADDRESS_NONE, CL_FILTER_LINEAR + 1, &code));
    SHOW("normalized by two", clCreateSampler(context, 2, CL_ADDRESS_NONE, CL_FILTER_NEAREST, &code));
    cl_sampler_properties empty[] = {0}, unknown[] = {0x7777, 1, 0}, twice[] = {CL_SAMPLER_FILTER_MODE, CL_FILTER_LINEAR, CL_SAMPLER_FILTER_MODE, CL_FILTER_LINEAR, 0};
    cl_sampler_properties wrong[] = {CL_SAMPLER_ADDRESSING_MODE, 7, 0};
    SHOW("no list", clCreateSamplerWithProperties(context, NULL, &code));
    SHOW("an empty list", clCreateSamplerWithProperties(context, empty, &code));
    SHOW("unknown property", clCreateSamplerWithProperties(context, unknown, &code));
    SHOW("a property twice", clCreateSamplerWithProperties(context, twice, &code));
    SHOW("a wrong mode", clCreateSamplerWithProperties(context, wrong, &code));
    cl_sampler sampler = clCreateSampler(context, CL_TRUE, CL_ADDRESS_REPEAT, CL_FILTER_LINEAR, &code);
    sweep("query of a sampler", sampler, ask_sampler, CL_SAMPLER_REFERENCE_COUNT, CL_SAMPLER_REFERENCE_COUNT + 9, of_sampler);
    clReleaseSampler(sampler);
}

static const char *source = "__kernel void f(__global int *v, int n, __local int *l) { l[0] = n; v[0] = l[0]; }\n";

static void programs(void) {
    SUBJECT("programs");
    const char *null = NULL, *lines[] = {source, NULL};
    size_t length = 0;
    SHOW("no text", clCreateProgramWithSource(context, 1, &null, NULL, &code));
    SHOW("no texts", clCreateProgramWithSource(context, 0, &source, NULL, &code));
    SHOW("one text missing", clCreateProgramWithSource(context, 2, lines, NULL, &code));
    SHOW("length of none", clCreateProgramWithSource(context, 1, &source, &length, &code));
    SHOW("built-in kernels of no name", clCreateProgramWithBuiltInKernels(context, 1, &device, NULL, &code));
    SHOW("built-in kernels, unknown", clCreateProgramWithBuiltInKernels(context, 1, &device, "nothing", &code));
    SHOW("built-in kernels of no device", clCreateProgramWithBuiltInKernels(context, 0, NULL, "nothing", &code));
    SHOW("no intermediate language", clCreateProgramWithIL(context, NULL, 64, &code));
    SHOW("nothing of intermediate language", clCreateProgramWithIL(context, source, 0, &code));
    const unsigned char text[64] = "no binary", *binary = text, *no_binary = NULL;
    cl_int status = 77;
    length = sizeof text;
    SHOW("no device of a binary", clCreateProgramWithBinary(context, 0, NULL, &length, &binary, &status, &code));
    SHOW("no lengths", clCreateProgramWithBinary(context, 1, &device, NULL, &binary, &status, &code));
    SHOW("no binary", clCreateProgramWithBinary(context, 1, &device, &length, &no_binary, &status, &code));
    cl_program fresh = clCreateProgramWithSource(context, 1, &source, NULL, &code);
    sweep("query of a program that is not built", fresh, ask_program, CL_PROGRAM_REFERENCE_COUNT, CL_PROGRAM_REFERENCE_COUNT + 12, of_program);
    sweep("query of its build", fresh, ask_build, CL_PROGRAM_BUILD_STATUS, CL_PROGRAM_BUILD_STATUS + 5, of_build);
    SUBJECT("builds");
    SHOW("kernel before a build", clCreateKernel(fresh, "f", &code));
    cl_uint count = 77;
    IS("kernels before a build", clCreateKernelsInProgram(fresh, 0, NULL, &count));
    IS("devices without a list", clBuildProgram(fresh, 1, NULL, "", NULL, NULL));
    IS("a list of no devices", clBuildProgram(fresh, 0, &device, "", NULL, NULL));
    IS("data without a function", clBuildProgram(fresh, 1, &device, "", NULL, &count));
    IS("unknown options", clBuildProgram(fresh, 1, &device, "-no-such-option", NULL, NULL));
    IS("unknown options of a compiler", clCompileProgram(fresh, 1, &device, "-no-such-option", 0, NULL, NULL, NULL, NULL));
    IS("names without headers", clCompileProgram(fresh, 1, &device, "", 0, NULL, &source, NULL, NULL));
    SHOW("link of none", clLinkProgram(context, 1, &device, "", 0, NULL, NULL, NULL, &code));
    SHOW("link of none in a list", clLinkProgram(context, 1, &device, "", 0, &fresh, NULL, NULL, &code));
    SHOW("link without a list", clLinkProgram(context, 1, &device, "", 1, NULL, NULL, NULL, &code));
    SHOW("link of what is not compiled", clLinkProgram(context, 1, &device, "", 1, &fresh, NULL, NULL, &code));
    SHOW("link, devices without a list", clLinkProgram(context, 1, NULL, "", 1, &fresh, NULL, NULL, &code));
    IS("constant", clSetProgramSpecializationConstant(fresh, 1, 4, &count));
    IS("constant of no size", clSetProgramSpecializationConstant(fresh, 1, 0, &count));
    IS("constant of no value", clSetProgramSpecializationConstant(fresh, 1, 4, NULL));
    IS("end told to no function", clSetProgramReleaseCallback(fresh, NULL, NULL));
    IS("end told", clSetProgramReleaseCallback(fresh, ignore_program, NULL));
    cl_program broken = clCreateProgramWithSource(context, 1, (const char *[]){"__kernel void f("}, NULL, &code);
    IS("a text that is wrong", clBuildProgram(broken, 1, &device, "", NULL, NULL));
    sweep("query of a build that failed", broken, ask_build, CL_PROGRAM_BUILD_STATUS, CL_PROGRAM_BUILD_STATUS + 5, none);
    sweep("query of its program", broken, ask_program, CL_PROGRAM_REFERENCE_COUNT, CL_PROGRAM_REFERENCE_COUNT + 12, none);
    clReleaseProgram(broken), clReleaseProgram(fresh);
}

static void kernels(void) {
    cl_program program = build(source, "-DX=1");
    sweep("query of a program", program, ask_program, CL_PROGRAM_REFERENCE_COUNT, CL_PROGRAM_REFERENCE_COUNT + 12, of_program);
    sweep("query of a build", program, ask_build, CL_PROGRAM_BUILD_STATUS, CL_PROGRAM_BUILD_STATUS + 5, of_build);
    SUBJECT("kernels");
    cl_uint count = 77;
    cl_kernel list[4];
    SHOW("no name", clCreateKernel(program, NULL, &code));
    SHOW("an empty name", clCreateKernel(program, "", &code));
    SHOW("unknown name", clCreateKernel(program, "g", &code));
    IS("all, no list", clCreateKernelsInProgram(program, 0, NULL, &count));
    IS("all, a list without room", clCreateKernelsInProgram(program, 0, list, &count));
    IS("all", clCreateKernelsInProgram(program, 4, list, &count));
    cl_kernel kernel = list[0];
    sweep("query of a kernel", kernel, ask_kernel, CL_KERNEL_FUNCTION_NAME, CL_KERNEL_FUNCTION_NAME + 7, of_kernel);
    sweep("query of an argument", kernel, ask_argument, CL_KERNEL_ARG_ADDRESS_QUALIFIER, CL_KERNEL_ARG_ADDRESS_QUALIFIER + 5, all);
    sweep("query of no argument", kernel, ask_no_argument, CL_KERNEL_ARG_ADDRESS_QUALIFIER, CL_KERNEL_ARG_ADDRESS_QUALIFIER + 5, all);
    sweep("query of groups", kernel, ask_groups, CL_KERNEL_WORK_GROUP_SIZE, CL_KERNEL_WORK_GROUP_SIZE + 6, all);
    sweep("query of groups of the only device", kernel, ask_groups_of_any, CL_KERNEL_WORK_GROUP_SIZE, CL_KERNEL_WORK_GROUP_SIZE + 6, all);
    SUBJECT("arguments");
    cl_mem buffer = buffer_of(0, 256, NULL);
    int number = 1;
    size_t one = 1, zero = 0, sizes[3] = {1, 1, 1}, odd = 3, seven = 7;
    IS("beyond the last", clSetKernelArg(kernel, 3, 4, &number));
    IS("buffer of another size", clSetKernelArg(kernel, 0, 4, &buffer));
    IS("buffer without a value", clSetKernelArg(kernel, 0, sizeof buffer, NULL));
    IS("number of another size", clSetKernelArg(kernel, 1, 8, &number));
    IS("number without a value", clSetKernelArg(kernel, 1, 4, NULL));
    IS("local memory of no size", clSetKernelArg(kernel, 2, 0, NULL));
    IS("local memory with a value", clSetKernelArg(kernel, 2, 4, &number));
    IS("what is reached, none", clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, 0, NULL));
    IS("what is reached, none in a list", clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, 0, &list));
    IS("what is reached, no list", clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, 8, NULL));
    IS("unknown", clSetKernelExecInfo(kernel, 0x7777, 4, &number));
    IS("launch before arguments", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL));
    CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    CHECK(clSetKernelArg(kernel, 1, 4, &number));
    CHECK(clSetKernelArg(kernel, 2, 16, NULL));
    SUBJECT("launches");
    for (int turn = 0; turn < 2; turn++) {
        IS("launch", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL));
        IS("no dimension", clEnqueueNDRangeKernel(queue, kernel, 0, NULL, &one, NULL, 0, NULL, NULL));
        IS("four dimensions", clEnqueueNDRangeKernel(queue, kernel, 4, NULL, sizes, NULL, 0, NULL, NULL));
        IS("no items", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &zero, NULL, 0, NULL, NULL));
        IS("no sizes", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, NULL, NULL, 0, NULL, NULL));
        IS("an offset", clEnqueueNDRangeKernel(queue, kernel, 1, &one, &one, NULL, 0, NULL, NULL));
        IS("groups that do not fit", clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &seven, &odd, 0, NULL, NULL));
        IS("one item", clEnqueueTask(queue, kernel, 0, NULL, NULL));
    }
    CHECK(clFinish(queue));
    SHOW("clone", clCloneKernel(kernel, &code));
    clReleaseKernel(kernel), clReleaseProgram(program), clReleaseMemObject(buffer);
}

static void events(void) {
    SUBJECT("events");
    cl_event user = clCreateUserEvent(context, &code), event = NULL, null[] = {NULL};
    CHECK(clEnqueueMarkerWithWaitList(queue, 0, NULL, &event));
    CHECK(clWaitForEvents(1, &event));
    sweep("query of a user event", user, ask_event, CL_EVENT_COMMAND_QUEUE, CL_EVENT_COMMAND_QUEUE + 5, none);
    sweep("query of an event", event, ask_event, CL_EVENT_COMMAND_QUEUE, CL_EVENT_COMMAND_QUEUE + 5, of_event);
    sweep("times of a user event", user, ask_times, CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_COMPLETE, none);
    sweep("times of an event", event, ask_times, CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_COMPLETE, none);
    SUBJECT("setting and waiting");
    IS("state of a command", clSetUserEventStatus(event, CL_COMPLETE));
    IS("state running", clSetUserEventStatus(user, CL_RUNNING));
    for (cl_int state = -1; state < 5; state++) IS("told of a state", clSetEventCallback(event, state, ignore_event, NULL));
    IS("told to no function", clSetEventCallback(event, CL_COMPLETE, NULL, NULL));
    IS("waiting for none", clWaitForEvents(0, &event));
    IS("waiting for no list", clWaitForEvents(1, NULL));
    IS("waiting for what is none", clWaitForEvents(1, null));
    IS("marker, events without a list", clEnqueueMarkerWithWaitList(queue, 1, NULL, NULL));
    IS("marker, a list of none", clEnqueueMarkerWithWaitList(queue, 0, &event, NULL));
    IS("marker, what is none", clEnqueueMarkerWithWaitList(queue, 1, null, NULL));
    IS("barrier, events without a list", clEnqueueBarrierWithWaitList(queue, 1, NULL, NULL));
    IS("old marker of no event", clEnqueueMarker(queue, NULL));
    IS("state complete", clSetUserEventStatus(user, CL_COMPLETE));
    IS("state complete again", clSetUserEventStatus(user, CL_COMPLETE));
    cl_event failed = clCreateUserEvent(context, &code);
    IS("state failed", clSetUserEventStatus(failed, -5));
    IS("waiting for what failed", clWaitForEvents(1, &failed));
    cl_context second = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    cl_event foreign = clCreateUserEvent(second, &code), both[] = {event, foreign};
    CHECK(clSetUserEventStatus(foreign, CL_COMPLETE));
    IS("waiting in two contexts", clWaitForEvents(2, both));
    IS("marker behind another context's", clEnqueueMarkerWithWaitList(queue, 1, &foreign, NULL));
    clReleaseEvent(foreign), clReleaseContext(second);
    clReleaseEvent(failed), clReleaseEvent(user), clReleaseEvent(event);
}

static void commands(void) {
    SUBJECT("commands of buffers");
    static char host[8192];
    cl_mem buffer = buffer_of(0, 4096, NULL), other = buffer_of(0, 4096, NULL);
    cl_mem secret = buffer_of(CL_MEM_HOST_NO_ACCESS, 64, NULL), taken = buffer_of(CL_MEM_HOST_READ_ONLY, 64, NULL), given = buffer_of(CL_MEM_HOST_WRITE_ONLY, 64, NULL);
    size_t zero[3] = {0}, box[3] = {16, 4, 2}, nothing[3] = {0, 4, 2}, far[3] = {4090, 0, 0};
    for (int turn = 0; turn < 2; turn++) {
        for (cl_bool waits = CL_FALSE; waits <= CL_TRUE; waits++) {
            IS("read of nothing", clEnqueueReadBuffer(queue, buffer, waits, 0, 0, host, 0, NULL, NULL));
            IS("read to nowhere", clEnqueueReadBuffer(queue, buffer, waits, 0, 4, NULL, 0, NULL, NULL));
            IS("read beyond the end", clEnqueueReadBuffer(queue, buffer, waits, 4000, 97, host, 0, NULL, NULL));
            IS("read of more than there is", clEnqueueReadBuffer(queue, buffer, waits, 4, (size_t)-4, host, 0, NULL, NULL));
            IS("write of nothing", clEnqueueWriteBuffer(queue, buffer, waits, 0, 0, host, 0, NULL, NULL));
            IS("write from nowhere", clEnqueueWriteBuffer(queue, buffer, waits, 0, 4, NULL, 0, NULL, NULL));
            IS("write beyond the end", clEnqueueWriteBuffer(queue, buffer, waits, 4000, 97, host, 0, NULL, NULL));
            IS("write", clEnqueueWriteBuffer(queue, buffer, waits, 0, 4096, host, 0, NULL, NULL));
            IS("read of what is for no host", clEnqueueReadBuffer(queue, secret, waits, 0, 4, host, 0, NULL, NULL));
            IS("write of what is read alone", clEnqueueWriteBuffer(queue, taken, waits, 0, 4, host, 0, NULL, NULL));
            IS("read of what is written alone", clEnqueueReadBuffer(queue, given, waits, 0, 4, host, 0, NULL, NULL));
            IS("box", clEnqueueReadBufferRect(queue, buffer, waits, zero, zero, box, 0, 0, 0, 0, host, 0, NULL, NULL));
            IS("box of nothing", clEnqueueReadBufferRect(queue, buffer, waits, zero, zero, nothing, 0, 0, 0, 0, host, 0, NULL, NULL));
            IS("box, a short row", clEnqueueReadBufferRect(queue, buffer, waits, zero, zero, box, 15, 0, 0, 0, host, 0, NULL, NULL));
            IS("box, a short slice", clEnqueueReadBufferRect(queue, buffer, waits, zero, zero, box, 16, 63, 0, 0, host, 0, NULL, NULL));
            IS("box, a slice not of rows", clEnqueueReadBufferRect(queue, buffer, waits, zero, zero, box, 16, 65, 0, 0, host, 0, NULL, NULL));
            IS("box, a short row of the host's", clEnqueueReadBufferRect(queue, buffer, waits, zero, zero, box, 0, 0, 15, 0, host, 0, NULL, NULL));
            IS("box, a short slice of the host's", clEnqueueReadBufferRect(queue, buffer, waits, zero, zero, box, 0, 0, 16, 63, host, 0, NULL, NULL));
            IS("box beyond the end", clEnqueueWriteBufferRect(queue, buffer, waits, far, zero, box, 0, 0, 0, 0, host, 0, NULL, NULL));
            IS("box to nowhere", clEnqueueReadBufferRect(queue, buffer, waits, zero, zero, box, 0, 0, 0, 0, NULL, 0, NULL, NULL));
            IS("box, no origin", clEnqueueReadBufferRect(queue, buffer, waits, NULL, zero, box, 0, 0, 0, 0, host, 0, NULL, NULL));
            IS("box, no region", clEnqueueReadBufferRect(queue, buffer, waits, zero, zero, NULL, 0, 0, 0, 0, host, 0, NULL, NULL));
        }
        IS("copy", clEnqueueCopyBuffer(queue, buffer, other, 0, 0, 4096, 0, NULL, NULL));
        IS("copy of nothing", clEnqueueCopyBuffer(queue, buffer, other, 0, 0, 0, 0, NULL, NULL));
        IS("copy over itself", clEnqueueCopyBuffer(queue, buffer, buffer, 0, 1, 16, 0, NULL, NULL));
        IS("copy from beyond the end", clEnqueueCopyBuffer(queue, buffer, other, 4096, 0, 1, 0, NULL, NULL));
        IS("copy to beyond the end", clEnqueueCopyBuffer(queue, buffer, other, 0, 4096, 1, 0, NULL, NULL));
        IS("copy of a box", clEnqueueCopyBufferRect(queue, buffer, other, zero, zero, box, 0, 0, 0, 0, 0, NULL, NULL));
        IS("copy of a box over itself", clEnqueueCopyBufferRect(queue, buffer, buffer, zero, zero, box, 0, 0, 0, 0, 0, NULL, NULL));
        IS("copy of a box of nothing", clEnqueueCopyBufferRect(queue, buffer, other, zero, zero, nothing, 0, 0, 0, 0, 0, NULL, NULL));
        size_t patterns[] = {0, 1, 3, 4, 16, 128, 129, 256};
        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) IS("fill", clEnqueueFillBuffer(queue, buffer, host, patterns[i], 0, 2048, 0, NULL, NULL));
        IS("fill, not a multiple", clEnqueueFillBuffer(queue, buffer, host, 16, 0, 1000, 0, NULL, NULL));
        IS("fill at an odd place", clEnqueueFillBuffer(queue, buffer, host, 16, 8, 1024, 0, NULL, NULL));
        IS("fill of nothing", clEnqueueFillBuffer(queue, buffer, host, 16, 0, 0, 0, NULL, NULL));
        IS("fill with nothing", clEnqueueFillBuffer(queue, buffer, NULL, 16, 0, 1024, 0, NULL, NULL));
        IS("fill beyond the end", clEnqueueFillBuffer(queue, buffer, host, 16, 4096, 16, 0, NULL, NULL));
    }
    SHOW("map", clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 0, 64, 0, NULL, NULL, &code));
    SHOW("map of nothing", clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 0, 0, 0, NULL, NULL, &code));
    SHOW("map beyond the end", clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 4000, 97, 0, NULL, NULL, &code));
    SHOW("map without flags", clEnqueueMapBuffer(queue, buffer, CL_TRUE, 0, 0, 64, 0, NULL, NULL, &code));
    SHOW("map of what is for no host", clEnqueueMapBuffer(queue, secret, CL_TRUE, CL_MAP_READ, 0, 64, 0, NULL, NULL, &code));
    SHOW("map to write what is read alone", clEnqueueMapBuffer(queue, taken, CL_TRUE, CL_MAP_WRITE, 0, 64, 0, NULL, NULL, &code));
    SHOW("map to read what is written alone", clEnqueueMapBuffer(queue, given, CL_TRUE, CL_MAP_READ, 0, 64, 0, NULL, NULL, &code));
    SHOW("map to read, and the bytes are undefined", clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE_INVALIDATE_REGION, 0, 64, 0, NULL, NULL, &code));
    SHOW("map to write, and the bytes are undefined", clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION, 0, 64, 0, NULL, NULL, &code));
    SHOW("map beyond the end of what is for no host", clEnqueueMapBuffer(queue, secret, CL_TRUE, CL_MAP_READ, 60, 64, 0, NULL, NULL, &code));
    IS("unmap of nowhere", clEnqueueUnmapMemObject(queue, buffer, NULL, 0, NULL, NULL));
    IS("unmap of what is not mapped", clEnqueueUnmapMemObject(queue, other, host, 0, NULL, NULL));
    IS("migrate", clEnqueueMigrateMemObjects(queue, 1, &buffer, 0, 0, NULL, NULL));
    IS("migrate, contents of no matter", clEnqueueMigrateMemObjects(queue, 1, &buffer, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0, NULL, NULL));
    IS("migrate none", clEnqueueMigrateMemObjects(queue, 0, &buffer, 0, 0, NULL, NULL));
    IS("migrate no list", clEnqueueMigrateMemObjects(queue, 1, NULL, 0, 0, NULL, NULL));
    IS("migrate, unknown flags", clEnqueueMigrateMemObjects(queue, 1, &buffer, 1 << 10, 0, NULL, NULL));
    CHECK(clFinish(queue));
}

int main(void) {
    set_up(CL_QUEUE_PROFILING_ENABLE);
    sweep("query of a platform", platform, ask_platform, CL_PLATFORM_PROFILE, CL_PLATFORM_PROFILE + 6, of_platform);
    sweep("query of a device", device, ask_device, CL_DEVICE_TYPE, CL_DEVICE_TYPE + 0x73, of_device);
    sweep("query of a context", context, ask_context, CL_CONTEXT_REFERENCE_COUNT, CL_CONTEXT_REFERENCE_COUNT + 6, of_context);
    sweep("query of a queue", queue, ask_queue, CL_QUEUE_CONTEXT, CL_QUEUE_CONTEXT + 10, of_queue);
    devices();
    parts();
    contexts();
    queues();
    memory();
    images();
    shared_memory();
    samplers();
    programs();
    kernels();
    events();
    commands();
    return 0;
}
