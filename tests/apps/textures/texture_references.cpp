// Textures and surfaces as in programs before CUDA 5: references declared in a module, bound by the host; and copies of boxes
// between arrays and memory, in groups.
#include <cuda.h>

#include <cstring>
#include <vector>

#include "check.h"
#include "first_device.h"

static const char *const PTX = R"(
.version 6.0
.target sm_70
.address_size 64

.visible .global .texref plane;
.visible .global .texref line;
.visible .global .surfref canvas;

// out[i] = plane(x[i], y[i])
.visible .entry sample(.param .u64 out, .param .u64 points)
{
    .reg .f32 %f<8>;
    .reg .b32 %r<2>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [points];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 8;
    add.s64 %d2, %d2, %d3;
    ld.global.v2.f32 {%f1, %f2}, [%d2];
    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [plane, {%f1, %f2}];
    mul.wide.u32 %d4, %r1, 4;
    add.s64 %d1, %d1, %d4;
    st.global.f32 [%d1], %f3;
    ret;
}

// out[i] = both channels of line(i)
.visible .entry fetch(.param .u64 out)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x;
    tex.1d.v4.u32.s32 {%r2, %r3, %r4, %r5}, [line, {%r1}];
    mul.wide.u32 %d2, %r1, 8;
    add.s64 %d1, %d1, %d2;
    st.global.v2.u32 [%d1], {%r2, %r3};
    ret;
}

// canvas(x, y) = 100 y + x
.visible .entry paint()
{
    .reg .b32 %r<6>;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %tid.y;
    mad.lo.s32 %r3, %r2, 100, %r1;
    shl.b32 %r4, %r1, 2;
    sust.b.2d.b32.trap [canvas, {%r4, %r2}], {%r3};
    ret;
}
)";

static CUmodule module;
static CUdeviceptr out;

static CUfunction function(const char *name) {
    CUfunction found;
    OK(cuModuleGetFunction(&found, module, name));
    return found;
}

// No header declares it any more.
extern "C" CUresult CUDAAPI cuTexRefSetAddress2D_v2(CUtexref, const CUDA_ARRAY_DESCRIPTOR *, CUdeviceptr, size_t);

static CUtexref texture(const char *name) {
    CUtexref found, again;
    OK(cuModuleGetTexRef(&found, module, name));
    OK(cuModuleGetTexRef(&again, module, name));
    CHECK(found == again, "%s has two handles", name);
    return found;
}

static CUarray array_of(int width, int height, CUarray_format format, const void *data, size_t texel) {
    CUDA_ARRAY3D_DESCRIPTOR wanted = {};
    wanted.Width = size_t(width);
    wanted.Height = size_t(height);
    wanted.Format = format;
    wanted.NumChannels = 1;
    wanted.Flags = CUDA_ARRAY3D_SURFACE_LDST;
    CUarray array;
    OK(cuArray3DCreate(&array, &wanted));
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = data;
    copy.srcPitch = size_t(width) * texel;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = size_t(width) * texel;
    copy.Height = size_t(height);
    if (data) OK(cuMemcpy2D(&copy));
    return array;
}

