// Routers of a mixture of experts: which experts a token goes to (Shazeer et al. 2017; in groups: DeepSeek-V2, section
// 2.1.2; with a correction bias: DeepSeek-V3, section 2.1.2), and what keeps them in use: the balance loss (Fedus et al.
// 2022, equation 4, of every sequence by itself as in DeepSeek-V3, equation 17) and the z loss (Zoph et al. 2022,
// equation 5).
//
// Where ops/op.h leaves a choice:
// - A score that is not a number counts as the largest: its expert is chosen and its gate shows it.
// - Equal groups: the lower one.
// - An index that is no expert stands for nothing.
// - The sum of the scores that normalised gates are divided by is taken 1e-20 larger, so that it is never 0.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "kernels/reference/reference.h"
#include "kernels/row_map.h"

namespace foresail::reference {
namespace {

constexpr double kLeastGateSum = 1e-20;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The scores that one row of logits gives the experts.
class Scores {
 public:
  Scores(const OpAttributes& attributes, const double* logits)
      : attributes_(attributes), logits_(logits), largest_(*std::max_element(logits, logits + attributes.experts)) {
    for (int64_t e = 0; e < attributes.experts; ++e) {
      exponentials_ += std::exp(logits[e] - largest_);
      sigmoids_ += sigmoid(e);
    }
  }

  bool is_sigmoid() const { return attributes_.scoring == RouterScoring::sigmoid; }
  double sigmoid(int64_t e) const { return 1 / (1 + std::exp(-logits_[e])); }
  double softmax(int64_t e) const { return std::exp(logits_[e] - largest_) / exponentials_; }
  double score(int64_t e) const { return is_sigmoid() ? sigmoid(e) : softmax(e); }
  /// Scores normalised to sum 1: what the balance loss takes.
  double probability(int64_t e) const { return is_sigmoid() ? sigmoid(e) / sigmoids_ : softmax(e); }
  double log_sum_exp() const { return largest_ + std::log(exponentials_); }

 private:
  const OpAttributes& attributes_;
  const double* logits_;
  double largest_, exponentials_ = 0, sigmoids_ = 0;
};

/// Chooses the experts of one row.
class Choice {
 public:
  Choice(const OpAttributes& attributes, const Scores& scores, const double* bias)
      : attributes_(attributes), scores_(scores), bias_(bias) {}

  void best(int32_t* index) const {
    for (int64_t k = 0; k < attributes_.experts_per_token; ++k) index[k] = best_besides(index, k);
  }

 private:
  double key(int64_t e) const {
    const double value = scores_.score(e) + (bias_ == nullptr ? 0 : bias_[e]);
    return std::isnan(value) ? kInfinity : value;
  }

  int64_t group_size() const { return attributes_.experts / attributes_.expert_groups; }

  double group_key(int64_t group) const {
    double best = -kInfinity, second = -kInfinity;
    for (int64_t e = group * group_size(); e < (group + 1) * group_size(); ++e) {
      second = std::max(second, std::min(best, key(e)));
      best = std::max(best, key(e));
    }
    const bool of_two = attributes_.group_score == GroupScore::sum_of_best_two && group_size() > 1;
    return of_two ? best + second : best;
  }

  /// Whether fewer groups than a token may use come before this one.
  bool in_use(int64_t group) const {
    int64_t before = 0;
    for (int64_t other = 0; other < attributes_.expert_groups; ++other) {
      const double own = group_key(group), its = group_key(other);
      if (its > own || (its == own && other < group)) ++before;
    }
    return before < attributes_.groups_per_token;
  }

  int32_t best_besides(const int32_t* taken, int64_t count) const {
    int64_t best = -1;
    for (int64_t e = 0; e < attributes_.experts; ++e) {
      const bool is_taken = std::find(taken, taken + count, static_cast<int32_t>(e)) != taken + count;
      if (is_taken || (best >= 0 && key(e) <= key(best)) || !in_use(e / group_size())) continue;
      best = e;
    }
    return static_cast<int32_t>(best);
  }

