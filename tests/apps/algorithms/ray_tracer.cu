// Ray-traced spheres: divergent rays, recursive reflections, shadows, structures by value, and single precision
// compared with the host's to a tolerance. A Mandelbrot set beside it is exact in fixed point.
#include "buffer.h"

#include <cmath>

constexpr int WIDTH = 40, HEIGHT = 24, SPHERES = 4;

struct V {
    float x, y, z;
    __host__ __device__ V operator+(V o) const { return {x + o.x, y + o.y, z + o.z}; }
    __host__ __device__ V operator-(V o) const { return {x - o.x, y - o.y, z - o.z}; }
    __host__ __device__ V operator*(float f) const { return {x * f, y * f, z * f}; }
    __host__ __device__ float dot(V o) const { return x * o.x + y * o.y + z * o.z; }
    __host__ __device__ V unit() const { return *this * (1 / sqrtf(dot(*this))); }
};

struct Sphere {
    V centre;
    float radius, mirror;
};

struct Scene {
    Sphere spheres[SPHERES];
    V light;
};

// Distance to the nearest sphere in front, or a negative number.
__host__ __device__ inline float nearest(const Scene &scene, V from, V along, int &which) {
    float best = -1;
    for (int i = 0; i < SPHERES; i++) {
        V to = scene.spheres[i].centre - from;
        float middle = to.dot(along), rest = scene.spheres[i].radius * scene.spheres[i].radius - to.dot(to) + middle * middle;
        if (rest < 0) continue;
        float distance = middle - sqrtf(rest);
        if (distance < 1e-3f || (best >= 0 && distance > best)) continue;
        best = distance, which = i;
    }
    return best;
}

__host__ __device__ inline float trace(const Scene &scene, V from, V along, int depth) {
    int which = 0;
    float distance = nearest(scene, from, along, which);
    if (distance < 0) return 0.2f + 0.1f * along.y;
    V point = from + along * distance, normal = (point - scene.spheres[which].centre).unit(), to_light = (scene.light - point).unit();
    int ignored;
    float lit = nearest(scene, point, to_light, ignored) < 0 ? fmaxf(normal.dot(to_light), 0) : 0;
    float mirror = scene.spheres[which].mirror;
    if (depth == 0 || mirror == 0) return lit;
    return lit * (1 - mirror) + mirror * trace(scene, point, along - normal * (2 * normal.dot(along)), depth - 1);
}

__host__ __device__ inline float pixel(const Scene &scene, int x, int y) {
    V along = V{(x - WIDTH / 2) / float(HEIGHT), (HEIGHT / 2 - y) / float(HEIGHT), 1.2f}.unit();
    return trace(scene, {0, 0, -3}, along, 3);
}

__global__ void render(Scene scene, float *out) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < WIDTH && y < HEIGHT) out[y * WIDTH + x] = pixel(scene, x, y);
}

// Steps until the orbit leaves, in fixed point with 20 fractional bits.
__host__ __device__ inline int steps(int x, int y) {
    long long cr = (x - 28) * 50000ll, ci = (y - 12) * 90000ll, r = 0, i = 0;
    for (int n = 0; n < 200; n++) {
        long long rr = r * r >> 20, ii = i * i >> 20;
        if (rr + ii > 4 << 20) return n;
        i = (2 * r * i >> 20) + ci, r = rr - ii + cr;
    }
    return 200;
}

__global__ void mandelbrot(int *out) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < WIDTH && y < HEIGHT) out[y * WIDTH + x] = steps(x, y);
}

int main() {
    Scene scene = {{{{0, 0, 0}, 1, 0.5f}, {{1.5f, 0.5f, 1}, 0.7f, 0.8f}, {{-1.6f, -0.3f, 0.5f}, 0.8f, 0}, {{0, -101, 0}, 100, 0.2f}}, {-3, 5, -4}};
    Buffer<float> picture(WIDTH * HEIGHT);
    Buffer<int> orbits(WIDTH * HEIGHT);
    render<<<dim3(5, 3), dim3(8, 8)>>>(scene, picture);
    mandelbrot<<<dim3(5, 3), dim3(8, 8)>>>(orbits);
    RAN();
    std::vector<float> p = picture.read();
    std::vector<int> o = orbits.read();
    int differ = 0, inside = 0;
    for (int i = 0; i < WIDTH * HEIGHT; i++) {
        // A ray that grazes an edge may see the other side of it, so a few may differ.
        differ += std::fabs(p[i] - pixel(scene, i % WIDTH, i / WIDTH)) > 1e-3f;
        CHECK_QUIETLY(o[i] == steps(i % WIDTH, i / WIDTH), "orbit %d: %d", i, o[i]);
        inside += o[i] == 200;
    }
    CHECK(differ <= WIDTH * HEIGHT / 100, "%d pixels differ", differ);
    printf("%d by %d rays, %d orbits stay\n", WIDTH, HEIGHT, inside);
    return finish("ray_tracer");
}
