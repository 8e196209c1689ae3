// Arrays whose memory is mapped later: sparse ones tile by tile, the tails of their mipmaps, and deferred ones as a whole.
#include <cuda.h>

#include <vector>

#include "check.h"

constexpr unsigned WIDTH = 1024, HEIGHT = 1024;
constexpr size_t POOL = 4 << 20, TILE = 65536;

static CUDA_ARRAY3D_DESCRIPTOR description(unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR it = {};
    it.Width = WIDTH, it.Height = HEIGHT, it.Format = CU_AD_FORMAT_FLOAT, it.NumChannels = 1, it.Flags = flags;
    return it;
}

static CUmemGenericAllocationHandle pool(size_t bytes, unsigned short usage) {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    request.allocFlags.usage = usage;
    CUmemGenericAllocationHandle block;
    OK(cuMemCreate(&block, bytes, &request, 0));
    return block;
}

// An entry that changes nothing yet but its kind of operation.
static CUarrayMapInfo entry(CUmemOperationType operation, CUmemGenericAllocationHandle block, size_t offset) {
    CUarrayMapInfo it = {};
    it.memOperationType = operation;
    it.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    it.memHandle.memHandle = block;
    it.offset = offset;
    it.deviceBitMask = 1;
    return it;
}

static CUarrayMapInfo of_array(CUarrayMapInfo it, CUarray array) {
    it.resourceType = CU_RESOURCE_TYPE_ARRAY;
    it.resource.array = array;
    return it;
}

static CUarrayMapInfo of_mipmap(CUarrayMapInfo it, CUmipmappedArray mipmap) {
    it.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    it.resource.mipmap = mipmap;
    return it;
}

// One tile of level 0, by its number in both directions.
static CUarrayMapInfo tile(CUarrayMapInfo it, const CUDA_ARRAY_SPARSE_PROPERTIES &has, unsigned x, unsigned y) {
    it.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    auto &at = it.subresource.sparseLevel;
    at.offsetX = x * has.tileExtent.width, at.offsetY = y * has.tileExtent.height;
    at.extentWidth = has.tileExtent.width, at.extentHeight = has.tileExtent.height, at.extentDepth = 1;
    return it;
}

// Copies a box of floats between an array and packed rows.
static void copy(CUarray array, float *rows, unsigned x, unsigned y, unsigned width, unsigned height, bool in) {
    CUDA_MEMCPY2D it = {};
    it.WidthInBytes = width * 4, it.Height = height;
    if (in) {
        it.srcMemoryType = CU_MEMORYTYPE_HOST, it.srcHost = rows, it.srcPitch = width * 4;
        it.dstMemoryType = CU_MEMORYTYPE_ARRAY, it.dstArray = array, it.dstXInBytes = x * 4, it.dstY = y;
    } else {
        it.dstMemoryType = CU_MEMORYTYPE_HOST, it.dstHost = rows, it.dstPitch = width * 4;
        it.srcMemoryType = CU_MEMORYTYPE_ARRAY, it.srcArray = array, it.srcXInBytes = x * 4, it.srcY = y;
    }
    OK(cuMemcpy2D(&it));
}

static std::vector<float> numbers(size_t count, unsigned seed) {
    Numbers source(seed);
    std::vector<float> all(count);
    for (float &number : all) number = source.unit();
    return all;
}

// Whether a tile of the array holds these numbers.
static bool holds(CUarray array, const CUDA_ARRAY_SPARSE_PROPERTIES &has, unsigned x, unsigned y,
                  const std::vector<float> &wanted) {
    std::vector<float> got(wanted.size());
    unsigned width = has.tileExtent.width, height = has.tileExtent.height;
    copy(array, got.data(), x * width, y * height, width, height, false);
    return got == wanted;
}