  const OpAttributes& attributes_;
  const Scores& scores_;
  const double* bias_;
};

bool is_expert(const OpAttributes& attributes, int32_t index) { return index >= 0 && index < attributes.experts; }

/// What the scores of the chosen experts are divided by.
double gate_sum(const OpAttributes& attributes, const Scores& scores, const int32_t* index) {
  if (!attributes.normalise_gates) return 1;
  double sum = kLeastGateSum;
  for (int64_t k = 0; k < attributes.experts_per_token; ++k) {
    if (is_expert(attributes, index[k])) sum += scores.score(index[k]);
  }
  return sum;
}

void moe_route(const Run& run) {
  const OpAttributes& a = run.attributes();
  for (int64_t t = 0; t < run.in_dim(0, 0); ++t) {
    const Scores scores(a, run.in(0) + t * a.experts);
    int32_t* index = run.ids(0) + t * a.experts_per_token;
    Choice(a, scores, run.has_input(1) ? run.in(1) : nullptr).best(index);
    const double factor = a.gate_scale / gate_sum(a, scores, index);
    double* gate = run.out(1) + t * a.experts_per_token;
    for (int64_t k = 0; k < a.experts_per_token; ++k) gate[k] = scores.score(index[k]) * factor;
  }
}

/// Gradient of the gates with respect to the logits of one row, through the scores of the chosen experts.
void route_row_backward(const OpAttributes& a, const double* dgate, const Scores& scores, const int32_t* index,
                        double* dlogits) {
  const double sum = gate_sum(a, scores, index);
  double mean = 0;  // of dgate, weighted by the normalised scores
  for (int64_t k = 0; a.normalise_gates && k < a.experts_per_token; ++k)
    mean += dgate[k] * scores.score(index[k]) / sum;
  double pull = 0;  // sum of dscore * score: what the other logits of a softmax feel
  std::fill(dlogits, dlogits + a.experts, 0.0);
  for (int64_t k = 0; k < a.experts_per_token; ++k) {
    if (!is_expert(a, index[k])) continue;
    const double score = scores.score(index[k]), dscore = a.gate_scale / sum * (dgate[k] - mean);
    dlogits[index[k]] = dscore * score * (scores.is_sigmoid() ? 1 - score : 1);
    pull += dscore * score;
  }
  if (scores.is_sigmoid() || a.normalise_gates) return;  // normalised gates do not change with what all scores share
  for (int64_t e = 0; e < a.experts; ++e) dlogits[e] -= scores.score(e) * pull;
}

void moe_route_backward(const Run& run) {
  const OpAttributes& a = run.attributes();
  for (int64_t t = 0; t < run.in_dim(1, 0); ++t) {
    const Scores scores(a, run.in(1) + t * a.experts);
    route_row_backward(a, run.in(0) + t * a.experts_per_token, scores, run.tokens(2) + t * a.experts_per_token,
                       run.out(0) + t * a.experts);
  }
}

void moe_statistics(const Run& run) {
  const OpAttributes& a = run.attributes();
  const int64_t rows = run.in_dim(0, 0);
  const RowMap map(a, run.context(), rows);
  std::fill(run.out(0), run.out(0) + run.op.outputs[0].elements(), 0.0);
  for (int64_t t = 0; t < rows; ++t) {
    ensure(map.sequence(t) < a.sequences, "rows belong to sequences of the micro-batch");
    const Scores scores(a, run.in(0) + t * a.experts);
    double* counts = run.out(0) + map.sequence(t) * 3 * a.experts;
    double *probabilities = counts + a.experts, *sizes = probabilities + a.experts;
    for (int64_t k = 0; k < a.experts_per_token; ++k) {
      const int32_t expert = run.tokens(1)[t * a.experts_per_token + k];
      if (is_expert(a, expert)) counts[expert] += 1;
    }
    for (int64_t e = 0; e < a.experts; ++e) probabilities[e] += scores.probability(e);
    sizes[0] += run.tokens(2)[t] >= 0 ? 1 : 0;
    sizes[1] += 1;
  }
}

/// What both losses of one row need to know of its sequence.
struct RowBalance {
  const double* counts;
  double weight = 0;    ///< of sum_e counts_e p_e in the balance loss
  double z_weight = 0;  ///< of the squared log-sum-exp

