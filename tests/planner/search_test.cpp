#include "planner/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "planner/search/space.h"
#include "program/compile.h"
#include "tests/planner/synthetic_machine.h"

namespace foresail {
namespace {

using namespace test;

SearchRequest request_for(std::vector<int64_t> counts, double memory_bytes = 16e9) {
  SearchRequest request;
  request.model = small_model(), request.job = small_job();
  request.machine = small_cluster(memory_bytes), request.stack = plain_stack();
  request.device_counts = std::move(counts);
  return request;
}

/// Every legal strategy by plain loops, independently of the search's enumeration.
std::vector<Strategy> all_legal(const SearchRequest& request, int64_t devices) {
  std::vector<Strategy> strategies;
  Strategy s;
  const auto add = [&] {
    if (legal(request.model, request.job, s).empty()) strategies.push_back(s);
  };
  const auto each_variant = [&] {
    const bool stages = s.pp > 1;
    for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
      s.schedule = schedule, s.virtual_stages = schedule == ScheduleKind::interleaved ? 2 : 1;
      if (schedule != ScheduleKind::one_f_one_b && !stages) continue;
      for (const int64_t zero : {0, 1, 3}) {
        s.zero_stage = zero;
        if (zero > 0 && s.dp == 1) continue;
        for (const bool sequence : {false, true}) {
          s.sequence_parallel = sequence;
          if (sequence && s.tp == 1) continue;
          for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
            s.recompute = recompute;
            add();
          }
        }
      }
    }
  };
  for (s.dp = 1; s.dp <= devices; ++s.dp) {
    for (s.tp = 1; s.tp <= devices; ++s.tp) {
      for (s.pp = 1; s.pp <= devices; ++s.pp) {
        for (s.micro_batch = 1; s.micro_batch <= request.job.global_batch; ++s.micro_batch) {
          if (s.devices() == devices) each_variant();
        }
      }
    }
  }
  return strategies;
}

/// Strategies with what is only tried when fixed.
std::vector<Strategy> with_rare_keys(const SearchRequest& request) {
  std::vector<Strategy> strategies;
  for (const char* text :
       {"cp=2,dp=2,micro_batch=2", "cp=4,micro_batch=1,context=all_to_all", "dp=4,zero_stage=2,micro_batch=2",
        "dp=4,zero_stage=3,zero_group=2,micro_batch=2,recompute=full", "cp=2,dp=2,zero_stage=3,micro_batch=1",
        "pp=2,schedule=gpipe,micro_batch=1", "pp=2,dp=2,schedule=gpipe,micro_batch=1,recompute=full",
        "pp=2,schedule=zb-v,virtual_stages=2,micro_batch=1", "pp=2,schedule=zb-v,virtual_stages=2,recompute=full",
        "pp=2,stage_layers=3+1,micro_batch=2", "pp=2,stage_layers=1+3,micro_batch=2",
        "dp=5,ragged_batch=true,micro_batch=2", "tp=2,cp=2,pp=2,sequence_parallel=true,micro_batch=1",
        "dp=4,overlap=true,bucket_bytes=65536,micro_batch=2", "micro_batch=2,recompute_layers=0-1:full/2:selective",
        "pp=2,schedule=zb-h1,micro_batch=1,recompute_layers=0:activated/1-2:full/3:normed_1+qkv.rotated"}) {
    const Strategy strategy = parse_strategy(text).strategy;
    const auto reasons = legal(request.model, request.job, strategy);
    EXPECT_TRUE(reasons.empty()) << text << ": " << (reasons.empty() ? "" : reasons.front());
    if (reasons.empty()) strategies.push_back(strategy);
  }
  return strategies;
}

TEST(Search, PicksWhatBruteForceFindsFastest) {
  for (const int64_t devices : {1, 2, 4, 6, 8}) {
    const SearchRequest request = request_for({devices});
    const SearchResult found = search(request);
    ASSERT_FALSE(found.plans.empty()) << devices;
    const auto all = all_legal(request, devices);
    EXPECT_EQ(found.strategies, static_cast<int64_t>(all.size())) << devices;
    double best = 1e30;
    for (const Strategy& strategy : all) {
      const Evaluation e = evaluate(request.model, request.job, request.machine, request.stack, strategy, false);
      best = std::min(best, e.candidate.predicted.step_seconds);
    }
    EXPECT_EQ(found.plans[0].predicted.step_seconds, best) << devices;
  }
}

