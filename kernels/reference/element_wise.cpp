// Element-wise operators: activations, sums, dropout. All may write over an input of the output's shape, because
// element i of the output depends on element i of the inputs alone.
#include <cmath>

#include "kernels/dropout_mask.h"
#include "kernels/reference/reference.h"
#include "kernels/row_map.h"

namespace foresail::reference {
namespace {

constexpr double kGeluScale = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016)
double gelu_value(double x) { return 0.5 * x * (1 + std::tanh(kGeluScale * (x + kGeluCubic * x * x * x))); }

double gelu_slope(double x) {
  const double t = std::tanh(kGeluScale * (x + kGeluCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGeluScale * (1 + 3 * kGeluCubic * x * x);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void gelu(const Run& run) {
  const int64_t n = run.op.outputs[0].elements();
  for (int64_t i = 0; i < n; ++i) run.out(0)[i] = gelu_value(run.in(0)[i]);
}

void gelu_backward(const Run& run) {
  const int64_t n = run.op.outputs[0].elements();
  for (int64_t i = 0; i < n; ++i) run.out(0)[i] = run.in(0)[i] * gelu_slope(run.in(1)[i]);
}

void bias_gelu(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), columns = run.in_dim(0, 1);
  for (int64_t i = 0; i < rows * columns; ++i) run.out(0)[i] = gelu_value(run.in(0)[i] + run.in(1)[i % columns]);
}

void bias_gelu_backward(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), columns = run.in_dim(0, 1);
  for (int64_t i = 0; i < rows * columns; ++i) {
    run.out(0)[i] = run.in(0)[i] * gelu_slope(run.in(1)[i] + run.in(2)[i % columns]);
  }
}

/// y = silu(gate) * up, silu(x) = x sigmoid(x) (Shazeer 2020). A row holds its gate columns, then its up columns.
void swiglu(const Run& run) {
  const int64_t rows = run.out_dim(0, 0), columns = run.out_dim(0, 1);
  for (int64_t t = 0; t < rows; ++t) {
    const double *gate = run.in(0) + t * 2 * columns, *up = gate + columns;
    for (int64_t f = 0; f < columns; ++f) run.out(0)[t * columns + f] = gate[f] * sigmoid(gate[f]) * up[f];
  }
}

/// dgu may be gu.
void swiglu_backward(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), columns = run.in_dim(0, 1);
  for (int64_t t = 0; t < rows; ++t) {
    const double* dy = run.in(0) + t * columns;
    const double* gu = run.in(1) + t * 2 * columns;
    double* dgu = run.out(0) + t * 2 * columns;
    for (int64_t f = 0; f < columns; ++f) {
      const double gate = gu[f], up = gu[columns + f], s = sigmoid(gate);
      dgu[f] = dy[f] * up * s * (1 + gate * (1 - s));
      dgu[columns + f] = dy[f] * gate * s;
    }
  }
}

void add(const Run& run) {
  const int64_t n = run.op.outputs[0].elements();
  for (int64_t i = 0; i < n; ++i) run.set_real(0, i, run.real_in(0, i) + run.real_in(1, i));
}

void check_add(const Run& run) {
  require(run, run.op.outputs[0].dtype == run.op.inputs[0].dtype, "the sum is not in the type of the first operand");
}

/// A dropped element becomes 0 even if it was NaN (the undefined entries of dp), hence no product.
void drop_row(const DropoutMask& mask, uint64_t position, const double* x, int64_t columns, double* y) {
  for (int64_t c = 0; c < columns; ++c) y[c] = mask.keeps(position + c) ? x[c] * mask.scale : 0.0;
}

/// Scores [B, A, S, S] of whole sequences, whose heads are sharded.
void drop_scores(const Run& run, const DropoutMask& mask) {
  const std::vector<int64_t>& shape = run.op.outputs[0].shape;
  const int64_t heads = shape[1], length = shape[2];
  for (int64_t row = 0; row < shape[0] * heads * length; ++row) {
    const uint64_t position = dropout_score_position(run.context(), run.attributes().heads_cut, row / (heads * length),
                                                     row / length % heads, heads, row % length, length);
    drop_row(mask, position, run.in(0) + row * length, length, run.out(0) + row * length);
  }
}

/// Four dimensions are scores; any other shape is rows of its last dimension.
void dropout(const Run& run) {
  const std::vector<int64_t>& shape = run.op.outputs[0].shape;
  const DropoutMask mask = dropout_mask(run.attributes(), run.context());
  if (run.op.outputs[0].elements() == 0) return;
  if (shape.size() == 4) return drop_scores(run, mask);
  const int64_t columns = shape.back(), rows = run.op.outputs[0].elements() / columns;
  const RowMap map(run.attributes(), run.context(), rows);
  for (int64_t row = 0; row < rows; ++row) {
    const uint64_t position = dropout_row_position(map.global_row(row), columns);
    drop_row(mask, position, run.in(0) + row * columns, columns, run.out(0) + row * columns);
  }
}

void check_dropout(const Run& run) {
  const std::vector<int64_t>& shape = run.op.outputs[0].shape;
  require(run, run.attributes().probability >= 0 && run.attributes().probability < 1,
          "the dropout probability is not in [0, 1)");
  require(run, !shape.empty(), "the operand has no dimension");
  require(run, shape.size() != 4 || shape[2] == shape[3], "four dimensions must be scores [B, A, S, S]");
  const int64_t elements = run.op.outputs[0].elements();
  if (shape.size() != 4 && elements > 0) require_row_map(run, elements / shape.back());
}

constexpr Entry kKernels[] = {
    {OpKind::gelu, "[*] -> [*]", gelu},
    {OpKind::gelu_backward, "[*] [*] -> [*]", gelu_backward},
    {OpKind::bias_gelu, "[T,F] [F] -> [T,F]", bias_gelu},
    {OpKind::bias_gelu_backward, "[T,F] [T,F] [F] -> [T,F]", bias_gelu_backward},
    {OpKind::swiglu, "[T,2*F] -> [T,F]", swiglu},
    {OpKind::swiglu_backward, "[T,F] [T,2*F] -> [T,2*F]", swiglu_backward},
    {OpKind::add, "real[*] real[*] -> real[*]", add, check_add},
    {OpKind::dropout, "[*] -> [*]", dropout, check_dropout},
};

}  // namespace

std::span<const Entry> element_wise_kernels() { return kKernels; }

}  // namespace foresail::reference
