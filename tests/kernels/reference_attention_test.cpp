// What attention computes: who sees whom, the log-sum-exp, grouped heads, dropout, and that the unfused operators
// compute the same.
#include <cmath>

#include "tests/kernels/reference_evaluate.h"

namespace foresail::kernel_tests {
namespace {

constexpr int64_t kSequences = 2, kLength = 6, kHeads = 4, kHeadDim = 3;

OpAttributes attention_attributes(int64_t kv_heads, int64_t window = 0) {
  OpAttributes a;
  a.sequence_length = kLength;
  a.heads = kHeads;
  a.kv_heads = kv_heads;
  a.head_dim = kHeadDim;
  a.scale = 0.6;
  a.window = window;
  a.random_site = 2;
  return a;
}

int64_t width(const OpAttributes& a) { return (a.heads + 2 * a.kv_heads) * a.head_dim; }

Tensor packed(const OpAttributes& a, int64_t sequences = kSequences) {
  return random_tensor({sequences * a.sequence_length, width(a)}, 1);
}

struct Attended {
  std::vector<double> o, lse;
};

Attended attend(const OpAttributes& a, const Tensor& qkv, const Place& place = {}) {
  const int64_t rows = qkv.shape[0];
  const auto outputs = evaluate(OpKind::attention, a, {qkv},
                                {constant_tensor({rows, a.heads * a.head_dim}, 0),
                                 constant_tensor({rows / a.sequence_length, a.heads, a.sequence_length}, 0)},
                                place);
  return {outputs[0], outputs[1]};
}

/// The same by scores, softmax, dropout and context.
std::vector<double> attend_unfused(const OpAttributes& a, const Tensor& qkv, const Place& place) {
  const int64_t rows = qkv.shape[0];
  Tensor scores = constant_tensor({rows / a.sequence_length, a.heads, a.sequence_length, a.sequence_length}, 0);
  scores.values = evaluate(OpKind::attention_scores, a, {qkv}, {scores}, place)[0];
  scores.values = evaluate(OpKind::attention_softmax, a, {scores}, {scores}, place)[0];
  if (a.probability > 0) scores.values = evaluate(OpKind::dropout, a, {scores}, {scores}, place)[0];
  return evaluate(OpKind::attention_context, a, {scores, qkv}, {constant_tensor({rows, a.heads * a.head_dim}, 0)},
                  place)[0];
}

Place dropout_place() {
  Place place;
  place.step.seed = 11;
  place.step.step = 5;
  place.context.layer = 3;
  place.context.first_row = 4 * kLength;
  return place;
}

double key_product(const OpAttributes& a, const Tensor& qkv, int64_t query_row, int64_t key_row, int64_t head) {
  double sum = 0;
  const int64_t kv = a.heads + head / (a.heads / a.kv_heads);
  for (int64_t d = 0; d < a.head_dim; ++d) {
    sum += qkv.values[static_cast<size_t>(query_row * width(a) + head * a.head_dim + d)] *
           qkv.values[static_cast<size_t>(key_row * width(a) + kv * a.head_dim + d)];
  }
  return sum;
}

TEST(ReferenceAttention, LogSumExpIsThatOfTheVisibleScaledProducts) {
  for (const int64_t window : {0, 2}) {
    const OpAttributes a = attention_attributes(2, window);
    const Tensor qkv = packed(a);
    const Attended result = attend(a, qkv);
    for (int64_t b = 0; b < kSequences; ++b) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t i = 0; i < kLength; ++i) {
          double sum = 0;
          for (int64_t j = window > 0 ? std::max<int64_t>(0, i - window + 1) : 0; j <= i; ++j) {
            sum += std::exp(a.scale * key_product(a, qkv, b * kLength + i, b * kLength + j, h));
          }
          EXPECT_NEAR(result.lse[static_cast<size_t>((b * kHeads + h) * kLength + i)], std::log(sum), 1e-13);
        }
      }
    }
  }
}