TEST(Search, BoundsChangeTheWorkButNotTheAnswer) {
  for (const double memory : {16e9, 60e6}) {
    SearchRequest request = request_for({4, 8}, memory);
    request.top = 3;
    const SearchResult pruned = search(request);
    request.prune = false;
    const SearchResult whole = search(request);
    ASSERT_EQ(pruned.plans.size(), whole.plans.size());
    for (size_t i = 0; i < whole.plans.size(); ++i) {
      EXPECT_EQ(pruned.plans[i].strategy, whole.plans[i].strategy) << i;
      EXPECT_EQ(pruned.plans[i].predicted.step_seconds, whole.plans[i].predicted.step_seconds);
    }
    ASSERT_EQ(pruned.frontier.size(), whole.frontier.size());
    for (size_t i = 0; i < whole.frontier.size(); ++i)
      EXPECT_EQ(pruned.frontier[i].strategy, whole.frontier[i].strategy);
    EXPECT_EQ(whole.bounded, 0);
    EXPECT_EQ(pruned.strategies, whole.strategies);
    EXPECT_LT(pruned.simulated, whole.simulated);
  }
}

TEST(Search, CountsAddUp) {
  SearchRequest request = request_for({2, 4, 8}, 60e6);
  const SearchResult found = search(request);
  int64_t refused = 0;
  for (const auto& [reason, count] : found.refused) refused += count;
  EXPECT_EQ(found.strategies, refused + found.bounded + found.evaluated);
  EXPECT_GT(refused, 0);
}

TEST(Search, IsDeterministic) {
  const SearchRequest request = request_for({4, 8});
  const SearchResult a = search(request), b = search(request);
  ASSERT_EQ(a.plans.size(), b.plans.size());
  for (size_t i = 0; i < a.plans.size(); ++i) {
    EXPECT_EQ(a.plans[i].strategy, b.plans[i].strategy);
    EXPECT_EQ(a.plans[i].predicted.step_seconds, b.plans[i].predicted.step_seconds);
  }
  EXPECT_EQ(a.bounded, b.bounded);
}

TEST(Search, FixedKeysAreKept) {
  SearchRequest request = request_for({8});
  request.fixed = parse_strategy("tp=2,recompute=full");
  request.top = 1000;
  const SearchResult found = search(request);
  ASSERT_FALSE(found.plans.empty());
  for (const Candidate& plan : found.plans) {
    EXPECT_EQ(plan.strategy.tp, 2);
    EXPECT_EQ(plan.strategy.recompute, Recompute::full);
  }
}

TEST(Search, PlansFitTheCeiling) {
  SearchRequest request = request_for({8});
  request.top = 1000;
  const int64_t unlimited = search(request).plans[0].predicted.peak_bytes;
  request.memory_bytes = unlimited * 2 / 3;
  const SearchResult found = search(request);
  ASSERT_FALSE(found.plans.empty());
  for (const Candidate& plan : found.plans) EXPECT_LE(plan.predicted.peak_bytes, request.memory_bytes);
  EXPECT_GT(found.refused.at("out of memory"), 0);
}

TEST(Search, WhenNothingFitsItNamesTheLimitAndTheNearestPlan) {
  SearchRequest request = request_for({4});
  request.memory_bytes = 1'000'000;
  const SearchResult found = search(request);
  EXPECT_TRUE(found.plans.empty());
  ASSERT_TRUE(found.infeasible);
  EXPECT_EQ(found.infeasible->limit, "memory");
  ASSERT_TRUE(found.infeasible->nearest);
  int64_t smallest = INT64_MAX;
  for (const Strategy& strategy : all_legal(request, 4)) {
    const Evaluation e = evaluate(request.model, request.job, request.machine, request.stack, strategy, false);
    smallest = std::min(smallest, e.candidate.predicted.peak_bytes);
  }
  EXPECT_EQ(found.infeasible->nearest->predicted.peak_bytes, smallest);
}

TEST(Search, ADeadlineThatBindsIsNamedWithTheFastestPlan) {
  SearchRequest request = request_for({4});
  const double fastest = *search(request).plans[0].budget.train_seconds;
  request.deadline_seconds = fastest / 2;
  const SearchResult found = search(request);
  EXPECT_TRUE(found.plans.empty());
  ASSERT_TRUE(found.infeasible);
  EXPECT_EQ(found.infeasible->limit, "deadline");
  EXPECT_DOUBLE_EQ(*found.infeasible->nearest->budget.train_seconds, fastest);
}

TEST(Search, NoLegalStrategyIsExplained) {
  SearchRequest request = request_for({7});  // 24 sequences over 7: neither dp, nor 8 heads, nor 4 layers
  const SearchResult found = search(request);
  ASSERT_TRUE(found.infeasible);
  EXPECT_EQ(found.infeasible->limit, "legality");
  EXPECT_FALSE(found.illegal.empty());
  EXPECT_EQ(found.strategies, 0);
}

TEST(Search, CostPrefersFewerDevicesThanTimeDoes) {
  SearchRequest request = request_for({1, 2, 4, 8});
  const int64_t fast = search(request).plans[0].strategy.devices();
  request.objective = Objective::cost;
  const SearchResult cheap = search(request);
  EXPECT_LT(cheap.plans[0].strategy.devices(), fast);
  for (const Candidate& plan : cheap.plans) EXPECT_GE(*plan.budget.usd, *cheap.plans[0].budget.usd);
}

