// Textures of every shape: linear and pitched memory, layers, cubes, mipmaps, gathers, and queries of their resources.
#include "check.h"

#include <cmath>
#include <cstring>
#include <vector>

template <typename F> __global__ void run(F f) { f(blockIdx.x * blockDim.x + threadIdx.x); }

template <typename F> static void each(int threads, F f) {
    run<<<(threads + 63) / 64, 64>>>(f);
    OK(cudaGetLastError());
}

struct Results {
    float *device;
    std::vector<float> host;
    explicit Results(size_t count) : host(count) {
        OK(cudaMalloc(&device, (count + 64) * sizeof(float)));
        OK(cudaMemset(device, 0xff, (count + 64) * sizeof(float)));
    }
    ~Results() { OK(cudaFree(device)); }
    const std::vector<float> &fetch() {
        OK(cudaMemcpy(host.data(), device, host.size() * sizeof(float), cudaMemcpyDeviceToHost));
        return host;
    }
};

static cudaTextureDesc plain() {
    cudaTextureDesc description = {};
    for (auto &mode : description.addressMode) mode = cudaAddressModeClamp;
    return description;
}

static cudaTextureObject_t texture_of(cudaArray_t array, cudaTextureDesc description) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    return texture;
}

static cudaArray_t array_of(cudaExtent extent, unsigned flags, const std::vector<float> &texels) {
    cudaChannelFormatDesc channels = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    OK(cudaMalloc3DArray(&array, &channels, extent, flags));
    cudaMemcpy3DParms copy = {};
    copy.extent = make_cudaExtent(extent.width, extent.height ? extent.height : 1, extent.depth ? extent.depth : 1);
    copy.srcPtr = make_cudaPitchedPtr((void *)texels.data(), extent.width * 4, extent.width, copy.extent.height);
    copy.dstArray = array;
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    return array;
}

static std::vector<float> counted(size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = float(i);
    return values;
}

