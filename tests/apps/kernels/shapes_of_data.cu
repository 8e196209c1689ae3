// Data of many shapes: vectors of 2 to 16 bytes, structures with gaps, bit fields, unions and nested arrays, by value, in
// global, shared (also dynamic) and local memory, and tensors walked by strides in blocks of three dimensions.
#include "buffer.h"

#include <cstring>

struct __align__(16) Mixed {
    char tag;
    short two;
    float3 three;
    double eight;
    unsigned low : 5, middle : 20, high : 7;
    union {
        int whole;
        unsigned char bytes[4];
    };
    struct {
        int x[2][3];
    } inner;
};

__global__ void touch(const Mixed *in, Mixed *out, Mixed extra) {
    extern __shared__ __align__(16) unsigned char room[];
    Mixed *staged = reinterpret_cast<Mixed *>(room);
    int i = threadIdx.x, n = blockDim.x;
    staged[i] = in[i];
    __syncthreads();
    Mixed m = staged[n - 1 - i];
    m.tag = char(m.tag + extra.tag), m.two = short(m.two - extra.two);
    m.three.y += extra.three.z, m.eight *= extra.eight;
    m.low += 3, m.middle ^= 0xfffff, m.high--;
    m.bytes[2] = (unsigned char)i;
    m.inner.x[i % 2][i % 3] += extra.inner.x[(i + 1) % 2][(i + 2) % 3];
    out[i] = m;
}

static Mixed made(int i) {
    Mixed m{};
    m.tag = char(i * 3), m.two = short(-i * 100), m.three = make_float3(i, i * 0.5f, -i), m.eight = i * 1.25;
    m.low = unsigned(i) & 31, m.middle = unsigned(i * 1001) & 0xfffff, m.high = unsigned(i + 1) & 127, m.whole = i * 0x01010101;
    for (int k = 0; k < 6; k++) m.inner.x[k / 3][k % 3] = i * 10 + k;
    return m;
}

static void structures() {
    const int n = 40;
    std::vector<Mixed> in(n);
    for (int i = 0; i < n; i++) in[i] = made(i);
    Mixed extra = made(7);
    Buffer<Mixed> device_in(in), device_out(n);
    touch<<<1, n, n * sizeof(Mixed)>>>(device_in, device_out, extra);
    RAN();
    std::vector<Mixed> out = device_out.read();
    for (int i = 0; i < n; i++) {
        Mixed m = in[n - 1 - i], o = out[i];
        int changed = m.inner.x[i % 2][i % 3] + extra.inner.x[(i + 1) % 2][(i + 2) % 3];
        CHECK_QUIETLY(o.tag == char(m.tag + 21) && o.two == m.two + 700, "small members of %d", i);
        CHECK_QUIETLY(o.three.x == m.three.x && o.three.y == m.three.y - 7 && o.eight == m.eight * 8.75, "floats of %d", i);
        CHECK_QUIETLY(o.low == ((m.low + 3) & 31) && o.middle == (m.middle ^ 0xfffff) && o.high == ((m.high - 1) & 127), "bits of %d", i);
        CHECK_QUIETLY(o.bytes[2] == i && o.bytes[3] == m.bytes[3] && o.inner.x[i % 2][i % 3] == changed, "union and array of %d", i);
    }
}

template <class T> __global__ void reverse(const T *in, T *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[n - 1 - i] = in[i];
}

template <class T> static void vectors(const char *name) {
    const int n = 77;
    std::vector<T> in(n);
    unsigned char *bytes = reinterpret_cast<unsigned char *>(in.data());
    for (size_t k = 0; k < n * sizeof(T); k++) bytes[k] = (unsigned char)(k * 37 + k / 256);
    Buffer<T> device_in(in), device_out(n);
    reverse<<<3, 32>>>(device_in.data, device_out.data, n);
    RAN();
    std::vector<T> out = device_out.read();
    for (int i = 0; i < n; i++) CHECK_QUIETLY(memcmp(&in[i], &out[n - 1 - i], sizeof(T)) == 0, "%s %d", name, i);
}

// Permutes the axes of a tensor through a tile; blocks and grids have three dimensions.
__global__ void permute(const short *in, short *out, int3 size) {
    __shared__ short tile[4][8][9];
    int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, z = blockIdx.z * 4 + threadIdx.z;
    bool inside = x < size.x && y < size.y && z < size.z;
    if (inside) tile[threadIdx.z][threadIdx.y][threadIdx.x] = in[(z * size.y + y) * size.x + x];
    __syncthreads();
    int from_x = blockIdx.x * 8 + threadIdx.y, from_y = blockIdx.y * 8 + threadIdx.x;
    if (from_x < size.x && from_y < size.y && z < size.z)
        out[(from_x * size.z + z) * size.y + from_y] = tile[threadIdx.z][threadIdx.x][threadIdx.y];
}

static void tensors() {
    const int3 size = make_int3(21, 13, 10);
    std::vector<short> in(size.x * size.y * size.z);
    for (size_t i = 0; i < in.size(); i++) in[i] = short(i * 13);
    Buffer<short> device_in(in), device_out(in.size());
    permute<<<dim3(3, 2, 3), dim3(8, 8, 4)>>>(device_in, device_out, size);
    RAN();
    std::vector<short> out = device_out.read();
    for (int z = 0; z < size.z; z++)
        for (int y = 0; y < size.y; y++)
            for (int x = 0; x < size.x; x++)
                CHECK_QUIETLY(out[(x * size.z + z) * size.y + y] == in[(z * size.y + y) * size.x + x], "element %d, %d, %d", x, y, z);
}

int main() {
    structures();
    vectors<uchar2>("uchar2"), vectors<uchar4>("uchar4"), vectors<short3>("short3"), vectors<int2>("int2"), vectors<float3>("float3");
    vectors<float4>("float4"), vectors<double2>("double2"), vectors<longlong2>("longlong2"), vectors<char>("char");
    tensors();
    printf("structures, 9 vector types and a tensor went through the device\n");
    return finish("shapes_of_data");
}
