// RMS norm (Zhang & Sennrich 2019) and layer norm (Ba, Kiros & Hinton 2016), with the residual sum fused into the
// forward pass and the residual gradient into the backward pass. Rows are split over threads; gradients of weights are
// summed per thread and then combined in thread order.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <cmath>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/simd-inl.h"

#ifndef FORESAIL_KERNELS_CPU_NORM_ARGUMENTS
#define FORESAIL_KERNELS_CPU_NORM_ARGUMENTS
namespace foresail {
namespace {

/// y = norm(x + residual); `residual`, `sum`, `bias` and `mean` may be null (bias and mean: RMS norm).
struct NormForward {
  const float *x, *residual, *weight, *bias;
  float *sum, *y, *mean, *rstd;
  int64_t columns;
  double epsilon;
};

/// `mean` and `bias_sum` are null for RMS norm; `addend` may be null.
struct NormBackward {
  const float *dy, *x, *weight, *mean, *rstd, *addend;
  float *dx, *weight_sum, *bias_sum;
  int64_t columns;
};

}  // namespace
}  // namespace foresail
#endif

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

/// Stores x + residual where there is a residual; returns the row to norm.
HWY_INLINE const float* sum_row(const NormForward& a, int64_t row) {
  const float* x = a.x + row * a.columns;
  if (a.residual == nullptr) return x;
  const float* residual = a.residual + row * a.columns;
  float* sum = a.sum + row * a.columns;
  each_vector(a.columns,
              [=](auto part, int64_t i) { part.store(hn::Add(part.load(x + i), part.load(residual + i)), sum + i); });
  return sum;
}

void rms_norm_rows(const NormForward& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* x = sum_row(a, row);
    const float* weight = a.weight;
    float* y = a.y + row * a.columns;
    const float squares = sum_vectors(a.columns, [=](auto part, int64_t i) {
      const V32 v = part.load(x + i);
      return hn::Mul(v, v);
    });
    const float rstd = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(a.columns) + a.epsilon));
    const V32 factor = set(rstd);
    each_vector(a.columns, [=](auto part, int64_t i) {
      part.store(hn::Mul(hn::Mul(part.load(x + i), factor), part.load(weight + i)), y + i);
    });
    a.rstd[row] = rstd;
  }
}

void layer_norm_rows(const NormForward& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* x = sum_row(a, row);
    const float *weight = a.weight, *bias = a.bias;
    float* y = a.y + row * a.columns;
    const double count = static_cast<double>(a.columns);
    const float mean =
        static_cast<float>(sum_vectors(a.columns, [=](auto part, int64_t i) { return part.load(x + i); }) / count);
    const V32 center = set(mean);
    const float squares = sum_vectors(a.columns, [=](auto part, int64_t i) {
      const V32 v = part.keep(hn::Sub(part.load(x + i), center), zero());
      return hn::Mul(v, v);
    });
    const float rstd = static_cast<float>(1.0 / std::sqrt(squares / count + a.epsilon));
    const V32 factor = set(rstd);
    each_vector(a.columns, [=](auto part, int64_t i) {
      const V32 normed = hn::Mul(hn::Sub(part.load(x + i), center), factor);
      part.store(hn::MulAdd(normed, part.load(weight + i), part.load(bias + i)), y + i);
    });
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

/// With g = dy w and n = x rstd: dx = rstd (g - n mean(g n)) [+ addend]; dw += dy n.
void rms_norm_backward_rows(const NormBackward& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * a.columns;
    const float *dy = a.dy + at, *x = a.x + at, *weight = a.weight;
    const float* addend = a.addend == nullptr ? nullptr : a.addend + at;
    float *dx = a.dx + at, *weight_sum = a.weight_sum;
    const float rstd = a.rstd[row];
    const float product = sum_vectors(a.columns, [=](auto part, int64_t i) {
      return hn::Mul(hn::Mul(part.load(dy + i), part.load(weight + i)), part.load(x + i));
    });
    const V32 factor = set(rstd);
    const V32 pull = set(static_cast<float>(-double{product} * rstd / static_cast<double>(a.columns)));
    each_vector(a.columns, [=](auto part, int64_t i) {
      const V32 gradient = part.load(dy + i);
      const V32 normed = hn::Mul(part.load(x + i), factor);
      part.store(hn::MulAdd(gradient, normed, part.load(weight_sum + i)), weight_sum + i);
      V32 result = hn::Mul(factor, hn::MulAdd(normed, pull, hn::Mul(gradient, part.load(weight + i))));
      if (addend != nullptr) result = hn::Add(result, part.load(addend + i));
      part.store(result, dx + i);
    });
  }
}

