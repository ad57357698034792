// What a batch ramp does to the length of a run, its price and its best plan.
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/search/evaluate.h"
#include "planner/search/search.h"
#include "program/compile.h"
#include "spec/batch_ramp.h"
#include "tests/planner/synthetic_machine.h"

namespace foresail {
namespace {

using namespace test;

/// Most of the run is short steps, so that they matter.
SearchRequest ramped_request(std::vector<int64_t> counts, double memory_bytes = 16e9) {
  SearchRequest request;
  request.model = small_model(), request.job = small_job();
  request.machine = small_cluster(memory_bytes), request.stack = plain_stack();
  request.device_counts = std::move(counts);
  Job& job = request.job;
  const int64_t batch = job.global_batch;
  job.batch_ramp = {{batch / 4, 60 * batch / 4 * job.sequence_length},
                    {batch / 2, 30 * batch / 2 * job.sequence_length}};
  job.tokens = (60 * batch / 4 + 30 * batch / 2 + 10 * batch) * job.sequence_length;
  return request;
}

double step_of(const SearchRequest& request, const Strategy& strategy, int64_t batch) {
  Job job = request.job;
  job.batch_ramp.clear();
  job.global_batch = batch;
  return evaluate(request.model, job, request.machine, request.stack, strategy, false).candidate.predicted.step_seconds;
}

TEST(BatchRampPlan, TheRunTakesWhatItsStepsTakeOneByOne) {
  const SearchRequest request = ramped_request({4});
  for (const char* text : {"dp=2,tp=2,micro_batch=1", "pp=4,micro_batch=1", "dp=2,pp=2,micro_batch=1,zero_stage=3"}) {
    const Strategy strategy = parse_strategy(text).strategy;
    const Candidate plan =
        evaluate(request.model, request.job, request.machine, request.stack, strategy, false).candidate;
    const int64_t batch = request.job.global_batch;
    const double full = step_of(request, strategy, batch);
    const double seconds =
        60 * step_of(request, strategy, batch / 4) + 30 * step_of(request, strategy, batch / 2) + 10 * full;
    EXPECT_EQ(plan.predicted.step_seconds, full) << "predicted is the full step";
    EXPECT_NEAR(plan.mean_step.seconds, seconds / 100, 1e-12 * seconds);
    EXPECT_LE(plan.mean_step.low, plan.mean_step.seconds);
    EXPECT_GE(plan.mean_step.high, plan.mean_step.seconds);
    ASSERT_TRUE(plan.budget.train_seconds);
    EXPECT_NEAR(*plan.budget.train_seconds, seconds / plan.budget.goodput.value_or(1), 1e-9 * seconds);
    EXPECT_GT(plan.mean_step.seconds, full * 60 / 4 / 100) << "an update takes as long after a small step";
  }
}

TEST(BatchRampPlan, WithoutALengthTheMeanIsTheFullStep) {
  SearchRequest request = ramped_request({4});
  request.job.tokens = 0;
  const Candidate plan = evaluate(request.model, request.job, request.machine, request.stack,
                                  parse_strategy("dp=2,tp=2,micro_batch=1").strategy, false)
                             .candidate;
  EXPECT_EQ(plan.mean_step.seconds, plan.predicted.step_seconds);
  EXPECT_FALSE(plan.budget.train_seconds);
}

TEST(BatchRampPlan, BoundsChangeTheWorkButNotTheAnswer) {
  for (const auto& [objective, memory] :
       {std::pair{Objective::time, 16e9}, {Objective::time, 60e6}, {Objective::throughput, 16e9}}) {
    SearchRequest request = ramped_request({4}, memory);
    request.objective = objective;
    request.top = 3;
    const SearchResult pruned = search(request);
    request.prune = false;
    const SearchResult whole = search(request);
    ASSERT_FALSE(whole.plans.empty());
    ASSERT_EQ(pruned.plans.size(), whole.plans.size());
    for (size_t i = 0; i < whole.plans.size(); ++i) EXPECT_EQ(pruned.plans[i].strategy, whole.plans[i].strategy) << i;
    EXPECT_LT(pruned.simulated, whole.simulated);
  }
}

TEST(BatchRampPlan, TheFastestPlanIsThatOfTheWholeRun) {
  SearchRequest request = ramped_request({8});
  request.top = 100000;
  request.prune = false;
  const SearchResult found = search(request);
  ASSERT_GT(found.plans.size(), 10u);
  for (const Candidate& plan : found.plans) {
    EXPECT_LE(found.plans[0].mean_step.seconds, plan.mean_step.seconds);
    for (const BatchRampStage& stage : request.job.batch_ramp) {
      EXPECT_EQ(stage.global_batch % (plan.strategy.dp * plan.strategy.micro_batch), 0);
    }
  }
}

TEST(BatchRampPlan, TheArenaThatIsPredictedHoldsEveryProgramOfTheSet) {
  const SearchRequest request = ramped_request({4});
  for (const char* text : {"dp=2,tp=2,micro_batch=1", "pp=4,micro_batch=1", "dp=2,pp=2,micro_batch=1,schedule=zb-h1",
                           "pp=2,dp=2,virtual_stages=2,micro_batch=1,schedule=interleaved"}) {
    const Strategy strategy = parse_strategy(text).strategy;
    const Evaluation plan = evaluate(request.model, request.job, request.machine, request.stack, strategy, false);
    const Target target = target_for(request.machine, request.stack, strategy.devices());
    int64_t largest = 0;
    for (int stage = 0; stage < strategy.pp; ++stage) {
      largest = std::max(largest, arena_bytes_of(compile(request.model, request.job, strategy, target, stage)));
    }
    EXPECT_EQ(plan.candidate.predicted.arena_bytes, largest) << text;
  }
}

}  // namespace
}  // namespace foresail
