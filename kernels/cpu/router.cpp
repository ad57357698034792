// Routers: the choice of experts and its gradient. The formulas and their sources stand in kernels/reference/router.cpp.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/router.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/router.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

float largest_logit(const float* x, int64_t count) { return max_of(x, count); }

float sum_of_exponentials(const float* x, float shift, int64_t count) {
  const V32 offset = set(shift);
  return sum_vectors(
      count, [=](auto part, int64_t i) { return part.keep(exp_of(hn::Sub(part.load(x + i), offset)), zero()); });
}

/// y = exp(x - shift) factor.
void exponentials(const float* x, float shift, float factor, float* y, int64_t count) {
  const V32 offset = set(shift), scale = set(factor);
  each_vector(count, [=](auto part, int64_t i) {
    part.store(hn::Mul(exp_of(hn::Sub(part.load(x + i), offset)), scale), y + i);
  });
}

void sigmoids(const float* x, float* y, int64_t count) {
  each_vector(count, [=](auto part, int64_t i) { part.store(sigmoid(part.load(x + i)).value, y + i); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(largest_logit);
HWY_EXPORT(sum_of_exponentials);
HWY_EXPORT(exponentials);
HWY_EXPORT(sigmoids);

constexpr double kLeastGateSum = 1e-20;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What chooses: a number that is none counts as the largest, so that it is chosen and its gate shows it.
float key_of(float score) { return std::isnan(score) ? kInfinity : score; }

/// The `count` largest of keys[0, n), best first; of equal ones those of lower number.
void best_of(const float* keys, int64_t n, int64_t count, int32_t* best) {
  int64_t filled = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float key = key_of(keys[i]);
    if (filled == count && !(key > key_of(keys[best[count - 1]]))) continue;
    int64_t at = filled < count ? filled++ : count - 1;
    for (; at > 0 && key > key_of(keys[best[at - 1]]); --at) best[at] = best[at - 1];
    best[at] = static_cast<int32_t>(i);
  }
}

/// One thread's memory for the choice of one row.
struct RouteScratch {
  float *scores, *keys, *group_keys;
  int32_t* groups;

  static int64_t floats(const OpAttributes& a) { return round_up(2 * a.experts + 2 * a.expert_groups, 16); }
  RouteScratch(const OpAttributes& a, void* workspace, int thread)
      : scores(static_cast<float*>(workspace) + thread * floats(a)),
        keys(scores + a.experts),
        group_keys(keys + a.experts),
        groups(reinterpret_cast<int32_t*>(group_keys + a.expert_groups)) {}
};

int64_t route_workspace(const OpInstance& op, int threads) {
  return threads * RouteScratch::floats(op.attributes) * static_cast<int64_t>(sizeof(float));
}

/// Experts outside the best groups leave the choice.
void keep_best_groups(const OpAttributes& a, const RouteScratch& scratch) {
  const int64_t size = a.experts / a.expert_groups;
  for (int64_t group = 0; group < a.expert_groups; ++group) {
    float best = -kInfinity, second = -kInfinity;
    for (int64_t e = group * size; e < (group + 1) * size; ++e) {
      const float key = key_of(scratch.keys[e]);
      second = std::max(second, std::min(best, key));
      best = std::max(best, key);
    }
    const bool of_two = a.group_score == GroupScore::sum_of_best_two && size > 1;
    scratch.group_keys[group] = of_two ? best + second : best;
  }
  best_of(scratch.group_keys, a.expert_groups, a.groups_per_token, scratch.groups);
  const int32_t* end = scratch.groups + a.groups_per_token;
  for (int64_t group = 0; group < a.expert_groups; ++group) {
    if (std::find<const int32_t*>(scratch.groups, end, static_cast<int32_t>(group)) != end) continue;
    std::fill_n(scratch.keys + group * size, size, -kInfinity);
  }
}

void route_row(const OpAttributes& a, const float* logits, const float* bias, const RouteScratch& scratch,
               int32_t* index, float* gate) {
  if (is_sigmoid(a)) {
    HWY_DYNAMIC_DISPATCH(sigmoids)(logits, scratch.scores, a.experts);
  } else {
    const Softmax softmax(logits, a.experts);
    scaled_exponentials(logits, softmax.largest, softmax.inverse(), scratch.scores, a.experts);
  }
  const float* keys = scratch.scores;
  if (bias != nullptr || a.expert_groups > 1) {
    std::copy_n(scratch.scores, a.experts, scratch.keys);
    if (bias != nullptr) add_range(scratch.keys, bias, scratch.keys, a.experts);
    if (a.expert_groups > 1) keep_best_groups(a, scratch);
    keys = scratch.keys;
  }
  best_of(keys, a.experts, a.experts_per_token, index);
  double sum = a.normalise_gates ? kLeastGateSum : 1;
  for (int64_t k = 0; a.normalise_gates && k < a.experts_per_token; ++k) sum += scratch.scores[index[k]];
  for (int64_t k = 0; k < a.experts_per_token; ++k) {
    gate[k] = static_cast<float>(scratch.scores[index[k]] * (a.gate_scale / sum));
  }
}

void run_route(const OpInstance& op, const KernelArguments& a) {
  const OpAttributes& attributes = op.attributes;
  const int64_t experts = attributes.experts, choices = attributes.experts_per_token;
  const float* bias = a.inputs.size() > 1 ? input(a, 1) : nullptr;
  parallel_ranges(rows_of(op.inputs[0]), row_grain(experts), [&](int64_t begin, int64_t end, int thread) {
    const RouteScratch scratch(attributes, a.workspace, thread);
    for (int64_t row = begin; row < end; ++row) {
      route_row(attributes, input(a, 0) + row * experts, bias, scratch, output<int32_t>(a, 0) + row * choices,
                output(a, 1) + row * choices);
    }
  });
}

/// Scores of single experts, in double.
class ChosenScores {
 public:
  ChosenScores(const OpAttributes& attributes, const float* logits)
      : sigmoid_(is_sigmoid(attributes)), logits_(logits), softmax_(logits, attributes.experts) {}
  double score(int64_t e) const {
    return sigmoid_ ? 1 / (1 + std::exp(-double{logits_[e]}))
                    : std::exp(double{logits_[e]} - softmax_.largest) / softmax_.sum;
  }
  /// Derivative of the score with respect to its logit, without what a softmax takes from all alike.
  double slope(int64_t e) const { return sigmoid_ ? score(e) * (1 - score(e)) : score(e); }
  const Softmax& softmax() const { return softmax_; }

 private:
  bool sigmoid_;
  const float* logits_;
  Softmax softmax_;
};

void route_row_backward(const OpAttributes& a, const float* dgate, const float* logits, const int32_t* index,
                        float* dlogits) {
  const int64_t choices = a.experts_per_token;
  const ChosenScores scores(a, logits);
  double sum = a.normalise_gates ? kLeastGateSum : 1, mean = 0, pull = 0;
  for (int64_t k = 0; a.normalise_gates && k < choices; ++k) {
    if (!is_expert(index[k], a.experts)) continue;
    sum += scores.score(index[k]);
    mean += dgate[k] * scores.score(index[k]);
  }
  mean /= sum;
  const auto dscore = [&](int64_t k) { return a.gate_scale / sum * (dgate[k] - mean); };
  for (int64_t k = 0; k < choices; ++k) {
    if (is_expert(index[k], a.experts)) pull += dscore(k) * scores.score(index[k]);
  }
  if (is_sigmoid(a) || a.normalise_gates) {
    std::fill_n(dlogits, a.experts, 0.0f);
  } else {
    const float factor = static_cast<float>(-pull / scores.softmax().sum);
    scaled_exponentials(logits, scores.softmax().largest, factor, dlogits, a.experts);
  }
  for (int64_t k = 0; k < choices; ++k) {
    if (!is_expert(index[k], a.experts)) continue;
    dlogits[index[k]] += static_cast<float>(dscore(k) * scores.slope(index[k]));
  }
}

void run_route_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t experts = op.attributes.experts, choices = op.attributes.experts_per_token;
  parallel_ranges(rows_of(op.inputs[1]), row_grain(experts), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      route_row_backward(op.attributes, input(a, 0) + row * choices, input(a, 1) + row * experts,
                         input<int32_t>(a, 2) + row * choices, output(a, 0) + row * experts);
    }
  });
}

