// Softmax cross-entropy over a vocabulary whose columns may be cut over the tensor-parallel group (Shoeybi et al. 2019,
// section 3). The gradient replaces the logits. A row of logits is read from memory once and written once: its passes
// (maximum, exponentials and their sum, scaling) meet in cache.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/loss.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

float largest_of(const float* x, int64_t count) { return max_of(x, count); }

/// Sum of exp(x - shift).
float sum_of_exponentials(const float* x, float shift, int64_t count) {
  const V32 offset = set(shift);
  return sum_vectors(
      count, [=](auto part, int64_t i) { return part.keep(exp_of(hn::Sub(part.load(x + i), offset)), zero()); });
}

/// y = exp(x - shift); returns its sum.
float store_exponentials(const float* x, float shift, float* y, int64_t count) {
  const V32 offset = set(shift);
  return sum_vectors(count, [=](auto part, int64_t i) {
    const V32 e = part.keep(exp_of(hn::Sub(part.load(x + i), offset)), zero());
    part.store(e, y + i);
    return e;
  });
}

/// y = exp(x - shift) factor.
void scaled_exponentials(const float* x, float shift, float factor, float* y, int64_t count) {
  const V32 offset = set(shift), scale = set(factor);
  each_vector(count, [=](auto part, int64_t i) {
    part.store(hn::Mul(exp_of(hn::Sub(part.load(x + i), offset)), scale), y + i);
  });
}

void scale_range(float* x, float factor, int64_t count) {
  const V32 scale = set(factor);
  each_vector(count, [=](auto part, int64_t i) { part.store(hn::Mul(part.load(x + i), scale), x + i); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(largest_of);
HWY_EXPORT(sum_of_exponentials);
HWY_EXPORT(store_exponentials);
HWY_EXPORT(scaled_exponentials);
HWY_EXPORT(scale_range);

/// Which columns of this rank count: those of the logical vocabulary; the rest is padding.
struct Columns {
  int64_t all, valid, first;

  Columns(const OpInstance& op, const KernelContext& context)
      : all(columns_of(op.inputs[0])),
        valid(std::clamp<int64_t>(op.attributes.vocabulary - context.tensor_rank * all, 0, all)),
        first(context.tensor_rank * all) {}

  /// Column of this rank that is the target, or -1.
  int64_t target(int32_t token) const {
    const int64_t column = token - first;
    return token >= 0 && column >= 0 && column < valid ? column : -1;
  }
};

/// Ranks whose stats are given: [P,T,3]; a group of one may leave P out.
int64_t ranks_of(const OpInstance& op) {
  const auto& shape = op.inputs[2].shape;
  return shape.size() == 3 ? shape[0] : 1;
}

/// One row of stats.
struct RowStats {
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0;  ///< of exp(logit - largest)
  float target_logit = 0;
};

/// The row over the whole vocabulary, from stats [P, T, 3].
RowStats combine(const float* stats, int64_t ranks, int64_t rows, int64_t row) {
  RowStats whole;
  for (int64_t rank = 0; rank < ranks; ++rank) whole.largest = std::max(whole.largest, stats[(rank * rows + row) * 3]);
  double sum = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* part = stats + (rank * rows + row) * 3;
    if (part[1] != 0) sum += part[1] * std::exp(double{part[0]} - whole.largest);
    whole.target_logit += part[2];
  }
  whole.sum = static_cast<float>(sum);
  return whole;
}

/// Loss of a row that counts. Every rank could add it; rank 0 of the tensor-parallel group does.
double row_loss(const RowStats& row, const KernelContext& context) {
  if (context.tensor_rank != 0) return 0;
  return (std::log(double{row.sum}) + row.largest - row.target_logit) * context.step->inverse_valid_tokens;
}

/// Losses of rows lie in the workspace and are summed in order: the same for any number of threads.
void add_losses(const double* losses, int64_t rows, double* loss) {
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) sum += losses[row];
  *loss += sum;
}

int64_t loss_workspace(const OpInstance& op, int) {
  return rows_of(op.inputs[0]) * static_cast<int64_t>(sizeof(double));
}

void run_stats(const OpInstance& op, const KernelArguments& a) {
  const Columns columns(op, a.context);
  parallel_ranges(rows_of(op.inputs[0]), row_grain(columns.all), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* logits = input(a, 0) + row * columns.all;
      const int64_t target = columns.target(input<int32_t>(a, 1)[row]);
      float* stats = output(a, 0) + row * 3;
      stats[0] = HWY_DYNAMIC_DISPATCH(largest_of)(logits, columns.valid);
      stats[1] = HWY_DYNAMIC_DISPATCH(sum_of_exponentials)(logits, stats[0], columns.valid);
      stats[2] = target >= 0 ? logits[target] : 0;
    }
  });
}

