#include "runtime/trainer/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/folder.h"
#include "tests/trainer/small_run.h"

namespace foresail {
namespace {

using testing::run_small;
using testing::small_options;
using testing::small_request;
using testing::SmallResult;
using testing::TemporaryFolder;

TEST(Trainer, LearnsARule) {
  const TemporaryFolder folder;
  TrainerOptions options = small_options(folder.path(), 60);
  std::vector<StepRecord> records;
  options.on_step = [&](const StepRecord& record) { records.push_back(record); };
  const SmallResult result = run_small(small_request(), options);
  ASSERT_EQ(records.size(), 60u);
  EXPECT_NEAR(records[0].loss, std::log(23.0), 0.3);
  EXPECT_LT(*result.report.validation_loss, 2.2);
  EXPECT_LT(result.report.loss, 2.2);
  EXPECT_EQ(records[2].tokens, 3 * 4 * 8);
  EXPECT_EQ(result.report.step_seconds.size(), 60u);
}

TEST(Trainer, LearningRateIsAFunctionOfTheStep) {
  const TemporaryFolder folder;
  TrainerOptions options = small_options(folder.path(), 6);
  std::vector<double> rates;
  options.on_step = [&](const StepRecord& record) { rates.push_back(record.learning_rate); };
  const SessionRequest request = small_request();
  run_small(request, options);
  for (int64_t step = 1; step <= 6; ++step) {
    EXPECT_EQ(rates[static_cast<size_t>(step - 1)], learning_rate_at(request.job.optimizer, step, 6));
  }
}

TEST(Trainer, EvaluatingChangesNoBitOfTraining) {
  const TemporaryFolder one, two;
  TrainerOptions without = small_options(two.path(), 12);
  without.validation = {};
  EXPECT_EQ(run_small(small_request(), small_options(one.path(), 12)).state, run_small(small_request(), without).state);
}

/// Asks to stop as soon as `batches` batches of validation data have been read.
struct StopInEvaluation {
  TrainerOptions options;
  int64_t read = 0, batch = 0;

