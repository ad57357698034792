// What plans say about a model with experts: their degrees are searched, their communication has its own time, and the
// Program that repeats an overflowing step is part of the memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "planner/search/evaluate.h"
#include "planner/search/search.h"
#include "planner/search/space.h"
#include "program/check.h"
#include "program/compile.h"
#include "tests/planner/synthetic_machine.h"

namespace foresail {
namespace {

using namespace test;

SearchRequest expert_request(std::vector<int64_t> counts, double memory_bytes = 16e9) {
  SearchRequest request;
  request.model = small_model(), request.job = small_job();
  request.model.family = "mixtral";
  request.model.moe.experts = 8;
  request.model.moe.experts_per_token = 2;
  request.model.moe.expert_ffn = request.model.ffn / 2;
  request.model.moe.balance_coefficient = 0.01;
  request.machine = small_cluster(memory_bytes), request.stack = plain_stack();
  request.device_counts = std::move(counts);
  return request;
}

Candidate plan_of(const SearchRequest& request, const std::string& strategy) {
  return evaluate(request.model, request.job, request.machine, request.stack, parse_strategy(strategy).strategy, false)
      .candidate;
}

TEST(ExpertPlan, ExchangeOfRowsIsExpertCommunication) {
  const SearchRequest request = expert_request({4});
  EXPECT_EQ(plan_of(request, "dp=4,micro_batch=1").predicted.time.expert_comm, 0);
  EXPECT_GT(plan_of(request, "dp=4,ep=4,micro_batch=1").predicted.time.expert_comm, 0);
  EXPECT_GT(plan_of(request, "dp=4,etp=2,micro_batch=1").predicted.time.expert_comm, 0);
}

TEST(ExpertPlan, SharedExpertsTakeLessMemoryAndNoReductionOverThoseWhoShareThem) {
  const SearchRequest request = expert_request({4});
  const Candidate copied = plan_of(request, "dp=4,micro_batch=1"), cut = plan_of(request, "dp=4,ep=4,micro_batch=1");
  EXPECT_LT(cut.predicted.memory.parameters, copied.predicted.memory.parameters / 2);
  EXPECT_LT(cut.predicted.time.data_comm, copied.predicted.time.data_comm);
}

TEST(ExpertPlan, TheArenaThatIsPredictedHoldsTheFallback) {
  const SearchRequest request = expert_request({4});
  for (const char* text : {"dp=4,ep=4,micro_batch=1,moe_bound=1", "dp=2,pp=2,ep=2,micro_batch=2,moe_bound=1",
                           "dp=2,tp=2,sequence_parallel=true,ep=4,micro_batch=1"}) {
    const Strategy strategy = parse_strategy(text).strategy;
    const Target target = target_for(request.machine, request.stack, strategy.devices());
    int64_t largest = 0;
    for (int stage = 0; stage < strategy.pp; ++stage) {
      const ProgramSet set = compile(request.model, request.job, strategy, target, stage);
      EXPECT_EQ(set.fallback.size(), 1u) << text;
      EXPECT_GT(set.fallback.at(0).arena.bytes, set.train.arena.bytes) << text;
      largest = std::max(largest, arena_bytes_of(set));
    }
    EXPECT_EQ(plan_of(request, text).predicted.arena_bytes, largest) << text;
  }
}

TEST(ExpertPlan, TheSpaceHoldsEveryDegreeOfExpertsThatFits) {
  std::set<std::pair<int64_t, int64_t>> seen;
  for (const Strategy& strategy : space_of(expert_request({8}), 8).strategies) {
    seen.emplace(strategy.ep, strategy.etp);
    EXPECT_EQ(strategy.sequence_parallel, strategy.tp > 1) << to_text(strategy);
  }
  for (const auto& degrees : {std::pair{1, 1}, {2, 1}, {4, 1}, {8, 1}, {1, 2}, {2, 2}, {4, 2}}) {
    EXPECT_TRUE(seen.count(degrees)) << degrees.first << " x " << degrees.second;
  }
}

TEST(ExpertPlan, BoundsHold) {
  const SearchRequest request = expert_request({8});
  const auto costs = costs_for(request.machine, request.stack, 8);
  MemoryBound bound(request.model, request.job);
  const std::vector<Strategy> strategies = space_of(request, 8).strategies;
  for (size_t i = 0; i < strategies.size(); i += 37) {
    const Strategy& strategy = strategies[i];
    const Evaluation e = evaluate(request.model, request.job, request.machine, request.stack, strategy, false);
    const double step = e.candidate.predicted.step_seconds * (1 + 1e-12);
    const Target target = target_for(request.machine, request.stack, 8);
    const Program plain = compile_train(request.model, request.job, plain_variant(strategy, true), target, 0);
    EXPECT_LE(product_seconds(plain, *costs), step) << to_text(strategy);
    EXPECT_LE(bound.bytes(strategy), e.programs[0].arena.bytes) << to_text(strategy);
    for (const Program& program : e.programs) EXPECT_TRUE(check_program(program).empty()) << to_text(strategy);
  }
}

TEST(ExpertPlan, BoundsChangeTheWorkButNotTheAnswer) {
  SearchRequest request = expert_request({4});
  request.top = 3;
  const SearchResult pruned = search(request);
  request.prune = false;
  const SearchResult whole = search(request);
  ASSERT_FALSE(whole.plans.empty());
  ASSERT_EQ(pruned.plans.size(), whole.plans.size());
  for (size_t i = 0; i < whole.plans.size(); ++i) EXPECT_EQ(pruned.plans[i].strategy, whole.plans[i].strategy) << i;
}

TEST(ExpertPlan, RecomputeIsMixedOverBothKindsOfLayers) {
  SearchRequest request = expert_request({1});
  request.model.family = "qwen3_moe";
  request.model.moe.first_dense_layers = 1;
  request.fixed = parse_strategy("micro_batch=4");
  const Candidate none = plan_of(request, "micro_batch=4"), full = plan_of(request, "micro_batch=4,recompute=full");
  ASSERT_GT(none.predicted.arena_bytes, full.predicted.arena_bytes);
  request.memory_bytes = (none.predicted.arena_bytes + full.predicted.arena_bytes) / 2 + none.predicted.framework_bytes;
  const SearchResult found = search(request);
  ASSERT_FALSE(found.plans.empty());
  EXPECT_LT(found.plans[0].predicted.step_seconds, full.predicted.step_seconds);
  EXPECT_FALSE(found.plans[0].strategy.recompute_layers.empty()) << to_text(found.plans[0].strategy);
}

}  // namespace
}  // namespace foresail
