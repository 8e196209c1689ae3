// Moves bodies under gravity for a few steps and compares the orbits with the host's in double precision.
#include "check.h"

#include <cmath>
#include <vector>

constexpr int BLOCK = 64;
constexpr float SOFTENING = 0.01f;
constexpr float STEP = 0.01f;

// One thread a body; the block loads the bodies it meets into shared memory, a block's worth at a time.
__global__ void accelerate(const float4 *bodies, float4 *speeds, int count) {
    __shared__ float4 met[BLOCK];
    int me = blockIdx.x * BLOCK + threadIdx.x;
    float4 mine = bodies[me];
    float ax = 0, ay = 0, az = 0;
    for (int start = 0; start < count; start += BLOCK) {
        met[threadIdx.x] = bodies[start + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < BLOCK; i++) {
            float dx = met[i].x - mine.x, dy = met[i].y - mine.y, dz = met[i].z - mine.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + SOFTENING);
            float pull = met[i].w * inverse * inverse * inverse;
            ax += pull * dx;
            ay += pull * dy;
            az += pull * dz;
        }
        __syncthreads();
    }
    float4 speed = speeds[me];
    speeds[me] = make_float4(speed.x + STEP * ax, speed.y + STEP * ay, speed.z + STEP * az, 0);
}

__global__ void drift(float4 *bodies, const float4 *speeds) {
    int me = blockIdx.x * BLOCK + threadIdx.x;
    bodies[me].x += STEP * speeds[me].x;
    bodies[me].y += STEP * speeds[me].y;
    bodies[me].z += STEP * speeds[me].z;
}

struct Body {
    double x, y, z, mass, vx, vy, vz;
};

static void step_on_host(std::vector<Body> &bodies) {
    for (Body &me : bodies) {
        for (const Body &other : bodies) {
            double dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
            double inverse = 1 / std::sqrt(dx * dx + dy * dy + dz * dz + double(SOFTENING));
            double pull = double(STEP) * other.mass * inverse * inverse * inverse;
            me.vx += pull * dx;
            me.vy += pull * dy;
            me.vz += pull * dz;
        }
    }
    for (Body &me : bodies) {
        me.x += double(STEP) * me.vx;
        me.y += double(STEP) * me.vy;
        me.z += double(STEP) * me.vz;
    }
}

int main() {
    const int count = 256, steps = 5;
    Numbers numbers(3);
    std::vector<float4> positions(count), speeds(count, make_float4(0, 0, 0, 0));
    std::vector<Body> bodies;
    for (float4 &p : positions) {
        p = make_float4(numbers.unit(), numbers.unit(), numbers.unit(), 0.1f + 0.01f * numbers.below(10));
        bodies.push_back({p.x, p.y, p.z, p.w, 0, 0, 0});
    }
    float4 *device_positions, *device_speeds;
    size_t bytes = count * sizeof(float4);
    OK(cudaMalloc(&device_positions, bytes));
    OK(cudaMalloc(&device_speeds, bytes));
    OK(cudaMemcpy(device_positions, positions.data(), bytes, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(device_speeds, speeds.data(), bytes, cudaMemcpyHostToDevice));
    for (int step = 0; step < steps; step++) {
        accelerate<<<count / BLOCK, BLOCK>>>(device_positions, device_speeds, count);
        drift<<<count / BLOCK, BLOCK>>>(device_positions, device_speeds);
        step_on_host(bodies);
    }
    OK(cudaGetLastError());
    OK(cudaMemcpy(positions.data(), device_positions, bytes, cudaMemcpyDeviceToHost));
    double worst = 0;
    for (int i = 0; i < count; i++) {
        double dx = positions[i].x - bodies[i].x, dy = positions[i].y - bodies[i].y, dz = positions[i].z - bodies[i].z;
        worst = std::fmax(worst, std::sqrt(dx * dx + dy * dy + dz * dz));
    }
    CHECK(worst < 1e-4, "a body is %g away from where the host has it", worst);
    OK(cudaFree(device_positions));
    OK(cudaFree(device_speeds));
    printf("%d bodies, %d steps: all within 1e-4 of the host's double precision\n", count, steps);
    return finish("nbody");
}
