#include "profiler/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "program/compile.h"

namespace foresail {
namespace {

ModelSpec model(int64_t layers) {
  ModelSpec spec;
  spec.name = "m";
  spec.family = "llama";
  spec.layers = layers, spec.hidden = 64, spec.heads = spec.kv_heads = 4, spec.head_dim = 16;
  spec.ffn = 128, spec.vocabulary = 257, spec.max_positions = 128;
  return spec;
}

TEST(Candidates, AreLegalAndUseEveryRank) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto list = replay_candidates({model(3)}, ranks, 0, 1 << 20);
    ASSERT_FALSE(list.empty());
    for (const ReplayCandidate& candidate : list) {
      EXPECT_TRUE(legal(candidate.model, candidate.job, candidate.strategy).empty()) << candidate.text();
      EXPECT_EQ(candidate.strategy.devices(), ranks);
      EXPECT_EQ(candidate.job.global_batch, candidate.strategy.dp * candidate.strategy.micro_batch);
    }
  }
}

TEST(Candidates, NamedModelsComeFirstWithEveryLegalDegreeOfTensorParallelism) {
  const auto list = replay_candidates({model(3)}, 4, 0, 1 << 20);
  const auto grid = std::find_if(list.begin(), list.end(), [](const auto& c) { return !c.named; });
  ASSERT_NE(grid, list.end());
  EXPECT_TRUE(std::none_of(grid, list.end(), [](const auto& c) { return c.named; }));
  std::set<std::pair<int64_t, int64_t>> shapes;
  for (auto it = list.begin(); it != grid; ++it) shapes.insert({it->strategy.tp, it->strategy.micro_batch});
  for (const int64_t tensor : {1, 2, 4}) {
    for (const int64_t micro_batch : micro_batches_for(128)) EXPECT_TRUE(shapes.count({tensor, micro_batch}));
  }
  EXPECT_LE(list[0].strategy.micro_batch, list[static_cast<size_t>(grid - list.begin()) - 1].strategy.micro_batch);
}

TEST(Candidates, HoldWhatOnlyVariantsRun) {
  EXPECT_TRUE(variant_strategies(1).empty());
  const auto list = replay_candidates({model(3)}, 4, 0, 1 << 20);
  const auto has = [&](const auto& is) {
    return std::any_of(list.begin(), list.end(), [&](const auto& c) { return c.named && is(c.strategy); });
  };
  EXPECT_TRUE(has([](const Strategy& s) { return s.tp == 2 && s.sequence_parallel; }));
  EXPECT_TRUE(has([](const Strategy& s) { return s.cp == 4 && s.context == ContextKind::ring; }));
  EXPECT_TRUE(has([](const Strategy& s) { return s.cp == 2 && s.tp == 2 && s.context == ContextKind::all_to_all; }));
  EXPECT_TRUE(has([](const Strategy& s) { return s.dp == 4 && s.zero_stage == 3; }));
}

TEST(Candidates, KindsThatOnlyMoveBytesBelongToStrategiesThatAreLegal) {
  const auto kinds_of = [](const Strategy& strategy) {
    const ModelSpec cut = model(2);
    const Job job = profiling_job(cut, 64, strategy.dp);
    EXPECT_TRUE(legal(cut, job, strategy).empty());
    std::set<OpKind> kinds;
    for (const Block& block : compile_train(cut, job, strategy, Target{}, 0).blocks) {
      for (const Instruction& instruction : block.instructions) kinds.insert(instruction.op);
    }
    return kinds;
  };
  const auto alone = moving_strategies(1), together = moving_strategies(2);
  ASSERT_EQ(alone.size(), 1u);
  ASSERT_EQ(together.size(), 2u);
  EXPECT_TRUE(kinds_of(alone[0]).count(OpKind::copy));
  EXPECT_TRUE(kinds_of(together[1]).count(OpKind::cast));
}

TEST(Candidates, TheGridHoldsOtherWidthsThanTheNamedModel) {
  std::set<int64_t> widths;
  for (const ReplayCandidate& candidate : replay_candidates({model(3)}, 1, 0, 1 << 20)) {
    if (!candidate.named) widths.insert(candidate.model.hidden);
  }
  EXPECT_GE(widths.size(), 3u);
  EXPECT_GT(*widths.rbegin(), 64);
}

TEST(Candidates, AModelIsCutToWhatOverflowsTheCache) {
  EXPECT_EQ(cut_to_depth(model(40), int64_t{1} << 40).layers, 40);
  EXPECT_EQ(cut_to_depth(model(40), 1).layers, 2);
  EXPECT_EQ(cut_to_depth(model(1), 1).layers, 1);
  const ModelSpec cut = cut_to_depth(model(40), 1 << 20);
  ModelSpec whole = model(40), empty = model(40);
  whole.layers = cut.layers, empty.layers = 0;
  EXPECT_GE(8 * (parameter_count(whole) - parameter_count(empty)), 4 << 20);
}

TEST(Candidates, AreNamedInWords) {
  std::set<std::string> texts;
  for (const ReplayCandidate& candidate : replay_candidates({model(40)}, 1, 0, 1)) texts.insert(candidate.text());
  EXPECT_TRUE(texts.count("m, 2 layers, dp=1 tp=1 pp=1 micro_batch=1 recompute=none"));
  EXPECT_TRUE(texts.count("m at 0.5 times its width, 2 layers, dp=1 tp=1 pp=1 micro_batch=4 recompute=none"));
}

TEST(Candidates, MicroBatchesDoubleUpToFourThousandTokens) {
  EXPECT_EQ(micro_batches_for(1024), (std::vector<int64_t>{1, 2, 4}));
  EXPECT_EQ(micro_batches_for(100000), (std::vector<int64_t>{1}));
}

}  // namespace
}  // namespace foresail
