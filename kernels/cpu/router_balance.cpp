// What keeps the experts of a router in use: statistics of every sequence, balance loss and z loss with their gradient.
// The formulas and their sources stand in kernels/reference/router.cpp.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/router_balance.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/router.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/row_map.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

float sum_of_sigmoids(const float* x, int64_t count) {
  return sum_vectors(count, [=](auto part, int64_t i) { return part.keep(sigmoid(part.load(x + i)).value, zero()); });
}

/// sum += exp(x - shift) factor.
void add_exponentials(const float* x, float shift, float factor, float* sum, int64_t count) {
  const V32 offset = set(shift), scale = set(factor);
  each_vector(count, [=](auto part, int64_t i) {
    part.store(hn::MulAdd(exp_of(hn::Sub(part.load(x + i), offset)), scale, part.load(sum + i)), sum + i);
  });
}

/// sum += sigmoid(x) factor.
void add_sigmoids(const float* x, float factor, float* sum, int64_t count) {
  const V32 scale = set(factor);
  each_vector(count, [=](auto part, int64_t i) {
    part.store(hn::MulAdd(sigmoid(part.load(x + i)).value, scale, part.load(sum + i)), sum + i);
  });
}

/// Sum of weight exp(x - shift).
float weighted_exponentials(const float* x, float shift, const float* weight, int64_t count) {
  const V32 offset = set(shift);
  return sum_vectors(count, [=](auto part, int64_t i) {
    return hn::Mul(part.load(weight + i), part.keep(exp_of(hn::Sub(part.load(x + i), offset)), zero()));
  });
}

float weighted_sigmoids(const float* x, const float* weight, int64_t count) {
  return sum_vectors(
      count, [=](auto part, int64_t i) { return hn::Mul(part.load(weight + i), sigmoid(part.load(x + i)).value); });
}

/// y += sigmoid'(x) (factor weight + offset).
void add_sigmoid_slopes(const float* x, float factor, const float* weight, float offset, float* y, int64_t count) {
  const V32 scale = set(factor), shift = set(offset);
  each_vector(count, [=](auto part, int64_t i) {
    const Sigmoid s = sigmoid(part.load(x + i));
    const V32 pull = hn::MulAdd(scale, part.load(weight + i), shift);
    part.store(hn::MulAdd(hn::Mul(s.value, s.complement), pull, part.load(y + i)), y + i);
  });
}

