// Cross-entropy over a vocabulary whose columns are cut over the tensor-parallel group (Shoeybi et al. 2019, section
// 3): every rank reports (max, sum exp, target logit) of its columns; the group's reports give the loss and the
// gradient.
//
// Where ops/op.h leaves a choice:
// - A column is padding if tensor_rank * V + column >= vocabulary. Padding is in no maximum and no sum, and its
//   gradient is 0. A rank that holds only padding reports (-inf, 0, 0).
// - The target logit of a rank that does not hold the target, or of a row that is not counted (target < 0), is 0. So is
//   that of a target >= vocabulary, which no valid data set has.
// - A group of one rank may give its stats without the leading dimension: [T, 3].
// - Every rank of the group computes the same loss; only tensor rank 0 adds it, in all kernels of the family.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/reference.h"

namespace foresail::reference {
namespace {

/// Columns of this rank that are no padding.
int64_t valid_columns(const Run& run, int64_t columns) {
  const int64_t left = run.attributes().vocabulary - run.context().tensor_rank * columns;
  return std::clamp<int64_t>(left, 0, columns);
}

/// Column of this rank that is the target, or -1.
int64_t local_target(const Run& run, int32_t target, int64_t columns) {
  if (target < 0) return -1;
  const int64_t column = target - run.context().tensor_rank * columns;
  return column >= 0 && column < valid_columns(run, columns) ? column : -1;
}

/// What a rank knows of one row: the three columns of `stats`.
struct RowStats {
  double largest = -std::numeric_limits<double>::infinity();
  double sum = 0;  ///< of exp(logit - largest)
  double target_logit = 0;

  double log_sum_exp() const { return largest + std::log(sum); }
};

RowStats row_stats(const Run& run, const double* logits, int64_t columns, int32_t target) {
  const int64_t valid = valid_columns(run, columns), column = local_target(run, target, columns);
  RowStats stats;
  for (int64_t v = 0; v < valid; ++v) stats.largest = std::max(stats.largest, logits[v]);
  for (int64_t v = 0; v < valid; ++v) stats.sum += std::exp(logits[v] - stats.largest);
  if (column >= 0) stats.target_logit = logits[column];
  return stats;
}

/// Ranks whose reports are gathered in `stats`.
int64_t group_size(const Run& run) { return run.op.inputs[2].shape.size() == 3 ? run.in_dim(2, 0) : 1; }

/// The same for the whole vocabulary, from stats [P, T, 3].
RowStats combine(const double* stats, int64_t ranks, int64_t rows, int64_t row) {
  RowStats all;
  for (int64_t p = 0; p < ranks; ++p) all.largest = std::max(all.largest, stats[(p * rows + row) * 3]);
  for (int64_t p = 0; p < ranks; ++p) {
    const double* part = stats + (p * rows + row) * 3;
    if (part[1] > 0) all.sum += part[1] * std::exp(part[0] - all.largest);
    all.target_logit += part[2];
  }
  return all;
}

/// dlogits = (softmax - onehot) * weight; the logits' buffer may be the gradient's.
void gradient_row(const Run& run, const double* logits, int64_t columns, int32_t target, const RowStats& all,
                  double* dlogits) {
  const int64_t valid = target < 0 ? 0 : valid_columns(run, columns);
  const double weight = run.step().gradient_weight(), log_sum_exp = all.log_sum_exp();
  for (int64_t v = 0; v < valid; ++v) dlogits[v] = std::exp(logits[v] - log_sum_exp) * weight;
  std::fill(dlogits + valid, dlogits + columns, 0.0);
  const int64_t column = local_target(run, target, columns);
  if (column >= 0) dlogits[column] -= weight;
}

double row_loss(const Run& run, int32_t target, const RowStats& all) {
  if (target < 0 || run.context().tensor_rank != 0) return 0;
  return (all.log_sum_exp() - all.target_logit) * run.step().inverse_valid_tokens;
}

void cross_entropy_stats(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), columns = run.in_dim(0, 1);
  for (int64_t t = 0; t < rows; ++t) {
    const RowStats stats = row_stats(run, run.in(0) + t * columns, columns, run.tokens(1)[t]);
    double* out = run.out(0) + t * 3;
    out[0] = stats.largest;
    out[1] = stats.sum;
    out[2] = stats.target_logit;
  }
}

void cross_entropy_backward(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), columns = run.in_dim(0, 1), ranks = group_size(run);
  double loss = 0;
  for (int64_t t = 0; t < rows; ++t) {
    const RowStats all = combine(run.in(2), ranks, rows, t);
    const int32_t target = run.tokens(1)[t];
    loss += row_loss(run, target, all);
    gradient_row(run, run.in(0) + t * columns, columns, target, all, run.out(0) + t * columns);
  }
  run.out(1)[0] += loss;
}

void cross_entropy_loss(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), ranks = group_size(run);
  double loss = 0;
  for (int64_t t = 0; t < rows; ++t) loss += row_loss(run, run.tokens(1)[t], combine(run.in(2), ranks, rows, t));
  run.out(0)[0] += loss;
}

void cross_entropy(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), columns = run.in_dim(0, 1);
  double loss = 0;
  for (int64_t t = 0; t < rows; ++t) {
    const double* logits = run.in(0) + t * columns;
    const int32_t target = run.tokens(1)[t];
    const RowStats all = row_stats(run, logits, columns, target);
    loss += row_loss(run, target, all);
    gradient_row(run, logits, columns, target, all, run.out(0) + t * columns);
  }
  run.out(1)[0] += loss;
}

void check_vocabulary(const Run& run) {
  require(run, run.attributes().vocabulary > 0, "the vocabulary is not positive");
}

void check_group(const Run& run) {
  check_vocabulary(run);
  require(run, group_size(run) * run.in_dim(0, 1) >= run.attributes().vocabulary,
          "the columns of all ranks are fewer than the vocabulary");
}

void check_one_rank(const Run& run) {
  check_vocabulary(run);
  require(run, run.in_dim(0, 1) >= run.attributes().vocabulary, "the columns are fewer than the vocabulary");
}

constexpr Entry kKernels[] = {
    {OpKind::cross_entropy_stats, "[T,V] i32[T] -> [T,3]", cross_entropy_stats, check_vocabulary},
    {OpKind::cross_entropy_backward, "[T,V] i32[T] [P,T,3|T,3] -> [T,V] [1]", cross_entropy_backward, check_group},
    {OpKind::cross_entropy_loss, "[T,V] i32[T] [P,T,3|T,3] -> [1]", cross_entropy_loss, check_group},
    {OpKind::cross_entropy, "[T,V] i32[T] -> [T,V] [1]", cross_entropy, check_one_rank},
};

}  // namespace

std::span<const Entry> loss_kernels() { return kKernels; }

}  // namespace foresail::reference