void check_route(const OpInstance& op) { check_choice(op, op.inputs[0], op.outputs[0]); }
void check_route_backward(const OpInstance& op) { check_choice(op, op.inputs[1], op.inputs[2]); }

}  // namespace

Softmax::Softmax(const float* logits, int64_t experts)
    : largest(HWY_DYNAMIC_DISPATCH(largest_logit)(logits, experts)),
      sum(HWY_DYNAMIC_DISPATCH(sum_of_exponentials)(logits, largest, experts)) {}

void scaled_exponentials(const float* x, float shift, float factor, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(exponentials)(x, shift, factor, y, count);
}

void check_choice(const OpInstance& op, const TensorType& logits, const TensorType& choices) {
  const OpAttributes& a = op.attributes;
  if (a.experts < 1 || columns_of(logits) != a.experts) refuse_operator(op, "the columns of the logits are no experts");
  if (columns_of(choices) != a.experts_per_token) refuse_operator(op, "the choices are not experts_per_token");
  if (a.expert_groups < 1 || a.experts % a.expert_groups != 0) refuse_operator(op, "groups do not divide the experts");
  if (a.groups_per_token < 1 || a.groups_per_token > a.expert_groups) refuse_operator(op, "no such number of groups");
  if (a.experts_per_token < 1 || a.experts_per_token > a.experts / a.expert_groups * a.groups_per_token) {
    refuse_operator(op, "a token's groups have fewer experts than it needs");
  }
}

std::span<const CpuOp> router_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::moe_route,
       .operands = "logits[T,E] bias?[E] -> index:i32[T,K] gate[T,K]",
       .run = run_route,
       .workspace = route_workspace,
       .check = check_route},
      {.kind = OpKind::moe_route_backward,
       .operands = "dgate[T,K] logits[T,E] index:i32[T,K] -> dlogits[T,E]",
       .run = run_route_backward,
       .check = check_route_backward},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
