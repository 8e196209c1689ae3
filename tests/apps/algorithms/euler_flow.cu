// Gas flow around a block, on unordered cells that know their neighbours by number. It solves the Euler equations with a
// Rusanov flux, three stages per step and a time step for each cell. Eight small calls per step, none awaited.
#include "measured.h"

#include <cmath>
#include <numeric>

constexpr int BLOCK = 64, FACES = 4, FIELDS = 5, STAGES = 3;
constexpr float GAMMA = 1.4f, LIMIT = 0.3f;
// Instead of a neighbour's number.
constexpr int FAR = -1, WALL = -2;

// Density, momentum in three directions and energy: of a cell, or of the flow through a face.
struct Gas {
    float of[FIELDS];
};

// Outward normals of a cell's faces, each as long as its face is wide; their sum is 0.
struct Normal {
    float x, y, z;
};
__host__ __device__ inline Normal normal_of(int face) {
    float way = face % 2 == 0 ? 1.0f : -1.0f;
    return face < 2 ? Normal{way, 0.2f * way, 0.1f * way} : Normal{0.1f * way, way, 0.2f * way};
}

// The inflow: pressure 1, speed of sound 1.
__host__ __device__ inline Gas far_gas() { return {{1.4f, 0.7f, 0.14f, 0.0f, 2.682f}}; }

__host__ __device__ inline float pressure(const Gas &gas) {
    const float *of = gas.of;
    return (GAMMA - 1) * (of[4] - 0.5f * (of[1] * of[1] + of[2] * of[2] + of[3] * of[3]) / of[0]);
}

__host__ __device__ inline float sound(const Gas &gas) { return sqrtf(GAMMA * pressure(gas) / gas.of[0]); }

__host__ __device__ inline float across(const Gas &gas, Normal n) {
    return (gas.of[1] * n.x + gas.of[2] * n.y + gas.of[3] * n.z) / gas.of[0];
}

__host__ __device__ inline Gas carried(const Gas &gas, Normal n) {
    float speed = across(gas, n), p = pressure(gas);
    return {{gas.of[0] * speed, gas.of[1] * speed + p * n.x, gas.of[2] * speed + p * n.y, gas.of[3] * speed + p * n.z,
             (gas.of[4] + p) * speed}};
}

// Returns the flow out of a cell through a face.
__host__ __device__ inline Gas leaving(const Gas &here, const Gas &there, Normal n) {
    float length = sqrtf(n.x * n.x + n.y * n.y + n.z * n.z);
    float fastest = fmaxf(fabsf(across(here, n)) + sound(here) * length, fabsf(across(there, n)) + sound(there) * length);
    Gas a = carried(here, n), b = carried(there, n), sum;
    for (int f = 0; f < FIELDS; f++) sum.of[f] = 0.5f * (a.of[f] + b.of[f] - fastest * (there.of[f] - here.of[f]));
    return sum;
}

__host__ __device__ inline Gas load(const float *fields, int cells, int cell) {
    Gas gas;
    for (int f = 0; f < FIELDS; f++) gas.of[f] = fields[f * cells + cell];
    return gas;
}

__host__ __device__ inline void store(float *fields, int cells, int cell, const Gas &gas) {
    for (int f = 0; f < FIELDS; f++) fields[f * cells + cell] = gas.of[f];
}

__host__ __device__ inline float step_of(const float *fields, int cells, int cell) {
    Gas gas = load(fields, cells, cell);
    float square = gas.of[1] * gas.of[1] + gas.of[2] * gas.of[2] + gas.of[3] * gas.of[3];
    return LIMIT / (sqrtf(square) / gas.of[0] + sound(gas));
}

__host__ __device__ inline Gas lost(const float *fields, const int *neighbours, int cells, int cell) {
    Gas here = load(fields, cells, cell), sum = {};
    for (int face = 0; face < FACES; face++) {
        int other = neighbours[face * cells + cell];
        Normal n = normal_of(face);
        Gas flow = {};
        float p = pressure(here);
        if (other == WALL) flow = {{0, p * n.x, p * n.y, p * n.z, 0}};
        else flow = leaving(here, other == FAR ? far_gas() : load(fields, cells, other), n);
        for (int f = 0; f < FIELDS; f++) sum.of[f] += flow.of[f];
    }
    return sum;
}

__host__ __device__ inline void advance(float *fields, const float *old, const float *losses, float step, int stage, int cells, int cell) {
    Gas gas = load(old, cells, cell), less = load(losses, cells, cell);
    for (int f = 0; f < FIELDS; f++) gas.of[f] -= step / float(STAGES - stage) * less.of[f];
    store(fields, cells, cell, gas);
}

