// Eigenvalues of symmetric tridiagonal matrices by bisection. Every halving is a launch whose result the host waits for, so
// round trips take as much time as arithmetic.
#include "measured.h"

#include <cmath>

constexpr int BLOCK = 64;
constexpr double TOLERANCE = 1e-12;
// Every eigenvalue of the matrices here lies between -BOUND and BOUND (Gershgorin).
constexpr double BOUND = 4;

// Returns the number of eigenvalues below x: the negative pivots in the factorisation of T - xI.
__device__ int below(const double *diagonal, const double *beside, int n, double x) {
    int count = 0;
    double pivot = 1;
    for (int i = 0; i < n; i++) {
        double square = i > 0 ? beside[i - 1] * beside[i - 1] : 0;
        pivot = diagonal[i] - x - square / pivot;
        if (fabs(pivot) < 1e-300) pivot = -1e-300;
        count += pivot < 0;
    }
    return count;
}

// Thread k halves the interval that holds eigenvalue k, and counts itself as open while that is too wide.
__global__ void halve(const double *diagonal, const double *beside, int n, double *low, double *high, int *open) {
    int k = blockIdx.x * BLOCK + threadIdx.x;
    if (k >= n) return;
    double middle = 0.5 * (low[k] + high[k]);
    if (below(diagonal, beside, n, middle) > k) high[k] = middle;
    else low[k] = middle;
    if (high[k] - low[k] > TOLERANCE) atomicAdd(open, 1);
}

static std::vector<double> eigenvalues(Measured &run, const std::vector<double> &diagonal, const std::vector<double> &beside) {
    int n = int(diagonal.size());
    Buffer<double> d(n), b(n), low(n), high(n);
    Buffer<int> open(1);
    run.write(d, diagonal);
    run.write(b, beside);
    run.write(low, std::vector<double>(n, -BOUND));
    run.write(high, std::vector<double>(n, BOUND));
    int left = n;
    while (left > 0) {
        OK(cudaMemsetAsync(open, 0, sizeof(int)));
        halve<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(d, b, n, low, high, open);
        left = run.read(open)[0];
    }
    return run.read(high);
}

int main(int count, char **arguments) {
    Measured run(count, arguments);
    const int n = run.pick(48, 1024), matrices = run.pick(2, 50);
    Numbers numbers(5);
    std::vector<std::vector<double>> diagonals, besides, found;
    for (int matrix = 0; matrix < matrices; matrix++) {
        std::vector<double> diagonal(n, 2), beside(n, -1);
        if (matrix > 0) {
            for (double &x : diagonal) x = numbers.unit();
            for (double &x : beside) x = numbers.unit();
        }
        diagonals.push_back(diagonal);
        besides.push_back(beside);
    }
    for (int matrix = 0; matrix < matrices; matrix++) found.push_back(eigenvalues(run, diagonals[matrix], besides[matrix]));
    run.done();
    // The eigenvalues of the first matrix are known; of the others, the sum and the sum of squares are.
    const double pi = std::acos(-1.0);
    for (int k = 0; k < n; k++) {
        double wanted = 2 - 2 * std::cos((k + 1) * pi / (n + 1));
        CHECK_QUIETLY(std::fabs(found[0][k] - wanted) < 1e-10, "eigenvalue %d is %.15g, not %.15g", k, found[0][k], wanted);
    }
    for (int matrix = 1; matrix < matrices; matrix++) {
        double trace = 0, squares = 0;
        for (int i = 0; i < n; i++) {
            double beside = i + 1 < n ? besides[matrix][i] : 0;
            trace += found[matrix][i] - diagonals[matrix][i];
            squares += found[matrix][i] * found[matrix][i] - diagonals[matrix][i] * diagonals[matrix][i] - 2 * beside * beside;
        }
        CHECK(std::fabs(trace) < 1e-8 && std::fabs(squares) < 1e-8, "matrix %d is off by %g and %g", matrix, trace, squares);
    }
    printf("%d matrices of %d rows: all eigenvalues found\n", matrices, n);
    return run.finish("eigenvalues");
}
