// A driver of OpenCL for tests: a platform of one device that has memory and runs nothing, so that a second platform is
// beside another driver's on any machine. Commands are done when their calls return. It does what a standard allows and other
// drivers do not: shared virtual memory is the device's again as a whole when any part of it is unmapped, until it is mapped anew;
// any property of a buffer is taken; and a context is told why there is no room.
//
// KATYDID_TEST_DEVICES says how many devices there are, 0 or 1; 1 if it is not set.
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What this driver says it can do: the last four are what does not go through a layer in between.
#define EXTENSIONS                                                                                                     \
    "cl_khr_icd cl_khr_global_int32_base_atomics cl_khr_external_memory cl_khr_command_buffer cl_khr_gl_sharing "      \
    "cl_intel_unified_shared_memory"

// Bytes of the largest object.
#define MOST (1 << 28)

typedef void(CL_CALLBACK *notify_context)(const char *, const void *, size_t, void *);

static cl_icd_dispatch table;

// Every object begins with its table, by which loaders find the functions.
struct object {
    const cl_icd_dispatch *table;
    int references;
    size_t size;
    char *bytes;
    // Of a queue: CL_QUEUE_…_ENABLE.
    cl_command_queue_properties properties;
    // Of a context: whom it tells.
    notify_context notify;
    void *data;
};

static struct object the_platform = {.table = &table, .references = 1}, the_device = {.table = &table, .references = 1};

static void *made(size_t size, cl_int *code) {
    struct object *object = calloc(1, sizeof *object);
    *object = (struct object){.table = &table, .references = 1, .size = size, .bytes = size ? calloc(1, size) : NULL};
    if (code) *code = CL_SUCCESS;
    return object;
}

static cl_int retained(void *object) {
    __atomic_add_fetch(&((struct object *)object)->references, 1, __ATOMIC_ACQ_REL);
    return CL_SUCCESS;
}

static cl_int released(void *handle) {
    struct object *object = handle;
    if (__atomic_sub_fetch(&object->references, 1, __ATOMIC_ACQ_REL) == 0) free(object->bytes), free(object);
    return CL_SUCCESS;
}

static cl_int told(const void *value, size_t length, size_t room, void *place, size_t *needed) {
    if (place && room < length) return CL_INVALID_VALUE;
    if (place) memcpy(place, value, length);
    if (needed) *needed = length;
    return CL_SUCCESS;
}

#define TEXT(text) told(text, sizeof(text), room, place, needed)
#define VALUE(type, value) told(&(type){value}, sizeof(type), room, place, needed)

static cl_int CL_API_CALL platform_info(cl_platform_id platform, cl_platform_info what, size_t room, void *place, size_t *needed) {
    (void)platform;
    switch (what) {
    case CL_PLATFORM_NAME: return TEXT("Memory of a test");
    case CL_PLATFORM_VERSION: return TEXT("OpenCL 3.0 memory");
    case CL_PLATFORM_VENDOR: return TEXT("Katydid's tests");
    case CL_PLATFORM_PROFILE: return TEXT("FULL_PROFILE");
    case CL_PLATFORM_EXTENSIONS: return TEXT(EXTENSIONS);
    case CL_PLATFORM_ICD_SUFFIX_KHR: return TEXT("TEST");
    }
    return CL_INVALID_VALUE;
}

static cl_int CL_API_CALL device_ids(cl_platform_id platform, cl_device_type type, cl_uint room, cl_device_id *devices, cl_uint *count) {
    (void)platform;
    const char *wanted = getenv("KATYDID_TEST_DEVICES");
    if ((wanted && atoi(wanted) == 0) || !(type & (CL_DEVICE_TYPE_ACCELERATOR | CL_DEVICE_TYPE_DEFAULT))) return CL_DEVICE_NOT_FOUND;
    if (devices && room > 0) devices[0] = (cl_device_id)&the_device;
    if (count) *count = 1;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info what, size_t room, void *place, size_t *needed) {
    (void)device;
    switch (what) {
    case CL_DEVICE_NAME: return TEXT("memory");
    case CL_DEVICE_VENDOR: return TEXT("Katydid's tests");
    case CL_DEVICE_VERSION: return TEXT("OpenCL 3.0 memory");
    case CL_DRIVER_VERSION: return TEXT("1");
    case CL_DEVICE_EXTENSIONS: return TEXT(EXTENSIONS);
    case CL_DEVICE_TYPE: return VALUE(cl_device_type, CL_DEVICE_TYPE_ACCELERATOR);
    case CL_DEVICE_PLATFORM: return VALUE(cl_platform_id, (cl_platform_id)&the_platform);
    case CL_DEVICE_AVAILABLE: return VALUE(cl_bool, CL_TRUE);
    case CL_DEVICE_COMPILER_AVAILABLE: return VALUE(cl_bool, CL_FALSE);
    case CL_DEVICE_ADDRESS_BITS: return VALUE(cl_uint, 64);
    case CL_DEVICE_GLOBAL_MEM_SIZE: return VALUE(cl_ulong, 1 << 30);
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE: return VALUE(cl_ulong, MOST);
    case CL_DEVICE_SVM_CAPABILITIES: return VALUE(cl_device_svm_capabilities, CL_DEVICE_SVM_COARSE_GRAIN_BUFFER);
    }
    return CL_INVALID_VALUE;
}

