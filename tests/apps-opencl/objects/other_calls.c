// Functions that no other program here has a use for: references, forms of 1.0 and 1.1 that others replaced, timers, properties,
// groups of threads, and those that a device may lack, whose codes are the standard's. What a layer in between refuses is
// refused by each name.
#define _GNU_SOURCE
#include "check.h"
#include <CL/cl_ext.h>
#include <CL/cl_icd.h>
#include <dlfcn.h>

static const char *source =
    "__kernel void one(__global int *v) { v[get_global_id(0)] += 1; }\n"
    "__kernel void two(__global int *v) { v[get_global_id(0)] += 2; }\n";

static cl_mem values;
static int through;

// Whether the driver has a function: some loaders end where there is none.
#define HAS(name) ((*(cl_icd_dispatch **)platform)->name != NULL)
static int host[64];

static cl_uint references_of_event(cl_event event) {
    cl_uint count = 0;
    CHECK(clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

// What is retained is there until it was released as often.
static void references(cl_program program, cl_kernel kernel) {
    cl_int code;
    cl_sampler_properties list[] = {CL_SAMPLER_NORMALIZED_COORDS, CL_FALSE, CL_SAMPLER_FILTER_MODE, CL_FILTER_NEAREST, 0};
    cl_sampler sampler = clCreateSamplerWithProperties(context, list, &code);
    CHECK(code);
    cl_filter_mode mode = 0;
    cl_uint counts[5] = {0};
    CHECK(clGetSamplerInfo(sampler, CL_SAMPLER_FILTER_MODE, sizeof mode, &mode, NULL));
    REQUIRE(mode == CL_FILTER_NEAREST);
    cl_event event = clCreateUserEvent(context, &code);
    CHECK(code);
    CHECK(clRetainSampler(sampler));
    CHECK(clRetainProgram(program));
    CHECK(clRetainKernel(kernel));
    CHECK(clRetainCommandQueue(queue));
    CHECK(clRetainEvent(event));
    CHECK(clRetainDevice(device));
    CHECK(clGetSamplerInfo(sampler, CL_SAMPLER_REFERENCE_COUNT, sizeof *counts, &counts[0], NULL));
    CHECK(clGetProgramInfo(program, CL_PROGRAM_REFERENCE_COUNT, sizeof *counts, &counts[1], NULL));
    CHECK(clGetKernelInfo(kernel, CL_KERNEL_REFERENCE_COUNT, sizeof *counts, &counts[2], NULL));
    CHECK(clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof *counts, &counts[3], NULL));
    counts[4] = references_of_event(event);
    // Kernels have a reference to their program, as drivers count.
    printf("references: %u %s %u %u %u\n", counts[0], counts[1] >= 2 ? "2 or more" : "too few", counts[2], counts[3], counts[4]);
    CHECK(clReleaseSampler(sampler));
    CHECK(clReleaseProgram(program));
    CHECK(clReleaseKernel(kernel));
    CHECK(clReleaseCommandQueue(queue));
    CHECK(clReleaseEvent(event));
    CHECK(clReleaseDevice(device));
    CHECK(clReleaseSampler(sampler));
    CHECK(clSetUserEventStatus(event, CL_COMPLETE));
    CHECK(clReleaseEvent(event));
}

// Commands of the first versions: a task, a marker, a barrier, and waiting in the queue.
static void old_commands(cl_kernel kernel) {
    cl_event task, marker;
    CHECK(clEnqueueTask(queue, kernel, 0, NULL, &task));
    // PoCL ends the process that calls it.
    if (through) CHECK(clEnqueueWaitForEvents(queue, 1, &task));
    CHECK(clEnqueueBarrier(queue));
    CHECK(clEnqueueMarker(queue, &marker));
    CHECK(clEnqueueMigrateMemObjects(queue, 1, &values, 0, 1, &marker, NULL));
    CHECK(clWaitForEvents(1, &marker));
    CHECK(clReleaseEvent(task));
    CHECK(clReleaseEvent(marker));
    CHECK(clEnqueueReadBuffer(queue, values, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
    printf("old commands: %d %d\n", host[0], host[1]);
    CHECK(clUnloadCompiler());
    CHECK(clUnloadPlatformCompiler(platform));
}

// Images of 1.0, and objects with properties; what an image holds comes back.
static void objects(void) {
    cl_int code;
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    size_t origin[3] = {0}, flat[3] = {8, 2, 1}, deep[3] = {2, 4, 2};
    for (int i = 0; i < 64; i++) host[i] = i * 7;
    cl_mem plane = clCreateImage2D(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, &format, 8, 2, 0, host, &code);
    CHECK(code);
    cl_mem box = clCreateImage3D(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, &format, 2, 4, 2, 0, 0, host, &code);
    CHECK(code);
    int back[2][16] = {{0}};
    CHECK(clEnqueueReadImage(queue, plane, CL_TRUE, origin, flat, 0, 0, back[0], 0, NULL, NULL));
    CHECK(clEnqueueReadImage(queue, box, CL_TRUE, origin, deep, 0, 0, back[1], 0, NULL, NULL));
    REQUIRE(memcmp(back[0], host, 64) == 0 && memcmp(back[1], host, 64) == 0);
    CHECK(clReleaseMemObject(plane));
    CHECK(clReleaseMemObject(box));
    printf("images of 1.0: as they were written\n");
}

static cl_int last_code;

// Of 3.0 on devices that have it; elsewhere the loader or the driver says that it has not.
static void with_properties(void) {
    cl_mem_properties none[] = {0};
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
    cl_mem buffer = clCreateBufferWithProperties(context, none, CL_MEM_READ_WRITE, 64, NULL, &last_code);
    CHECK(last_code);
    cl_mem image = clCreateImageWithProperties(context, none, CL_MEM_READ_WRITE, &format, &shape, NULL, &last_code);
    CHECK(last_code);
    size_t size = 99;
    CHECK(clGetMemObjectInfo(buffer, CL_MEM_PROPERTIES, 0, NULL, &size));
    CHECK(clReleaseMemObject(buffer));
    CHECK(clReleaseMemObject(image));
    printf("objects with properties: %zu bytes of them\n", size);
}

static void kernels(cl_program program) {
    cl_kernel all[2];
    cl_uint count = 0;
    CHECK(clCreateKernelsInProgram(program, 0, NULL, &count));
    REQUIRE(count == 2);
    CHECK(clCreateKernelsInProgram(program, 2, all, NULL));
    char names[2][8];
    size_t group[2] = {0}, local = 16, sub = 0;
    for (int i = 0; i < 2; i++) {
        CHECK(clGetKernelInfo(all[i], CL_KERNEL_FUNCTION_NAME, sizeof names[i], names[i], NULL));
        CHECK(clGetKernelWorkGroupInfo(all[i], device, CL_KERNEL_WORK_GROUP_SIZE, sizeof *group, &group[i], NULL));
    }
    int in_order = strcmp(names[0], names[1]) < 0;
    printf("kernels of a program: %s %s, in groups of %s\n", names[!in_order], names[in_order], group[0] && group[1] ? "some" : "none");
    // A device without groups of threads, or a driver without the question, says so; none answers with nonsense.
    cl_int code = !HAS(clGetKernelSubGroupInfo) ? CL_INVALID_OPERATION : clGetKernelSubGroupInfo(all[0], device, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, sizeof local, &local, sizeof sub, &sub, NULL);
    REQUIRE(code != CL_SUCCESS || (sub >= 1 && sub <= 1024));
    clGetKernelSubGroupInfoKHR_fn khr = (clGetKernelSubGroupInfoKHR_fn)clGetExtensionFunctionAddressForPlatform(platform, "clGetKernelSubGroupInfoKHR");
    if (khr && HAS(clGetKernelSubGroupInfoKHR)) {
        size_t same = 0;
        REQUIRE(khr(all[0], device, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, sizeof local, &local, sizeof same, &same, NULL) == code);
        REQUIRE(code != CL_SUCCESS || same == sub);
    }
    CHECK(clReleaseKernel(all[0]));
    CHECK(clReleaseKernel(all[1]));
}

static void timers(void) {
    cl_ulong both[2] = {0}, now = 0;
    // One without the other is not to be had; a device may have neither.
    if (!HAS(clGetDeviceAndHostTimer) || !HAS(clGetHostTimer)) {
        printf("timers: of one mind\n");
        return;
    }
    cl_int code = clGetDeviceAndHostTimer(device, &both[0], &both[1]);
    REQUIRE(clGetHostTimer(device, &now) == code);
    REQUIRE(code != CL_SUCCESS || now >= both[1]);
    printf("timers: of one mind\n");
}

static void CL_CALLBACK ended(cl_context of, void *place) {
    (void)of;
    ++*(int *)place;
}

static void CL_CALLBACK released(cl_program of, void *place) {
    (void)of;
    ++*(int *)place;
}

static void contexts(void) {
    cl_int code, told = 0;
    cl_context_properties list[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
    cl_context all = clCreateContextFromType(list, CL_DEVICE_TYPE_ALL, NULL, NULL, &code);
    CHECK(code);
    cl_uint count = 0;
    CHECK(clGetContextInfo(all, CL_CONTEXT_NUM_DEVICES, sizeof count, &count, NULL));
    code = !HAS(clSetContextDestructorCallback) ? CL_INVALID_OPERATION : clSetContextDestructorCallback(all, ended, &told);
    CHECK(clReleaseContext(all));
    REQUIRE(count >= 1 && told == (code == CL_SUCCESS));
    printf("a context of a type: its devices, and told of its end\n");
}

// What a device or a driver may lack: an object and success, or neither.
static void lacking(cl_program program) {
    // Read when the program is released, long after this.
    static int told;
    cl_int code = CL_SUCCESS;
    cl_program made = clCreateProgramWithBuiltInKernels(context, 1, &device, "no.driver.has.this", &code);
    REQUIRE(made == NULL && code == CL_INVALID_VALUE);
    made = HAS(clCreateProgramWithIL) ? clCreateProgramWithIL(context, "no IL", 5, &code) : NULL;
    if (HAS(clCreateProgramWithIL)) REQUIRE(made == NULL && code != CL_SUCCESS);
    clCreateProgramWithILKHR_fn il = (clCreateProgramWithILKHR_fn)clGetExtensionFunctionAddressForPlatform(platform, "clCreateProgramWithILKHR");
    if (il) REQUIRE(il(context, "no IL", 5, &code) == NULL && code != CL_SUCCESS);
    clCreateCommandQueueWithPropertiesKHR_fn with = (clCreateCommandQueueWithPropertiesKHR_fn)clGetExtensionFunctionAddressForPlatform(platform, "clCreateCommandQueueWithPropertiesKHR");
    if (with) {
        cl_queue_properties_khr list[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
        cl_command_queue other = with(context, device, list, &code);
        REQUIRE((other != NULL) == (code == CL_SUCCESS));
        if (other) CHECK(clReleaseCommandQueue(other));
    }
    cl_uint number = 7;
    if (HAS(clSetProgramSpecializationConstant)) REQUIRE(clSetProgramSpecializationConstant(program, 1, sizeof number, &number) != CL_SUCCESS);
    if (HAS(clSetProgramReleaseCallback)) code = clSetProgramReleaseCallback(program, released, &told);
    REQUIRE(told == 0);
    if (HAS(clSetDefaultDeviceCommandQueue)) REQUIRE(clSetDefaultDeviceCommandQueue(context, device, queue) != CL_SUCCESS);
    if (HAS(clEnqueueSVMMigrateMem)) REQUIRE(clEnqueueSVMMigrateMem(queue, 0, NULL, NULL, 0, 0, NULL, NULL) != CL_SUCCESS);
    REQUIRE(clGetExtensionFunctionAddress("clNoDriverHasThisKHR") == NULL);
    printf("what is lacking: said by a code\n");
}

static const char *refused[] = {
    "clCreateFromGLBuffer", "clCreateFromGLTexture2D", "clCreateFromGLTexture3D", "clCreateFromGLTexture",
    "clCreateFromGLRenderbuffer", "clGetGLObjectInfo", "clGetGLTextureInfo", "clEnqueueAcquireGLObjects", "clEnqueueReleaseGLObjects",
    "clGetGLContextInfoKHR", "clCreateEventFromGLsyncKHR", "clCreateFromEGLImageKHR", "clEnqueueAcquireEGLObjectsKHR",
    "clEnqueueReleaseEGLObjectsKHR", "clCreateEventFromEGLSyncKHR", "clCreateSubDevicesEXT", "clRetainDeviceEXT", "clReleaseDeviceEXT",
    "clGetDeviceIDsFromD3D10KHR", "clCreateFromD3D10BufferKHR", "clCreateFromD3D10Texture2DKHR", "clCreateFromD3D10Texture3DKHR",
    "clEnqueueAcquireD3D10ObjectsKHR", "clEnqueueReleaseD3D10ObjectsKHR", "clGetDeviceIDsFromD3D11KHR", "clCreateFromD3D11BufferKHR",
    "clCreateFromD3D11Texture2DKHR", "clCreateFromD3D11Texture3DKHR", "clEnqueueAcquireD3D11ObjectsKHR", "clEnqueueReleaseD3D11ObjectsKHR",
    "clGetDeviceIDsFromDX9MediaAdapterKHR", "clCreateFromDX9MediaSurfaceKHR", "clEnqueueAcquireDX9MediaSurfacesKHR",
    "clEnqueueReleaseDX9MediaSurfacesKHR", "clEnqueueNativeKernel"};

// The table that every object begins with leads to the library that made it; natively there is nothing to be asked.
static void refusals(void) {
    typedef void *(*any)(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *);
    Dl_info in;
    void *library = NULL;
    if (dladdr(**(void ***)platform, &in)) library = dlopen(in.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    REQUIRE(through == (library && dlsym(library, "katydid_shim_marker")));
    for (size_t i = 0; through && i < sizeof refused / sizeof *refused; i++) {
        any function = (any)dlsym(library, refused[i]);
        if (!function) continue;
        void *said = function(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
        REQUIRE(said == NULL || (cl_int)(size_t)said == CL_INVALID_OPERATION);
    }
    printf("what is refused: refused\n");
}

int main(void) {
    set_up(0);
    through = platform_says(CL_PLATFORM_VERSION, "(through Katydid)");
    cl_program program = build(source, "");
    cl_kernel kernel = kernel_of(program, "one");
    values = buffer_of(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof host, host);
    CHECK(clSetKernelArg(kernel, 0, sizeof values, &values));
    references(program, kernel);
    old_commands(kernel);
    objects();
    with_properties();
    kernels(program);
    timers();
    contexts();
    lacking(program);
    refusals();
    CHECK(clReleaseMemObject(values));
    clReleaseKernel(kernel), clReleaseProgram(program);
    tear_down();
    return 0;
}
