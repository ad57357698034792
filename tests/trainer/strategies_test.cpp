// Whole runs of several ranks: every strategy trains the model of one rank, resumes itself bitwise, and goes on from what
// any other has saved.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/trainer/generator.h"
#include "tests/trainer/small_run.h"
#include "tests/trainer/thread_world.h"

namespace foresail {
namespace {

using testing::run_world;
using testing::small_options;
using testing::TemporaryFolder;

constexpr const char* kStrategies[] = {
    "micro_batch=2",
    "dp=2,micro_batch=2,zero_stage=1",
    "dp=3,micro_batch=1,zero_stage=3",
    "dp=4,micro_batch=1,zero_stage=3,zero_group=2",
    "dp=2,tp=2,micro_batch=1,zero_stage=2,sequence_parallel=true",
    "pp=2,micro_batch=1,virtual_stages=2,schedule=interleaved",
    "dp=2,pp=2,micro_batch=1,virtual_stages=2,schedule=zb-v,zero_stage=1",
    "pp=4,micro_batch=2,schedule=zb-h1",
    "cp=2,micro_batch=2",
    "dp=2,cp=2,micro_batch=1,zero_stage=3,context=all_to_all",
    "tp=4,micro_batch=3,recompute=full",
    "dp=2,micro_batch=4,ragged_batch=true,zero_stage=2",
    "dp=3,micro_batch=1,zero_stage=3,overlap=true",
    "dp=2,pp=2,micro_batch=1,zero_stage=1,overlap=true,bucket_bytes=4096",
};

SessionRequest request_for(const std::string& strategy, const std::vector<BatchRampStage>& ramp = {}) {
  SessionRequest request = testing::small_request();
  request.model.layers = 4;
  request.model.tied_embeddings = true;
  request.job.global_batch = 12;
  request.job.batch_ramp = ramp;
  request.job.checkpoint_interval_steps = 0;
  request.strategy = parse_strategy(strategy).strategy;
  return request;
}

TrainerOptions options_for(const std::filesystem::path& run, const std::string& strategy) {
  TrainerOptions options = small_options(run, 24);
  options.identity.plan_digest = strategy;
  options.identity.model_config = write_model_config(request_for(strategy).model);
  return options;
}

struct Outcome {
  std::vector<double> losses;  ///< of the steps
  std::vector<std::string> events;
  std::map<std::string, std::string> digests;  ///< of parameters and moments
};

Outcome train(const std::string& strategy, const TrainerOptions& options,
              const std::vector<BatchRampStage>& ramp = {}) {
  const SessionRequest request = request_for(strategy, ramp);
  Outcome outcome;
  const auto errors = run_world(static_cast<int>(request.strategy.devices()), [&](Communicator& communicator) {
    auto session = make_session(request, communicator, make_device("reference", 1));
    TrainerOptions own = options;
    own.on_step = [&](const StepRecord& record) { outcome.losses.push_back(record.loss); };
    own.on_event = [&](const RunEvent& event) { outcome.events.push_back(event.kind); };
    run_training(*session, communicator, own);
    const CheckpointRanks ranks{&communicator, world_group(*session)};
    const auto views = segment_views(session->programs.train, session->slices, session->arena->data());
    for (const SegmentView& view : views) {
      for (const auto& [tensor, digest] : tensor_digests(view, ranks)) {
        if (communicator.rank() == 0) outcome.digests[tensor + std::string(suffix_of(view.quantity))] = digest;
      }
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "") << strategy;
  return outcome;
}

class EveryStrategy : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryStrategy, StoppedAndResumedIsBitwiseTheUndisturbedRun) {
  const std::string strategy = GetParam();
  const TemporaryFolder undisturbed, stopped;
  TrainerOptions whole = options_for(undisturbed.path(), strategy), half = options_for(stopped.path(), strategy);
  whole.stop_after = 4;
  half.stop_after = 2;
  const Outcome expected = train(strategy, whole);
  train(strategy, half);
  half.stop_after = 4;
  half.resume = true;
  const Outcome resumed = train(strategy, half);
  ASSERT_GE(resumed.events.size(), 2u);
  EXPECT_EQ(resumed.events[0], "resume");
  EXPECT_EQ(resumed.events[1], "resume_verified");
  EXPECT_FALSE(expected.digests.empty());
  EXPECT_EQ(resumed.digests, expected.digests);
  ASSERT_EQ(expected.losses.size(), 4u);
  EXPECT_EQ(resumed.losses, std::vector<double>(expected.losses.begin() + 2, expected.losses.end()));
}

/// One step of as few sequences as the strategy divides, two of twice as many, then 12.
std::vector<BatchRampStage> ramp_for(const std::string& strategy) {
  const Strategy parsed = parse_strategy(strategy).strategy;
  const int64_t tokens = 8, round = parsed.dp * parsed.micro_batch;
  if (parsed.ragged_batch) return {{3, 3 * tokens}, {7, 2 * 7 * tokens}};
  return {{round, round * tokens}, {2 * round, 2 * 2 * round * tokens}};
}

TEST_P(EveryStrategy, ABatchRampIsThatOfOneRankAndIsResumedBitwiseOverItsStages) {
  const std::string strategy = GetParam();
  const std::vector<BatchRampStage> ramp = ramp_for(strategy);
  const TemporaryFolder undisturbed, stopped, one;
  TrainerOptions whole = options_for(undisturbed.path(), strategy), part = options_for(stopped.path(), strategy);
  whole.stop_after = 5;
  const Outcome expected = train(strategy, whole, ramp);
  ASSERT_EQ(expected.losses.size(), 5u);
  EXPECT_EQ(std::count(expected.events.begin(), expected.events.end(), "batch_ramp"), std::ssize(ramp));
  std::vector<double> losses;
  for (const int64_t stop : {1, 2, 3, 4, 5}) {  // every stage is left and entered by a resume
    part.stop_after = stop;
    part.resume = true;
    const Outcome outcome = train(strategy, part, ramp);
    losses.insert(losses.end(), outcome.losses.begin(), outcome.losses.end());
    if (stop < 5) continue;
    EXPECT_EQ(outcome.events[1], "resume_verified");
    EXPECT_EQ(outcome.digests, expected.digests);
  }
  EXPECT_EQ(losses, expected.losses);
  TrainerOptions alone = options_for(one.path(), kStrategies[0]);
  alone.stop_after = 5;
  const std::string single = "micro_batch=" + std::to_string(ramp.front().global_batch % 2 == 0 ? 2 : 1);
  const Outcome reference = train(single, alone, ramp);
  for (size_t step = 0; step < 5; ++step) EXPECT_NEAR(losses[step], reference.losses[step], 1e-9) << step + 1;
}

INSTANTIATE_TEST_SUITE_P(Trainer, EveryStrategy, ::testing::ValuesIn(kStrategies));

TEST(Trainer, ARunGoesOnFromStrategyToStrategyAsOnOneRank) {
  const TemporaryFolder one, many;
  constexpr auto kSteps = static_cast<int64_t>(std::size(kStrategies));
  TrainerOptions alone = options_for(one.path(), kStrategies[0]);
  alone.stop_after = kSteps;
  const std::vector<double> expected = train(kStrategies[0], alone).losses;
  ASSERT_EQ(expected.size(), std::size(kStrategies));
  EXPECT_LT(expected.back(), expected.front() - 0.1) << "the model learns";
  for (int64_t step = 1; step <= kSteps; ++step) {
    const std::string strategy = kStrategies[step - 1];
    TrainerOptions options = options_for(many.path(), strategy);
    options.stop_after = step;
    options.resume = true;
    const Outcome outcome = train(strategy, options);
    ASSERT_EQ(outcome.losses.size(), 1u) << strategy;
    EXPECT_NEAR(outcome.losses[0], expected[static_cast<size_t>(step - 1)], 1e-9) << strategy;
    if (step > 1) {
      EXPECT_EQ(outcome.events[1], "resume_verified") << strategy;
    }
  }
}

TEST(Generator, ScoresOfAShardedCheckpointAreThoseOfAWholeOne) {
  std::vector<std::vector<float>> scores;
  for (const char* strategy : {"micro_batch=2", "dp=3,micro_batch=1,zero_stage=3", "pp=2,tp=4,micro_batch=1"}) {
    const TemporaryFolder folder;
    TrainerOptions options = options_for(folder.path(), strategy);
    options.stop_after = 2;
    train(strategy, options);
    Generator generator(Checkpoint(checkpoint_path(checkpoints_folder(folder.path()), 2)), 8, 1);
    const std::vector<int32_t> prompt = {3, 14, 1};
    const auto next = generator.next_scores(prompt);
    scores.emplace_back(next.begin(), next.end());
  }
  ASSERT_EQ(scores[0].size(), 23u);
  EXPECT_GT(*std::max_element(scores[0].begin(), scores[0].end()), 1e-3F);
  for (size_t id = 0; id < 23; ++id) {
    EXPECT_NEAR(scores[1][id], scores[0][id], 1e-6);
    EXPECT_NEAR(scores[2][id], scores[0][id], 1e-6);
  }
}

}  // namespace
}  // namespace foresail