// What `plane` gives at points, against what it should.
static void sampled(const char *what, const std::vector<float> &points, const std::vector<float> &wanted) {
    CUdeviceptr at;
    size_t count = wanted.size();
    std::vector<float> got(count);
    OK(cuMemAlloc(&at, count * 8));
    OK(cuMemcpyHtoD(at, points.data(), count * 8));
    void *arguments[] = {&out, &at};
    OK(cuLaunchKernel(function("sample"), 1, 1, 1, unsigned(count), 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuMemcpyDtoH(got.data(), out, count * 4));
    for (size_t i = 0; i < count; i++) CHECK(got[i] == wanted[i], "%s, %zu: %g, wanted %g", what, i, got[i], wanted[i]);
    OK(cuMemFree(at));
    printf("%s: %zu points\n", what, count);
}

static void planes() {
    float texels[4][8];
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 8; x++) texels[y][x] = float(10 * y + x);
    CUtexref plane = texture("plane");
    CUarray array = array_of(8, 4, CU_AD_FORMAT_FLOAT, texels, 4), bound;
    // The driver takes an array in its own format, with the flag that says so and without.
    OK(cuTexRefSetArray(plane, array, 0));
    OK(cuTexRefSetArray(plane, array, CU_TRSA_OVERRIDE_FORMAT));
    OK(cuTexRefGetArray(&bound, plane));
    CHECK(bound == array, "another array");
    // Since CUDA 3 a module's kernels have its references without this.
    OK(cuParamSetTexRef(function("sample"), CU_PARAM_TR_DEFAULT, plane));
    OK(cuTexRefSetAddressMode(plane, 0, CU_TR_ADDRESS_MODE_CLAMP));
    OK(cuTexRefSetAddressMode(plane, 1, CU_TR_ADDRESS_MODE_CLAMP));
    OK(cuTexRefSetFilterMode(plane, CU_TR_FILTER_MODE_POINT));
    sampled("nearest texels", {0.5f, 0.5f, 7.5f, 3.5f, 3.2f, 1.9f, -5, 2.5f, 99, 99}, {0, 37, 13, 20, 37});

    OK(cuTexRefSetFilterMode(plane, CU_TR_FILTER_MODE_LINEAR));
    sampled("four texels each", {1, 1, 2, 2, 4, 3}, {5.5f, 16.5f, 28.5f});

    OK(cuTexRefSetFilterMode(plane, CU_TR_FILTER_MODE_POINT));
    OK(cuTexRefSetFlags(plane, CU_TRSF_NORMALIZED_COORDINATES));
    OK(cuTexRefSetAddressMode(plane, 0, CU_TR_ADDRESS_MODE_WRAP));
    OK(cuTexRefSetAddressMode(plane, 1, CU_TR_ADDRESS_MODE_MIRROR));
    sampled("normalised", {0.0625f, 0.125f, 1.0625f, 0.125f, 0.0625f, 1.125f, -0.0625f, 0.875f}, {0, 0, 30, 37});

    float colour[4] = {-7, 1, 2, 3}, told[4];
    OK(cuTexRefSetFlags(plane, 0));
    OK(cuTexRefSetAddressMode(plane, 0, CU_TR_ADDRESS_MODE_BORDER));
    OK(cuTexRefSetAddressMode(plane, 1, CU_TR_ADDRESS_MODE_BORDER));
    OK(cuTexRefSetBorderColor(plane, colour));
    OK(cuTexRefGetBorderColor(told, plane));
    CHECK(memcmp(colour, told, sizeof told) == 0, "another colour");
    sampled("with a border", {0.5f, 0.5f, -1, 0.5f, 0.5f, 9}, {0, -7, -7});

    // Rows of memory take the place of the array.
    CUdeviceptr rows, address;
    OK(cuMemAlloc(&rows, 6 * 512));
    for (unsigned y = 0; y < 4; y++) OK(cuMemsetD32(rows + y * 512, 0x40000000 + (y << 23), 8));
    CUDA_ARRAY_DESCRIPTOR shape = {8, 4, CU_AD_FORMAT_FLOAT, 1};
    // By the function of CUDA 3.2 and by that of 4.1, whose only difference is how a row may be aligned.
    OK(cuTexRefSetAddress2D_v2(plane, &shape, rows + 1024, 512));
    OK(cuTexRefGetAddress(&address, plane));
    CHECK(address == rows + 1024, "another address");
    OK(cuTexRefSetAddress2D(plane, &shape, rows, 512));
    OK(cuTexRefGetAddress(&address, plane));
    CHECK(address == rows, "another address");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetArray(&bound, plane));
    sampled("rows of memory", {0.5f, 0.5f, 4.5f, 1.5f, 7.5f, 3.5f}, {2, 4, 16});
    OK(cuMemFree(rows));
    OK(cuArrayDestroy(array));
}