TEST(Search, EfficiencyIsRelativeToTheFewestDevicesThatFit) {
  const SearchResult found = search(request_for({1, 2, 4, 8}));
  ASSERT_EQ(found.frontier.size(), 4u);
  EXPECT_EQ(found.baseline_devices, 1);
  EXPECT_DOUBLE_EQ(found.frontier[0].efficiency, 1);
  for (size_t i = 1; i < 4; ++i) {
    const FrontierPoint& point = found.frontier[i];
    EXPECT_DOUBLE_EQ(point.efficiency,
                     point.tokens_per_second_per_device / found.frontier[0].tokens_per_second_per_device);
    EXPECT_LT(point.marginal_efficiency, found.frontier[i - 1].efficiency);
  }
}

TEST(Search, TheMemoryBoundNeverExceedsTheCompiledArena) {
  SearchRequest request = request_for({8});
  for (const char* precision : {"fp32", "bf16"}) {
    request.job.precision = precision;
    MemoryBound bound(request.model, request.job);
    std::vector<Strategy> strategies = with_rare_keys(request);
    for (const int64_t devices : {1, 4, 8}) {
      const auto more = all_legal(request, devices);
      // Every seventh: neighbours differ in one key, and 7 is prime to the number of values of each.
      for (size_t i = 0; i < more.size(); i += 7) strategies.push_back(more[i]);
    }
    for (const Strategy& strategy : strategies) {
      const Target target = target_for(request.machine, request.stack, strategy.devices());
      const int64_t arena = compile(request.model, request.job, strategy, target, 0).train.arena.bytes;
      EXPECT_LE(bound.bytes(strategy), arena) << to_text(strategy);
      EXPECT_GT(bound.bytes(strategy), arena / 100) << to_text(strategy);
    }
  }
}

TEST(Search, TheTimeBoundsNeverExceedTheSimulatedStep) {
  const SearchRequest request = request_for({8});
  const auto costs = costs_for(request.machine, request.stack, 8);
  std::vector<Strategy> strategies = with_rare_keys(request);
  const auto more = all_legal(request, 8);
  for (size_t i = 0; i < more.size(); i += 7) strategies.push_back(more[i]);
  for (const Strategy& strategy : strategies) {
    const Evaluation e = evaluate(request.model, request.job, request.machine, request.stack, strategy, false);
    const double step = e.candidate.predicted.step_seconds * (1 + 1e-12);
    for (const Program& program : e.programs) EXPECT_LE(busy_seconds(program, *costs, 4), step) << to_text(strategy);
    // Whatever is recomputed comes on top: the bound of a mix before its choice is known.
    Strategy keeps_all = strategy;
    keeps_all.recompute = Recompute::none, keeps_all.recompute_layers.clear();
    for (const Program& program : e.programs) {
      const Target target = target_for(request.machine, request.stack, strategy.devices());
      const Program same = compile_train(request.model, request.job, keeps_all, target, program.stage);
      EXPECT_LE(busy_seconds(same, *costs, 4), step) << to_text(strategy);
    }
    if (!strategy.stage_layers.empty()) continue;
    const Target target = target_for(request.machine, request.stack, strategy.devices());
    const Program plain = compile(request.model, request.job, plain_variant(strategy), target, 0).train;
    EXPECT_LE(product_seconds(plain, *costs), step) << to_text(strategy);
    EXPECT_GT(product_seconds(plain, *costs), step / 100) << to_text(strategy);
  }
}

TEST(Search, EveryKeyCanBeFixed) {
  const std::pair<int64_t, const char*> fixes[] = {{4, "cp=2"},
                                                   {4, "cp=2,context=all_to_all"},
                                                   {4, "zero_stage=2"},
                                                   {4, "zero_stage=3,zero_group=2"},
                                                   {4, "schedule=gpipe"},
                                                   {4, "schedule=zb-v"},
                                                   {4, "schedule=interleaved"},
                                                   {2, "schedule=zb-h1,micro_batch=2"},
                                                   {2, "virtual_stages=2"},
                                                   {2, "pp=2,stage_layers=3+1"},
                                                   {2, "sequence_parallel=true"},
                                                   {5, "ragged_batch=true"},
                                                   {2, "overlap=true,bucket_bytes=100000"},
                                                   {2, "reduce_dtype=bf16"},
                                                   {2, "accumulate_dtype=bf16,zero_stage=1"},
                                                   {1, "recompute_layers=0:full"},
                                                   {1, "recompute=selective"}};
  for (const auto& [devices, text] : fixes) {
    SearchRequest request = request_for({devices});
    request.fixed = parse_strategy(text);
    request.top = 20;
    const SearchResult found = search(request);
    ASSERT_FALSE(found.plans.empty()) << text << ": " << (found.infeasible ? found.infeasible->explanation : "");
    for (const Candidate& plan : found.plans) {
      const std::string have = "," + to_text(plan.strategy) + ",";
      std::string part;
      for (const std::string& key : request.fixed.named) {
        const std::string fixed = "," + to_text(request.fixed.strategy) + ",";
        const size_t begin = fixed.find("," + key + "=");
        ASSERT_NE(begin, std::string::npos) << key;
        part = fixed.substr(begin, fixed.find(',', begin + 1) + 1 - begin);
        EXPECT_NE(have.find(part), std::string::npos) << "fixed " << part << " in " << have;
      }
    }
  }
}