static void linear_memory() {
    const int count = 1000;
    std::vector<float> values = counted(count);
    float *memory;
    OK(cudaMalloc(&memory, count * sizeof(float)));
    OK(cudaMemcpy(memory, values.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = memory;
    resource.res.linear.desc = cudaCreateChannelDesc<float>();
    resource.res.linear.sizeInBytes = count * sizeof(float);
    cudaTextureDesc description = {};
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    Results results(count + 64);
    float *out = results.device;
    each(count + 64, [=] __device__(int i) { out[i] = tex1Dfetch<float>(texture, i - 32); });
    results.fetch();
    for (int i = 0; i < count + 64; i++) {
        float wanted = i < 32 || i >= count + 32 ? 0.0f : float(i - 32);
        CHECK_QUIETLY(results.host[i] == wanted, "index %d: %g", i - 32, results.host[i]);
    }
    // What the memory holds when a kernel runs is what it reads.
    OK(cudaMemset(memory, 0, count * sizeof(float)));
    each(count, [=] __device__(int i) { out[i] = tex1Dfetch<float>(texture, i); });
    for (int i = 0; i < count; i++) CHECK_QUIETLY(results.fetch()[i] == 0, "index %d after a fill", i);
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFree(memory));
    printf("linear memory: fetched, zero outside\n");
}

static void pitched_memory() {
    const int width = 100, height = 40;
    std::vector<float> values = counted(width * height);
    float *memory;
    size_t pitch;
    OK(cudaMallocPitch(&memory, &pitch, width * sizeof(float), height));
    OK(cudaMemcpy2D(memory, pitch, values.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = memory;
    resource.res.pitch2D.desc = cudaCreateChannelDesc<float>();
    resource.res.pitch2D.width = width;
    resource.res.pitch2D.height = height;
    resource.res.pitch2D.pitchInBytes = pitch;
    cudaTextureDesc description = plain();
    description.filterMode = cudaFilterModeLinear;
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    Results results(width * height);
    float *out = results.device;
    // A quarter of a texel to the right and half of one down: weights that are exact.
    each(width * height, [=] __device__(int i) { out[i] = tex2D<float>(texture, i % width + 0.75f, i / width + 1.0f); });
    results.fetch();
    for (int i = 0; i < width * height; i++) {
        int x = i % width, y = i / width, right = x + 1 < width ? x + 1 : x, below = y + 1 < height ? y + 1 : y;
        float above = 0.75f * values[y * width + x] + 0.25f * values[y * width + right];
        float under = 0.75f * values[below * width + x] + 0.25f * values[below * width + right];
        CHECK_QUIETLY(results.host[i] == 0.5f * above + 0.5f * under, "texel %d %d: %g", x, y, results.host[i]);
    }
    cudaResourceDesc back;
    OK(cudaGetTextureObjectResourceDesc(&back, texture));
    CHECK(back.resType == cudaResourceTypePitch2D && back.res.pitch2D.pitchInBytes == pitch, "another resource");
    cudaTextureDesc read;
    OK(cudaGetTextureObjectTextureDesc(&read, texture));
    CHECK(read.filterMode == cudaFilterModeLinear && read.addressMode[1] == cudaAddressModeClamp, "another description");
    OK(cudaDestroyTextureObject(texture));
    resource.res.pitch2D.pitchInBytes = pitch + 4;
    EXPECT(cudaErrorInvalidValue, cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    OK(cudaFree(memory));
    printf("pitched memory: filtered, described, refused\n");
}

static void layers() {
    const int width = 16, height = 8, count = 5;
    cudaArray_t planes = array_of(make_cudaExtent(width, height, count), cudaArrayLayered, counted(width * height * count));
    cudaArray_t lines = array_of(make_cudaExtent(width, 0, count), cudaArrayLayered, counted(width * count));
    cudaTextureObject_t plane = texture_of(planes, plain()), line = texture_of(lines, plain());
    Results results(2 * width * (count + 2));
    float *out = results.device;
    each(width * (count + 2), [=] __device__(int i) {
        int x = i % width, layer = i / width - 1;
        out[2 * i] = tex2DLayered<float>(plane, x + 0.5f, 3.5f, layer);
        out[2 * i + 1] = tex1DLayered<float>(line, x + 0.5f, layer);
    });
    results.fetch();
    for (int i = 0; i < width * (count + 2); i++) {
        // A layer is a number without sign: one before the first is far beyond the last, and the last one counts.
        int layer = i / width - 1, used = layer < 0 || layer >= count ? count - 1 : layer;
        CHECK_QUIETLY(results.host[2 * i] == used * width * height + 3 * width + i % width, "layer %d: %g", layer, results.host[2 * i]);
        CHECK_QUIETLY(results.host[2 * i + 1] == used * width + i % width, "line %d: %g", layer, results.host[2 * i + 1]);
    }
    OK(cudaDestroyTextureObject(plane));
    OK(cudaDestroyTextureObject(line));
    OK(cudaFreeArray(planes));
    OK(cudaFreeArray(lines));
    printf("layers: of planes and of lines\n");
}

static void cubes() {
    const int size = 8;
    cudaArray_t cube = array_of(make_cudaExtent(size, size, 6), cudaArrayCubemap, counted(size * size * 6));
    cudaTextureDesc description = plain();
    description.normalizedCoords = 1;
    cudaTextureObject_t texture = texture_of(cube, description);
    Results results(size * size * 6);
    float *out = results.device;
    // The centre of every texel of every face, from the inside.
    each(size * size * 6, [=] __device__(int i) {
        int face = i / (size * size);
        float s = 2 * ((i % size) + 0.5f) / size - 1, t = 2 * ((i / size % size) + 0.5f) / size - 1;
        float x = face == 0 ? 1 : face == 1 ? -1 : face == 5 ? -s : s;
        float y = face == 2 ? 1 : face == 3 ? -1 : -t;
        float z = face == 0 ? -s : face == 1 ? s : face == 2 ? t : face == 3 ? -t : face == 4 ? 1 : -1;
        out[i] = texCubemap<float>(texture, x * 3, y * 3, z * 3);
    });
    results.fetch();
    for (int i = 0; i < size * size * 6; i++) CHECK_QUIETLY(results.host[i] == i, "texel %d of face %d: %g", i % (size * size), i / (size * size), results.host[i]);
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeArray(cube));
    printf("cubes: six faces\n");
}

static void mipmaps() {
    const int size = 32, levels = 6;
    cudaChannelFormatDesc channels = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t mipmap;
    OK(cudaMallocMipmappedArray(&mipmap, &channels, make_cudaExtent(size, size, 0), 99));
    for (int level = 0; level < levels; level++) {
        cudaArray_t array, again;
        OK(cudaGetMipmappedArrayLevel(&array, mipmap, level));
        OK(cudaGetMipmappedArrayLevel(&again, mipmap, level));
        CHECK(array == again, "level %d is another array now", level);
        cudaExtent extent;
        cudaChannelFormatDesc found;
        unsigned flags;
        OK(cudaArrayGetInfo(&found, &extent, &flags, array));
        CHECK(extent.width == size_t(size >> level) && extent.height == extent.width && found.x == 32, "level %d: %zu", level, extent.width);
        std::vector<float> texels(extent.width * extent.height, float(level));
        OK(cudaMemcpy2DToArray(array, 0, 0, texels.data(), extent.width * 4, extent.width * 4, extent.height, cudaMemcpyHostToDevice));
    }
    cudaArray_t none;
    EXPECT(cudaErrorInvalidValue, cudaGetMipmappedArrayLevel(&none, mipmap, levels));
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = mipmap;
    cudaTextureDesc description = plain();
    description.normalizedCoords = 1;
    description.filterMode = description.mipmapFilterMode = cudaFilterModeLinear;
    description.maxMipmapLevelClamp = 99;
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    const int steps = 8 * (levels + 1);
    Results results(2 * steps);
    float *out = results.device;
    each(steps, [=] __device__(int i) {
        out[2 * i] = tex2DLod<float>(texture, 0.3f, 0.6f, i / 8.0f - 0.5f);
        // One texel of a level from pixel to pixel is that level.
        float texel = exp2f(i / 8) / 32;
        out[2 * i + 1] = tex2DGrad<float>(texture, 0.3f, 0.6f, make_float2(texel, 0), make_float2(0, 0));
    });
    results.fetch();
    for (int i = 0; i < steps; i++) {
        float wanted = fminf(fmaxf(i / 8.0f - 0.5f, 0), levels - 1), whole = fminf(i / 8, levels - 1);
        CHECK_QUIETLY(results.host[2 * i] == wanted, "level %g: %g", i / 8.0f - 0.5f, results.host[2 * i]);
        CHECK_QUIETLY(fabsf(results.host[2 * i + 1] - whole) < 0.02f, "gradient %d: %g", i, results.host[2 * i + 1]);
    }
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeMipmappedArray(mipmap));
    printf("mipmaps: levels, between levels, gradients\n");
}

static void gathers() {
    const int width = 12, height = 9;
    cudaArray_t array = array_of(make_cudaExtent(width, height, 0), cudaArrayTextureGather, counted(width * height));
    cudaTextureObject_t texture = texture_of(array, plain());
    Results results(4 * (width - 1) * (height - 1));
    float4 *out = (float4 *)results.device;
    each((width - 1) * (height - 1), [=] __device__(int i) {
        out[i] = tex2Dgather<float4>(texture, i % (width - 1) + 1.0f, i / (width - 1) + 1.0f);
    });
    results.fetch();
    for (int i = 0; i < (width - 1) * (height - 1); i++) {
        int first = i / (width - 1) * width + i % (width - 1);
        const int wanted[4] = {first + width, first + width + 1, first + 1, first};
        for (int c = 0; c < 4; c++) CHECK_QUIETLY(results.host[4 * i + c] == wanted[c], "texel %d of %d: %g", c, i, results.host[4 * i + c]);
    }
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeArray(array));
    printf("gathers: four texels at once\n");
}

int main() {
    linear_memory();
    pitched_memory();
    layers();
    cubes();
    mipmaps();
    gathers();
    return finish("texture_shapes");
}
