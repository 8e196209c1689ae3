// What images of all kinds tell of themselves, the second and third of a kind as well as the first, with and without data of the
// program's; what the driver says to sizes beyond the device's; and whether their bytes are where they belong.
#include "check.h"

typedef struct {
    const char *name;
    cl_mem_object_type type;
    size_t size[3];
} kind;

static const kind kinds[] = {{"1D", CL_MEM_OBJECT_IMAGE1D, {40, 1, 1}},
                             {"1D array", CL_MEM_OBJECT_IMAGE1D_ARRAY, {24, 5, 1}},
                             {"2D", CL_MEM_OBJECT_IMAGE2D, {24, 9, 1}},
                             {"2D array", CL_MEM_OBJECT_IMAGE2D_ARRAY, {12, 7, 3}},
                             {"3D", CL_MEM_OBJECT_IMAGE3D, {8, 6, 5}}};
static const cl_image_format formats[] = {{CL_RGBA, CL_UNSIGNED_INT8}, {CL_RGBA, CL_FLOAT}};
static const size_t elements[] = {4, 16};

static cl_image_desc shape_of(const kind *of, size_t more, size_t pitch) {
    size_t width = of->size[0] + more;
    cl_image_desc shape = {.image_type = of->type, .image_width = width, .image_row_pitch = pitch};
    // What a kind has no use for may be anything.
    shape.image_depth = 3, shape.image_height = 3, shape.image_array_size = 3;
    if (of->type == CL_MEM_OBJECT_IMAGE1D_ARRAY) shape.image_array_size = of->size[1];
    else shape.image_height = of->size[1];
    if (of->type == CL_MEM_OBJECT_IMAGE2D_ARRAY) shape.image_array_size = of->size[2];
    if (of->type == CL_MEM_OBJECT_IMAGE3D) shape.image_depth = of->size[2];
    return shape;
}

static void facts_of(cl_mem image) {
    static const cl_image_info sizes[] = {CL_IMAGE_ELEMENT_SIZE, CL_IMAGE_ROW_PITCH, CL_IMAGE_SLICE_PITCH, CL_IMAGE_WIDTH,
                                          CL_IMAGE_HEIGHT, CL_IMAGE_DEPTH, CL_IMAGE_ARRAY_SIZE};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t value = 77, needed = 0;
        CHECK(clGetImageInfo(image, sizes[i], sizeof value, &value, &needed));
        REQUIRE(needed == sizeof value);
        printf(" %zu", value);
    }
    cl_image_format format;
    cl_uint levels, samples;
    size_t bytes;
    CHECK(clGetImageInfo(image, CL_IMAGE_FORMAT, sizeof format, &format, NULL));
    CHECK(clGetImageInfo(image, CL_IMAGE_NUM_MIP_LEVELS, sizeof levels, &levels, NULL));
    CHECK(clGetImageInfo(image, CL_IMAGE_NUM_SAMPLES, sizeof samples, &samples, NULL));
    CHECK(clGetMemObjectInfo(image, CL_MEM_SIZE, sizeof bytes, &bytes, NULL));
    printf(", %x %x, %u %u, %zu bytes\n", format.image_channel_order, format.image_channel_data_type, levels, samples, bytes);
}

// Reads all of it, and maps it twice.
static void bytes_of(cl_mem image, const size_t *region, size_t element, const unsigned char *wanted) {
    static unsigned char back[65536];
    size_t none[3] = {0, 0, 0}, row, slice, width = region[0] * element;
    CHECK(clEnqueueReadImage(queue, image, CL_TRUE, none, region, 0, 0, back, 0, NULL, NULL));
    REQUIRE(memcmp(back, wanted, width * region[1] * region[2]) == 0);
    for (int again = 0; again < 2; again++) {
        cl_int code;
        unsigned char *place =
            clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, none, region, &row, &slice, 0, NULL, NULL, &code);
        CHECK(code);
        cl_mem_object_type type;
        CHECK(clGetMemObjectInfo(image, CL_MEM_TYPE, sizeof type, &type, NULL));
        size_t line = type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? slice : row;
        for (size_t z = 0; z < region[2]; z++) {
            for (size_t y = 0; y < region[1]; y++) {
                REQUIRE(memcmp(place + z * slice + y * line, wanted + (z * region[1] + y) * width, width) == 0);
            }
        }
        CHECK(clEnqueueUnmapMemObject(queue, image, place, 0, NULL, NULL));
    }
}

static void images_of(const kind *of, int format, cl_mem_flags flags, const char *how) {
    static unsigned char data[65536], packed[65536];
    for (size_t more = 0; more < 3; more++) {
        size_t element = elements[format], region[3] = {of->size[0] + more, of->size[1], of->size[2]};
        int given = (flags & (CL_MEM_COPY_HOST_PTR | CL_MEM_USE_HOST_PTR)) != 0;
        // The third has gaps between its rows, where the program has rows.
        size_t width = region[0] * element, pitch = given && more == 2 && of->type == CL_MEM_OBJECT_IMAGE2D ? width + element : 0;
        size_t line = pitch ? pitch : width;
        for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7 + more);
        for (size_t i = 0; i < region[1] * region[2]; i++) memcpy(packed + i * width, data + i * line, width);
        cl_image_desc shape = shape_of(of, more, pitch);
        cl_int code;
        cl_mem image = clCreateImage(context, flags, &formats[format], &shape, given ? data : NULL, &code);
        CHECK(code);
        printf("%s, %s:", of->name, how);
        facts_of(image);
        if (!given) {
            size_t none[3] = {0, 0, 0};
            CHECK(clEnqueueWriteImage(queue, image, CL_FALSE, none, region, 0, 0, packed, 0, NULL, NULL));
        }
        bytes_of(image, region, element, packed);
        CHECK(clReleaseMemObject(image));
    }
}

// The code of an image that is to be refused. A driver may make an image wider than its device says, as NVIDIA's does.
static const char *code_of(cl_mem_flags flags, const cl_image_desc *shape) {
    cl_int code;
    cl_mem image = clCreateImage(context, flags, &formats[0], shape, NULL, &code);
    REQUIRE((image != NULL) == (code == CL_SUCCESS));
    if (image) CHECK(clReleaseMemObject(image));
    return code_name(code);
}

// The first of a kind and later ones are answered alike.
static void wrong_images(void) {
    size_t most;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_IMAGE2D_MAX_WIDTH, sizeof most, &most, NULL));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        cl_image_desc shape = shape_of(&kinds[i], 0, 0), empty = shape;
        if (kinds[i].type == CL_MEM_OBJECT_IMAGE3D) {
            CHECK(clGetDeviceInfo(device, CL_DEVICE_IMAGE3D_MAX_WIDTH, sizeof most, &most, NULL));
        }
        shape.image_width = most + 1, empty.image_width = 0;
        const char *wide = code_of(0, &shape), *none = code_of(0, &empty);
        printf("%s: %s, %s, %s\n", kinds[i].name, wide, none, code_of(CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, &empty));
    }
}

int main(void) {
    set_up(0);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (int format = 0; format < 2; format++) {
            images_of(&kinds[i], format, CL_MEM_READ_WRITE, "new");
            images_of(&kinds[i], format, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, "copied");
            images_of(&kinds[i], format, CL_MEM_USE_HOST_PTR, "the program's");
            images_of(&kinds[i], format, CL_MEM_ALLOC_HOST_PTR, "for the host");
        }
    }
    wrong_images();
    tear_down();
    return 0;
}