TEST(Search, ContextParallelismIsTriedForLongSequencesOnly) {
  SearchRequest request = request_for({2});
  const auto contexts = [&] {
    std::set<int64_t> degrees;
    for (const Strategy& strategy : space_of(request, 2).strategies) degrees.insert(strategy.cp);
    return degrees;
  };
  EXPECT_EQ(contexts(), (std::set<int64_t>{1}));
  request.job.sequence_length = kLongSequence;
  EXPECT_EQ(contexts(), (std::set<int64_t>{1, 2}));
}

TEST(Search, AReasonCountsOncePerDegreesAndMicroBatch) {
  const SearchRequest request = request_for({16});
  const Space space = space_of(request, 16);
  // tp = 16 is more than the 8 heads: one combination of degrees, with the 8 divisors of the batch, not their variants.
  int64_t of_heads = 0;
  for (const auto& [reason, count] : space.illegal) {
    if (reason.find("heads") != std::string::npos) of_heads += count;
  }
  EXPECT_EQ(of_heads, 8);
}

TEST(Search, IfNothingHasAPriceTheReasonIsTheError) {
  SearchRequest request = request_for({2});
  request.machine.device.peak_flops_per_second.erase("f32");  // no product has a price
  EXPECT_THROW(search(request), Error);
}

TEST(DeviceCounts, NumbersListsAndRanges) {
  const Machine machine = small_cluster(1e9);
  EXPECT_EQ(parse_device_counts("", machine), (std::vector<int64_t>{8}));
  EXPECT_EQ(parse_device_counts("3", machine), (std::vector<int64_t>{3}));
  EXPECT_EQ(parse_device_counts("2..5", machine), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(parse_device_counts("8,2,4,2", machine), (std::vector<int64_t>{2, 4, 8}));
  for (const char* text : {"0", "-1", "x", "1,", "5..2", "2..", "1e3", "9999999999"}) {
    EXPECT_THROW(parse_device_counts(text, machine), Error) << text;
  }
}

TEST(ProposedBatch, GrowsWithTheModelAndDividesByTheDevices) {
  const ProposedBatch small = propose_global_batch(small_model(), 256, {8});
  const ProposedBatch large = propose_global_batch(load_model("gpt-3-175b"), 2048, {96});
  EXPECT_EQ(small.sequences % 8, 0);
  EXPECT_EQ(large.sequences % 96, 0);
  EXPECT_NEAR(static_cast<double>(large.sequences) * 2048, 3.2e6, 1.5e6);
  EXPECT_FALSE(large.reason.empty());
}

TEST(ProposedBatch, ARangeOfCountsDoesNotMultiplyUp) {
  const ProposedBatch some = propose_global_batch(load_model("gpt2"), 1024, {8, 12, 16});
  EXPECT_EQ(some.sequences % 48, 0);
  std::vector<int64_t> counts;
  for (int64_t count = 8; count <= 64; ++count) counts.push_back(count);
  const ProposedBatch range = propose_global_batch(load_model("gpt2"), 1024, counts);
  EXPECT_EQ(range.sequences, 512);
  EXPECT_NE(range.reason.find("a multiple of 64, the largest device count"), std::string::npos) << range.reason;
}

TEST(Setup, AProfiledHostDividesItsCoresAmongTheDevices) {
  Machine machine;
  machine.kind = "profiled", machine.cores = 4, machine.framework_bytes = 123;
  machine.workspace_bytes["op"] = 7;
  const Target target = target_for(machine, plain_stack(), 3);
  EXPECT_EQ(target.back_end, "cpu");
  EXPECT_EQ(target.threads, 1);
  EXPECT_TRUE(target.blocking_communication);
  EXPECT_EQ(target.workspace_bytes.at("op"), 7);
  EXPECT_EQ(target.framework_bytes, 123);
  EXPECT_EQ(target_for(machine, plain_stack(), 2).threads, 2);
  EXPECT_EQ(target_for(machine, plain_stack(), 9).threads, 1);
}

}  // namespace
}  // namespace foresail
