// Small simulations with exact steps, so that many steps agree with the host: the game of life on a torus with halos in
// shared memory, a lattice gas of bytes, an alignment of two sequences along its diagonals, and a heat equation in
// fixed point over three dimensions.
#include "buffer.h"

#include <algorithm>

constexpr int SIDE = 64, TILE = 16;

__global__ void life(const unsigned char *from, unsigned char *to) {
    __shared__ unsigned char cells[TILE + 2][TILE + 2];
    int left = blockIdx.x * TILE - 1, top = blockIdx.y * TILE - 1;
    for (int i = threadIdx.y * TILE + threadIdx.x; i < (TILE + 2) * (TILE + 2); i += TILE * TILE) {
        int x = (left + i % (TILE + 2) + SIDE) % SIDE, y = (top + i / (TILE + 2) + SIDE) % SIDE;
        cells[i / (TILE + 2)][i % (TILE + 2)] = from[y * SIDE + x];
    }
    __syncthreads();
    int around = -cells[threadIdx.y + 1][threadIdx.x + 1];
    for (int dy = 0; dy < 3; dy++)
        for (int dx = 0; dx < 3; dx++) around += cells[threadIdx.y + dy][threadIdx.x + dx];
    bool alive = around == 3 || (around == 2 && cells[threadIdx.y + 1][threadIdx.x + 1]);
    to[(blockIdx.y * TILE + threadIdx.y) * SIDE + blockIdx.x * TILE + threadIdx.x] = alive;
}

static int check_life() {
    Numbers numbers(1970);
    std::vector<unsigned char> cells(SIDE * SIDE), next(SIDE * SIDE);
    for (unsigned char &cell : cells) cell = numbers.below(3) == 0;
    Buffer<unsigned char> a(cells), b(SIDE * SIDE);
    const int steps = 20;
    for (int step = 0; step < steps; step++) {
        life<<<dim3(SIDE / TILE, SIDE / TILE), dim3(TILE, TILE)>>>(step % 2 ? b : a, step % 2 ? a : b);
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                int around = -cells[y * SIDE + x];
                for (int d = 0; d < 9; d++) around += cells[(y + d / 3 - 1 + SIDE) % SIDE * SIDE + (x + d % 3 - 1 + SIDE) % SIDE];
                next[y * SIDE + x] = around == 3 || (around == 2 && cells[y * SIDE + x]);
            }
        cells.swap(next);
    }
    RAN();
    CHECK(a.read() == cells, "life after %d steps", steps);
    return int(std::count(cells.begin(), cells.end(), 1));
}

// Needleman-Wunsch scores; a block walks the diagonals, with a thread per cell.
__global__ void align(const char *a, int n, const char *b, int m, int *scores) {
    for (int diagonal = 0; diagonal <= n + m; diagonal++) {
        for (int i = int(threadIdx.x); i <= n; i += int(blockDim.x)) {
            int k = diagonal - i;
            if (k < 0 || k > m) continue;
            int score = i == 0 ? -2 * k : -2 * i;
            if (i > 0 && k > 0) {
                int with = scores[(i - 1) * (m + 1) + k - 1] + (a[i - 1] == b[k - 1] ? 3 : -1);
                score = max(with, max(scores[(i - 1) * (m + 1) + k], scores[i * (m + 1) + k - 1]) - 2);
            }
            scores[i * (m + 1) + k] = score;
        }
        __syncthreads();
    }
}

static int check_alignment() {
    const int n = 100, m = 80;
    Numbers numbers(4);
    std::vector<char> a(n), b(m);
    for (char &base : a) base = "ACGT"[numbers.below(4)];
    for (int i = 0; i < m; i++) b[i] = i % 5 == 4 ? 'A' : a[i + i / 10];
    Buffer<char> device_a(a), device_b(b);
    Buffer<int> scores((n + 1) * (m + 1));
    align<<<1, 64>>>(device_a, n, device_b, m, scores);
    RAN();
    std::vector<int> wanted((n + 1) * (m + 1));
    for (int i = 0; i <= n; i++)
        for (int k = 0; k <= m; k++) {
            int *cell = &wanted[i * (m + 1) + k];
            if (i == 0 || k == 0) *cell = -2 * (i + k);
            else *cell = std::max(cell[-(m + 1) - 1] + (a[i - 1] == b[k - 1] ? 3 : -1), std::max(cell[-(m + 1)], cell[-1]) - 2);
        }
    CHECK(scores.read() == wanted, "scores of the alignment");
    return wanted.back();
}

constexpr int NX = 32, NY = 12, NZ = 9;

__host__ __device__ inline int settled(const int *t, int x, int y, int z) {
    auto at = [=](int dx, int dy, int dz) {
        int i = x + dx, k = y + dy, m = z + dz;
        bool inside = i >= 0 && k >= 0 && m >= 0 && i < NX && k < NY && m < NZ;
        return inside ? t[(m * NY + k) * NX + i] : 0;
    };
    int sum = at(1, 0, 0) + at(-1, 0, 0) + at(0, 1, 0) + at(0, -1, 0) + at(0, 0, 1) + at(0, 0, -1);
    return at(0, 0, 0) + (sum - 6 * at(0, 0, 0)) / 8;
}

// Each thread walks a column of the box.
__global__ void heat(const int *from, int *to) {
    int x = threadIdx.x, y = blockIdx.x * blockDim.y + threadIdx.y;
    for (int z = 0; z < NZ; z++) to[(z * NY + y) * NX + x] = settled(from, x, y, z);
}

static int check_heat() {
    std::vector<int> start(NX * NY * NZ), next(NX * NY * NZ);
    for (size_t i = 0; i < start.size(); i++) start[i] = int(i * i % 1000003);
    Buffer<int> a(start), b(start.size());
    for (int step = 0; step < 10; step++) {
        heat<<<NY / 4, dim3(NX, 4)>>>(step % 2 ? b : a, step % 2 ? a : b);
        for (int i = 0; i < NX * NY * NZ; i++) next[i] = settled(start.data(), i % NX, i / NX % NY, i / (NX * NY));
        start.swap(next);
    }
    RAN();
    CHECK(a.read() == start, "heat after 10 steps");
    return start[(4 * NY + 6) * NX + 16];
}

int main() {
    int cells = check_life(), score = check_alignment(), middle = check_heat();
    printf("%d cells live, the alignment scores %d, the middle has %d\n", cells, score, middle);
    return finish("simulations");
}
