// Calls with targets known only at run time: virtual functions of objects made on the device, function pointers in
// tables, a pointer fetched by the host, lanes of a warp that call different functions, and recursion.
#include "buffer.h"

struct Shape {
    __device__ virtual float area() const = 0;
    __device__ virtual int corners() const { return 0; }
    __device__ virtual ~Shape() {}
};

struct Square : Shape {
    float side;
    __device__ explicit Square(float s) : side(s) {}
    __device__ float area() const override { return side * side; }
    __device__ int corners() const override { return 4; }
};

struct Disc : Shape {
    float radius;
    __device__ explicit Disc(float r) : radius(r) {}
    __device__ float area() const override { return 3.0f * radius * radius; }
};

struct Frame : Square {
    float inner;
    __device__ Frame(float outer, float i) : Square(outer), inner(i) {}
    __device__ float area() const override { return Square::area() - inner * inner; }
};

union Room {
    Square square;
    Disc disc;
    Frame frame;
    __device__ Room() {}
    __device__ ~Room() {}
};

// Each lane has an object of another class, so the call diverges.
__global__ void areas(float *out, int *corners) {
    Room room;
    float size = float(threadIdx.x + 1);
    Shape *shape;
    switch (threadIdx.x % 3) {
    case 0: shape = new (&room.square) Square(size); break;
    case 1: shape = new (&room.disc) Disc(size); break;
    default: shape = new (&room.frame) Frame(size, 1.0f);
    }
    out[threadIdx.x] = shape->area();
    corners[threadIdx.x] = shape->corners();
}

typedef int (*Operation)(int, int);

__device__ __noinline__ int plus(int a, int b) { return a + b; }
__device__ __noinline__ int minus(int a, int b) { return a - b; }
__device__ __noinline__ int times(int a, int b) { return a * b; }
__device__ Operation table[3] = {plus, minus, times};

__global__ void through_table(int *out) { out[threadIdx.x] = table[threadIdx.x % 3](int(threadIdx.x), 7); }

__global__ void through_argument(Operation operation, int *out) { out[threadIdx.x] = operation(int(threadIdx.x), 3); }

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

__device__ __noinline__ unsigned long long fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

// Each lane recurses to a depth of its own.
__global__ void recursion(unsigned *a, unsigned long long *f) {
    a[threadIdx.x] = ackermann(2, threadIdx.x % 4);
    f[threadIdx.x] = fibonacci(int(threadIdx.x % 12));
}

int main() {
    Buffer<float> device_areas(32);
    Buffer<int> device_corners(32), out(32);
    areas<<<1, 32>>>(device_areas, device_corners);
    RAN();
    std::vector<float> area = device_areas.read();
    std::vector<int> corners = device_corners.read();
    for (int i = 0; i < 32; i++) {
        float size = float(i + 1), wanted = i % 3 == 0 ? size * size : i % 3 == 1 ? 3 * size * size : size * size - 1;
        CHECK(area[i] == wanted && corners[i] == (i % 3 == 1 ? 0 : 4), "shape %d: %g, %d corners", i, area[i], corners[i]);
    }
    through_table<<<1, 32>>>(out);
    RAN();
    std::vector<int> results = out.read();
    for (int i = 0; i < 32; i++) CHECK(results[i] == (i % 3 == 0 ? i + 7 : i % 3 == 1 ? i - 7 : i * 7), "table, %d: %d", i, results[i]);
    Operation pointers[3];
    OK(cudaMemcpyFromSymbol(pointers, table, sizeof pointers));
    through_argument<<<1, 32>>>(pointers[2], out);
    RAN();
    results = out.read();
    for (int i = 0; i < 32; i++) CHECK(results[i] == i * 3, "argument, %d: %d", i, results[i]);
    OK(cudaDeviceSetLimit(cudaLimitStackSize, 16384));
    Buffer<unsigned> device_a(32);
    Buffer<unsigned long long> device_f(32);
    recursion<<<1, 32>>>(device_a, device_f);
    RAN();
    std::vector<unsigned> a = device_a.read();
    std::vector<unsigned long long> f = device_f.read();
    const unsigned long long fibonacci_numbers[12] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89};
    for (int i = 0; i < 32; i++) CHECK(a[i] == 2u * (i % 4) + 3 && f[i] == fibonacci_numbers[i % 12], "recursion, lane %d: %u, %llu", i, a[i], f[i]);
    printf("32 lanes called 3 classes, 3 functions by pointer, and themselves\n");
    return finish("virtual_functions");
}
