// Arrays of every shape, alive over all steps: written through surfaces, read through textures made at the start.
#include "steps.h"

constexpr int WIDTH = 24, HEIGHT = 10, DEPTH = 4, LEVELS = 4;

struct Views {
    cudaSurfaceObject_t plane, block, layers, level;
    cudaTextureObject_t of_plane, of_block, of_layers, of_levels, of_memory;
};

// One thread for each element: reads all textures there, and writes all surfaces except the one that was read.
__global__ void step_through(const Views *all, unsigned salt, unsigned *out) {
    const Views &views = *all;
    int x = threadIdx.x, y = blockIdx.x;
    unsigned got = tex2D<unsigned>(views.of_plane, x + 0.5f, y + 0.5f);
    for (int z = 0; z < DEPTH; z++) {
        got = got * 31 + tex3D<unsigned>(views.of_block, x + 0.5f, y + 0.5f, z + 0.5f);
        got = got * 31 + tex2DLayered<unsigned>(views.of_layers, x + 0.5f, y + 0.5f, z);
    }
    for (int level = 0; level < LEVELS; level++) got = got * 31 + tex2DLod<unsigned>(views.of_levels, (x + 0.5f) / WIDTH, (y + 0.5f) / HEIGHT, level);
    got = got * 31 + tex1Dfetch<unsigned>(views.of_memory, y * WIDTH + x);
    out[y * WIDTH + x] = got + salt;
}

__global__ void write_back(const Views *all, const unsigned *values, unsigned salt) {
    const Views &views = *all;
    int x = threadIdx.x, y = blockIdx.x;
    unsigned value = values[y * WIDTH + x] ^ salt;
    surf2Dwrite(value, views.plane, x * 4, y);
    surf3Dwrite(value * 3, views.block, x * 4, y, salt % DEPTH);
    surf2DLayeredwrite(value * 5, views.layers, x * 4, y, salt % DEPTH);
    if (x < WIDTH / 2 && y < HEIGHT / 2) surf2Dwrite(value * 7, views.level, x * 4, y);
}

static cudaArray_t array_of(cudaExtent extent, unsigned flags) {
    cudaChannelFormatDesc channels = cudaCreateChannelDesc<unsigned>();
    cudaArray_t array;
    OK(cudaMalloc3DArray(&array, &channels, extent, flags | cudaArraySurfaceLoadStore));
    return array;
}

static cudaResourceDesc resource_of(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

static cudaSurfaceObject_t surface_of(cudaArray_t array) {
    cudaResourceDesc resource = resource_of(array);
    cudaSurfaceObject_t surface;
    OK(cudaCreateSurfaceObject(&surface, &resource));
    return surface;
}

static cudaTextureObject_t texture_of(const cudaResourceDesc &resource, bool normalized) {
    cudaTextureDesc description = {};
    for (auto &mode : description.addressMode) mode = cudaAddressModeClamp;
    description.normalizedCoords = normalized;
    description.maxMipmapLevelClamp = normalized ? LEVELS - 1 : 0;
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    return texture;
}

struct Everything {
    cudaArray_t plane = array_of(make_cudaExtent(WIDTH, HEIGHT, 0), 0);
    cudaArray_t block = array_of(make_cudaExtent(WIDTH, HEIGHT, DEPTH), 0);
    cudaArray_t layers = array_of(make_cudaExtent(WIDTH, HEIGHT, DEPTH), cudaArrayLayered);
    cudaMipmappedArray_t levels;
    unsigned *memory;
    Views views;
};

static void fill_levels(cudaMipmappedArray_t levels) {
    for (int level = 0; level < LEVELS; level++) {
        cudaArray_t array;
        OK(cudaGetMipmappedArrayLevel(&array, levels, level));
        int width = WIDTH >> level, height = HEIGHT >> level > 0 ? HEIGHT >> level : 1;
        unsigned texels[WIDTH * HEIGHT];
        for (int i = 0; i < width * height; i++) texels[i] = level * 1000 + i;
        OK(cudaMemcpy2DToArray(array, 0, 0, texels, width * 4, width * 4, height, cudaMemcpyHostToDevice));
    }
}

static void make_views(Everything &all) {
    cudaArray_t second;
    OK(cudaGetMipmappedArrayLevel(&second, all.levels, 1));
    cudaResourceDesc mipmap = {}, linear = {};
    mipmap.resType = cudaResourceTypeMipmappedArray;
    mipmap.res.mipmap.mipmap = all.levels;
    linear.resType = cudaResourceTypeLinear;
    linear.res.linear.devPtr = all.memory;
    linear.res.linear.desc = cudaCreateChannelDesc<unsigned>();
    linear.res.linear.sizeInBytes = WIDTH * HEIGHT * sizeof(unsigned);
    all.views = {surface_of(all.plane), surface_of(all.block), surface_of(all.layers), surface_of(second),
                 texture_of(resource_of(all.plane), false), texture_of(resource_of(all.block), false),
                 texture_of(resource_of(all.layers), false), texture_of(mipmap, true), texture_of(linear, false)};
}

static void make(Everything &all) {
    cudaChannelFormatDesc channels = cudaCreateChannelDesc<unsigned>();
    OK(cudaMallocMipmappedArray(&all.levels, &channels, make_cudaExtent(WIDTH, HEIGHT, 0), LEVELS, cudaArraySurfaceLoadStore));
    OK(cudaMalloc(&all.memory, WIDTH * HEIGHT * sizeof(unsigned)));
    OK(cudaMemset(all.memory, 3, WIDTH * HEIGHT * sizeof(unsigned)));
    fill_levels(all.levels);
    make_views(all);
}

static void end(Everything &all) {
    for (cudaSurfaceObject_t surface : {all.views.plane, all.views.block, all.views.layers, all.views.level}) OK(cudaDestroySurfaceObject(surface));
    for (cudaTextureObject_t texture : {all.views.of_plane, all.views.of_block, all.views.of_layers, all.views.of_levels, all.views.of_memory}) OK(cudaDestroyTextureObject(texture));
    for (cudaArray_t array : {all.plane, all.block, all.layers}) OK(cudaFreeArray(array));
    OK(cudaFreeMipmappedArray(all.levels));
    OK(cudaFree(all.memory));
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 16);
    Everything all;
    make(all);
    // The objects lie in device memory, like a table of textures: their values must not change.
    Views *views;
    unsigned *out, host[WIDTH * HEIGHT];
    OK(cudaMalloc(&views, sizeof(Views)));
    OK(cudaMalloc(&out, sizeof host));
    OK(cudaMemcpy(views, &all.views, sizeof(Views), cudaMemcpyHostToDevice));
    // Fresh arrays have arbitrary contents: every texel is written before it is read.
    OK(cudaMemset(out, 0, sizeof host));
    for (unsigned z = 0; z < DEPTH; z++) write_back<<<HEIGHT, WIDTH>>>(views, out, z);
    for (int step = 0; step < steps; step++) {
        step_through<<<HEIGHT, WIDTH>>>(views, step, out);
        write_back<<<HEIGHT, WIDTH>>>(views, out, step);
        OK(cudaGetLastError());
        OK(cudaMemcpy(all.memory + step, out, 64, cudaMemcpyDeviceToDevice));
        OK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
        Checksum sum;
        sum.add(host);
        told(step, sum);
    }
    OK(cudaFree(views));
    OK(cudaFree(out));
    end(all);
    return finish("kept_arrays");
}
