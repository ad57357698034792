// Matrix products by Eigen, on one thread. Weights are [out, in].
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Dense>

#include "kernels/reference/reference.h"

namespace foresail::reference {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Row = Eigen::Matrix<double, 1, Eigen::Dynamic>;

Eigen::Map<const Matrix> matrix_in(const Run& run, int i) { return {run.in(i), run.in_dim(i, 0), run.in_dim(i, 1)}; }
Eigen::Map<Matrix> matrix_out(const Run& run, int i) { return {run.out(i), run.out_dim(i, 0), run.out_dim(i, 1)}; }

void linear(const Run& run) {
  auto y = matrix_out(run, 0);
  y.noalias() = matrix_in(run, 0) * matrix_in(run, 1).transpose();
  if (run.has_input(2)) y.rowwise() += Eigen::Map<const Row>(run.in(2), run.in_dim(2, 0));
}

void linear_backward_input(const Run& run) { matrix_out(run, 0).noalias() = matrix_in(run, 0) * matrix_in(run, 1); }

void linear_backward_weight(const Run& run) {
  matrix_out(run, 0).noalias() += matrix_in(run, 0).transpose() * matrix_in(run, 1);
}

void bias_backward(const Run& run) {
  Eigen::Map<Row>(run.out(0), run.out_dim(0, 0)) += matrix_in(run, 0).colwise().sum();
}

void bias_add(const Run& run) {
  matrix_out(run, 0) = matrix_in(run, 0).rowwise() + Eigen::Map<const Row>(run.in(1), run.in_dim(1, 0));
}

constexpr Entry kKernels[] = {
    {OpKind::linear, "[T,K] [N,K] ?[N] -> [T,N]", linear},
    {OpKind::linear_backward_input, "[T,N] [N,K] -> [T,K]", linear_backward_input},
    {OpKind::linear_backward_weight, "[T,N] [T,K] -> [N,K]", linear_backward_weight},
    {OpKind::bias_backward, "[T,N] -> [N]", bias_backward},
    {OpKind::bias_add, "[T,N] [N] -> [T,N]", bias_add},
};

}  // namespace

std::span<const Entry> linear_kernels() { return kKernels; }

}  // namespace foresail::reference
