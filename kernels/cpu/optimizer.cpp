// Step bookkeeping and AdamW over flat ranges, each in one pass. The metrics record:
// ops/metrics_record.h.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/simd-inl.h"
#include "ops/metrics_record.h"

#ifndef FORESAIL_KERNELS_CPU_OPTIMIZER_ARGUMENTS
#define FORESAIL_KERNELS_CPU_OPTIMIZER_ARGUMENTS
namespace foresail {
namespace {

/// Constants of one step, and the ranges. `copy` is null or takes the new parameters too.
struct AdamW {
  const float* g;
  float *p, *m, *v, *copy;
  float factor, beta1, beta2, rest1, rest2, m_unbias, v_unbias, epsilon, rate, decay;
};

}  // namespace
}  // namespace foresail
#endif

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

/// Sum of squares in double: the norm of a large model has more terms than a float sum can hold apart.
double squares_of(const float* x, int64_t count) {
  using F64 = hn::ScalableTag<double>;
  const F64 d;
  const hn::Rebind<float, F64> half;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto x0 = hn::PromoteTo(d, hn::LoadU(half, x + i)), x1 = hn::PromoteTo(d, hn::LoadU(half, x + i + lanes));
    const auto x2 = hn::PromoteTo(d, hn::LoadU(half, x + i + 2 * lanes));
    const auto x3 = hn::PromoteTo(d, hn::LoadU(half, x + i + 3 * lanes));
    s0 = hn::MulAdd(x0, x0, s0);
    s1 = hn::MulAdd(x1, x1, s1);
    s2 = hn::MulAdd(x2, x2, s2);
    s3 = hn::MulAdd(x3, x3, s3);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= rate (m' / (sqrt(v') + eps) + decay p), m' and v' unbiased