static void lines() {
    const unsigned COUNT = 32;
    uint32_t numbers[2 * COUNT], got[2 * COUNT];
    for (unsigned i = 0; i < 2 * COUNT; i++) numbers[i] = i * i;
    CUtexref line = texture("line");
    CUdeviceptr memory;
    size_t offset = 99;
    CUarray_format format;
    int channels;
    OK(cuMemAlloc(&memory, sizeof numbers));
    OK(cuMemcpyHtoD(memory, numbers, sizeof numbers));
    OK(cuTexRefSetFormat(line, CU_AD_FORMAT_UNSIGNED_INT32, 2));
    OK(cuTexRefSetFlags(line, CU_TRSF_READ_AS_INTEGER));
    OK(cuTexRefSetAddress(&offset, line, memory, sizeof numbers));
    CHECK(offset == 0, "%zu", offset);
    OK(cuTexRefGetFormat(&format, &channels, line));
    CHECK(format == CU_AD_FORMAT_UNSIGNED_INT32 && channels == 2, "%d, %d", int(format), channels);
    void *arguments[] = {&out};
    OK(cuLaunchKernel(function("fetch"), 1, 1, 1, COUNT, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuMemcpyDtoH(got, out, sizeof got));
    CHECK(memcmp(got, numbers, sizeof got) == 0, "wrong pairs");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddress(nullptr, line, memory + 8, 64));
    OK(cuTexRefSetAddress(&offset, line, memory + 8, 64));
    CHECK(offset == 8, "%zu", offset);
    OK(cuMemFree(memory));
    printf("a line of pairs\n");
}

static void surfaces() {
    uint32_t blank[4][8] = {}, got[4][8];
    CUarray array = array_of(8, 4, CU_AD_FORMAT_UNSIGNED_INT32, blank, 4), bound;
    CUsurfref canvas;
    CUtexref none;
    OK(cuModuleGetSurfRef(&canvas, module, "canvas"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetTexRef(&none, module, "absent"));
    OK(cuSurfRefSetArray(canvas, array, 0));
    OK(cuSurfRefGetArray(&bound, canvas));
    CHECK(bound == array, "another array");
    OK(cuLaunchKernel(function("paint"), 1, 1, 1, 8, 4, 1, 0, nullptr, nullptr, nullptr));
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = array;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = got;
    copy.dstPitch = copy.WidthInBytes = 32;
    copy.Height = 4;
    OK(cuMemcpy2D(&copy));
    for (uint32_t y = 0; y < 4; y++)
        for (uint32_t x = 0; x < 8; x++) CHECK_QUIETLY(got[y][x] == 100 * y + x, "%u %u: %u", x, y, got[y][x]);
    OK(cuArrayDestroy(array));
    printf("a painted surface\n");
}

// A reference of the program's own: it keeps what it is told.
static void own() {
    CUtexref mine;
    CUmipmappedArray pyramid, bound;
    CUfilter_mode filter;
    CUaddress_mode mode;
    float bias, first, last;
    unsigned flags;
    int most;
    CUDA_ARRAY3D_DESCRIPTOR wanted = {};
    wanted.Width = wanted.Height = 8;
    wanted.Format = CU_AD_FORMAT_FLOAT;
    wanted.NumChannels = 1;
    OK(cuMipmappedArrayCreate(&pyramid, &wanted, 3));
    OK(cuTexRefCreate(&mine));
    OK(cuTexRefSetMipmappedArray(mine, pyramid, CU_TRSA_OVERRIDE_FORMAT));
    OK(cuTexRefGetMipmappedArray(&bound, mine));
    CHECK(bound == pyramid, "another mipmap");
    OK(cuTexRefSetMipmapFilterMode(mine, CU_TR_FILTER_MODE_LINEAR));
    OK(cuTexRefSetMipmapLevelBias(mine, 0.5f));
    OK(cuTexRefSetMipmapLevelClamp(mine, 1, 2));
    OK(cuTexRefSetMaxAnisotropy(mine, 4));
    OK(cuTexRefSetFilterMode(mine, CU_TR_FILTER_MODE_LINEAR));
    OK(cuTexRefSetAddressMode(mine, 1, CU_TR_ADDRESS_MODE_MIRROR));
    OK(cuTexRefSetFlags(mine, CU_TRSF_NORMALIZED_COORDINATES));
    OK(cuTexRefGetMipmapFilterMode(&filter, mine));
    CHECK(filter == CU_TR_FILTER_MODE_LINEAR, "%d", int(filter));
    OK(cuTexRefGetFilterMode(&filter, mine));
    CHECK(filter == CU_TR_FILTER_MODE_LINEAR, "%d", int(filter));
    OK(cuTexRefGetMipmapLevelBias(&bias, mine));
    OK(cuTexRefGetMipmapLevelClamp(&first, &last, mine));
    CHECK(bias == 0.5f && first == 1 && last == 2, "%g %g %g", bias, first, last);
    OK(cuTexRefGetMaxAnisotropy(&most, mine));
    OK(cuTexRefGetFlags(&flags, mine));
    OK(cuTexRefGetAddressMode(&mode, mine, 1));
    CHECK(most == 4 && (flags & CU_TRSF_NORMALIZED_COORDINATES) && mode == CU_TR_ADDRESS_MODE_MIRROR, "%d %u", most, flags);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetAddressMode(&mode, mine, 3));
    OK(cuTexRefDestroy(mine));
    OK(cuMipmappedArrayDestroy(pyramid));
    printf("a reference of its own\n");
}

