// ViennaCL on OpenCL: dense and sparse products and an iterative solver, checked on the host.
#include <cmath>
#include <cstdio>
#include <map>
#include <vector>
#include <viennacl/compressed_matrix.hpp>
#include <viennacl/linalg/cg.hpp>
#include <viennacl/linalg/prod.hpp>
#include <viennacl/vector.hpp>

int main() {
    const unsigned size = 500;
    // A symmetric, positive definite band.
    std::vector<std::map<unsigned, double>> rows(size);
    for (unsigned i = 0; i < size; i++) {
        rows[i][i] = 4;
        if (i) rows[i][i - 1] = -1;
        if (i + 1 < size) rows[i][i + 1] = -1;
    }
    std::vector<double> known(size), back(size);
    for (unsigned i = 0; i < size; i++) known[i] = std::sin(i);
    viennacl::compressed_matrix<double> matrix(size, size);
    viennacl::vector<double> x(size), b(size), solved(size);
    viennacl::copy(rows, matrix);
    viennacl::copy(known, x);
    b = viennacl::linalg::prod(matrix, x);
    solved = viennacl::linalg::solve(matrix, b, viennacl::linalg::cg_tag(1e-10, 500));
    viennacl::copy(solved, back);
    double worst = 0;
    for (unsigned i = 0; i < size; i++) worst = std::fmax(worst, std::fabs(back[i] - known[i]));
    std::printf("norm %.9f\nsolved %s\n", double(viennacl::linalg::norm_2(b)), worst < 1e-7 ? "right" : "wrong");
}