/// y *= factor weight + offset.
void scale_by_weights(float factor, const float* weight, float offset, float* y, int64_t count) {
  const V32 scale = set(factor), shift = set(offset);
  each_vector(count, [=](auto part, int64_t i) {
    part.store(hn::Mul(part.load(y + i), hn::MulAdd(scale, part.load(weight + i), shift)), y + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(sum_of_sigmoids);
HWY_EXPORT(add_exponentials);
HWY_EXPORT(add_sigmoids);
HWY_EXPORT(weighted_exponentials);
HWY_EXPORT(weighted_sigmoids);
HWY_EXPORT(add_sigmoid_slopes);
HWY_EXPORT(scale_by_weights);

/// What turns a row's exponentials (softmax) or sigmoids into probabilities.
struct RowNorm {
  float shift, factor;
};

int64_t statistics_workspace(const OpInstance& op, int) {
  return rows_of(op.inputs[0]) * static_cast<int64_t>(sizeof(RowNorm));
}

/// Choices, valid targets and rows of every sequence.
void count_rows(const OpInstance& op, const KernelArguments& a, const RowMap& map) {
  const int64_t experts = op.attributes.experts, choices = op.attributes.experts_per_token;
  std::fill_n(output(a, 0), op.outputs[0].elements(), 0.0f);
  for (int64_t row = 0; row < rows_of(op.inputs[0]); ++row) {
    float* counts = output(a, 0) + map.sequence(row) * 3 * experts;
    for (int64_t k = 0; k < choices; ++k) {
      const int32_t expert = input<int32_t>(a, 1)[row * choices + k];
      if (is_expert(expert, experts)) counts[expert] += 1;
    }
    counts[2 * experts] += input<int32_t>(a, 2)[row] >= 0 ? 1.0f : 0.0f;
    counts[2 * experts + 1] += 1;
  }
}

/// Columns that a thread sums at once, and rows per partial sum: two levels, the upper one in double, keep the rounding
/// error of long sums small.
constexpr int64_t kColumnBlock = 64;
constexpr int64_t kRowBlock = 128;

/// Adds the probabilities of `count` experts from `first` on over the rows [begin, end) of one sequence.
void sum_probabilities(const OpInstance& op, const KernelArguments& a, int64_t begin, int64_t end, int64_t first,
                       int64_t count, float* sums) {
  const int64_t experts = op.attributes.experts;
  const RowNorm* norms = static_cast<const RowNorm*>(a.workspace);
  double totals[kColumnBlock] = {};
  for (int64_t block = begin; block < end; block += kRowBlock) {
    alignas(64) float partial[kColumnBlock] = {};
    for (int64_t row = block; row < std::min(end, block + kRowBlock); ++row) {
      const float* logits = input(a, 0) + row * experts + first;
      if (is_sigmoid(op.attributes)) {
        HWY_DYNAMIC_DISPATCH(add_sigmoids)(logits, norms[row].factor, partial, count);
      } else {
        HWY_DYNAMIC_DISPATCH(add_exponentials)(logits, norms[row].shift, norms[row].factor, partial, count);
      }
    }
    for (int64_t i = 0; i < count; ++i) totals[i] += partial[i];
  }
  for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<float>(totals[i]);
}

/// Threads own columns: the same result for any number of threads.
void run_statistics(const OpInstance& op, const KernelArguments& a) {
  const int64_t experts = op.attributes.experts, rows = rows_of(op.inputs[0]);
  const RowMap map(op.attributes, a.context, rows);
  ensure(map.sequence(rows - 1) < op.attributes.sequences, "rows belong to sequences of the micro-batch");
  count_rows(op, a, map);
  RowNorm* norms = static_cast<RowNorm*>(a.workspace);
  parallel_ranges(rows, row_grain(experts), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* logits = input(a, 0) + row * experts;
      if (is_sigmoid(op.attributes)) {
        norms[row] = {0, 1 / HWY_DYNAMIC_DISPATCH(sum_of_sigmoids)(logits, experts)};
      } else {
        const Softmax softmax(logits, experts);
        norms[row] = {softmax.largest, softmax.inverse()};
      }
    }
  });
  parallel_ranges(experts, std::max<int64_t>(16, kElementGrain / rows), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = 0, next = 0; row < rows; row = next) {
      const int64_t sequence = map.sequence(row);
      while (next < rows && map.sequence(next) == sequence) ++next;
      float* sums = output(a, 0) + (sequence * 3 + 1) * experts;
      for (int64_t first = begin; first < end; first += kColumnBlock) {
        sum_probabilities(op, a, row, next, first, std::min(kColumnBlock, end - first), sums + first);
      }
    }
  });
}

/// What both losses of one row need to know of its sequence.
struct RowBalance {
  const float* counts;
  double weight;    ///< of sum_e counts_e p_e in the balance loss
  double z_weight;  ///< of the squared log-sum-exp

  RowBalance(const OpInstance& op, const KernelArguments& a, const RowMap& map, int64_t row)
      : counts(input(a, 2) + map.sequence(row) * 3 * op.attributes.experts) {
    const int64_t experts = op.attributes.experts;
    const double valid = counts[2 * experts], rows = counts[2 * experts + 1];
    const bool backward = op.kind == OpKind::moe_balance_backward;
    const double of_token = backward ? a.context.step->gradient_weight() : a.context.step->inverse_valid_tokens;
    weight = of_token * valid * op.attributes.balance_coefficient * static_cast<double>(experts) /
             (static_cast<double>(op.attributes.experts_per_token) * rows * rows);
    z_weight = input<int32_t>(a, 1)[row] >= 0 ? of_token * op.attributes.z_coefficient : 0;
  }
};

int64_t balance_workspace(const OpInstance& op, int) {
  return rows_of(op.inputs[0]) * static_cast<int64_t>(sizeof(double));
}

/// Sum of counts_e p_e, p the scores normalised to sum 1.
double mean_count(const OpAttributes& a, const float* logits, const float* counts, const Softmax& softmax) {
  if (!is_sigmoid(a)) {
    return double{HWY_DYNAMIC_DISPATCH(weighted_exponentials)(logits, softmax.largest, counts, a.experts)} /
           softmax.sum;
  }
  return double{HWY_DYNAMIC_DISPATCH(weighted_sigmoids)(logits, counts, a.experts)} /
         HWY_DYNAMIC_DISPATCH(sum_of_sigmoids)(logits, a.experts);
}

