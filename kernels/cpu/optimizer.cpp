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

/// Constants of one step, and the ranges; computed in the type of the gradients. `copy` is null or takes the new
/// parameters too.
template <typename T>
struct AdamW {
  const T* g;
  float *p, *m, *v, *copy;
  T factor, beta1, beta2, rest1, rest2, m_unbias, v_unbias, epsilon, rate, decay;
};

}  // namespace
}  // namespace foresail
#endif

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

using F64 = hn::ScalableTag<double>;
using V64 = hn::Vec<F64>;
using HalfF32 = hn::Rebind<float, F64>;  ///< as many floats as a vector has doubles

HWY_INLINE V64 load_wide(const double* from) { return hn::LoadU(F64(), from); }
HWY_INLINE V64 load_wide(const float* from) { return hn::PromoteTo(F64(), hn::LoadU(HalfF32(), from)); }
HWY_INLINE void store_narrow(V64 value, float* to) { hn::StoreU(hn::DemoteTo(HalfF32(), value), HalfF32(), to); }

/// Sum of squares in double: the norm of a large model has more terms than a float sum can hold apart.
template <typename T>
HWY_INLINE double sum_of_squares(const T* x, int64_t count) {
  const F64 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const V64 x0 = load_wide(x + i), x1 = load_wide(x + i + lanes);
    const V64 x2 = load_wide(x + i + 2 * lanes), x3 = load_wide(x + i + 3 * lanes);
    s0 = hn::MulAdd(x0, x0, s0);
    s1 = hn::MulAdd(x1, x1, s1);
    s2 = hn::MulAdd(x2, x2, s2);
    s3 = hn::MulAdd(x3, x3, s3);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

double squares_of(const float* x, int64_t count) { return sum_of_squares(x, count); }
double squares_of_wide(const double* x, int64_t count) { return sum_of_squares(x, count); }

template <typename V>
struct AdamWVectors {
  V factor, beta1, beta2, rest1, rest2, m_unbias, v_unbias, epsilon, rate, decay;
};
template <typename T, typename Set>
HWY_INLINE auto vectors_of(const AdamW<T>& a, const Set& set) {
  return AdamWVectors<decltype(set(a.factor))>{set(a.factor), set(a.beta1),    set(a.beta2),    set(a.rest1),
                                               set(a.rest2),  set(a.m_unbias), set(a.v_unbias), set(a.epsilon),
                                               set(a.rate),   set(a.decay)};
}

/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= rate (m' / (sqrt(v') + eps) + decay p), m' and v' unbiased
/// (Loshchilov & Hutter 2019, algorithm 2).
template <typename V>
HWY_INLINE void adamw_vector(const AdamWVectors<V>& c, V raw, V& p, V& m, V& v) {
  const V gradient = hn::Mul(raw, c.factor);
  m = hn::MulAdd(c.beta1, m, hn::Mul(c.rest1, gradient));
  v = hn::MulAdd(c.beta2, v, hn::Mul(c.rest2, hn::Mul(gradient, gradient)));
  const V denominator = hn::Add(hn::Sqrt(hn::Mul(v, c.v_unbias)), c.epsilon);
  const V update = hn::MulAdd(c.decay, p, hn::Div(hn::Mul(m, c.m_unbias), denominator));
  p = hn::NegMulAdd(c.rate, update, p);
}

void adamw_range(const AdamW<float>& a, int64_t begin, int64_t end) {
  const float* g = a.g + begin;
  float *p = a.p + begin, *m = a.m + begin, *v = a.v + begin, *copy = a.copy == nullptr ? nullptr : a.copy + begin;
  const auto constants = vectors_of(a, set);
  each_vector(end - begin, [=](auto part, int64_t i) {
    V32 fresh = part.load(p + i), first = part.load(m + i), second = part.load(v + i);
    adamw_vector(constants, part.load(g + i), fresh, first, second);
    part.store(first, m + i);
    part.store(second, v + i);
    part.store(fresh, p + i);
    if (copy != nullptr) part.store(fresh, copy + i);
  });
}