static cl_context CL_API_CALL create_context(const cl_context_properties *properties, cl_uint count, const cl_device_id *devices,
                                             notify_context notify, void *data, cl_int *code) {
    (void)properties, (void)count, (void)devices;
    struct object *context = made(0, code);
    context->notify = notify, context->data = data;
    return (cl_context)context;
}

static cl_command_queue CL_API_CALL create_queue(cl_context context, cl_device_id device, cl_command_queue_properties properties, cl_int *code) {
    (void)context, (void)device;
    struct object *queue = made(0, code);
    queue->properties = properties;
    return (cl_command_queue)queue;
}

// As NVIDIA's driver 580, which has the function still. PoCL 3.1 has none.
static cl_int CL_API_CALL set_queue_property(cl_command_queue handle, cl_command_queue_properties properties, cl_bool enable,
                                             cl_command_queue_properties *before) {
    struct object *queue = (struct object *)handle;
    if (properties & ~(cl_command_queue_properties)(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE)) return CL_INVALID_VALUE;
    if (before) *before = queue->properties;
    queue->properties = enable ? queue->properties | properties : queue->properties & ~properties;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL queue_info(cl_command_queue queue, cl_command_queue_info what, size_t room, void *place, size_t *needed) {
    return what == CL_QUEUE_PROPERTIES ? VALUE(cl_command_queue_properties, ((struct object *)queue)->properties) : CL_INVALID_VALUE;
}

static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code) {
    struct object *of = (struct object *)context;
    if (size > MOST) {
        char why[64];
        snprintf(why, sizeof why, "a buffer of %zu bytes: %d at most", size, MOST);
        if (of->notify) of->notify(why, NULL, 0, of->data);
        if (code) *code = CL_MEM_OBJECT_ALLOCATION_FAILURE;
        return NULL;
    }
    struct object *buffer = made(size, code);
    if (flags & (CL_MEM_COPY_HOST_PTR | CL_MEM_USE_HOST_PTR)) memcpy(buffer->bytes, host, size);
    return (cl_mem)buffer;
}

static cl_mem CL_API_CALL create_buffer_with(cl_context context, const cl_mem_properties *properties, cl_mem_flags flags, size_t size, void *host,
                                             cl_int *code) {
    (void)properties;
    return create_buffer(context, flags, size, host, code);
}

static cl_int CL_API_CALL retain_context(cl_context context) { return retained(context); }
static cl_int CL_API_CALL release_context(cl_context context) { return released(context); }
static cl_int CL_API_CALL retain_queue(cl_command_queue queue) { return retained(queue); }
static cl_int CL_API_CALL release_queue(cl_command_queue queue) { return released(queue); }
static cl_int CL_API_CALL retain_buffer(cl_mem buffer) { return retained(buffer); }
static cl_int CL_API_CALL release_buffer(cl_mem buffer) { return released(buffer); }
static cl_int CL_API_CALL retain_event(cl_event event) { return retained(event); }
static cl_int CL_API_CALL release_event(cl_event event) { return released(event); }

// A command has ended by the time that its event is there.
static cl_int ended(cl_event *event) {
    if (event) *event = made(0, NULL);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL read_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset, size_t size, void *to,
                                      cl_uint count, const cl_event *waits, cl_event *event) {
    (void)queue, (void)blocking, (void)count, (void)waits;
    memcpy(to, ((struct object *)buffer)->bytes + offset, size);
    return ended(event);
}

static cl_int CL_API_CALL write_buffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset, size_t size, const void *from,
                                       cl_uint count, const cl_event *waits, cl_event *event) {
    (void)queue, (void)blocking, (void)count, (void)waits;
    memcpy(((struct object *)buffer)->bytes + offset, from, size);
    return ended(event);
}

static cl_int CL_API_CALL copy_buffer(cl_command_queue queue, cl_mem source, cl_mem target, size_t from, size_t to, size_t size,
                                      cl_uint count, const cl_event *waits, cl_event *event) {
    (void)queue, (void)count, (void)waits;
    memmove(((struct object *)target)->bytes + to, ((struct object *)source)->bytes + from, size);
    return ended(event);
}

static cl_int CL_API_CALL marker(cl_command_queue queue, cl_uint count, const cl_event *waits, cl_event *event) {
    (void)queue, (void)count, (void)waits;
    return ended(event);
}

