// Surfaces: kernels write arrays, and read them through surface and texture; out-of-range coordinates, in each mode.
#include "check.h"

#include <cstring>
#include <vector>

static const int WIDTH = 40, HEIGHT = 24, LAYERS = 3;

static cudaSurfaceObject_t surface_of(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaSurfaceObject_t surface;
    OK(cudaCreateSurfaceObject(&surface, &resource));
    return surface;
}

template <typename T> static cudaArray_t array_of(cudaExtent extent, unsigned flags) {
    cudaChannelFormatDesc channels = cudaCreateChannelDesc<T>();
    cudaArray_t array;
    OK(cudaMalloc3DArray(&array, &channels, extent, flags | cudaArraySurfaceLoadStore));
    return array;
}

template <typename T> static std::vector<T> fetched(cudaArray_t array, cudaExtent extent) {
    std::vector<T> host(extent.width * extent.height * extent.depth);
    cudaMemcpy3DParms copy = {};
    copy.srcArray = array;
    copy.dstPtr = make_cudaPitchedPtr(host.data(), extent.width * sizeof(T), extent.width, extent.height);
    copy.extent = extent;
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&copy));
    return host;
}

__global__ void paint(cudaSurfaceObject_t plane, cudaSurfaceObject_t block, cudaSurfaceObject_t layers, cudaSurfaceObject_t line) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= WIDTH) return;
    surf2Dwrite(make_uchar4(x, y, x + y, x ^ y), plane, x * sizeof(uchar4), y);
    for (int z = 0; z < LAYERS; z++) {
        surf3Dwrite(float(x + 100 * y + 10000 * z), block, x * sizeof(float), y, z);
        surf2DLayeredwrite(make_short2(x - y, z), layers, x * sizeof(short2), y, z);
    }
    if (y == 0) surf1Dwrite(make_uint4(x, 2 * x, 3 * x, ~x), line, x * sizeof(uint4));
}

__global__ void outside(cudaSurfaceObject_t plane, uint32_t *out) {
    const int places[6][2] = {{-1, 0}, {0, -1}, {WIDTH, 5}, {5, HEIGHT}, {WIDTH - 1, HEIGHT - 1}, {1000, -1000}};
    int i = threadIdx.x, x = places[i][0] * 4, y = places[i][1];
    uchar4 near, zero;
    surf2Dread(&near, plane, x, y, cudaBoundaryModeClamp);
    surf2Dread(&zero, plane, x, y, cudaBoundaryModeZero);
    memcpy(&out[2 * i], &near, 4);
    memcpy(&out[2 * i + 1], &zero, 4);
    // Dropped, as it lies outside; the last texel is inside.
    surf2Dwrite(make_uchar4(1, 2, 3, 4), plane, x, y, cudaBoundaryModeZero);
}

__global__ void copy_through(cudaTextureObject_t from, cudaSurfaceObject_t to) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < WIDTH) surf2Dwrite(tex2D<uchar4>(from, WIDTH - 1 - x + 0.5f, y + 0.5f), to, x * sizeof(uchar4), y);
}

