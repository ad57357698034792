// Runs whose first steps are smaller: which samples they read, and that they are the runs that one would make by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "tests/trainer/small_run.h"

namespace foresail {
namespace {

using testing::rule_samples;
using testing::run_small;
using testing::small_options;
using testing::small_request;
using testing::SmallResult;
using testing::TemporaryFolder;

constexpr int64_t kSequence = 8;
constexpr int64_t kSteps = 9;

/// Three steps of 2 sequences, two of 4, then 8.
SessionRequest ramped() {
  SessionRequest request = small_request();
  request.job.global_batch = 8;
  request.job.batch_ramp = {{2, 3 * 2 * kSequence}, {4, 2 * 4 * kSequence}};
  request.job.checkpoint_interval_steps = 0;
  request.job.evaluation_interval_steps = 0;
  return request;
}

SessionRequest constant_batch(int64_t batch) {
  SessionRequest request = ramped();
  request.job.batch_ramp.clear();
  request.job.global_batch = batch;
  return request;
}

TEST(BatchRamp, StepsGrowAndEverySampleIsReadOnce) {
  const TemporaryFolder folder;
  TrainerOptions options = small_options(folder.path(), kSteps);
  std::vector<int64_t> read;
  options.training = [&](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
    read.push_back(index);
    rule_samples(23, 1)(index, tokens, targets);
  };
  std::vector<StepRecord> records;
  options.on_step = [&](const StepRecord& record) { records.push_back(record); };
  std::vector<std::pair<std::string, int64_t>> events;
  options.on_event = [&](const RunEvent& event) { events.emplace_back(event.kind, event.step); };
  const SessionRequest request = ramped();
  const SmallResult result = run_small(request, options);
  const std::vector<int64_t> batches = {2, 2, 2, 4, 4, 8, 8, 8, 8};
  ASSERT_EQ(records.size(), batches.size());
  int64_t samples = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    samples += batches[i];
    EXPECT_EQ(records[i].global_batch, batches[i]);
    EXPECT_EQ(records[i].tokens, samples * kSequence);
    EXPECT_EQ(records[i].learning_rate, learning_rate_at(request.job.optimizer, records[i].step, kSteps));
  }
  ASSERT_GE(std::ssize(read), samples);  // behind them the loss that the last checkpoint records
  for (int64_t i = 0; i < samples; ++i) EXPECT_EQ(read[static_cast<size_t>(i)], i);
  const auto count = [&](const std::pair<std::string, int64_t>& event) {
    return std::count(events.begin(), events.end(), event);
  };
  EXPECT_EQ(count({"batch_ramp", 4}) + count({"batch_ramp", 6}), 2);
  EXPECT_EQ(result.report.global_batch, 8);
  EXPECT_EQ(result.report.step_seconds.size(), 4u) << "of the full steps alone";
}

TEST(BatchRamp, IsBitwiseTheRunThatChangesItsBatchByHand) {
  const TemporaryFolder ramp, by_hand;
  const SmallResult expected = run_small(ramped(), small_options(ramp.path(), kSteps));
  SmallResult last;
  for (const auto& [batch, stop] : {std::pair<int64_t, int64_t>{2, 3}, {4, 5}, {8, kSteps}}) {
    TrainerOptions options = small_options(by_hand.path(), kSteps);
    options.stop_after = stop;
    options.resume = true;
    options.identity.plan_digest = std::to_string(batch);
    last = run_small(constant_batch(batch), options);
  }
  EXPECT_EQ(last.state, expected.state);
  EXPECT_EQ(last.report.tokens, expected.report.tokens);
  EXPECT_NE(run_small(constant_batch(8), small_options(TemporaryFolder().path(), kSteps)).state, expected.state);
}

TEST(BatchRamp, StoppedAfterAnyStepAndResumedIsBitwiseTheUndisturbedRun) {
  const TemporaryFolder undisturbed;
  std::map<int64_t, double> losses;
  TrainerOptions whole = small_options(undisturbed.path(), kSteps);
  whole.on_step = [&](const StepRecord& record) { losses[record.step] = record.loss; };
  const SmallResult expected = run_small(ramped(), whole);
  for (int64_t stop = 1; stop < kSteps; ++stop) {
    const TemporaryFolder folder;
    TrainerOptions options = small_options(folder.path(), kSteps);
    options.stop_after = stop;
    run_small(ramped(), options);
    options.stop_after = kSteps;
    options.resume = true;
    options.recorded_losses = losses;
    std::vector<std::pair<std::string, int64_t>> events;
    options.on_event = [&](const RunEvent& event) { events.emplace_back(event.kind, event.step); };
    const SmallResult resumed = run_small(ramped(), options);
    EXPECT_EQ(resumed.state, expected.state) << stop;
    EXPECT_EQ(events.at(1), std::make_pair(std::string("resume_verified"), stop));
    EXPECT_EQ(events.at(2), std::make_pair(std::string("resume_verified"), stop + 1)) << "the replayed step";
  }
}

TEST(BatchRamp, ALossIsNotComparedWithThatOfAnotherBatch) {
  const TemporaryFolder folder;
  TrainerOptions options = small_options(folder.path(), kSteps);
  options.stop_after = 2;
  run_small(ramped(), options);
  options.stop_after = 3;
  options.resume = true;
  options.recorded_losses[3] = 1.0;  // the step of two sequences did not have this loss
  EXPECT_THROW(run_small(ramped(), options), Error);
  std::vector<std::string> events;
  options.on_event = [&](const RunEvent& event) { events.push_back(event.kind); };
  options.identity.plan_digest = "without the ramp";
  const SmallResult result = run_small(constant_batch(8), options);
  EXPECT_EQ(events.at(1), "resume_verified") << "the evaluation Program has the same batch";
  EXPECT_EQ(result.report.tokens, (2 * 2 + 8) * kSequence);
}

TEST(BatchRamp, ProgramsOfTheSetShareWhatSurvivesAStep) {
  auto communicator = make_local_communicator();
  const auto session = make_session(ramped(), *communicator, make_device("reference", 1));
  ASSERT_EQ(session->ramp.size(), 2u);
  EXPECT_EQ(session->arena->bytes(), arena_bytes_of(session->programs));
  EXPECT_EQ(&session->step_after(5).executor, session->ramp[0].get());
  EXPECT_EQ(&session->step_after(6).executor, session->ramp[1].get());
  EXPECT_EQ(&session->step_after(14).executor, session->train.get());
  EXPECT_EQ(session->step_after(13).program.micro_batches, 2);
}

}  // namespace
}  // namespace foresail