  StopInEvaluation(const std::filesystem::path& run, int64_t steps, int64_t batches)
      : options(small_options(run, steps)) {
    batch = small_request().job.global_batch;
    options.validation = [this](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
      ++read;
      testing::rule_samples(23, 2)(index, tokens, targets);
    };
    options.stop_requested = [this, batches] { return read >= batches * batch; };
  }
};

SessionRequest long_evaluation() {
  SessionRequest request = small_request();  // an evaluation after step 5
  request.job.evaluation_batches = 1000;
  return request;
}

TEST(Trainer, AStopRequestDuringEvaluationIsNoticedBeforeTheNextBatch) {
  const TemporaryFolder folder;
  StopInEvaluation stop(folder.path(), 12, 3);
  std::vector<std::string> events;
  stop.options.on_event = [&](const RunEvent& event) { events.push_back(event.kind + ": " + event.text); };
  std::optional<double> validation;
  stop.options.on_step = [&](const StepRecord& record) { validation = record.validation_loss; };
  const SmallResult stopped = run_small(long_evaluation(), stop.options);
  EXPECT_TRUE(stopped.report.stopped);
  EXPECT_EQ(stopped.report.last_step, 5);
  EXPECT_EQ(stop.read, 3 * stop.batch);
  EXPECT_FALSE(validation);
  EXPECT_FALSE(stopped.report.validation_loss);
  EXPECT_NE(std::find(events.begin(), events.end(), "evaluation_stopped: by a stop request"), events.end());
  EXPECT_EQ(stopped.report.checkpoint, checkpoint_path(checkpoints_folder(folder.path()), 5).string());

  TrainerOptions again = small_options(folder.path(), 12);
  again.resume = true;
  const TemporaryFolder undisturbed;
  EXPECT_EQ(run_small(small_request(), again).state,
            run_small(small_request(), small_options(undisturbed.path(), 12)).state);
}

TEST(Trainer, AStopRequestDuringTheLastEvaluationLeavesAFinishedRun) {
  const TemporaryFolder folder;
  StopInEvaluation stop(folder.path(), 4, 2);
  const SmallResult result = run_small(long_evaluation(), stop.options);
  EXPECT_FALSE(result.report.stopped);
  EXPECT_EQ(stop.read, 2 * stop.batch);
  EXPECT_FALSE(result.report.validation_loss);
  EXPECT_EQ(result.report.checkpoint, checkpoint_path(checkpoints_folder(folder.path()), 4).string());
}

TEST(Trainer, AStopRequestBeforeAnEvaluationLeavesItOut) {
  const TemporaryFolder folder;
  StopInEvaluation stop(folder.path(), 12, 1000);
  int asked = 0;
  stop.options.stop_requested = [&] { return ++asked == 5; };
  EXPECT_TRUE(run_small(long_evaluation(), stop.options).report.stopped);
  EXPECT_EQ(stop.read, 0);
}

TEST(Trainer, StoppedAndResumedIsBitwiseTheUndisturbedRun) {
  const TemporaryFolder undisturbed, stopped;
  const SmallResult expected = run_small(small_request(), small_options(undisturbed.path(), 12));
  TrainerOptions first = small_options(stopped.path(), 12);
  int steps = 0;
  first.stop_requested = [&] { return ++steps == 5; };
  const SmallResult half = run_small(small_request(), first);
  EXPECT_TRUE(half.report.stopped);
  EXPECT_EQ(half.report.last_step, 5);
  EXPECT_EQ(half.report.checkpoint, checkpoint_path(checkpoints_folder(stopped.path()), 5).string());

  TrainerOptions second = small_options(stopped.path(), 12);
  second.resume = true;
  std::vector<std::string> events;
  second.on_event = [&](const RunEvent& event) { events.push_back(event.kind); };
  const SmallResult resumed = run_small(small_request(), second);
  EXPECT_EQ(resumed.report.first_step, 6);
  EXPECT_EQ(resumed.state, expected.state);
  EXPECT_EQ(resumed.report.loss, expected.report.loss);
  EXPECT_EQ(events[0], "resume");
  EXPECT_EQ(events[1], "resume_verified");
}

TEST(Trainer, ResumingFromAnOlderCheckpointSetsTheNewerOnesAside) {
  const TemporaryFolder folder;
  const SmallResult expected = run_small(small_request(), small_options(folder.path(), 12));
  TrainerOptions again = small_options(folder.path(), 12);
  again.resume = true;
  again.resume_step = 8;
  const SmallResult resumed = run_small(small_request(), again);
  EXPECT_EQ(resumed.report.first_step, 9);
  EXPECT_EQ(resumed.state, expected.state);
}

TEST(Trainer, AnotherBatchSizeGoesOnAtTheSamePlaceInTheData) {
  const TemporaryFolder folder;
  TrainerOptions first = small_options(folder.path(), 12);
  first.stop_after = 4;
  run_small(small_request(), first);  // 4 steps of 4 samples
  SessionRequest larger = small_request();
  larger.job.global_batch = 8;
  TrainerOptions second = small_options(folder.path(), 12);
  second.resume = true;
  second.stop_after = 5;
  second.identity.plan_digest = "another plan";
  std::vector<int64_t> read;
  second.training = [&](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
    read.push_back(index);
    testing::rule_samples(23, 1)(index, tokens, targets);
  };
  std::vector<std::string> events;
  second.on_event = [&](const RunEvent& event) { events.push_back(event.kind); };
  const SmallResult result = run_small(larger, second);
  EXPECT_EQ(read.front(), 16);
  EXPECT_EQ(result.report.tokens, (16 + 8) * 8);
  EXPECT_EQ(events[1], "resume_unverified") << "losses of different batches cannot be compared";
}

TEST(Trainer, ResumingBeforeTheFirstCheckpointStartsOver) {
  const TemporaryFolder folder;
  TrainerOptions options = small_options(folder.path(), 3);
  options.resume = true;
  EXPECT_EQ(run_small(small_request(), options).report.first_step, 1);
}

TEST(Trainer, AReplayedStepMustHaveTheRecordedLoss) {
  const TemporaryFolder folder;
  TrainerOptions first = small_options(folder.path(), 12);
  first.stop_after = 4;
  run_small(small_request(), first);
  TrainerOptions second = small_options(folder.path(), 12);
  second.resume = true;
  second.recorded_losses[5] = 1.0;
  try {
    run_small(small_request(), second);
    FAIL() << "a wrong replay was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_NE(std::string(error.what()).find("step 5: replayed loss"), std::string::npos) << error.what();
  }
}

TEST(Trainer, AResumeThatDoesNotReproduceTheNextBatchIsRefused) {
  const TemporaryFolder folder;
  TrainerOptions first = small_options(folder.path(), 12);
  first.stop_after = 4;
  run_small(small_request(), first);
  TrainerOptions second = small_options(folder.path(), 12);
  second.resume = true;
  second.training = testing::rule_samples(23, 99);  // same identity, other samples
  EXPECT_THROW(run_small(small_request(), second), Error);
}

TEST(Trainer, ACheckpointOfAnotherModelDatasetOrSeedIsRefused) {
  const TemporaryFolder folder;
  TrainerOptions first = small_options(folder.path(), 4);
  run_small(small_request(), first);
  for (const auto change : {+[](RunState& s) { s.model_config = "other"; },
                            +[](RunState& s) { s.dataset_identity = "other"; }, +[](RunState& s) { s.seed = 5; }}) {
    TrainerOptions second = small_options(folder.path(), 8);
    second.resume = true;
    change(second.identity);
    EXPECT_THROW(run_small(small_request(), second), Error);
  }
}

TEST(Trainer, AResumeWithAnotherSequenceLengthOrBehindItsLastStepIsRefused) {
  const TemporaryFolder folder;
  TrainerOptions first = small_options(folder.path(), 4);
  run_small(small_request(), first);
  const auto refusal = [&](const SessionRequest& request, int64_t steps) -> std::string {
    TrainerOptions second = small_options(folder.path(), steps);
    second.resume = true;
    try {
      run_small(request, second);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  SessionRequest longer = small_request();
  longer.job.sequence_length *= 2;
  EXPECT_NE(refusal(longer, 8).find("sequence length"), std::string::npos);
  EXPECT_NE(refusal(small_request(), 2).find("it is at step 4, the run is to end after 2"), std::string::npos);
  EXPECT_EQ(refusal(small_request(), 4), "");
}

TEST(Trainer, AStepWithoutAFiniteGradientIsSkippedAndTooManyEndTheRun) {
  const TemporaryFolder folder;
  SessionRequest request = small_request();
  request.job.optimizer.learning_rate = 1e200;
  request.job.optimizer.warmup_steps = 0;
  request.job.checkpoint_interval_steps = 0;
  TrainerOptions options = small_options(folder.path(), 20);
  std::vector<int64_t> skipped;
  options.on_event = [&](const RunEvent& event) {
    if (event.kind == "step_skipped") skipped.push_back(event.step);
  };
  options.most_bad_steps = 3;
  try {
    run_small(request, options);
    FAIL() << "a run of NaNs went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::environment_failed);
  }
  EXPECT_EQ(skipped, (std::vector<int64_t>{2, 3, 4}));
}

TEST(Trainer, InitTakesTheParametersOfACheckpointAndStartsAtStepZero) {
  const TemporaryFolder trained, fresh;
  const SmallResult donor = run_small(small_request(), small_options(trained.path(), 12));
  TrainerOptions options = small_options(fresh.path(), 1);
  options.init = donor.report.checkpoint;
  const SmallResult result = run_small(small_request(), options);
  EXPECT_EQ(result.report.first_step, 1);
  EXPECT_LT(result.report.loss, std::log(23.0) - 0.3) << "the donor had learnt something";
}

TEST(Trainer, KeepsAsManyCheckpointsAsTheJobSays) {
  const TemporaryFolder folder;
  run_small(small_request(), small_options(folder.path(), 16));
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 2u);
}

TEST(Session, AProgramThatDiffersFromThePlannedOneIsRefused) {
  SessionRequest request = small_request();
  request.program_digests = {"00000000000000000000000000000000"};
  auto communicator = make_local_communicator();
  EXPECT_THROW(make_session(request, *communicator, make_device("reference", 1)), Error);
}

TEST(Session, RefusesAnotherNumberOfRanksThanTheStrategyHas) {
  SessionRequest request = small_request();
  request.strategy.dp = 2;
  auto communicator = make_local_communicator();
  EXPECT_THROW(make_session(request, *communicator, make_device("reference", 1)), Error);
}

}  // namespace
}  // namespace foresail