int main() {
    cudaExtent flat = make_cudaExtent(WIDTH, HEIGHT, 0), deep = make_cudaExtent(WIDTH, HEIGHT, LAYERS);
    cudaArray_t plane = array_of<uchar4>(flat, 0), block = array_of<float>(deep, 0);
    cudaArray_t layers = array_of<short2>(deep, cudaArrayLayered), line = array_of<uint4>(make_cudaExtent(WIDTH, 0, 0), 0);
    cudaSurfaceObject_t surfaces[4] = {surface_of(plane), surface_of(block), surface_of(layers), surface_of(line)};
    dim3 grid((WIDTH + 31) / 32, HEIGHT);
    paint<<<grid, 32>>>(surfaces[0], surfaces[1], surfaces[2], surfaces[3]);
    OK(cudaGetLastError());

    std::vector<uchar4> planes = fetched<uchar4>(plane, make_cudaExtent(WIDTH, HEIGHT, 1));
    std::vector<float> blocks = fetched<float>(block, deep);
    std::vector<short2> layered = fetched<short2>(layers, deep);
    std::vector<uint4> lines = fetched<uint4>(line, make_cudaExtent(WIDTH, 1, 1));
    for (int i = 0; i < WIDTH * HEIGHT * LAYERS; i++) {
        int x = i % WIDTH, y = i / WIDTH % HEIGHT, z = i / (WIDTH * HEIGHT);
        CHECK_QUIETLY(blocks[i] == x + 100 * y + 10000 * z, "block %d %d %d: %g", x, y, z, blocks[i]);
        CHECK_QUIETLY(layered[i].x == x - y && layered[i].y == z, "layer %d %d %d: %d", x, y, z, layered[i].x);
        if (z > 0) continue;
        uchar4 at = planes[i];
        CHECK_QUIETLY(at.x == x && at.y == y && at.z == x + y && at.w == (x ^ y), "plane %d %d: %d", x, y, at.x);
        if (y == 0) CHECK_QUIETLY(lines[x].z == 3u * x && lines[x].w == ~uint32_t(x), "line %d: %u", x, lines[x].z);
    }
    printf("painted: a plane, a block, layers, a line\n");

    uint32_t *out, found[12];
    OK(cudaMalloc(&out, sizeof found));
    outside<<<1, 6>>>(surfaces[0], out);
    OK(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
    const int near[6][2] = {{0, 0}, {0, 0}, {WIDTH - 1, 5}, {5, HEIGHT - 1}, {WIDTH - 1, HEIGHT - 1}, {WIDTH - 1, 0}};
    for (int i = 0; i < 6; i++) {
        uint32_t wanted;
        memcpy(&wanted, &planes[near[i][1] * WIDTH + near[i][0]], 4);
        CHECK(found[2 * i] == wanted, "clamped %d: %08x, wanted %08x", i, found[2 * i], wanted);
        CHECK(found[2 * i + 1] == (i == 4 ? wanted : 0), "zero %d: %08x", i, found[2 * i + 1]);
    }
    std::vector<uchar4> after = fetched<uchar4>(plane, make_cudaExtent(WIDTH, HEIGHT, 1));
    planes.back() = make_uchar4(1, 2, 3, 4);
    CHECK(memcmp(after.data(), planes.data(), planes.size() * 4) == 0, "a store outside has changed the plane");
    printf("outside: the nearest, or nothing\n");

    cudaResourceDesc resource;
    OK(cudaGetSurfaceObjectResourceDesc(&resource, surfaces[0]));
    CHECK(resource.resType == cudaResourceTypeArray && resource.res.array.array == plane, "another resource");
    cudaTextureDesc description = {};
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    cudaArray_t mirror = array_of<uchar4>(flat, 0);
    cudaSurfaceObject_t mirrored = surface_of(mirror);
    copy_through<<<grid, 32>>>(texture, mirrored);
    std::vector<uchar4> turned = fetched<uchar4>(mirror, make_cudaExtent(WIDTH, HEIGHT, 1));
    for (int i = 0; i < WIDTH * HEIGHT; i++) {
        uchar4 a = turned[i], b = planes[i / WIDTH * WIDTH + WIDTH - 1 - i % WIDTH];
        CHECK_QUIETLY(a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w, "texel %d: %d, wanted %d", i, a.x, b.x);
    }
    printf("through a texture: turned around\n");

    OK(cudaDestroyTextureObject(texture));
    OK(cudaDestroySurfaceObject(mirrored));
    for (cudaSurfaceObject_t surface : surfaces) OK(cudaDestroySurfaceObject(surface));
    for (cudaArray_t array : {plane, block, layers, line, mirror}) OK(cudaFreeArray(array));
    OK(cudaFree(out));
    return finish("surfaces");
}