TEST(ReferenceAttention, FirstTokenOfEverySequenceSeesOnlyItself) {
  const OpAttributes a = attention_attributes(kHeads);
  const Tensor qkv = packed(a);
  const Attended result = attend(a, qkv);
  for (int64_t b = 0; b < kSequences; ++b) {
    for (int64_t c = 0; c < kHeads * kHeadDim; ++c) {
      EXPECT_NEAR(result.o[static_cast<size_t>(b * kLength * kHeads * kHeadDim + c)],
                  qkv.values[static_cast<size_t>(b * kLength * width(a) + 2 * kHeads * kHeadDim + c)], 1e-14);
    }
  }
}

/// Rows of o that change when a row of qkv's keys and values changes.
std::vector<int64_t> rows_that_see(const OpAttributes& a, int64_t changed_row) {
  Tensor qkv = packed(a);
  const Attended before = attend(a, qkv);
  for (int64_t c = a.heads * a.head_dim; c < width(a); ++c)
    qkv.values[static_cast<size_t>(changed_row * width(a) + c)] += 1;
  const Attended after = attend(a, qkv);
  std::vector<int64_t> rows;
  const int64_t columns = a.heads * a.head_dim;
  for (int64_t row = 0; row < kSequences * kLength; ++row) {
    bool changed = false;
    for (int64_t c = 0; c < columns; ++c) {
      changed = changed ||
                before.o[static_cast<size_t>(row * columns + c)] != after.o[static_cast<size_t>(row * columns + c)];
    }
    if (changed) rows.push_back(row);
  }
  return rows;
}