/// The gradient of a row that is not counted, and of padding, is 0.
void finish_gradient(float* dlogits, int64_t valid, const Columns& columns, int64_t target, float weight) {
  std::fill(dlogits + valid, dlogits + columns.all, 0.0f);
  if (target >= 0) dlogits[target] -= weight;
}

void run_backward(const OpInstance& op, const KernelArguments& a) {
  const Columns columns(op, a.context);
  const int64_t rows = rows_of(op.inputs[0]), ranks = ranks_of(op);
  const double weight = a.context.step->gradient_weight();
  double* losses = static_cast<double*>(a.workspace);
  parallel_ranges(rows, row_grain(columns.all), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t token = input<int32_t>(a, 1)[row];
      const float* logits = input(a, 0) + row * columns.all;
      float* dlogits = output(a, 0) + row * columns.all;
      const RowStats whole = combine(input(a, 2), ranks, rows, row);
      const int64_t valid = token < 0 ? 0 : columns.valid;
      losses[row] = token < 0 ? 0 : row_loss(whole, a.context);
      HWY_DYNAMIC_DISPATCH(scaled_exponentials)
      (logits, whole.largest, static_cast<float>(weight / whole.sum), dlogits, valid);
      finish_gradient(dlogits, valid, columns, columns.target(token), static_cast<float>(weight));
    }
  });
  add_losses(losses, rows, output<double>(a, 1));
}

void run_loss(const OpInstance& op, const KernelArguments& a) {
  const int64_t rows = rows_of(op.inputs[0]), ranks = ranks_of(op);
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (input<int32_t>(a, 1)[row] >= 0) sum += row_loss(combine(input(a, 2), ranks, rows, row), a.context);
  }
  output<double>(a, 0)[0] += sum;
}

void run_fused(const OpInstance& op, const KernelArguments& a) {
  const Columns columns(op, a.context);
  const int64_t rows = rows_of(op.inputs[0]);
  const double weight = a.context.step->gradient_weight();
  double* losses = static_cast<double*>(a.workspace);
  parallel_ranges(rows, row_grain(columns.all), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t token = input<int32_t>(a, 1)[row];
      const float* logits = input(a, 0) + row * columns.all;
      float* dlogits = output(a, 0) + row * columns.all;
      const int64_t target = columns.target(token), valid = token < 0 ? 0 : columns.valid;
      losses[row] = 0;
      if (valid > 0) {
        RowStats whole;
        whole.target_logit = target >= 0 ? logits[target] : 0;
        whole.largest = HWY_DYNAMIC_DISPATCH(largest_of)(logits, valid);
        whole.sum = HWY_DYNAMIC_DISPATCH(store_exponentials)(logits, whole.largest, dlogits, valid);
        HWY_DYNAMIC_DISPATCH(scale_range)(dlogits, static_cast<float>(weight / whole.sum), valid);
        losses[row] = row_loss(whole, a.context);
      }
      finish_gradient(dlogits, valid, columns, target, static_cast<float>(weight));
    }
  });
  add_losses(losses, rows, output<double>(a, 1));
}

void check_vocabulary(const OpInstance& op) {
  if (op.attributes.vocabulary < 1) refuse_operator(op, "attribute vocabulary must be positive");
  if (op.kind == OpKind::cross_entropy_stats) return;
  const int64_t ranks = op.kind == OpKind::cross_entropy ? 1 : ranks_of(op);
  if (ranks * columns_of(op.inputs[0]) < op.attributes.vocabulary) {
    refuse_operator(op, "the columns of all ranks are fewer than the vocabulary");
  }
}

void check_group(const OpInstance& op) {
  const auto& shape = op.inputs[2].shape;
  const bool ranked = shape.size() == 3;
  if ((!ranked && shape.size() != 2) || shape.back() != 3 || shape[ranked ? 1 : 0] != rows_of(op.inputs[0])) {
    refuse_operator(op, "input stats is neither [P,T,3] nor [T,3]");
  }
  check_vocabulary(op);
}

}  // namespace

std::span<const CpuOp> loss_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::cross_entropy_stats,
       .operands = "logits[T,V] targets:i32[T] -> stats[T,3]",
       .run = run_stats,
       .check = check_vocabulary},
      {.kind = OpKind::cross_entropy_backward,
       .operands = "logits[T,V] targets:i32[T] stats[s*] -> dlogits[T,V] loss:f64[1]",
       .run = run_backward,
       .workspace = loss_workspace,
       .check = check_group},
      {.kind = OpKind::cross_entropy_loss,
       .operands = "logits[T,V] targets:i32[T] stats[s*] -> loss:f64[1]",
       .run = run_loss,
       .check = check_group},
      {.kind = OpKind::cross_entropy,
       .operands = "logits[T,V] targets:i32[T] -> dlogits[T,V] loss:f64[1]",
       .run = run_fused,
       .workspace = loss_workspace,
       .check = check_vocabulary},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
