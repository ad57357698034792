// The search under a memory ceiling that lies between what no recompute and full recompute need.
#include "planner/search/recompute_mix.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/planner/synthetic_machine.h"

namespace foresail {
namespace {

using namespace test;

SearchRequest request_for(int64_t devices, const char* fixed) {
  SearchRequest request;
  request.model = small_model(), request.job = small_job();
  request.machine = small_cluster(16e9), request.stack = plain_stack();
  request.device_counts = {devices};
  request.fixed = parse_strategy(fixed);
  return request;
}

Prediction predict(const SearchRequest& request, const Strategy& strategy) {
  return evaluate(request.model, request.job, request.machine, request.stack, strategy, false).candidate.predicted;
}

Prediction predict(const SearchRequest& request, Recompute recompute) {
  Strategy strategy = request.fixed.strategy;
  strategy.recompute = recompute;
  return predict(request, strategy);
}

struct Family {
  int64_t devices;
  const char* strategy;
};
const Family kFamilies[] = {
    {1, "dp=1,tp=1,pp=1,micro_batch=4"},
    {2, "dp=1,tp=1,pp=2,micro_batch=2,schedule=1f1b"},
    {2, "dp=1,tp=1,pp=2,micro_batch=2,schedule=interleaved,virtual_stages=2"},
    {2, "dp=1,tp=1,pp=2,micro_batch=2,schedule=zb-h1"},
    {4, "dp=2,tp=2,pp=1,micro_batch=2,sequence_parallel=true,zero_stage=3"},
};

/// A ceiling `share` of the way from what full recompute needs to what none needs.
void set_ceiling(SearchRequest& request, double share) {
  const int64_t most = predict(request, Recompute::none).peak_bytes;
  const int64_t least = predict(request, Recompute::full).peak_bytes;
  ASSERT_LT(least, most);
  request.memory_bytes = least + static_cast<int64_t>(share * static_cast<double>(most - least));
}

TEST(RecomputeMix, FitsTheCeilingAndIsFasterThanThePresetsThatFit) {
  for (const Family& family : kFamilies) {
    SearchRequest request = request_for(family.devices, family.strategy);
    const Prediction none = predict(request, Recompute::none);
    for (const double share : {0.3, 0.6, 0.9}) {
      SCOPED_TRACE(std::string(family.strategy) + " " + std::to_string(share));
      set_ceiling(request, share);
      const SearchResult found = search(request);
      ASSERT_FALSE(found.plans.empty());
      const Candidate& best = found.plans[0];
      EXPECT_GE(found.mixed, 1);
      EXPECT_FALSE(best.strategy.recompute_layers.empty());
      EXPECT_LE(best.predicted.peak_bytes, request.memory_bytes);
      EXPECT_GE(best.predicted.step_seconds, none.step_seconds);
      for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
        const Prediction preset = predict(request, recompute);
        if (preset.peak_bytes > request.memory_bytes) continue;
        EXPECT_LT(best.predicted.step_seconds, preset.step_seconds) << name_of(recompute);
      }
      // What is printed and stored is the whole choice.
      const Strategy read = parse_strategy(to_text(best.strategy)).strategy;
      EXPECT_EQ(read, best.strategy);
      EXPECT_EQ(predict(request, read).step_seconds, best.predicted.step_seconds);
      EXPECT_EQ(predict(request, read).peak_bytes, best.predicted.peak_bytes);
      EXPECT_EQ(search(request).plans[0].strategy, best.strategy);
    }
  }
}

/// Every assignment of presets to the four layers, compiled and played.
TEST(RecomputeMix, IsNoSlowerThanAnyAssignmentOfPresetsThatFits) {
  SearchRequest request = request_for(1, "dp=1,tp=1,pp=1,micro_batch=4");
  std::vector<Prediction> all;
  for (int code = 0; code < 3 * 3 * 3 * 3; ++code) {
    Strategy strategy = request.fixed.strategy;
    for (int64_t layer = 0, rest = code; layer < 4; ++layer, rest /= 3) {
      strategy.recompute_layers.push_back({layer, layer, static_cast<Recompute>(rest % 3), {}});
    }
    all.push_back(predict(request, strategy));
  }
  for (const double share : {0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95}) {
    set_ceiling(request, share);
    const SearchResult found = search(request);
    ASSERT_FALSE(found.plans.empty());
    double fastest = 1e30;
    for (const Prediction& one : all) {
      if (one.peak_bytes <= request.memory_bytes) fastest = std::min(fastest, one.step_seconds);
    }
    EXPECT_LE(found.plans[0].predicted.step_seconds, fastest * (1 + 1e-12)) << share;
  }
}

TEST(RecomputeMix, IsNotTriedWhereRecomputeIsFixed) {
  for (const char* fixed : {",recompute=full", ",recompute=selective", ",recompute_layers=0-2:full"}) {
    SearchRequest request = request_for(1, "dp=1,tp=1,pp=1,micro_batch=4");
    set_ceiling(request, 0.9);
    request.fixed = parse_strategy(std::string("dp=1,tp=1,pp=1,micro_batch=4") + fixed);
    const SearchResult found = search(request);
    EXPECT_EQ(found.mixed, 0) << fixed;
    for (const Candidate& plan : found.plans) {
      EXPECT_EQ(plan.strategy.recompute_layers, request.fixed.strategy.recompute_layers);
    }
  }
}

TEST(RecomputeMix, IsNotTriedWhereNothingNeedsItOrNothingFits) {
  SearchRequest request = request_for(1, "dp=1,tp=1,pp=1,micro_batch=4");
  EXPECT_EQ(search(request).mixed, 0);
  request.memory_bytes = predict(request, Recompute::full).peak_bytes - 1;
  const SearchResult found = search(request);
  EXPECT_EQ(found.mixed, 0);
  EXPECT_TRUE(found.plans.empty());
}

TEST(RecomputeMix, AMixOverTheDeadlineIsRefusedButNotCountedAsAStrategy) {
  SearchRequest request = request_for(1, "dp=1,tp=1,pp=1,micro_batch=4");
  set_ceiling(request, 0.6);
  const double fastest = *search(request).plans[0].budget.train_seconds;
  request.deadline_seconds = fastest / 2;
  const SearchResult found = search(request);
  EXPECT_TRUE(found.plans.empty());
  EXPECT_EQ(found.mixed, 1);
  ASSERT_TRUE(found.infeasible && found.infeasible->nearest);
  EXPECT_DOUBLE_EQ(*found.infeasible->nearest->budget.train_seconds, fastest);
  int64_t refused = 0;
  for (const auto& [reason, count] : found.refused) refused += count;
  EXPECT_EQ(found.strategies, refused + found.bounded + found.evaluated);
}

/// Whether a mix is tried may depend on bounds, the answer may not: over several ceilings and device counts with every key
/// free.
TEST(RecomputeMix, BoundsChangeTheWorkButNotTheAnswer) {
  for (const double memory : {14e6, 20e6, 35e6}) {
    SearchRequest request = request_for(2, "");
    request.device_counts = {2, 4};
    request.memory_bytes = static_cast<int64_t>(memory);
    request.top = 3;
    const SearchResult pruned = search(request);
    request.prune = false;
    const SearchResult whole = search(request);
    EXPECT_GT(whole.mixed, 0) << memory;
    EXPECT_LE(pruned.mixed, whole.mixed);
    ASSERT_EQ(pruned.plans.size(), whole.plans.size());
    for (size_t i = 0; i < whole.plans.size(); ++i) {
      EXPECT_EQ(to_text(pruned.plans[i].strategy), to_text(whole.plans[i].strategy)) << memory;
      EXPECT_EQ(pruned.plans[i].predicted.step_seconds, whole.plans[i].predicted.step_seconds);
      EXPECT_LE(whole.plans[i].predicted.peak_bytes, request.memory_bytes);
    }
    ASSERT_EQ(pruned.frontier.size(), whole.frontier.size());
    for (size_t i = 0; i < whole.frontier.size(); ++i) {
      EXPECT_EQ(to_text(pruned.frontier[i].strategy), to_text(whole.frontier[i].strategy));
    }
  }
}

TEST(RecomputeRules, AreJoinedAcrossStages) {
  const std::vector<RecomputeRule> rules = joined({{4, 5, Recompute::full, {}},
                                                   {0, 1, Recompute::none, {}},
                                                   {2, 3, Recompute::full, {}},
                                                   {6, 6, Recompute::none, {"activated"}},
                                                   {7, 7, Recompute::none, {"activated"}}});
  const std::vector<RecomputeRule> expected = {{2, 5, Recompute::full, {}}, {6, 7, Recompute::none, {"activated"}}};
  EXPECT_EQ(rules, expected);
  EXPECT_FALSE(is_preset(rules, 8));
  EXPECT_TRUE(is_preset({{0, 7, Recompute::selective, {}}}, 8));
  EXPECT_FALSE(is_preset({{0, 6, Recompute::selective, {}}}, 8));
  EXPECT_FALSE(is_preset({{0, 7, Recompute::none, {"activated"}}}, 8));
  EXPECT_TRUE(is_preset({}, 8));
}

}  // namespace
}  // namespace foresail