/// With g = dy w and n = (x - mean) rstd: dx = rstd (g - mean(g) - n mean(g n)) [+ addend]; dw += dy n; db += dy.
void layer_norm_backward_rows(const NormBackward& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * a.columns;
    const float *dy = a.dy + at, *x = a.x + at, *weight = a.weight;
    const float* addend = a.addend == nullptr ? nullptr : a.addend + at;
    float *dx = a.dx + at, *weight_sum = a.weight_sum, *bias_sum = a.bias_sum;
    const V32 center = set(a.mean[row]), factor = set(a.rstd[row]);
    const double count = static_cast<double>(a.columns);
    const float total =
        sum_vectors(a.columns, [=](auto part, int64_t i) { return hn::Mul(part.load(dy + i), part.load(weight + i)); });
    const float product = sum_vectors(a.columns, [=](auto part, int64_t i) {
      const V32 normed = hn::Mul(hn::Sub(part.load(x + i), center), factor);
      return hn::Mul(hn::Mul(part.load(dy + i), part.load(weight + i)), normed);
    });
    const V32 shift = set(static_cast<float>(-total / count)), pull = set(static_cast<float>(-product / count));
    each_vector(a.columns, [=](auto part, int64_t i) {
      const V32 gradient = part.load(dy + i);
      const V32 normed = hn::Mul(hn::Sub(part.load(x + i), center), factor);
      part.store(hn::MulAdd(gradient, normed, part.load(weight_sum + i)), weight_sum + i);
      part.store(hn::Add(gradient, part.load(bias_sum + i)), bias_sum + i);
      // Rounded like the terms of the mean: a row of one column gives exactly 0.
      const V32 centered = hn::Add(hn::Mul(gradient, part.load(weight + i)), shift);
      V32 result = hn::Mul(factor, hn::MulAdd(normed, pull, centered));
      if (addend != nullptr) result = hn::Add(result, part.load(addend + i));
      part.store(result, dx + i);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(layer_norm_rows);
HWY_EXPORT(rms_norm_backward_rows);
HWY_EXPORT(layer_norm_backward_rows);

void run_forward(const OpInstance& op, const NormForward& norm) {
  const bool centered = norm.mean != nullptr;
  parallel_ranges(rows_of(op.inputs[0]), row_grain(norm.columns), [&](int64_t begin, int64_t end, int) {
    if (centered) {
      HWY_DYNAMIC_DISPATCH(layer_norm_rows)(norm, begin, end);
    } else {
      HWY_DYNAMIC_DISPATCH(rms_norm_rows)(norm, begin, end);
    }
  });
}

void run_rms_norm(const OpInstance& op, const KernelArguments& a) {
  run_forward(op, {input(a, 0), nullptr, input(a, 1), nullptr, nullptr, output(a, 0), nullptr, output(a, 1),
                   columns_of(op.inputs[0]), op.attributes.epsilon});
}

void run_layer_norm(const OpInstance& op, const KernelArguments& a) {
  run_forward(op, {input(a, 0), nullptr, input(a, 1), input(a, 2), nullptr, output(a, 0), output(a, 1), output(a, 2),
                   columns_of(op.inputs[0]), op.attributes.epsilon});
}

void run_add_rms_norm(const OpInstance& op, const KernelArguments& a) {
  run_forward(op, {input(a, 0), input(a, 1), input(a, 2), nullptr, output(a, 0), output(a, 1), nullptr, output(a, 2),
                   columns_of(op.inputs[0]), op.attributes.epsilon});
}

void run_add_layer_norm(const OpInstance& op, const KernelArguments& a) {
  run_forward(op, {input(a, 0), input(a, 1), input(a, 2), input(a, 3), output(a, 0), output(a, 1), output(a, 2),
                   output(a, 3), columns_of(op.inputs[0]), op.attributes.epsilon});
}

/// Sums of one thread: padded to whole cache lines.
int64_t sum_stride(const OpInstance& op) { return round_up(columns_of(op.inputs[0]), 16) * 2; }

int64_t backward_workspace(const OpInstance& op, int threads) {
  return threads * sum_stride(op) * static_cast<int64_t>(sizeof(float));
}

void run_backward(const OpInstance& op, const NormBackward& norm, void* workspace, float* dw, float* db) {
  const int64_t rows = rows_of(op.inputs[0]), grain = row_grain(norm.columns), stride = sum_stride(op);
  const int team = team_for(rows, grain);
  float* sums = static_cast<float*>(workspace);
  std::memset(sums, 0, static_cast<size_t>(team * stride) * sizeof(float));
  parallel_ranges(rows, grain, [&](int64_t begin, int64_t end, int thread) {
    NormBackward mine = norm;
    mine.weight_sum = sums + thread * stride;
    mine.bias_sum = mine.weight_sum + stride / 2;
    if (norm.mean != nullptr) {
      HWY_DYNAMIC_DISPATCH(layer_norm_backward_rows)(mine, begin, end);
    } else {
      HWY_DYNAMIC_DISPATCH(rms_norm_backward_rows)(mine, begin, end);
    }
  });
  add_partial_sums(sums, stride, team, dw, norm.columns);
  if (db != nullptr) add_partial_sums(sums + stride / 2, stride, team, db, norm.columns);
}

void run_rms_norm_backward(const OpInstance& op, const KernelArguments& a) {
  const float* addend = a.inputs.size() > 4 ? input(a, 4) : nullptr;
  run_backward(op,
               {input(a, 0), input(a, 1), input(a, 2), nullptr, input(a, 3), addend, output(a, 0), nullptr, nullptr,
                columns_of(op.inputs[0])},
               a.workspace, output(a, 1), nullptr);
}

void run_layer_norm_backward(const OpInstance& op, const KernelArguments& a) {
  const float* addend = a.inputs.size() > 5 ? input(a, 5) : nullptr;
  run_backward(op,
               {input(a, 0), input(a, 1), input(a, 2), input(a, 3), input(a, 4), addend, output(a, 0), nullptr, nullptr,
                columns_of(op.inputs[0])},
               a.workspace, output(a, 1), output(a, 2));
}

}  // namespace

std::span<const CpuOp> norm_ops() {
  static constexpr CpuOp kOps[] = {
      {OpKind::rms_norm, "x[T,H] w[H] -> y[T,H] rstd[T]", run_rms_norm},
      {OpKind::layer_norm, "x[T,H] w[H] b[H] -> y[T,H] mean[T] rstd[T]", run_layer_norm},
      {OpKind::add_rms_norm, "x[T,H] r[T,H] w[H] -> sum[T,H] y[T,H] rstd[T]", run_add_rms_norm},
      {OpKind::add_layer_norm, "x[T,H] r[T,H] w[H] b[H] -> sum[T,H] y[T,H] mean[T] rstd[T]", run_add_layer_norm},
      {OpKind::rms_norm_backward, "dy[T,H] x[T,H] w[H] rstd[T] addend?[T,H] -> dx[T,H] dw[H]", run_rms_norm_backward,
       backward_workspace},
      {OpKind::layer_norm_backward, "dy[T,H] x[T,H] w[H] mean[T] rstd[T] addend?[T,H] -> dx[T,H] dw[H] db[H]",
       run_layer_norm_backward, backward_workspace},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
