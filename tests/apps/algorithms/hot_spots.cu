// Temperatures of a chip from its power, step by step on a grid. The host repeats the last steps in the same order of
// operations, so every bit must agree.
#include "measured.h"

#include <cmath>

constexpr int TILE = 16;
constexpr float AROUND = 0.125f, TO_AIR = 0.015625f, AIR = 80, GAIN = 0.5f;

// Returns the new temperature of a cell from its neighbours, the air and its own power. Beyond an edge it is as on the edge.
__host__ __device__ inline float settled(const float *heat, const float *power, int x, int y, int side) {
    auto at = [=](int i, int k) { return heat[(k < 0 ? 0 : k >= side ? side - 1 : k) * side + (i < 0 ? 0 : i >= side ? side - 1 : i)]; };
    float here = at(x, y), sum = (at(x - 1, y) + at(x + 1, y)) + (at(x, y - 1) + at(x, y + 1));
    float change = fmaf(AROUND, fmaf(-4.0f, here, sum), TO_AIR * (AIR - here));
    return here + fmaf(GAIN, power[y * side + x], change);
}

__global__ void step(const float *from, const float *power, float *to, int side) {
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    if (x < side && y < side) to[y * side + x] = settled(from, power, x, y, side);
}

int main(int count, char **arguments) {
    Measured run(count, arguments);
    // Of many steps, the host repeats only the last.
    const int side = run.pick(50, 1024), steps = run.pick(12, 20000), repeated = run.pick(12, 1);
    const size_t cells = size_t(side) * side;
    Numbers numbers(8);
    std::vector<float> heat(cells), power(cells), before;
    for (float &x : heat) x = 80 + 10 * numbers.unit();
    for (float &x : power) x = numbers.below(16) == 0 ? numbers.unit() + 1 : 0;
    Buffer<float> from(cells), to(cells), source(cells);
    run.write(from, heat);
    run.write(source, power);
    dim3 grid((side + TILE - 1) / TILE, (side + TILE - 1) / TILE), block(TILE, TILE);
    for (int done = 0; done < steps; done++) {
        if (done == steps - repeated) before = run.read(from);
        step<<<grid, block>>>(from, source, to, side);
        std::swap(from.data, to.data);
    }
    std::vector<float> after = run.read(from);
    run.done();
    for (int done = 0; done < repeated; done++) {
        std::vector<float> next(cells);
        for (size_t i = 0; i < cells; i++) next[i] = settled(before.data(), power.data(), int(i % side), int(i / side), side);
        before.swap(next);
    }
    for (size_t i = 0; i < cells; i++)
        CHECK_QUIETLY(after[i] == before[i], "cell %zu is %.9g, not %.9g", i, after[i], before[i]);
    printf("%d x %d cells, %d steps: every bit as on the host\n", side, side, steps);
    return run.finish("hot_spots");
}
