// Moves bodies under gravity and compares the orbits of a few steps with the host's in double precision.
#include "measured.h"

#include <cmath>

constexpr int BLOCK = 64;
constexpr float SOFTENING = 0.01f;
constexpr float STEP = 0.01f;

// One thread per body; the block loads the other bodies into shared memory, one block's worth at a time.
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

// Moves every `stride`-th body. Of many bodies the others stay, which is right for one step only.
static void step_on_host(std::vector<Body> &bodies, int stride) {
    for (size_t i = 0; i < bodies.size(); i += stride) {
        Body &me = bodies[i];
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

int main(int argument_count, char **arguments) {
    Measured run(argument_count, arguments);
    // Of many steps, the host repeats only the last, for some of the bodies.
    const int count = run.pick(256, 16384), steps = run.pick(5, 1000), repeated = run.pick(5, 1), stride = run.pick(1, 16);
    Numbers numbers(3);
    std::vector<float4> positions(count), speeds(count, make_float4(0, 0, 0, 0));
    for (float4 &p : positions) {
        p = make_float4(numbers.unit(), numbers.unit(), numbers.unit(), (0.1f + 0.01f * numbers.below(10)) * 256 / count);
    }
    Buffer<float4> device_positions(count), device_speeds(count);
    run.write(device_positions, positions);
    run.write(device_speeds, speeds);
    for (int step = 0; step < steps; step++) {
        if (step == steps - repeated) {
            positions = run.read(device_positions);
            speeds = run.read(device_speeds);
        }
        accelerate<<<count / BLOCK, BLOCK>>>(device_positions, device_speeds, count);
        drift<<<count / BLOCK, BLOCK>>>(device_positions, device_speeds);
    }
    std::vector<float4> moved = run.read(device_positions);
    run.done();
    std::vector<Body> bodies;
    for (int i = 0; i < count; i++) {
        float4 p = positions[i], v = speeds[i];
        bodies.push_back({p.x, p.y, p.z, p.w, v.x, v.y, v.z});
    }
    for (int step = 0; step < repeated; step++) step_on_host(bodies, stride);
    double worst = 0;
    for (int i = 0; i < count; i += stride) {
        double dx = moved[i].x - bodies[i].x, dy = moved[i].y - bodies[i].y, dz = moved[i].z - bodies[i].z;
        worst = std::fmax(worst, std::sqrt(dx * dx + dy * dy + dz * dz));
    }
    CHECK(worst < 1e-4, "a body is %g away from where the host has it", worst);
    printf("%d bodies, %d steps: all within 1e-4 of the host's double precision\n", count, steps);
    return run.finish("nbody");
}