// Tiles are filled, kept by the memory under them, and moved to another place of the array.
static void tiles() {
    CUDA_ARRAY3D_DESCRIPTOR request = description(CUDA_ARRAY3D_SPARSE);
    CUarray array;
    OK(cuArray3DCreate(&array, &request));
    CUDA_ARRAY_SPARSE_PROPERTIES has;
    OK(cuArrayGetSparseProperties(&has, array));
    unsigned width = has.tileExtent.width, height = has.tileExtent.height;
    CHECK(size_t(width) * height * 4 == TILE && has.tileExtent.depth == 1, "tiles of %u x %u", width, height);
    unsigned last_x = WIDTH / width - 1, last_y = HEIGHT / height - 1;
    CUmemGenericAllocationHandle block = pool(POOL, CU_MEM_CREATE_USAGE_TILE_POOL);

    CUarrayMapInfo map = of_array(entry(CU_MEM_OPERATION_TYPE_MAP, block, 0), array);
    CUarrayMapInfo both[2] = {tile(map, has, 0, 0), tile(map, has, last_x, last_y)};
    both[1].offset = 3 * TILE;
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemMapArrayAsync(both, 2, stream));
    OK(cuStreamSynchronize(stream));
    std::vector<float> first = numbers(TILE / 4, 1), second = numbers(TILE / 4, 2);
    copy(array, first.data(), 0, 0, width, height, true);
    copy(array, second.data(), last_x * width, last_y * height, width, height, true);
    CHECK(holds(array, has, 0, 0, first), "the first tile");
    CHECK(holds(array, has, last_x, last_y, second), "the last tile");

    CUarrayMapInfo gone = tile(of_array(entry(CU_MEM_OPERATION_TYPE_UNMAP, 0, 0), array), has, 0, 0);
    OK(cuMemMapArrayAsync(&gone, 1, stream));
    CUarrayMapInfo moved = tile(map, has, 0, 1);
    OK(cuMemMapArrayAsync(&moved, 1, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(holds(array, has, 0, 1, first), "the first tile at another place");
    OK(cuMemRelease(block));
    CHECK(holds(array, has, last_x, last_y, second), "the last tile without a handle");
    OK(cuStreamDestroy(stream));
    OK(cuArrayDestroy(array));
    printf("tiles\n");
}

// Levels too small for tiles share the tail.
static void tails() {
    CUDA_ARRAY3D_DESCRIPTOR request = description(CUDA_ARRAY3D_SPARSE);
    CUmipmappedArray mipmap;
    OK(cuMipmappedArrayCreate(&mipmap, &request, 11));
    CUDA_ARRAY_SPARSE_PROPERTIES has;
    OK(cuMipmappedArrayGetSparseProperties(&has, mipmap));
    CHECK(has.miptailSize > 0 && has.miptailSize % TILE == 0, "a tail of %llu bytes", has.miptailSize);
    CHECK(has.miptailFirstLevel > 0 && has.miptailFirstLevel < 11, "from level %u on", has.miptailFirstLevel);
    CUmemGenericAllocationHandle block = pool(POOL, CU_MEM_CREATE_USAGE_TILE_POOL);
    CUarrayMapInfo map = of_mipmap(entry(CU_MEM_OPERATION_TYPE_MAP, block, 0), mipmap);
    CUarrayMapInfo both[2] = {tile(map, has, 0, 0), map};
    both[1].offset = TILE;
    both[1].subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    both[1].subresource.miptail.size = has.miptailSize;
    OK(cuMemMapArrayAsync(both, 2, 0));
    // Of the tail's texels nothing is asked: an H200 reads zeroes there.
    CUarray level;
    OK(cuMipmappedArrayGetLevel(&level, mipmap, 0));
    std::vector<float> sent = numbers(TILE / 4, 3);
    copy(level, sent.data(), 0, 0, has.tileExtent.width, has.tileExtent.height, true);
    CHECK(holds(level, has, 0, 0, sent), "the first tile of level 0");
    CUarrayMapInfo wrong = both[1];
    wrong.subresource.miptail.size = 100;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, 0));
    wrong = both[1], wrong.subresource.miptail.layer = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&has, level));
    OK(cuMipmappedArrayDestroy(mipmap));
    OK(cuMemRelease(block));
    printf("tails\n");
}