/// Gradients in double meet the state unrounded. The tail takes the same vector operations: two holders of a weight, at
/// other places of their ranges, must get the same bits.
void adamw_range_wide(const AdamW<double>& a, int64_t begin, int64_t end) {
  constexpr int64_t kWideLanes = hn::MaxLanes(F64());
  const auto constants = vectors_of(a, [](double value) { return hn::Set(F64(), value); });
  const auto update = [&constants](const double* g, float* p, float* m, float* v) {
    V64 fresh = load_wide(p), first = load_wide(m), second = load_wide(v);
    adamw_vector(constants, load_wide(g), fresh, first, second);
    store_narrow(first, m);
    store_narrow(second, v);
    store_narrow(fresh, p);
  };
  int64_t i = begin;
  for (; i + kWideLanes <= end; i += kWideLanes) update(a.g + i, a.p + i, a.m + i, a.v + i);
  if (i < end) {
    double g[kWideLanes] = {};
    float p[kWideLanes] = {}, m[kWideLanes] = {}, v[kWideLanes] = {};
    std::copy_n(a.g + i, end - i, g);
    std::copy_n(a.p + i, end - i, p);
    std::copy_n(a.m + i, end - i, m);
    std::copy_n(a.v + i, end - i, v);
    update(g, p, m, v);
    std::copy_n(p, end - i, a.p + i);
    std::copy_n(m, end - i, a.m + i);
    std::copy_n(v, end - i, a.v + i);
  }
  if (a.copy != nullptr) std::copy_n(a.p + begin, end - begin, a.copy + begin);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(squares_of);
HWY_EXPORT(squares_of_wide);
HWY_EXPORT(adamw_range);
HWY_EXPORT(adamw_range_wide);

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
  const bool wide = op.inputs[0].dtype == DType::f64;
  std::memset(sums, 0, static_cast<size_t>(team * kSumStride) * sizeof(double));
  parallel_ranges(count, kElementGrain, [&](int64_t begin, int64_t end, int thread) {
    sums[thread * kSumStride] = wide ? HWY_DYNAMIC_DISPATCH(squares_of_wide)(input<double>(a, 0) + begin, end - begin)
                                     : HWY_DYNAMIC_DISPATCH(squares_of)(input(a, 0) + begin, end - begin);
  });
  for (int thread = 0; thread < team; ++thread) output<double>(a, 0)[0] += sums[thread * kSumStride];
}

/// Clipping by global norm (Pascanu, Mikolov & Bengio 2013). A norm that is not finite, or rows for experts that found no
/// room, give factor 0: skip the update.
void run_clip_scale(const OpInstance&, const KernelArguments& a) {
  const double* in = input<double>(a, 0);
  double* out = output<double>(a, 0);
  const StepInputs& step = *a.context.step;
  const double norm = std::sqrt(in[kSquaredNorm]) / step.loss_scale, bound = step.clip_norm;
  double factor = 1 / step.loss_scale;
  if (!std::isfinite(norm) || in[kOverflow] > 0) {
    factor = 0;
  } else if (bound > 0 && norm > bound) {
    factor *= bound / norm;
  }
  std::copy_n(in, kSummedMetrics, out);
  out[kNorm] = norm;
  out[kFactor] = factor;
}

template <typename T>
AdamW<T> adamw_of(const OpInstance& op, const KernelArguments& a) {
  const double* metrics = input<double>(a, 1);
  const StepInputs& step = *a.context.step;
  const auto rounded = [](double value) { return static_cast<T>(value); };
  float* parameters = output(a, 0);
  const bool has_master = a.outputs.size() > 3;
  AdamW<T> update{};
  update.g = input<T>(a, 0);
  update.p = has_master ? output(a, 3) : parameters;
  update.m = output(a, 1);
  update.v = output(a, 2);
  update.copy = has_master ? parameters : nullptr;
  update.factor = rounded(metrics[kFactor]);
  update.beta1 = rounded(step.beta1);
  update.beta2 = rounded(step.beta2);
  update.rest1 = rounded(1 - step.beta1);
  update.rest2 = rounded(1 - step.beta2);
  update.m_unbias = rounded(1 / (1 - step.beta1_power));
  update.v_unbias = rounded(1 / (1 - step.beta2_power));
  update.epsilon = rounded(step.epsilon);
  update.rate = rounded(step.learning_rate);
  update.decay = op.attributes.decay ? rounded(step.weight_decay) : 0;
  return update;
}

void run_adamw(const OpInstance& op, const KernelArguments& a) {
  const double* metrics = input<double>(a, 1);
  // A factor of 0 alone is no reason: it may be an underflow.
  if (metrics[kFactor] == 0 && (!std::isfinite(metrics[kNorm]) || metrics[kOverflow] > 0)) return;
  const auto over_range = [&](const auto& body) {
    parallel_ranges(op.inputs[0].elements(), kElementGrain, [&](int64_t begin, int64_t end, int) { body(begin, end); });
  };
  if (op.inputs[0].dtype == DType::f64) {
    const auto update = adamw_of<double>(op, a);
    over_range([&](int64_t begin, int64_t end) { HWY_DYNAMIC_DISPATCH(adamw_range_wide)(update, begin, end); });
  } else {
    const auto update = adamw_of<float>(op, a);
    over_range([&](int64_t begin, int64_t end) { HWY_DYNAMIC_DISPATCH(adamw_range)(update, begin, end); });
  }
}

}  // namespace

std::span<const CpuOp> optimizer_ops() {
  static constexpr CpuOp kOps[] = {
      {OpKind::fill_zero, "-> x:any[n*]", run_fill_zero},
      {OpKind::squared_norm, "g:real[n*] -> sum:f64[1]", run_squared_norm, squared_norm_workspace},
      {OpKind::clip_scale, "metrics:f64[6] -> metrics:f64[6]", run_clip_scale},
      {OpKind::adamw, "g:real[n*] metrics:f64[6] -> p[n*] m[n*] v[n*] master?[n*]", run_adamw},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
