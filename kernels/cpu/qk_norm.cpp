// RMS norm of every query and key head (Qwen3; Henry et al. 2020): packed rows of A query heads, G key heads and G
// value heads, each D wide (values may differ). Value heads are copied.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/qk_norm.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <cmath>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/simd-inl.h"

#ifndef FORESAIL_KERNELS_CPU_QK_NORM_ARGUMENTS
#define FORESAIL_KERNELS_CPU_QK_NORM_ARGUMENTS
namespace foresail {
namespace {

struct QkNorm {
  const float *x, *query_weight, *key_weight;
  float *y, *rstd;
  int64_t heads, kv_heads, head_dim, width;
  double epsilon;
};

struct QkNormBackward {
  const float *dy, *x, *query_weight, *key_weight, *rstd;
  float *dx, *query_sum, *key_sum;
  int64_t heads, kv_heads, head_dim, width;
};

}  // namespace
}  // namespace foresail
#endif

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

void qk_norm_rows(const QkNorm& a, int64_t begin, int64_t end) {
  const int64_t normed_heads = a.heads + a.kv_heads, width = a.width;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < normed_heads; ++head) {
      const float* x = a.x + row * width + head * a.head_dim;
      const float* weight = head < a.heads ? a.query_weight : a.key_weight;
      float* y = a.y + row * width + head * a.head_dim;
      const float squares = sum_vectors(a.head_dim, [=](auto part, int64_t i) {
        const V32 v = part.load(x + i);
        return hn::Mul(v, v);
      });
      const float rstd = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(a.head_dim) + a.epsilon));
      const V32 factor = set(rstd);
      each_vector(a.head_dim, [=](auto part, int64_t i) {
        part.store(hn::Mul(hn::Mul(part.load(x + i), factor), part.load(weight + i)), y + i);
      });
      a.rstd[row * normed_heads + head] = rstd;
    }
    const int64_t normed = normed_heads * a.head_dim, values = row * width + normed;
    if (a.x != a.y) std::memcpy(a.y + values, a.x + values, static_cast<size_t>(width - normed) * sizeof(float));
  }
}

void qk_norm_backward_rows(const QkNormBackward& a, int64_t begin, int64_t end) {
  const int64_t normed_heads = a.heads + a.kv_heads, width = a.width;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < normed_heads; ++head) {
      const int64_t at = row * width + head * a.head_dim;
      const float *dy = a.dy + at, *x = a.x + at;
      const float* weight = head < a.heads ? a.query_weight : a.key_weight;
      float *dx = a.dx + at, *weight_sum = head < a.heads ? a.query_sum : a.key_sum;
      const float rstd = a.rstd[row * normed_heads + head];
      const float product = sum_vectors(a.head_dim, [=](auto part, int64_t i) {
        return hn::Mul(hn::Mul(part.load(dy + i), part.load(weight + i)), part.load(x + i));
      });
      const V32 factor = set(rstd);
      const V32 pull = set(static_cast<float>(-double{product} * rstd / static_cast<double>(a.head_dim)));
      each_vector(a.head_dim, [=](auto part, int64_t i) {
        const V32 gradient = part.load(dy + i);
        const V32 normed = hn::Mul(part.load(x + i), factor);
        part.store(hn::MulAdd(gradient, normed, part.load(weight_sum + i)), weight_sum + i);
        part.store(hn::Mul(factor, hn::MulAdd(normed, pull, hn::Mul(gradient, part.load(weight + i)))), dx + i);
      });
    }
    const int64_t normed = normed_heads * a.head_dim, values = row * width + normed;
    if (a.dx != a.dy) std::memcpy(a.dx + values, a.dy + values, static_cast<size_t>(width - normed) * sizeof(float));
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(qk_norm_rows);
HWY_EXPORT(qk_norm_backward_rows);

void run_qk_norm(const OpInstance& op, const KernelArguments& a) {
  const auto& attributes = op.attributes;
  const QkNorm norm{input(a, 0),         input(a, 1),         input(a, 2),
                    output(a, 0),        output(a, 1),        attributes.heads,
                    attributes.kv_heads, attributes.head_dim, attributes.qkv_columns(),
                    attributes.epsilon};
  parallel_ranges(rows_of(op.inputs[0]), row_grain(columns_of(op.inputs[0])), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(qk_norm_rows)(norm, begin, end);
  });
}

/// Sums of one thread: query weights, then key weights.
int64_t sum_stride(const OpInstance& op) { return round_up(op.attributes.head_dim, 16) * 2; }

int64_t backward_workspace(const OpInstance& op, int threads) {
  return threads * sum_stride(op) * static_cast<int64_t>(sizeof(float));
}

void run_qk_norm_backward(const OpInstance& op, const KernelArguments& a) {
  const auto& attributes = op.attributes;
  const int64_t rows = rows_of(op.inputs[0]), grain = row_grain(columns_of(op.inputs[0])), stride = sum_stride(op);
  const int team = team_for(rows, grain);
  float* sums = static_cast<float*>(a.workspace);
  std::memset(sums, 0, static_cast<size_t>(team * stride) * sizeof(float));
  parallel_ranges(rows, grain, [&](int64_t begin, int64_t end, int thread) {
    float* mine = sums + thread * stride;
    const QkNormBackward norm{input(a, 0),
                              input(a, 1),
                              input(a, 2),
                              input(a, 3),
                              input(a, 4),
                              output(a, 0),
                              mine,
                              mine + stride / 2,
                              attributes.heads,
                              attributes.kv_heads,
                              attributes.head_dim,
                              attributes.qkv_columns()};
    HWY_DYNAMIC_DISPATCH(qk_norm_backward_rows)(norm, begin, end);
  });
  add_partial_sums(sums, stride, team, output(a, 1), attributes.head_dim);
  add_partial_sums(sums + stride / 2, stride, team, output(a, 2), attributes.head_dim);
}

}  // namespace

std::span<const CpuOp> qk_norm_ops() {
  static constexpr CpuOp kOps[] = {
      {OpKind::qk_norm, "qkv[T,QKV] qw[D] kw[D] -> qkv'[T,QKV] rstd[T,AG]", run_qk_norm},
      {OpKind::qk_norm_backward, "dqkv'[T,QKV] qkv[T,QKV] qw[D] kw[D] rstd[T,AG] -> dqkv[T,QKV] dqw[D] dkw[D]",
       run_qk_norm_backward, backward_workspace},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