static void whole() {
    CUDA_ARRAY3D_DESCRIPTOR request = description(CUDA_ARRAY3D_DEFERRED_MAPPING);
    CUarray array;
    OK(cuArray3DCreate(&array, &request));
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    OK(cuArrayGetMemoryRequirements(&needs, array, 0));
    CHECK(needs.size >= size_t(WIDTH) * HEIGHT * 4 && needs.alignment > 0, "%zu bytes", needs.size);
    CUDA_ARRAY_SPARSE_PROPERTIES has;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&has, array));
    size_t granule = 2 << 20, bytes = (needs.size + granule - 1) / granule * granule;
    CUmemGenericAllocationHandle block = pool(bytes, CU_MEM_CREATE_USAGE_TILE_POOL);
    CUarrayMapInfo map = of_array(entry(CU_MEM_OPERATION_TYPE_MAP, block, 0), array);
    OK(cuMemMapArrayAsync(&map, 1, 0));
    std::vector<float> sent = numbers(size_t(WIDTH) * HEIGHT, 4), got(sent.size());
    copy(array, sent.data(), 0, 0, WIDTH, HEIGHT, true);
    copy(array, got.data(), 0, 0, WIDTH, HEIGHT, false);
    CHECK(sent == got, "the first texel is %g", got[0]);
    OK(cuArrayDestroy(array));
    OK(cuMemRelease(block));
    printf("whole\n");
}

static void refusals() {
    CUDA_ARRAY3D_DESCRIPTOR request = description(0);
    CUarray plain, sparse;
    OK(cuArray3DCreate(&plain, &request));
    request.Flags = CUDA_ARRAY3D_SPARSE;
    OK(cuArray3DCreate(&sparse, &request));
    CUDA_ARRAY_SPARSE_PROPERTIES has;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&has, plain));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(nullptr, sparse));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements(&needs, sparse, 0));
    OK(cuArrayGetSparseProperties(&has, sparse));
    CUmemGenericAllocationHandle tiles = pool(POOL, CU_MEM_CREATE_USAGE_TILE_POOL);
    CUarrayMapInfo right = tile(of_array(entry(CU_MEM_OPERATION_TYPE_MAP, tiles, 0), sparse), has, 0, 0), wrong = right;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(nullptr, 1, 0));
    wrong.resource.array = plain;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, 0));
    wrong = right, wrong.offset = 100;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, 0));
    wrong = right, wrong.offset = POOL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, 0));
    wrong = right, wrong.subresource.sparseLevel.offsetY = 3;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, 0));
    wrong = right, wrong.deviceBitMask = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, 0));
    // Nor has a pool of tiles addresses.
    CUdeviceptr place;
    OK(cuMemAddressReserve(&place, POOL, 0, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(place, POOL, 0, tiles, 0));
    OK(cuMemAddressFree(place, POOL));
    OK(cuMemMapArrayAsync(&right, 1, 0));
    OK(cuCtxSynchronize());
    OK(cuArrayDestroy(sparse));
    OK(cuArrayDestroy(plain));
    OK(cuMemRelease(tiles));
    printf("refusals\n");
}

int main() {
    OK(cuInit(0));
    CUdevice device;
    CUcontext context;
    int sparse = 0, deferred = 0;
    OK(cuDeviceGet(&device, 0));
    OK(cuDeviceGetAttribute(&sparse, CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, device));
    OK(cuDeviceGetAttribute(&deferred, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, device));
    CHECK(sparse == 1 && deferred == 1, "supported: %d, %d", sparse, deferred);
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    tiles();
    tails();
    whole();
    refusals();
    OK(cuDevicePrimaryCtxRelease(device));
    return finish("sparse_arrays");
}
