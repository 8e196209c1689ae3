// Images of every format that the device has for one access of kernels, some of which it has for no other: with what they begin
// with, and without.
#include "check.h"

enum { W = 6, H = 5, MAX_ELEMENT = 16, MAX_FORMATS = 512 };

static unsigned char given[W * H * MAX_ELEMENT], back[W * H * MAX_ELEMENT];

// Whether an image of a format can be made with that access, and holds what it is given.
static int is_right(cl_mem_flags access, const cl_image_format *format) {
    const size_t none[3] = {0}, whole[3] = {W, H, 1};
    cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = W, .image_height = H};
    cl_int code;
    for (int has_data = 0; has_data < 2; has_data++) {
        cl_mem_flags flags = access | (has_data ? CL_MEM_COPY_HOST_PTR : 0);
        cl_mem image = clCreateImage(context, flags, format, &shape, has_data ? given : NULL, &code);
        if (code != CL_SUCCESS) return 0;
        size_t element;
        CHECK(clGetImageInfo(image, CL_IMAGE_ELEMENT_SIZE, sizeof element, &element, NULL));
        if (!has_data) CHECK(clEnqueueWriteImage(queue, image, CL_TRUE, none, whole, 0, 0, given, 0, NULL, NULL));
        memset(back, 0, sizeof back);
        CHECK(clEnqueueReadImage(queue, image, CL_TRUE, none, whole, 0, 0, back, 0, NULL, NULL));
        CHECK(clReleaseMemObject(image));
        if (memcmp(given, back, W * H * element) != 0) return 0;
    }
    return 1;
}

int main(void) {
    static const struct {
        cl_mem_flags access;
        const char *name;
    } accesses[] = {{CL_MEM_READ_ONLY, "reading"},
                    {CL_MEM_WRITE_ONLY, "writing"},
                    {CL_MEM_READ_WRITE, "either"}};
    cl_image_format formats[MAX_FORMATS];
    set_up(0);
    for (size_t i = 0; i < sizeof given; i++) given[i] = (unsigned char)(i * 37 + 11);
    for (size_t which = 0; which < sizeof accesses / sizeof *accesses; which++) {
        cl_uint count = 0, right = 0;
        CHECK(clGetSupportedImageFormats(context, accesses[which].access, CL_MEM_OBJECT_IMAGE2D, MAX_FORMATS, formats, &count));
        for (cl_uint i = 0; i < count; i++) {
            if (is_right(accesses[which].access, &formats[i])) right++;
            else printf("wrong: %#x %#x\n", formats[i].image_channel_order, formats[i].image_channel_data_type);
        }
        printf("for %s: %s\n", accesses[which].name, right == count ? "all as given" : "not all");
    }
    tear_down();
    return 0;
}