static CUDA_MEMCPY3D_BATCH_OP box(CUmemcpy3DOperand to, CUmemcpy3DOperand from, size_t width, size_t height, size_t depth) {
    CUDA_MEMCPY3D_BATCH_OP it = {};
    it.dst = to;
    it.src = from;
    it.extent = {width, height, depth};
    it.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return it;
}

static CUmemcpy3DOperand memory(CUdeviceptr at, size_t row, size_t rows) {
    CUmemcpy3DOperand it = {};
    it.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    it.op.ptr.ptr = at;
    it.op.ptr.rowLength = row;
    it.op.ptr.layerHeight = rows;
    return it;
}

static CUmemcpy3DOperand texels(CUarray array, size_t x, size_t y) {
    CUmemcpy3DOperand it = {};
    it.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    it.op.array.array = array;
    it.op.array.offset.x = x;
    it.op.array.offset.y = y;
    return it;
}

static void boxes() {
    uint32_t numbers[4][8], middle[2][3], rows[2][4];
    for (uint32_t i = 0; i < 32; i++) numbers[i / 8][i % 8] = i;
    CUarray array = array_of(8, 4, CU_AD_FORMAT_UNSIGNED_INT32, nullptr, 4);
    CUstream stream;
    CUdeviceptr from, to;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&from, sizeof numbers));
    OK(cuMemAlloc(&to, 256));
    OK(cuMemcpyHtoD(from, numbers, sizeof numbers));
    CUDA_MEMCPY3D_BATCH_OP in[] = {
        box(texels(array, 0, 0), memory(from, 0, 0), 8, 4, 1),
        box(memory(to, 16, 0), memory(from + 32, 32, 2), 16, 2, 1),
    };
    OK(cuMemcpy3DBatchAsync(2, in, 0, stream));
    CUDA_MEMCPY3D_BATCH_OP out_of[] = {
        box(memory(CUdeviceptr(middle), 0, 0), texels(array, 2, 1), 3, 2, 1),
        box(memory(CUdeviceptr(rows), 0, 0), memory(to, 0, 0), 32, 1, 1),
    };
    OK(cuMemcpy3DBatchAsync(2, out_of, 0, stream));
    OK(cuStreamSynchronize(stream));
    for (uint32_t i = 0; i < 6; i++) CHECK(middle[i / 3][i % 3] == 10 + 8 * (i / 3) + i % 3, "%u: %u", i, middle[i / 3][i % 3]);
    for (uint32_t i = 0; i < 8; i++) CHECK(rows[i / 4][i % 4] == 8 + 8 * (i / 4) + i % 4, "%u: %u", i, rows[i / 4][i % 4]);
    out_of[1].extent.width = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, out_of, 0, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, in, 1, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, in, 0, nullptr));
    OK(cuMemFree(from));
    OK(cuMemFree(to));
    OK(cuStreamDestroy(stream));
    OK(cuArrayDestroy(array));
    printf("boxes in groups\n");
}

int main() {
    CUdevice device;
    CUcontext context;
    begin_on_first(&device, &context);
    OK(cuModuleLoadData(&module, PTX));
    OK(cuMemAlloc(&out, 4096));
    planes();
    lines();
    surfaces();
    own();
    boxes();
    OK(cuMemFree(out));
    OK(cuModuleUnload(module));
    return finish("texture_references");
}