/// Losses of rows lie in the workspace and are summed in order: the same for any number of threads.
void run_balance_loss(const OpInstance& op, const KernelArguments& a) {
  const int64_t experts = op.attributes.experts, rows = rows_of(op.inputs[0]);
  const RowMap map(op.attributes, a.context, rows);
  double* losses = static_cast<double*>(a.workspace);
  parallel_ranges(rows, row_grain(experts), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* logits = input(a, 0) + row * experts;
      const RowBalance balance(op, a, map, row);
      const Softmax softmax(logits, experts);
      const double log_sum_exp = softmax.log_sum_exp();
      losses[row] = balance.weight * mean_count(op.attributes, logits, balance.counts, softmax) +
                    balance.z_weight * log_sum_exp * log_sum_exp;
    }
  });
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) sum += losses[row];
  output<double>(a, 0)[0] += sum;
}

void balance_row_backward(const OpAttributes& a, const float* logits, const RowBalance& balance, float* dlogits) {
  const Softmax softmax(logits, a.experts);
  const double mean = mean_count(a, logits, balance.counts, softmax);
  const double z_factor = 2 * balance.z_weight * softmax.log_sum_exp();
  const float weight = static_cast<float>(balance.weight);
  if (!is_sigmoid(a)) {
    const float offset = static_cast<float>(z_factor - balance.weight * mean);
    scaled_exponentials(logits, softmax.largest, softmax.inverse(), dlogits, a.experts);
    HWY_DYNAMIC_DISPATCH(scale_by_weights)(weight, balance.counts, offset, dlogits, a.experts);
    return;
  }
  const double sum = HWY_DYNAMIC_DISPATCH(sum_of_sigmoids)(logits, a.experts);
  scaled_exponentials(logits, softmax.largest, static_cast<float>(z_factor / softmax.sum), dlogits, a.experts);
  HWY_DYNAMIC_DISPATCH(add_sigmoid_slopes)
  (logits, static_cast<float>(balance.weight / sum), balance.counts, static_cast<float>(-balance.weight * mean / sum),
   dlogits, a.experts);
}

void run_balance_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t experts = op.attributes.experts, rows = rows_of(op.inputs[0]);
  const RowMap map(op.attributes, a.context, rows);
  parallel_ranges(rows, row_grain(experts), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      balance_row_backward(op.attributes, input(a, 0) + row * experts, RowBalance(op, a, map, row),
                           output(a, 0) + row * experts);
    }
  });
}

void check_sequences(const OpInstance& op, const TensorType& stats) {
  const OpAttributes& a = op.attributes;
  const int64_t rows = rows_of(op.inputs[0]), all_rows = a.sequences * a.sequence_length;
  check_row_map(op, rows);
  if (a.experts < 2 || columns_of(op.inputs[0]) != a.experts)
    refuse_operator(op, "statistics need two experts or more");
  if (a.experts_per_token < 1) refuse_operator(op, "a token goes to no expert");
  if (rows_of(stats) != a.sequences) refuse_operator(op, "the statistics are not of all sequences");
  if (rows < 1 || (a.rows_cut ? all_rows % rows != 0 : all_rows != rows)) {
    refuse_operator(op, "the rows are no share of the sequences");
  }
}

void check_statistics(const OpInstance& op) {
  check_choice(op, op.inputs[0], op.inputs[1]);
  check_sequences(op, op.outputs[0]);
}
void check_balance(const OpInstance& op) { check_sequences(op, op.inputs[2]); }

}  // namespace

std::span<const CpuOp> router_balance_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::moe_statistics,
       .operands = "logits[T,E] index:i32[T,K] targets:i32[T] -> stats[N,3,E]",
       .run = run_statistics,
       .workspace = statistics_workspace,
       .check = check_statistics},
      {.kind = OpKind::moe_balance_loss,
       .operands = "logits[T,E] targets:i32[T] stats[N,3,E] -> loss:f64[1]",
       .run = run_balance_loss,
       .workspace = balance_workspace,
       .check = check_balance},
      {.kind = OpKind::moe_balance_backward,
       .operands = "logits[T,E] targets:i32[T] stats[N,3,E] -> dlogits[T,E]",
       .run = run_balance_backward,
       .check = check_balance},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
