// What the simulator says about compiled Programs.
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/explain/explain.h"
#include "planner/search/search.h"
#include "planner/simulator/priced_program.h"
#include "program/check.h"
#include "tests/planner/synthetic_machine.h"

namespace foresail {
namespace {

using namespace test;

Evaluation play(const std::string& strategy, const Stack& stack = plain_stack(), bool events = false) {
  return evaluate(small_model(), small_job(), small_cluster(16e9), stack, parse_strategy(strategy).strategy, events);
}

double sum_of(const TimePrediction& t) {
  return t.compute + t.recompute + t.tensor_comm + t.context_comm + t.expert_comm + t.data_comm + t.pipeline_comm +
         t.bubble + t.optimizer + t.data_wait;
}

TEST(Compiled, EachDegreeSpendsItsOwnKindOfTime) {
  const TimePrediction one = play("micro_batch=2").candidate.predicted.time;
  EXPECT_GT(one.compute, 0);
  EXPECT_GT(one.optimizer, 0);
  EXPECT_EQ(one.recompute + one.tensor_comm + one.data_comm + one.pipeline_comm + one.bubble, 0);
  EXPECT_GT(play("micro_batch=2,recompute=full").candidate.predicted.time.recompute, 0);
  EXPECT_GT(play("tp=2,micro_batch=2").candidate.predicted.time.tensor_comm, 0);
  EXPECT_GT(play("dp=2,micro_batch=2").candidate.predicted.time.data_comm, 0);
  const TimePrediction pipeline = play("pp=4,micro_batch=2").candidate.predicted.time;
  EXPECT_GT(pipeline.bubble, 0);
  EXPECT_GT(pipeline.pipeline_comm, 0);
}

const char* const kEveryFeature[] = {
    "micro_batch=1",
    "dp=2,tp=2,pp=2,micro_batch=3",
    "pp=4,micro_batch=1,recompute=full",
    "tp=4,micro_batch=4",
    "dp=4,pp=2,micro_batch=1",
    "tp=2,micro_batch=2,sequence_parallel=true",
    "dp=4,micro_batch=2,zero_stage=1",
    "dp=4,micro_batch=2,zero_stage=2",
    "dp=4,micro_batch=2,zero_stage=3",
    "dp=4,micro_batch=2,zero_stage=3,zero_group=2",
    "cp=2,dp=2,micro_batch=2",
    "cp=2,dp=2,micro_batch=2,context=all_to_all",
    "pp=2,micro_batch=2,schedule=gpipe",
    "pp=2,micro_batch=2,schedule=interleaved,virtual_stages=2",
    "pp=2,micro_batch=2,schedule=zb-h1",
    "pp=2,micro_batch=2,schedule=zb-v,virtual_stages=2",
    "dp=2,micro_batch=2,overlap=true,bucket_bytes=100000",
    "dp=2,pp=2,tp=2,micro_batch=2,sequence_parallel=true,zero_stage=2,schedule=zb-h1,recompute=selective,overlap=true",
};

TEST(Compiled, KindsSumToStepAndPeakForEveryStrategy) {
  for (const char* text : kEveryFeature) {
    const Prediction p = play(text).candidate.predicted;
    EXPECT_NEAR(sum_of(p.time), p.step_seconds, 1e-12 * p.step_seconds) << text;
    const MemoryPrediction& m = p.memory;
    EXPECT_EQ(m.parameters + m.gradients + m.optimizer + m.activations + m.scratch + m.framework, p.peak_bytes) << text;
    EXPECT_LT(p.step_seconds_low, p.step_seconds);
    EXPECT_GT(p.step_seconds_high, p.step_seconds);
    EXPECT_EQ(*std::max_element(p.peak_bytes_by_stage.begin(), p.peak_bytes_by_stage.end()), p.peak_bytes);
  }
}

TEST(Compiled, EveryFeatureShowsInItsOwnPartOfTimeOrMemory) {
  const auto predicted = [](const char* text) { return play(text).candidate.predicted; };
  EXPECT_GT(predicted("cp=2,micro_batch=2").time.context_comm, 0);
  EXPECT_GT(predicted("cp=2,micro_batch=2,context=all_to_all").time.context_comm, 0);
  const Prediction whole = predicted("dp=4,micro_batch=2"), one = predicted("dp=4,micro_batch=2,zero_stage=1"),
                   two = predicted("dp=4,micro_batch=2,zero_stage=2"),
                   three = predicted("dp=4,micro_batch=2,zero_stage=3");
  EXPECT_NEAR(static_cast<double>(one.memory.optimizer), static_cast<double>(whole.memory.optimizer) / 4,
              0.02 * static_cast<double>(whole.memory.optimizer));
  EXPECT_NEAR(static_cast<double>(one.memory.gradients), static_cast<double>(whole.memory.gradients),
              0.01 * static_cast<double>(whole.memory.gradients));  // shares are padded
  EXPECT_LT(two.memory.gradients, whole.memory.gradients / 3);
  EXPECT_LT(three.memory.parameters, whole.memory.parameters / 3);
  EXPECT_GT(three.time.data_comm, one.time.data_comm);  // gathered for every micro-batch
  const Prediction cut = predicted("tp=4,micro_batch=2,sequence_parallel=true"),
                   uncut = predicted("tp=4,micro_batch=2");
  EXPECT_LT(cut.memory.activations, uncut.memory.activations);
  const Prediction selective = predicted("micro_batch=4,recompute=selective"), none = predicted("micro_batch=4"),
                   full = predicted("micro_batch=4,recompute=full");
  EXPECT_LT(selective.memory.activations, none.memory.activations);
  EXPECT_LT(full.memory.activations, selective.memory.activations);
  EXPECT_LT(selective.time.recompute, full.time.recompute);
  EXPECT_GT(predicted("pp=2,micro_batch=2,schedule=gpipe").memory.activations,
            predicted("pp=2,micro_batch=2").memory.activations);
  EXPECT_LT(predicted("pp=2,micro_batch=2,schedule=zb-h1").time.bubble, predicted("pp=2,micro_batch=2").time.bubble);
}

TEST(Compiled, BucketsHideBehindBackwardWhereQueuesRunSideBySide) {
  Stack overlapped = plain_stack();
  overlapped.data_parallel_overlap = true;
  const TimePrediction after = play("dp=4,micro_batch=6", overlapped).candidate.predicted.time;
  const TimePrediction buckets =
      play("dp=4,micro_batch=6,overlap=true,bucket_bytes=1", overlapped).candidate.predicted.time;
  EXPECT_GT(after.data_comm, 0);
  EXPECT_LT(buckets.data_comm, 0.7 * after.data_comm);
  EXPECT_DOUBLE_EQ(buckets.compute, after.compute);
}

TEST(Compiled, TheBubbleShrinksAsMicroBatchesGrow) {
  double previous = 1;
  for (const int micro_batch : {24, 12, 6, 2}) {
    const Prediction p = play("pp=2,micro_batch=" + std::to_string(micro_batch)).candidate.predicted;
    const double share = p.time.bubble / p.step_seconds;
    EXPECT_LT(share, previous) << micro_batch;
    previous = share;
  }
}

TEST(Compiled, RecomputeTradesTimeForMemoryAndCountsInHfuOnly) {
  const Prediction kept = play("micro_batch=4").candidate.predicted;
  const Prediction replayed = play("micro_batch=4,recompute=full").candidate.predicted;
  EXPECT_LT(replayed.memory.activations, kept.memory.activations);
  EXPECT_GT(replayed.step_seconds, kept.step_seconds);
  EXPECT_DOUBLE_EQ(kept.mfu, kept.hfu);
  EXPECT_GT(replayed.hfu, 1.1 * replayed.mfu);
}

TEST(Compiled, OverlapNeverSlowsAStep) {
  Stack overlapped = plain_stack();
  overlapped.tensor_parallel_overlap = overlapped.data_parallel_overlap = true;
  for (const char* text : {"dp=2,tp=2,micro_batch=2", "tp=4,micro_batch=2", "dp=4,micro_batch=2"}) {
    EXPECT_LE(play(text, overlapped).candidate.predicted.step_seconds,
              play(text).candidate.predicted.step_seconds * (1 + 1e-9))
        << text;
  }
}

TEST(Compiled, TheTraceNamesEveryStageAndEndsWithTheStep) {
  const Evaluation e = play("dp=2,tp=2,pp=2,micro_batch=3", plain_stack(), true);
  ASSERT_FALSE(e.simulation.events.empty());
  double last = 0;
  for (const SimulatedEvent& event : e.simulation.events) last = std::max(last, event.end_seconds);
  EXPECT_NEAR(last, e.candidate.predicted.step_seconds, 1e-9 * last);
  const std::string trace = chrome_trace(e.programs, e.simulation);
  for (const char* part :
       {"\"stage 0\"", "\"stage 1\"", "attention", "all_reduce", "receive from stage", "activations kept"}) {
    EXPECT_NE(trace.find(part), std::string::npos) << part;
  }
}

TEST(Compiled, DumpedProgramsSimulateAlike) {
  const Evaluation e = play("tp=2,pp=2,micro_batch=3");
  std::vector<Program> read;
  for (const Program& program : e.programs) read.push_back(read_program(dump_program(program), "dump"));
  const auto costs = costs_for(small_cluster(16e9), plain_stack(), 4);
  EXPECT_EQ(simulate(read, *costs, {.record_events = false, .devices_per_node = 4}).step_seconds,
            e.candidate.predicted.step_seconds);
}

TEST(Compiled, OneRemovedInstructionChangesTheTime) {
  const Evaluation e = play("tp=2,micro_batch=3");
  const auto costs = costs_for(small_cluster(16e9), plain_stack(), 2);
  const SimulationOptions options{.record_events = false, .devices_per_node = 4};
  const std::vector<int64_t> executions = block_executions(e.programs[0]);
  int removed = 0;
  for (size_t b = 0; b < e.programs[0].blocks.size(); ++b) {
    const size_t count = e.programs[0].blocks[b].instructions.size();
    if (executions[b] == 0 || count == 0) continue;
    std::vector<Program> mutated = {e.programs[0]};
    auto& instructions = mutated[0].blocks[b].instructions;
    instructions.erase(instructions.begin() + static_cast<std::ptrdiff_t>(count / 2));
    EXPECT_LT(simulate(mutated, *costs, options).step_seconds, e.candidate.predicted.step_seconds) << b;
    ++removed;
  }
  EXPECT_GT(removed, 3);
}

TEST(Explain, TablesHoldTheFigures) {
  SearchRequest request;
  request.model = small_model(), request.job = small_job(), request.machine = small_cluster(16e9);
  request.stack = plain_stack(), request.device_counts = {2, 4};
  const SearchResult found = search(request);
  const std::string text = candidate_text(found.plans[0], request);
  for (const char* part : {"dp=", "compute", "parameters", "tokens/s", "80 % probability", "USD", "goodput"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_NE(candidates_table(found.plans).find(short_text(found.plans[0].strategy)), std::string::npos);
  EXPECT_NE(frontier_table(found).find("100.0 %"), std::string::npos) << frontier_table(found);
  EXPECT_NE(why_not_text(found).find("strategies"), std::string::npos);
}

TEST(Explain, UnitsFollowTheSize) {
  EXPECT_EQ(seconds_text(1.5e-5), "15.0 us");
  EXPECT_EQ(seconds_text(0.25), "250.00 ms");
  EXPECT_EQ(seconds_text(12.34), "12.3 s");
  EXPECT_EQ(seconds_text(7200), "2 h");
  EXPECT_EQ(seconds_text(10 * 86400), "10 days");
  EXPECT_EQ(figure_text(7.06e10), "70.6 B");
  EXPECT_EQ(figure_text(2.437e6), "2.44 M");
  EXPECT_EQ(figure_text(4.071e4), "40.7 k");
  EXPECT_EQ(figure_text(999.7), "1 k");
  EXPECT_EQ(counted(1, "device"), "1 device");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(int64_t{3} << 30), "3.00 GiB");
}

}  // namespace
}  // namespace foresail