  RowBalance(const Run& run, const double* stats, const RowMap& map, int64_t t, int32_t target)
      : counts(stats + map.sequence(t) * 3 * run.attributes().experts) {
    const OpAttributes& a = run.attributes();
    const double valid = counts[2 * a.experts], rows = counts[2 * a.experts + 1];
    const bool backward = run.op.kind == OpKind::moe_balance_backward;
    const double of_token = backward ? run.step().gradient_weight() : run.step().inverse_valid_tokens;
    const double choices = static_cast<double>(a.experts_per_token) * rows;
    weight = of_token * valid * a.balance_coefficient * static_cast<double>(a.experts) / (choices * rows);
    z_weight = target >= 0 ? of_token * a.z_coefficient : 0;
  }
};

void moe_balance_loss(const Run& run) {
  const OpAttributes& a = run.attributes();
  const RowMap map(a, run.context(), run.in_dim(0, 0));
  double loss = 0;
  for (int64_t t = 0; t < run.in_dim(0, 0); ++t) {
    const Scores scores(a, run.in(0) + t * a.experts);
    const RowBalance row(run, run.in(2), map, t, run.tokens(1)[t]);
    for (int64_t e = 0; e < a.experts; ++e) loss += row.weight * row.counts[e] * scores.probability(e);
    loss += row.z_weight * scores.log_sum_exp() * scores.log_sum_exp();
  }
  run.out(0)[0] += loss;
}

void moe_balance_backward(const Run& run) {
  const OpAttributes& a = run.attributes();
  const RowMap map(a, run.context(), run.in_dim(0, 0));
  for (int64_t t = 0; t < run.in_dim(0, 0); ++t) {
    const Scores scores(a, run.in(0) + t * a.experts);
    const RowBalance row(run, run.in(2), map, t, run.tokens(1)[t]);
    double mean = 0;
    for (int64_t e = 0; e < a.experts; ++e) mean += row.weight * row.counts[e] * scores.probability(e);
    for (int64_t e = 0; e < a.experts; ++e) {
      const double slope = scores.probability(e) * (scores.is_sigmoid() ? 1 - scores.sigmoid(e) : 1);
      run.out(0)[t * a.experts + e] =
          slope * (row.weight * row.counts[e] - mean) + 2 * row.z_weight * scores.log_sum_exp() * scores.softmax(e);
    }
  }
}

void check_choice(const Run& run, int64_t experts, int64_t choices) {
  const OpAttributes& a = run.attributes();
  require(run, a.experts == experts && experts > 0, "the columns of the logits are not the experts");
  require(run, a.experts_per_token == choices, "the choices of a row are not experts_per_token");
  require(run, a.expert_groups > 0 && experts % a.expert_groups == 0, "the groups do not divide the experts");
  require(run, a.groups_per_token > 0 && a.groups_per_token <= a.expert_groups, "no such number of groups");
  require(run, choices > 0 && choices <= experts / a.expert_groups * a.groups_per_token,
          "a token's groups have fewer experts than it needs");
}

void check_route(const Run& run) { check_choice(run, run.in_dim(0, 1), run.out_dim(0, 1)); }
void check_route_backward(const Run& run) { check_choice(run, run.in_dim(1, 1), run.in_dim(2, 1)); }

void check_sequences(const Run& run, const TensorType& stats) {
  const OpAttributes& a = run.attributes();
  const int64_t rows = run.in_dim(0, 0), all_rows = a.sequences * a.sequence_length;
  require_row_map(run, rows);
  require(run, run.in_dim(0, 1) == a.experts && a.experts > 1, "statistics need two experts or more");
  require(run, a.experts_per_token > 0, "a token goes to no expert");
  require(run, stats.shape[0] == a.sequences, "the statistics are not of all sequences");
  require(run, rows > 0 && (a.rows_cut ? all_rows % rows == 0 : all_rows == rows),
          "the rows are no share of the sequences");
}

void check_statistics(const Run& run) {
  check_choice(run, run.in_dim(0, 1), run.in_dim(1, 1));
  check_sequences(run, run.op.outputs[0]);
}
void check_balance(const Run& run) { check_sequences(run, run.op.inputs[2]); }

constexpr Entry kKernels[] = {
    {OpKind::moe_route, "[T,E] ?[E] -> i32[T,K] [T,K]", moe_route, check_route},
    {OpKind::moe_route_backward, "[T,K] [T,E] i32[T,K] -> [T,E]", moe_route_backward, check_route_backward},
    {OpKind::moe_statistics, "[T,E] i32[T,K] i32[T] -> [B,3,E]", moe_statistics, check_statistics},
    {OpKind::moe_balance_loss, "[T,E] i32[T] [B,3,E] -> [1]", moe_balance_loss, check_balance},
    {OpKind::moe_balance_backward, "[T,E] i32[T] [B,3,E] -> [T,E]", moe_balance_backward, check_balance},
};

}  // namespace

std::span<const Entry> router_kernels() { return kKernels; }

}  // namespace foresail::reference