static cl_int CL_API_CALL done(cl_command_queue queue) {
    (void)queue;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL wait_for(cl_uint count, const cl_event *events) {
    (void)count, (void)events;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL event_info(cl_event event, cl_event_info what, size_t room, void *place, size_t *needed) {
    (void)event;
    return what == CL_EVENT_COMMAND_EXECUTION_STATUS ? VALUE(cl_int, CL_COMPLETE) : CL_INVALID_VALUE;
}

// Shared virtual memory: what the program has, and what the device has.
static struct allocation {
    char *host, *device;
    size_t size;
    int is_mapped;
} allocations[16];

static struct allocation *holder(const void *place) {
    for (struct allocation *one = allocations; one < allocations + 16; one++)
        if (one->host && (const char *)place >= one->host && (const char *)place < one->host + one->size) return one;
    return NULL;
}

static void *CL_API_CALL svm_alloc(cl_context context, cl_svm_mem_flags flags, size_t size, cl_uint alignment) {
    (void)context, (void)flags, (void)alignment;
    for (struct allocation *one = allocations; one < allocations + 16; one++)
        if (!one->host) {
            *one = (struct allocation){calloc(1, size), calloc(1, size), size, 0};
            return one->host;
        }
    return NULL;
}

static void CL_API_CALL svm_free(cl_context context, void *place) {
    (void)context;
    struct allocation *one = holder(place);
    if (one) free(one->host), free(one->device), *one = (struct allocation){0};
}

// Where a command finds these bytes: on the device, if it has them.
static char *of_device(const void *place) {
    struct allocation *one = holder(place);
    return one ? one->device + ((const char *)place - one->host) : (char *)place;
}

static cl_int CL_API_CALL svm_copy(cl_command_queue queue, cl_bool blocking, void *to, const void *from, size_t size, cl_uint count,
                                   const cl_event *waits, cl_event *event) {
    (void)queue, (void)blocking, (void)count, (void)waits;
    memcpy(of_device(to), of_device(from), size);
    return ended(event);
}

static cl_int CL_API_CALL svm_map(cl_command_queue queue, cl_bool blocking, cl_map_flags flags, void *place, size_t size, cl_uint count,
                                  const cl_event *waits, cl_event *event) {
    (void)queue, (void)blocking, (void)flags, (void)size, (void)count, (void)waits;
    struct allocation *one = holder(place);
    if (!one) return CL_INVALID_VALUE;
    if (!one->is_mapped) memcpy(one->host, one->device, one->size);
    one->is_mapped = 1;
    return ended(event);
}

static cl_int CL_API_CALL svm_unmap(cl_command_queue queue, void *place, cl_uint count, const cl_event *waits, cl_event *event) {
    (void)queue, (void)count, (void)waits;
    struct allocation *one = holder(place);
    if (!one) return CL_INVALID_VALUE;
    if (one->is_mapped) memcpy(one->device, one->host, one->size);
    one->is_mapped = 0;
    return ended(event);
}

__attribute__((visibility("default"))) cl_int clIcdGetPlatformIDsKHR(cl_uint room, cl_platform_id *platforms, cl_uint *count) {
    table = (cl_icd_dispatch){
        .clGetPlatformInfo = platform_info, .clGetDeviceIDs = device_ids, .clGetDeviceInfo = device_info,
        .clCreateContext = create_context, .clRetainContext = retain_context, .clReleaseContext = release_context,
        .clCreateCommandQueue = create_queue, .clRetainCommandQueue = retain_queue, .clReleaseCommandQueue = release_queue,
        .clSetCommandQueueProperty = set_queue_property, .clGetCommandQueueInfo = queue_info,
        .clCreateBuffer = create_buffer, .clRetainMemObject = retain_buffer, .clReleaseMemObject = release_buffer,
        .clEnqueueReadBuffer = read_buffer, .clEnqueueWriteBuffer = write_buffer, .clEnqueueCopyBuffer = copy_buffer,
        .clEnqueueMarkerWithWaitList = marker, .clFlush = done, .clFinish = done, .clWaitForEvents = wait_for,
        .clRetainEvent = retain_event, .clReleaseEvent = release_event, .clGetEventInfo = event_info,
        .clCreateBufferWithProperties = create_buffer_with,
        .clSVMAlloc = svm_alloc, .clSVMFree = svm_free, .clEnqueueSVMMemcpy = svm_copy, .clEnqueueSVMMap = svm_map,
        .clEnqueueSVMUnmap = svm_unmap,
    };
    if (platforms && room > 0) platforms[0] = (cl_platform_id)&the_platform;
    if (count) *count = 1;
    return CL_SUCCESS;
}

__attribute__((visibility("default"))) void *clGetExtensionFunctionAddress(const char *name) {
    return strcmp(name, "clIcdGetPlatformIDsKHR") == 0 ? (void *)clIcdGetPlatformIDsKHR : NULL;
}

// A loader asks the library itself for this one, before it has a platform.
__attribute__((visibility("default"))) cl_int clGetPlatformInfo(cl_platform_id platform, cl_platform_info what, size_t room, void *place, size_t *needed) {
    return platform_info(platform, what, room, place, needed);
}
