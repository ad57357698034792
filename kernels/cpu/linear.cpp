// Linear layers. Weights are [out, in], so the forward product reads them transposed.
#include <algorithm>
#include <utility>

#include "kernels/cpu/internal.h"

namespace foresail {
namespace {

GemmStrides plain(int64_t columns) { return {.row = columns, .column = 1}; }
GemmStrides transposed(int64_t columns) { return {.row = 1, .column = columns}; }

/// y [T,N] = x [T,K] w^T
GemmShape forward_shape(const OpInstance& op) {
  const int64_t k = columns_of(op.inputs[0]), n = rows_of(op.inputs[1]);
  return {.m = rows_of(op.inputs[0]),
          .n = n,
          .k = k,
          .a = plain(k),
          .b = transposed(k),
          .c = plain(n),
          .bias = op.inputs.size() > 2};
}

/// dx [T,K] = dy [T,N] w
GemmShape backward_input_shape(const OpInstance& op) {
  const int64_t n = columns_of(op.inputs[0]), k = columns_of(op.inputs[1]);
  return {.m = rows_of(op.inputs[0]), .n = k, .k = n, .a = plain(n), .b = plain(k), .c = plain(k)};
}

/// dw [N,K] += dy^T x
GemmShape backward_weight_shape(const OpInstance& op) {
  const int64_t n = columns_of(op.inputs[0]), k = columns_of(op.inputs[1]);
  return {
      .m = n, .n = k, .k = rows_of(op.inputs[0]), .a = transposed(n), .b = plain(k), .c = plain(k), .accumulate = true};
}

class LinearKernel : public Kernel {
 public:
  explicit LinearKernel(std::unique_ptr<Gemm> gemm) : gemm_(std::move(gemm)) {}

  void run(const KernelArguments& a) override {
    gemm_->run(input(a, 0), input(a, 1), a.inputs.size() > 2 ? input(a, 2) : nullptr, output(a, 0), a.workspace);
  }
  int64_t workspace_bytes() const override { return gemm_->workspace_bytes(); }

 private:
  std::unique_ptr<Gemm> gemm_;
};

template <GemmShape (*kShape)(const OpInstance&)>
std::unique_ptr<Kernel> bind_linear(const OpInstance& op, GemmLibrary& library) {
  return std::make_unique<LinearKernel>(library.build(kShape(op)));
}

template <GemmShape (*kShape)(const OpInstance&)>
int64_t linear_workspace(const OpInstance& op, GemmLibrary& library) {
  return library.workspace_bytes(kShape(op));
}

/// Columns that a thread sums at once: their partial sums stay in cache.
constexpr int64_t kColumnBlock = 256;
/// Rows per partial sum: two levels keep the rounding error of long sums small.
constexpr int64_t kRowBlock = 128;

/// Threads own columns: no partial sums to combine, and the same result for any number of threads.
void run_bias_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t rows = rows_of(op.inputs[0]), columns = columns_of(op.inputs[0]);
  const int64_t grain = rows * columns < kElementGrain ? columns : 16;
  parallel_ranges(columns, grain, [&](int64_t begin, int64_t end, int) {
    alignas(64) float sums[kColumnBlock];
    for (int64_t first = begin; first < end; first += kColumnBlock) {
      const int64_t count = std::min(kColumnBlock, end - first);
      for (int64_t row = 0; row < rows; row += kRowBlock) {
        std::fill_n(sums, count, 0.0f);
        for (int64_t r = row; r < std::min(rows, row + kRowBlock); ++r) {
          add_range(sums, input(a, 0) + r * columns + first, sums, count);
        }
        add_range(output(a, 0) + first, sums, output(a, 0) + first, count);
      }
    }
  });
}

}  // namespace

std::span<const CpuOp> linear_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::linear,
       .operands = "x[T,K] w[N,K] bias?[N] -> y[T,N]",
       .bind = bind_linear<forward_shape>,
       .bound_workspace = linear_workspace<forward_shape>},
      {.kind = OpKind::linear_backward_input,
       .operands = "dy[T,N] w[N,K] -> dx[T,K]",
       .bind = bind_linear<backward_input_shape>,
       .bound_workspace = linear_workspace<backward_input_shape>},
      {.kind = OpKind::linear_backward_weight,
       .operands = "dy[T,N] x[T,K] -> dw[N,K]",
       .bind = bind_linear<backward_weight_shape>,
       .bound_workspace = linear_workspace<backward_weight_shape>},
      {.kind = OpKind::bias_backward, .operands = "dy[T,N] -> db[N]", .run = run_bias_backward},
  };
  return kOps;
}

}  // namespace foresail
