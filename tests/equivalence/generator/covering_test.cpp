// The generated strategies are many, legal, and leave no possible pair of features out.
#include "tests/equivalence/generator/covering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>

#include "program/compile.h"

namespace foresail::testing {
namespace {

constexpr size_t kAtLeast = 150;

/// Calls body(row) for every combination of the values of `factors`, the others at 0, until it returns true.
template <typename Body>
bool any_row(const std::vector<Factor>& factors, const Body& body) {
  Row row;
  while (true) {
    if (body(row)) return true;
    size_t at = 0;
    while (at < factors.size() && ++row[factors[at]] == values_of(factors[at]).size()) row[factors[at++]] = 0;
    if (at == factors.size()) return false;
  }
}

std::vector<Factor> factors_between(size_t begin, size_t end) {
  std::vector<Factor> factors;
  for (size_t f = begin; f < end; ++f) factors.push_back(static_cast<Factor>(f));
  return factors;
}

/// Whether some possible row has both values: an exhaustive walk over the structures, and beside each over the rest.
class Possible {
 public:
  Possible() {
    any_row(factors_between(0, kStructuralFactors), [&](const Row& row) {
      if (structure_is_possible(row)) structures_.push_back(row);
      return false;
    });
  }

  bool operator()(const ValuePair& pair) const {
    return std::any_of(structures_.begin(), structures_.end(), [&](const Row& structure) {
      if (!agrees(structure, pair.first, pair.first_value) || !agrees(structure, pair.second, pair.second_value)) {
        return false;
      }
      return any_row(factors_between(kStructuralFactors, kFactors), [&](Row row) {
        std::copy_n(structure.values.begin(), kStructuralFactors, row.values.begin());
        return contains(row, pair) && rest_is_possible(row);
      });
    });
  }

 private:
  static bool agrees(const Row& structure, Factor factor, uint8_t value) {
    return static_cast<size_t>(factor) >= kStructuralFactors || structure[factor] == value;
  }

  std::vector<Row> structures_;
};

class CoveringRows : public ::testing::TestWithParam<uint64_t> {
 protected:
  const std::vector<Row> rows_ = covering_rows(GetParam(), kAtLeast);
};

TEST_P(CoveringRows, HoldEveryPossiblePairOfValues) {
  const Possible possible;
  size_t impossible = 0;
  const std::vector<ValuePair> pairs = all_pairs();
  for (const ValuePair& pair : pairs) {
    if (std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) { return contains(row, pair); })) continue;
    ++impossible;
    EXPECT_FALSE(possible(pair)) << "no case has " << text_of(pair);
  }
  std::cout << pairs.size() << " pairs, " << impossible << " of which no legal strategy has\n";
  EXPECT_GE(rows_.size(), kAtLeast);
}

/// What a case is named after is what its experiment does.
TEST_P(CoveringRows, BecomeTheExperimentsThatTheyDescribe) {
  for (const Row& row : rows_) {
    const Experiment experiment = experiment_of(row, "cpu");
    const Strategy& strategy = experiment.strategy;
    EXPECT_TRUE(legal(experiment.model, experiment.job, strategy).empty()) << to_text(strategy);
    EXPECT_EQ(std::to_string(strategy.tp), values_of(Factor::tp)[row[Factor::tp]]);
    EXPECT_EQ(strategy.cp > 1, row[Factor::context] != 0);
    EXPECT_EQ(strategy.context == ContextKind::all_to_all, row[Factor::context] == 3);
    EXPECT_EQ(strategy.zero_stage, row[Factor::zero_stage]);
    EXPECT_EQ(strategy.zero_group, row[Factor::zero_group] != 0 ? 2 : 0);
    EXPECT_EQ(mesh_of(experiment.model, strategy).kv_copies > 1, row[Factor::kv_copies] != 0);
    EXPECT_EQ(strategy.ragged_batch, experiment.job.global_batch % (strategy.dp * strategy.micro_batch) != 0);
    EXPECT_EQ(strategy.recompute_layers.empty(), row[Factor::recompute] != 3);
    EXPECT_EQ(strategy.bucket_bytes > 0, row[Factor::overlap] == 2);
    EXPECT_EQ(strategy.reduce_dtype.has_value(), row[Factor::reduce_dtype] != 0);
    EXPECT_EQ(strategy.accumulate_dtype.has_value(), row[Factor::accumulate_dtype] != 0);
    EXPECT_LE(strategy.devices(), kMostRanks);
  }
}

TEST_P(CoveringRows, NeedFewLargeMeshes) {
  std::map<int64_t, size_t> by_ranks;
  for (const Row& row : rows_) ++by_ranks[experiment_of(row, "cpu").strategy.devices()];
  EXPECT_LT(by_ranks[8], rows_.size() / 5);
}

TEST_P(CoveringRows, AreTheSameForTheSameSeed) { EXPECT_EQ(rows_, covering_rows(GetParam(), kAtLeast)); }

INSTANTIATE_TEST_SUITE_P(Seeds, CoveringRows, ::testing::Values(1, 2));

}  // namespace
}  // namespace foresail::testing
