// Multiplies matrices through tiles in shared memory; no side is a multiple of the tile, so edges are padded with 0.
#include "measured.h"

#include <cmath>

constexpr int TILE = 16;

__global__ void multiply(const float *a, const float *b, float *c, int rows, int inner, int columns) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int start = 0; start < inner; start += TILE) {
        int k = start + threadIdx.x;
        tile_a[threadIdx.y][threadIdx.x] = row < rows && k < inner ? a[row * inner + k] : 0;
        k = start + threadIdx.y;
        tile_b[threadIdx.y][threadIdx.x] = k < inner && column < columns ? b[k * columns + column] : 0;
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum = __fmaf_rn(tile_a[threadIdx.y][i], tile_b[i][threadIdx.x], sum);
        __syncthreads();
    }
    if (row < rows && column < columns) c[row * columns + column] = sum;
}

int main(int argument_count, char **arguments) {
    Measured run(argument_count, arguments);
    // The large variant repeats one product of medium matrices: as many calls, none of which is awaited.
    const int rows = run.pick(90, 320), inner = run.pick(75, 320), columns = run.pick(101, 640);
    const int launches = run.pick(1, 10000);
    Numbers numbers(11);
    std::vector<float> a(rows * inner), b(inner * columns);
    for (float &x : a) x = numbers.unit();
    for (float &x : b) x = numbers.unit();
    Buffer<float> da(a.size()), db(b.size()), dc(rows * columns);
    run.write(da, a);
    run.write(db, b);
    dim3 grid((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    for (int i = 0; i < launches; i++) multiply<<<grid, dim3(TILE, TILE)>>>(da, db, dc, rows, inner, columns);
    OK(cudaGetLastError());
    std::vector<float> c = run.read(dc);
    run.done();
    // The host fuses in the same order, so every bit must agree.
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
            float sum = 0;
            for (int k = 0; k < inner; k++) sum = std::fmaf(a[row * inner + k], b[k * columns + column], sum);
            CHECK_QUIETLY(c[row * columns + column] == sum, "row %d, column %d", row, column);
        }
    }
    printf("%d x %d by %d x %d: every element equal, bit for bit\n", rows, inner, inner, columns);
    return run.finish("matmul_tiled");
}
