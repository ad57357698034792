// Cross-entropy: its value, what is not counted, and that a vocabulary cut over ranks gives what one rank computes.
#include <algorithm>
#include <cmath>

#include "tests/kernels/reference_evaluate.h"

namespace foresail::kernel_tests {
namespace {

constexpr int64_t kRows = 5, kVocabulary = 7;
constexpr double kWeight = 1.0 / 4;

const std::vector<double> kTargets = {3, -1, 6, 0, 5};

OpAttributes loss_attributes(int64_t vocabulary = kVocabulary) {
  OpAttributes a;
  a.vocabulary = vocabulary;
  return a;
}

Place place_of(int32_t rank, int32_t size) {
  Place place;
  place.step.inverse_valid_tokens = kWeight;
  place.context.tensor_rank = rank;
  place.context.tensor_size = size;
  return place;
}

struct Loss {
  std::vector<double> dlogits;
  double loss = 0;
};

Loss whole(const Tensor& logits) {
  const auto outputs = evaluate(OpKind::cross_entropy, loss_attributes(), {logits, id_tensor(kTargets)},
                                {logits, constant_tensor({1}, 0)}, place_of(0, 1));
  return {outputs[0], outputs[1][0]};
}

/// Columns of one of `ranks` ranks; what is beyond the vocabulary is filled with a large number.
Tensor shard_of(const Tensor& logits, int32_t rank, int64_t columns) {
  Tensor shard = constant_tensor({kRows, columns}, 1e6);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t v = 0; v < columns && rank * columns + v < kVocabulary; ++v) {
      shard.values[static_cast<size_t>(t * columns + v)] =
          logits.values[static_cast<size_t>(t * kVocabulary + rank * columns + v)];
    }
  }
  return shard;
}

Tensor gathered_stats(const Tensor& logits, int32_t ranks, int64_t columns) {
  Tensor stats{{ranks, kRows, 3}, {}};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const auto part =
        evaluate(OpKind::cross_entropy_stats, loss_attributes(), {shard_of(logits, rank, columns), id_tensor(kTargets)},
                 {constant_tensor({kRows, 3}, 0)}, place_of(rank, ranks))[0];
    stats.values.insert(stats.values.end(), part.begin(), part.end());
  }
  return stats;
}

TEST(ReferenceLoss, IsTheMeanNegativeLogProbabilityOfCountedTargets) {
  const Tensor logits = random_tensor({kRows, kVocabulary}, 1);
  double expected = 0;
  for (size_t t = 0; t < kRows; ++t) {
    if (kTargets[t] < 0) continue;
    double sum = 0;
    for (size_t v = 0; v < kVocabulary; ++v) sum += std::exp(logits.values[t * kVocabulary + v]);
    expected -= std::log(std::exp(logits.values[t * kVocabulary + static_cast<size_t>(kTargets[t])]) / sum) * kWeight;
  }
  EXPECT_NEAR(whole(logits).loss, expected, 1e-14);
}

TEST(ReferenceLoss, GradientOfARowIsZeroInSumAndAbsentIfNotCounted) {
  const Loss result = whole(random_tensor({kRows, kVocabulary}, 1));
  for (size_t t = 0; t < kRows; ++t) {
    double sum = 0, magnitude = 0;
    for (size_t v = 0; v < kVocabulary; ++v) {
      sum += result.dlogits[t * kVocabulary + v];
      magnitude += std::abs(result.dlogits[t * kVocabulary + v]);
    }
    EXPECT_NEAR(sum, 0, 1e-15);
    EXPECT_EQ(magnitude > 0, kTargets[t] >= 0);
  }
}

TEST(ReferenceLoss, OfAVocabularyCutOverRanksEqualsTheWhole) {
  const Tensor logits = random_tensor({kRows, kVocabulary}, 1);
  const Loss expected = whole(logits);
  for (const auto& [ranks, columns] : {std::pair<int32_t, int64_t>{3, 3}, {3, 4}, {2, 7}, {1, 9}}) {
    const Tensor stats = gathered_stats(logits, ranks, columns);
    double loss = 0, loss_alone = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const Tensor shard = shard_of(logits, rank, columns);
      const auto outputs =
          evaluate(OpKind::cross_entropy_backward, loss_attributes(), {shard, id_tensor(kTargets), stats},
                   {shard, constant_tensor({1}, 10)}, place_of(rank, ranks));
      loss += outputs[1][0] - 10;
      loss_alone += evaluate(OpKind::cross_entropy_loss, loss_attributes(), {shard, id_tensor(kTargets), stats},
                             {constant_tensor({1}, 0)}, place_of(rank, ranks))[0][0];
      for (int64_t t = 0; t < kRows; ++t) {
        for (int64_t v = 0; v < columns; ++v) {
          const int64_t column = rank * columns + v;
          const double want =
              column < kVocabulary ? expected.dlogits[static_cast<size_t>(t * kVocabulary + column)] : 0;
          EXPECT_NEAR(outputs[0][static_cast<size_t>(t * columns + v)], want, 1e-15)
              << ranks << " ranks, column " << column;
        }
      }
    }
    EXPECT_NEAR(loss, expected.loss, 1e-14) << ranks << " ranks";
    EXPECT_NEAR(loss_alone, expected.loss, 1e-14) << ranks << " ranks";
  }
}

TEST(ReferenceLoss, IsAddedByTheFirstRankOfTheGroupAlone) {
  const Tensor logits = random_tensor({kRows, kVocabulary}, 1);
  const Tensor stats = gathered_stats(logits, 2, 4);
  const auto added = [&](int32_t rank) {
    return evaluate(OpKind::cross_entropy_loss, loss_attributes(),
                    {shard_of(logits, rank, 4), id_tensor(kTargets), stats}, {constant_tensor({1}, 0)},
                    place_of(rank, 2))[0][0];
  };
  EXPECT_GT(added(0), 0);
  EXPECT_EQ(added(1), 0);
}

TEST(ReferenceLoss, StatisticsAreMaximumSumAndTargetLogit) {
  const Tensor logits{{2, 3}, {1, 3, 2, 4, 4, 9}};
  const auto stats = evaluate(OpKind::cross_entropy_stats, loss_attributes(5), {logits, id_tensor({4, 1})},
                              {constant_tensor({2, 3}, 0)}, place_of(1, 2))[0];  // columns 3, 4 and one of padding
  EXPECT_TRUE(all_near(stats, {3, std::exp(-2.0) + 1, 3, 4, 2, 0}, 1e-15));
}

TEST(ReferenceLoss, RankOfPaddingAloneReportsAnEmptySum) {
  const auto stats =
      evaluate(OpKind::cross_entropy_stats, loss_attributes(4), {constant_tensor({1, 4}, 8), id_tensor({1})},
               {constant_tensor({1, 3}, 0)}, place_of(1, 2))[0];
  EXPECT_EQ(stats[0], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(stats[1], 0);
  EXPECT_EQ(stats[2], 0);
}

TEST(ReferenceLoss, HugeLogitsStayFinite) {
  Tensor logits = random_tensor({kRows, kVocabulary}, 1);
  for (double& value : logits.values) value = value * 1e3 + 1e5;
  const Loss result = whole(logits);
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_TRUE(std::all_of(result.dlogits.begin(), result.dlogits.end(), [](double x) { return std::isfinite(x); }));
}

}  // namespace
}  // namespace foresail::kernel_tests