/// (Loshchilov & Hutter 2019, algorithm 2).
void adamw_range(const AdamW& a, int64_t begin, int64_t end) {
  const float* g = a.g + begin;
  float *p = a.p + begin, *m = a.m + begin, *v = a.v + begin, *copy = a.copy == nullptr ? nullptr : a.copy + begin;
  const V32 factor = set(a.factor), beta1 = set(a.beta1), beta2 = set(a.beta2), rest1 = set(a.rest1),
            rest2 = set(a.rest2);
  const V32 m_unbias = set(a.m_unbias), v_unbias = set(a.v_unbias), epsilon = set(a.epsilon);
  const V32 rate = set(a.rate), decay = set(a.decay);
  each_vector(end - begin, [=](auto part, int64_t i) {
    const V32 gradient = hn::Mul(part.load(g + i), factor), old = part.load(p + i);
    const V32 first = hn::MulAdd(beta1, part.load(m + i), hn::Mul(rest1, gradient));
    const V32 second = hn::MulAdd(beta2, part.load(v + i), hn::Mul(rest2, hn::Mul(gradient, gradient)));
    part.store(first, m + i);
    part.store(second, v + i);
    const V32 denominator = hn::Add(hn::Sqrt(hn::Mul(second, v_unbias)), epsilon);
    const V32 update = hn::MulAdd(decay, old, hn::Div(hn::Mul(first, m_unbias), denominator));
    const V32 fresh = hn::NegMulAdd(rate, update, old);
    part.store(fresh, p + i);
    if (copy != nullptr) part.store(fresh, copy + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(squares_of);
HWY_EXPORT(adamw_range);

// Of the metrics record.
constexpr auto kSquaredNorm = index_of(StepMetric::squared_norm), kOverflow = index_of(StepMetric::overflow),
               kNorm = index_of(StepMetric::grad_norm), kFactor = index_of(StepMetric::clip_factor);

void run_fill_zero(const OpInstance& op, const KernelArguments& a) {
  parallel_ranges(op.outputs[0].bytes(), 16 * kElementGrain, [&](int64_t begin, int64_t end, int) {
    std::memset(output<char>(a, 0) + begin, 0, static_cast<size_t>(end - begin));
  });
}

/// True if this rank adds its share to a sum over all ranks.
bool counts(CountRule rule, const KernelContext& context) {
  if (rule == CountRule::every_expert_rank) return context.expert_replica_rank == 0;
  if (context.replica_rank != 0 || rule == CountRule::nobody) return false;
  if (rule == CountRule::first_copy) return context.tensor_rank % context.kv_copies == 0;
  return rule == CountRule::every_tensor_rank || context.tensor_rank == 0;
}

/// Sums of threads lie a cache line apart.
constexpr int64_t kSumStride = 8;

int64_t squared_norm_workspace(const OpInstance&, int threads) {
  return threads * kSumStride * static_cast<int64_t>(sizeof(double));
}

void run_squared_norm(const OpInstance& op, const KernelArguments& a) {
  if (!counts(op.attributes.count_rule, a.context)) return;
  const int64_t count = op.inputs[0].elements();
  double* sums = static_cast<double*>(a.workspace);
  const int team = team_for(count, kElementGrain);
  std::memset(sums, 0, static_cast<size_t>(team * kSumStride) * sizeof(double));
  parallel_ranges(count, kElementGrain, [&](int64_t begin, int64_t end, int thread) {
    sums[thread * kSumStride] = HWY_DYNAMIC_DISPATCH(squares_of)(input(a, 0) + begin, end - begin);
  });
  for (int thread = 0; thread < team; ++thread) output<double>(a, 0)[0] += sums[thread * kSumStride];
}

/// Clipping by global norm (Pascanu, Mikolov & Bengio 2013). A norm that is not finite, or rows for experts that found no
/// room, give factor 0: skip the update.
void run_clip_scale(const OpInstance&, const KernelArguments& a) {
  const double* in = input<double>(a, 0);
  double* out = output<double>(a, 0);
  const double norm = std::sqrt(in[kSquaredNorm]), bound = a.context.step->clip_norm;
  double factor = 1;
  if (!std::isfinite(norm) || in[kOverflow] > 0) {
    factor = 0;
  } else if (bound > 0 && norm > bound) {
    factor = bound / norm;
  }
  std::copy_n(in, kSummedMetrics, out);
  out[kNorm] = norm;
  out[kFactor] = factor;
}

void run_adamw(const OpInstance& op, const KernelArguments& a) {
  const double* metrics = input<double>(a, 1);
  // A factor of 0 alone is no reason: it may be an underflow.
  if (metrics[kFactor] == 0 && (!std::isfinite(metrics[kNorm]) || metrics[kOverflow] > 0)) return;
  const StepInputs& step = *a.context.step;
  const auto single = [](double value) { return static_cast<float>(value); };
  float* parameters = output(a, 0);
  const bool has_master = a.outputs.size() > 3;
  AdamW update{};
  update.g = input(a, 0);
  update.p = has_master ? output(a, 3) : parameters;
  update.m = output(a, 1);
  update.v = output(a, 2);
  update.copy = has_master ? parameters : nullptr;
  update.factor = single(metrics[kFactor]);
  update.beta1 = single(step.beta1);
  update.beta2 = single(step.beta2);
  update.rest1 = single(1 - step.beta1);
  update.rest2 = single(1 - step.beta2);
  update.m_unbias = single(1 / (1 - step.beta1_power));
  update.v_unbias = single(1 / (1 - step.beta2_power));
  update.epsilon = single(step.epsilon);
  update.rate = single(step.learning_rate);
  update.decay = op.attributes.decay ? single(step.weight_decay) : 0;
  parallel_ranges(op.inputs[0].elements(), kElementGrain, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(adamw_range)(update, begin, end);
  });
}

}  // namespace

std::span<const CpuOp> optimizer_ops() {
  static constexpr CpuOp kOps[] = {
      {OpKind::fill_zero, "-> x:any[n*]", run_fill_zero},
      {OpKind::squared_norm, "g[n*] -> sum:f64[1]", run_squared_norm, squared_norm_workspace},
      {OpKind::clip_scale, "metrics:f64[6] -> metrics:f64[6]", run_clip_scale},
      {OpKind::adamw, "g[n*] metrics:f64[6] -> p[n*] m[n*] v[n*] master?[n*]", run_adamw},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
