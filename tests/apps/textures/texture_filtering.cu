// How the texture unit treats coordinates: every address mode, point and linear filtering, normalised coordinates,
// formats of every width, in one, two and three dimensions. Results are compared bit for bit, as one number per case
// taken from an H200 (driver 580, November 2026): texture arithmetic is fixed point and only partly documented.
#include "check.h"

#include <cstring>
#include <cuda_fp16.h>
#include <vector>

static const int POINTS = 1024;

template <typename T, int DIM> __global__ void sample(cudaTextureObject_t texture, const float *at, uint32_t *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = at[i], y = at[POINTS + i], z = at[2 * POINTS + i];
    T texel = DIM == 1 ? tex1D<T>(texture, x) : DIM == 2 ? tex2D<T>(texture, x, y) : tex3D<T>(texture, x, y, z);
    uint32_t words[4];
    memcpy(words, &texel, sizeof words);
    for (int c = 0; c < 4; c++) out[4 * i + c] = words[c];
}

struct Format {
    const char *name;
    cudaChannelFormatKind kind;
    int bits, channels;
};

static const Format FORMATS[] = {
    {"u8x4", cudaChannelFormatKindUnsigned, 8, 4}, {"u8", cudaChannelFormatKindUnsigned, 8, 1},
    {"u16x2", cudaChannelFormatKindUnsigned, 16, 2}, {"s16", cudaChannelFormatKindSigned, 16, 1},
    {"f16x4", cudaChannelFormatKindFloat, 16, 4},  {"f32", cudaChannelFormatKindFloat, 32, 1},
    {"f32x4", cudaChannelFormatKindFloat, 32, 4},
};

static cudaChannelFormatDesc described(const Format &format) {
    int bits[4] = {0, 0, 0, 0};
    for (int c = 0; c < format.channels; c++) bits[c] = format.bits;
    return cudaCreateChannelDesc(bits[0], bits[1], bits[2], bits[3], format.kind);
}

// Texels of a format: floats between -100 and 100, integers of all values.
static std::vector<unsigned char> texels(const Format &format, size_t count) {
    Numbers numbers(format.bits * 8 + format.channels);
    std::vector<unsigned char> bytes(count * format.channels * format.bits / 8);
    for (size_t i = 0; i < count * format.channels; i++) {
        if (format.kind == cudaChannelFormatKindFloat && format.bits == 32) {
            float value = numbers.unit() * 100;
            memcpy(&bytes[4 * i], &value, 4);
        } else if (format.kind == cudaChannelFormatKindFloat) {
            __half value = __float2half(numbers.unit() * 100);
            memcpy(&bytes[2 * i], &value, 2);
        } else {
            uint32_t value = numbers.next();
            memcpy(&bytes[format.bits / 8 * i], &value, format.bits / 8);
        }
    }
    return bytes;
}

static const cudaExtent EXTENTS[] = {{37, 0, 0}, {19, 11, 0}, {7, 5, 6}};

static cudaArray_t filled(const Format &format, int dimensions) {
    cudaExtent extent = EXTENTS[dimensions - 1];
    cudaChannelFormatDesc channels = described(format);
    cudaArray_t array;
    OK(cudaMalloc3DArray(&array, &channels, extent));
    cudaExtent whole = make_cudaExtent(extent.width, extent.height ? extent.height : 1, extent.depth ? extent.depth : 1);
    std::vector<unsigned char> bytes = texels(format, whole.width * whole.height * whole.depth);
    size_t texel = format.bits / 8 * format.channels;
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(bytes.data(), whole.width * texel, whole.width, whole.height);
    copy.dstArray = array;
    copy.extent = whole;
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    return array;
}

static void read(cudaTextureObject_t texture, int dimensions, bool integers, const float *at, uint32_t *out) {
    const int block = 128, grid = POINTS / block;
    if (integers && dimensions == 1) sample<uint4, 1><<<grid, block>>>(texture, at, out);
    if (integers && dimensions == 2) sample<uint4, 2><<<grid, block>>>(texture, at, out);
    if (integers && dimensions == 3) sample<uint4, 3><<<grid, block>>>(texture, at, out);
    if (!integers && dimensions == 1) sample<float4, 1><<<grid, block>>>(texture, at, out);
    if (!integers && dimensions == 2) sample<float4, 2><<<grid, block>>>(texture, at, out);
    if (!integers && dimensions == 3) sample<float4, 3><<<grid, block>>>(texture, at, out);
    OK(cudaGetLastError());
}

// Coordinates from well before an image to well behind it, in texels or as fractions of it.
static std::vector<float> coordinates(int dimensions, bool normalized) {
    Numbers numbers(dimensions);
    cudaExtent extent = EXTENTS[dimensions - 1];
    size_t sizes[3] = {extent.width, extent.height, extent.depth};
    std::vector<float> at(3 * POINTS);
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < POINTS; i++) {
            float place = 0.5f + 1.25f * numbers.unit();
            if (i % 16 == 0) place = float(numbers.below(64)) / 32.0f - 0.5f;
            at[d * POINTS + i] = normalized ? place : place * sizes[d];
        }
    return at;
}

static void cases(int dimensions, bool normalized, const char *label) {
    std::vector<float> at = coordinates(dimensions, normalized);
    float *device_at;
    uint32_t *device_out;
    std::vector<uint32_t> out(4 * POINTS);
    OK(cudaMalloc(&device_at, at.size() * sizeof(float)));
    OK(cudaMalloc(&device_out, out.size() * sizeof(uint32_t)));
    OK(cudaMemcpy(device_at, at.data(), at.size() * sizeof(float), cudaMemcpyHostToDevice));
    const cudaTextureAddressMode modes[] = {cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder};
    for (const Format &format : FORMATS) {
        cudaArray_t array = filled(format, dimensions);
        printf("%s %s:", label, format.name);
        for (cudaTextureAddressMode mode : modes)
            for (int linear = 0; linear < 2; linear++) {
                cudaResourceDesc resource = {};
                resource.resType = cudaResourceTypeArray;
                resource.res.array.array = array;
                cudaTextureDesc description = {};
                for (int d = 0; d < 3; d++) description.addressMode[d] = mode;
                description.filterMode = linear ? cudaFilterModeLinear : cudaFilterModePoint;
                bool integers = format.kind != cudaChannelFormatKindFloat && !linear;
                description.readMode = format.kind == cudaChannelFormatKindFloat || integers ? cudaReadModeElementType : cudaReadModeNormalizedFloat;
                description.normalizedCoords = normalized;
                const float border[4] = {0.25f, -0.5f, 0.75f, 1.0f};
                memcpy(description.borderColor, border, sizeof border);
                cudaTextureObject_t texture;
                OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
                read(texture, dimensions, integers, device_at, device_out);
                OK(cudaMemcpy(out.data(), device_out, out.size() * 4, cudaMemcpyDeviceToHost));
                OK(cudaDestroyTextureObject(texture));
                printf(" %08x", hash_of(out.data(), out.size() * sizeof out[0]));
            }
        printf("\n");
        OK(cudaFreeArray(array));
    }
    OK(cudaFree(device_at));
    OK(cudaFree(device_out));
}

int main() {
    cases(1, false, "1D in texels");
    cases(1, true, "1D in fractions");
    cases(2, false, "2D in texels");
    cases(2, true, "2D in fractions");
    cases(3, false, "3D in texels");
    cases(3, true, "3D in fractions");
    return finish("texture_filtering");
}