TEST(ReferenceAttention, KeysAreSeenByTheirOwnAndLaterRowsOfTheSequence) {
  EXPECT_EQ(rows_that_see(attention_attributes(2), 2), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(rows_that_see(attention_attributes(2), kLength + 4), (std::vector<int64_t>{10, 11}));
}

TEST(ReferenceAttention, WindowEndsTheSight) {
  EXPECT_EQ(rows_that_see(attention_attributes(2, 3), 1), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(rows_that_see(attention_attributes(2, 1), 1), (std::vector<int64_t>{1}));
}

TEST(ReferenceAttention, GroupedHeadsEqualRepeatedKeyAndValueHeads) {
  const OpAttributes grouped = attention_attributes(2), plain = attention_attributes(kHeads);
  const Tensor qkv = packed(grouped);
  Tensor repeated = constant_tensor({kSequences * kLength, width(plain)}, 0);
  for (int64_t row = 0; row < kSequences * kLength; ++row) {
    for (int64_t head = 0; head < 3 * kHeads; ++head) {
      // query heads stay; KV head g stands for query heads 2g and 2g + 1
      const int64_t source =
          head < kHeads ? head : kHeads + (head < 2 * kHeads ? (head - kHeads) / 2 : 2 + (head - 2 * kHeads) / 2);
      for (int64_t d = 0; d < kHeadDim; ++d) {
        repeated.values[static_cast<size_t>(row * width(plain) + head * kHeadDim + d)] =
            qkv.values[static_cast<size_t>(row * width(grouped) + source * kHeadDim + d)];
      }
    }
  }
  EXPECT_TRUE(all_near(attend(grouped, qkv).o, attend(plain, repeated).o, 1e-14));
}

TEST(ReferenceAttention, LargeScoresNeitherOverflowNorLoseTheSum) {
  OpAttributes a = attention_attributes(kHeads);
  Tensor qkv = packed(a);
  for (double& value : qkv.values) value *= 100;
  const Attended result = attend(a, qkv);
  for (const double value : result.o) EXPECT_TRUE(std::isfinite(value));
  for (const double value : result.lse) EXPECT_TRUE(std::isfinite(value));
}

TEST(ReferenceAttention, UnfusedOperatorsComputeTheSame) {
  for (const int64_t window : {0, 3}) {
    for (const double probability : {0.0, 0.4}) {
      OpAttributes a = attention_attributes(2, window);
      a.probability = probability;
      const Tensor qkv = packed(a);
      EXPECT_TRUE(all_near(attend(a, qkv, dropout_place()).o, attend_unfused(a, qkv, dropout_place()), 1e-14))
          << "window " << window << " dropout " << probability;
    }
  }
}

TEST(ReferenceAttention, DropoutChangesTheOutputButNotTheLogSumExp) {
  OpAttributes a = attention_attributes(2);
  const Tensor qkv = packed(a);
  const Attended whole = attend(a, qkv, dropout_place());
  a.probability = 0.4;
  const Attended dropped = attend(a, qkv, dropout_place());
  EXPECT_EQ(whole.lse, dropped.lse);
  EXPECT_FALSE(all_near(whole.o, dropped.o, 0.1));
}

/// Columns [begin, end) of every row.
Tensor columns_of(const Tensor& tensor, std::vector<std::pair<int64_t, int64_t>> ranges) {
  Tensor result{{tensor.shape[0], 0}, {}};
  for (const auto& [begin, end] : ranges) result.shape[1] += end - begin;
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    for (const auto& [begin, end] : ranges) {
      const auto first = tensor.values.begin() + row * tensor.shape[1];
      result.values.insert(result.values.end(), first + begin, first + end);
    }
  }
  return result;
}

TEST(ReferenceAttention, DropoutDoesNotDependOnHowHeadsAreSharded) {
  OpAttributes a = attention_attributes(2);
  a.probability = 0.4;
  const Tensor qkv = packed(a);
  const Tensor whole{{kSequences * kLength, kHeads * kHeadDim}, attend(a, qkv, dropout_place()).o};
  OpAttributes half = a;
  half.heads = 2;
  half.kv_heads = 1;
  for (int32_t rank = 0; rank < 2; ++rank) {
    Place place = dropout_place();
    place.context.tensor_rank = rank;
    place.context.tensor_size = 2;
    const int64_t q = rank * 2 * kHeadDim, k = (kHeads + rank) * kHeadDim, v = (kHeads + 2 + rank) * kHeadDim;
    const Tensor shard = columns_of(qkv, {{q, q + 2 * kHeadDim}, {k, k + kHeadDim}, {v, v + kHeadDim}});
    const Tensor expected = columns_of(whole, {{q, q + 2 * kHeadDim}});
    EXPECT_TRUE(all_near(attend(half, shard, place).o, expected.values, 1e-14)) << "rank " << rank;
    EXPECT_TRUE(all_near(attend_unfused(half, shard, place), expected.values, 1e-14)) << "rank " << rank;
  }
}

TEST(ReferenceAttention, DropoutDoesNotDependOnMicroBatches) {
  OpAttributes a = attention_attributes(2);
  a.probability = 0.4;
  const Tensor qkv = packed(a);
  const std::vector<double> whole = attend(a, qkv, dropout_place()).o;
  Place second = dropout_place();
  second.context.first_row += kLength;
  const Tensor rows{{kLength, width(a)}, {qkv.values.begin() + kLength * width(a), qkv.values.end()}};
  const std::vector<double> expected(whole.begin() + kLength * kHeads * kHeadDim, whole.end());
  EXPECT_TRUE(all_near(attend(a, rows, second).o, expected, 0));
}

TEST(ReferenceAttention, MaskedProbabilitiesAndScoreGradientsAreZero) {
  const Tensor scores = random_tensor({1, 1, 4, 4}, 2);
  OpAttributes a;
  a.window = 2;
  const auto p = evaluate(OpKind::attention_softmax, a, {scores}, {scores})[0];
  const Tensor probabilities{scores.shape, p};
  const auto ds =
      evaluate(OpKind::attention_softmax_backward, a, {random_tensor({1, 1, 4, 4}, 3), probabilities}, {scores})[0];
  for (int64_t i = 0; i < 4; ++i) {
    double row = 0, gradient = 0;
    for (int64_t j = 0; j < 4; ++j) {
      const size_t at = static_cast<size_t>(i * 4 + j);
      const bool visible = j <= i && j > i - 2;
      EXPECT_EQ(p[at] > 0, visible);
      if (!visible) {
        EXPECT_EQ(ds[at], 0);
      }
      row += p[at];
      gradient += ds[at];
    }
    EXPECT_NEAR(row, 1, 1e-15);
    EXPECT_NEAR(gradient, 0, 1e-15);
  }
}

}  // namespace
}  // namespace foresail::kernel_tests
