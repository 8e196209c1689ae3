// Simulates a network of resistors and capacitors over time with cuSOLVER, as simulators of power grids do. Sources change
// with every step and switches now and then; each time, the sparse factors are refreshed and used to solve.
//
// The program opens the library by its name, since the toolkit for the build has none; without it, the program
// exits with status 77.
#include "measured.h"

#include <cmath>
#include <dlfcn.h>

constexpr int BLOCK = 64, ABSENT = 77;
constexpr double LEAK = 0.05;

// The part of cusolverRf.h that this program uses, as NVIDIA documents it.
using Handle = void *;
struct Solver {
    int (*create)(Handle *);
    int (*destroy)(Handle);
    int (*setup)(int, int, int *, int *, double *, int, int *, int *, double *, int, int *, int *, double *, int *, int *, Handle);
    int (*analyze)(Handle);
    int (*reset)(int, int, int *, int *, double *, int *, int *, Handle);
    int (*refactor)(Handle);
    int (*solve)(Handle, int *, int *, int, double *, int, double *, int);
};

static bool open(Solver &solver) {
    void *library = nullptr;
    for (const char *name : {"libcusolver.so.12", "libcusolver.so.11", "libcusolver.so"})
        if (!library) library = dlopen(name, RTLD_NOW);
    if (!library) return false;
    auto find = [=](auto &function, const char *name) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
        return function != nullptr;
    };
    return find(solver.create, "cusolverRfCreate") && find(solver.destroy, "cusolverRfDestroy") &&
           find(solver.setup, "cusolverRfSetupHost") && find(solver.analyze, "cusolverRfAnalyze") &&
           find(solver.reset, "cusolverRfResetValues") && find(solver.refactor, "cusolverRfRefactor") &&
           find(solver.solve, "cusolverRfSolve");
}

// Rows of a sparse matrix, one after the other.
struct Rows {
    std::vector<int> starts{0}, columns;
    std::vector<double> values;
    void add(int column, double value) {
        columns.push_back(column);
        values.push_back(value);
    }
    void end() { starts.push_back(int(columns.size())); }
    int count() const { return int(values.size()); }
};

// A grid of nodes, each joined to its neighbours; a closed switch raises the conductance of the first node of every row.
static Rows network(int side, bool is_closed) {
    Rows rows;
    for (int node = 0; node < side * side; node++) {
        int x = node % side, y = node / side;
        double out = LEAK + 1 + (is_closed && x == 0 ? 2 : 0);
        if (y > 0) rows.add(node - side, -1);
        if (x > 0) rows.add(node - 1, -1);
        rows.add(node, out + (y > 0) + (x > 0) + (x + 1 < side) + (y + 1 < side));
        if (x + 1 < side) rows.add(node + 1, -1);
        if (y + 1 < side) rows.add(node + side, -1);
        rows.end();
    }
    return rows;
}

// Factors without row exchanges, since the diagonal dominates. No element lies further from it than `side`.
static void factor(const Rows &matrix, int side, Rows &lower, Rows &upper) {
    int n = side * side;
    std::vector<double> dense(size_t(n) * n);
    auto at = [&](int row, int column) -> double & { return dense[size_t(row) * n + column]; };
    for (int row = 0; row < n; row++)
        for (int i = matrix.starts[row]; i < matrix.starts[row + 1]; i++) at(row, matrix.columns[i]) = matrix.values[i];
    for (int k = 0; k < n; k++)
        for (int row = k + 1; row < std::min(n, k + side + 1); row++) {
            if (at(row, k) == 0) continue;
            at(row, k) /= at(k, k);
            for (int column = k + 1; column < std::min(n, k + side + 1); column++) at(row, column) -= at(row, k) * at(k, column);
        }
    for (int row = 0; row < n; row++) {
        for (int column = std::max(0, row - side); column < std::min(n, row + side + 1); column++) {
            if (at(row, column) != 0) (column < row ? lower : upper).add(column, at(row, column));
        }
        lower.add(row, 1);
        lower.end();
        upper.end();
    }
}

// Returns the right side of a step: the charge of the capacitors, and the sources.
__global__ void gather(const double *voltages, const double *sources, double *right, int n) {
    int node = blockIdx.x * BLOCK + threadIdx.x;
    if (node < n) right[node] = voltages[node] + sources[node];
}

int main(int count, char **arguments) {
    Solver solver;
    if (!open(solver)) {
        fprintf(stderr, "there is no libcusolver with cusolverRf here: %s\n", dlerror());
        return ABSENT;
    }
    Measured run(count, arguments);
    const int side = run.pick(8, 30), steps = run.pick(20, 300), every = run.pick(5, 50), n = side * side;
    Rows states[2] = {network(side, false), network(side, true)}, lower, upper;
    factor(states[0], side, lower, upper);
    std::vector<int> order(n);
    for (int i = 0; i < n; i++) order[i] = i;
    Handle handle;
    OK(solver.create(&handle));
    Rows &first = states[0];
    std::vector<int> rows_in_order = order, columns_in_order = order;
    OK(solver.setup(n, first.count(), first.starts.data(), first.columns.data(), first.values.data(), lower.count(),
                    lower.starts.data(), lower.columns.data(), lower.values.data(), upper.count(), upper.starts.data(),
                    upper.columns.data(), upper.values.data(), rows_in_order.data(), columns_in_order.data(), handle));
    OK(solver.analyze(handle));
    Buffer<int> starts(n + 1), columns(first.count()), p(n), q(n);
    Buffer<double> values(first.count()), voltages(n), sources(n), right(n), scratch(n);
    run.write(starts, first.starts);
    run.write(columns, first.columns);
    run.write(p, order);
    run.write(q, order);
    std::vector<double> sent(n), known(n);
    for (int step = 0; step < steps; step++) {
        if (step % every == 0) {
            run.write(values, states[step / every % 2].values);
            OK(solver.reset(n, first.count(), starts, columns, values, p, q, handle));
            OK(solver.refactor(handle));
        }
        sent[step % n] = std::sin(0.01 * step);
        run.write(sources, sent);
        gather<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(voltages, sources, right, n);
        OK(cudaMemcpyAsync(voltages, right, n * sizeof(double), cudaMemcpyDeviceToDevice));
        OK(solver.solve(handle, p, q, 1, scratch, n, voltages, n));
        known = run.read(voltages);
    }
    std::vector<double> wanted = run.read(right);
    run.done();
    const Rows &last = states[(steps - 1) / every % 2];
    double worst = 0, most = 0;
    for (int row = 0; row < n; row++) {
        double sum = 0;
        for (int i = last.starts[row]; i < last.starts[row + 1]; i++) sum += last.values[i] * known[last.columns[i]];
        worst = std::fmax(worst, std::fabs(sum - wanted[row]));
        most = std::fmax(most, std::fabs(wanted[row]));
    }
    CHECK(most > 0 && worst < 1e-10 * most, "the last step is off by %g of %g", worst, most);
    OK(solver.destroy(handle));
    printf("%d nodes, %d steps: the last one solves its equations\n", n, steps);
    return run.finish("sparse_steps");
}