__global__ void find_steps(const float *fields, float *steps, int cells) {
    int cell = blockIdx.x * BLOCK + threadIdx.x;
    if (cell < cells) steps[cell] = step_of(fields, cells, cell);
}

__global__ void find_losses(const float *fields, const int *neighbours, float *losses, int cells) {
    int cell = blockIdx.x * BLOCK + threadIdx.x;
    if (cell < cells) store(losses, cells, cell, lost(fields, neighbours, cells, cell));
}

__global__ void advance_all(float *fields, const float *old, const float *losses, const float *steps, int stage, int cells) {
    int cell = blockIdx.x * BLOCK + threadIdx.x;
    if (cell < cells) advance(fields, old, losses, steps[cell], stage, cells, cell);
}

// A square of cells with a block in its middle, numbered in random order.
static std::vector<int> neighbours_of(int side) {
    const int cells = side * side;
    std::vector<int> number(cells), neighbours(FACES * cells);
    std::iota(number.begin(), number.end(), 0);
    Numbers numbers(12);
    for (int i = cells - 1; i > 0; i--) std::swap(number[i], number[numbers.below(i + 1)]);
    auto is_block = [=](int x, int y) { return x >= side / 3 && x < side / 2 && y >= side / 3 && y < side / 2; };
    const int dx[FACES] = {1, -1, 0, 0}, dy[FACES] = {0, 0, 1, -1};
    for (int cell = 0; cell < cells; cell++)
        for (int face = 0; face < FACES; face++) {
            int x = cell % side + dx[face], y = cell / side + dy[face];
            bool is_far = x < 0 || y < 0 || x >= side || y >= side;
            bool is_wall = !is_far && is_block(x, y) != is_block(cell % side, cell / side);
            neighbours[face * cells + number[cell]] = is_far ? FAR : is_wall ? WALL : number[y * side + x];
        }
    return neighbours;
}

static void iterate_on_host(std::vector<float> &fields, const std::vector<int> &neighbours, int cells) {
    std::vector<float> old = fields, losses(fields.size()), steps(cells);
    for (int cell = 0; cell < cells; cell++) steps[cell] = step_of(old.data(), cells, cell);
    for (int stage = 0; stage < STAGES; stage++) {
        for (int cell = 0; cell < cells; cell++)
            store(losses.data(), cells, cell, lost(fields.data(), neighbours.data(), cells, cell));
        for (int cell = 0; cell < cells; cell++) advance(fields.data(), old.data(), losses.data(), steps[cell], stage, cells, cell);
    }
}

int main(int count, char **arguments) {
    Measured run(count, arguments);
    const int side = run.pick(12, 128), iterations = run.pick(6, 130000), repeated = run.pick(6, 1);
    const int cells = side * side, blocks = (cells + BLOCK - 1) / BLOCK;
    std::vector<int> neighbours = neighbours_of(side);
    std::vector<float> start(FIELDS * cells), before;
    for (int cell = 0; cell < cells; cell++) store(start.data(), cells, cell, far_gas());
    Buffer<int> known(neighbours.size());
    Buffer<float> fields(start.size()), old(start.size()), losses(start.size()), steps(cells);
    run.write(known, neighbours);
    run.write(fields, start);
    for (int done = 0; done < iterations; done++) {
        if (done == iterations - repeated) before = run.read(fields);
        OK(cudaMemcpyAsync(old, fields, start.size() * sizeof(float), cudaMemcpyDeviceToDevice));
        find_steps<<<blocks, BLOCK>>>(fields, steps, cells);
        for (int stage = 0; stage < STAGES; stage++) {
            find_losses<<<blocks, BLOCK>>>(fields, known, losses, cells);
            advance_all<<<blocks, BLOCK>>>(fields, old, losses, steps, stage, cells);
        }
    }
    std::vector<float> after = run.read(fields);
    run.done();
    for (int done = 0; done < repeated; done++) iterate_on_host(before, neighbours, cells);
    float highest = 0, lowest = INFINITY;
    for (size_t i = 0; i < after.size(); i++) {
        CHECK_QUIETLY(std::fabs(after[i] - before[i]) < 1e-4f, "field %zu is %.9g, not %.9g", i, after[i], before[i]);
        if (i < size_t(cells)) highest = std::fmax(highest, after[i]), lowest = std::fmin(lowest, after[i]);
    }
    // The gas is dense before the block and thin behind it.
    CHECK(lowest > 0 && highest > lowest * 1.1f, "the densities are %g to %g", lowest, highest);
    printf("%d cells, %d steps: the flow around the block is the host's\n", cells, iterations);
    return run.finish("euler_flow");
}
