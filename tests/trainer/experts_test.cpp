// Whole runs of a model with experts: a step whose rows find no room is repeated and says so, and a checkpoint of one cut
// of the experts is read by any other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/trainer/small_run.h"
#include "tests/trainer/thread_world.h"

namespace foresail {
namespace {

using testing::run_world;
using testing::small_options;
using testing::TemporaryFolder;

SessionRequest request_for(const std::string& strategy) {
  SessionRequest request = testing::small_expert_request();
  request.job.global_batch = 8;
  request.job.evaluation_interval_steps = 0;
  request.job.checkpoint_interval_steps = 0;
  request.strategy = parse_strategy(strategy).strategy;
  return request;
}

struct Outcome {
  std::vector<double> losses, auxiliary_losses;
  std::vector<std::string> events;
};

Outcome train(const std::string& strategy, const std::filesystem::path& run, int64_t last, bool resume) {
  const SessionRequest request = request_for(strategy);
  Outcome outcome;
  const auto errors = run_world(static_cast<int>(request.strategy.devices()), [&](Communicator& communicator) {
    auto session = make_session(request, communicator, make_device("reference", 1));
    TrainerOptions options = small_options(run, 12);
    options.stop_after = last;
    options.resume = resume;
    options.validation = {};
    options.identity.plan_digest = strategy;
    options.identity.model_config = write_model_config(request.model);
    options.on_step = [&](const StepRecord& record) {
      outcome.losses.push_back(record.loss);
      outcome.auxiliary_losses.push_back(record.auxiliary_loss.value_or(std::nan("")));
    };
    options.on_event = [&](const RunEvent& event) { outcome.events.push_back(event.kind); };
    run_training(*session, communicator, options);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "") << strategy;
  return outcome;
}

Outcome train_new(const std::string& strategy, int64_t steps = 12) {
  const TemporaryFolder run;
  return train(strategy, run.path(), steps, false);
}

int64_t overflows(const Outcome& outcome) {
  return std::count(outcome.events.begin(), outcome.events.end(), "expert_overflow");
}

TEST(Experts, AStepWithoutRoomIsRepeatedAndSaidAndGivesTheBitsOfAmpleRoom) {
  const Outcome tight = train_new("dp=2,ep=2,micro_batch=2,moe_bound=1");
  const Outcome ample = train_new("dp=2,ep=2,micro_batch=2,moe_bound=4");
  EXPECT_GT(overflows(tight), 0);
  EXPECT_EQ(overflows(ample), 0);
  ASSERT_EQ(tight.losses.size(), 12u);
  EXPECT_EQ(tight.losses, ample.losses);
  EXPECT_EQ(tight.auxiliary_losses, ample.auxiliary_losses);
}

TEST(Experts, EveryCutTrainsTheModelOfOneRank) {
  const Outcome one = train_new("micro_batch=8");
  EXPECT_GT(one.auxiliary_losses.front(), 0);
  for (const std::string strategy :
       {"dp=4,ep=4,micro_batch=1", "dp=2,etp=2,micro_batch=2,zero_stage=1", "cp=2,dp=2,ep=2,micro_batch=2,zero_stage=3",
        "tp=2,sequence_parallel=true,ep=2,micro_batch=2,recompute=selective", "pp=2,dp=2,ep=2,micro_batch=2"}) {
    const Outcome cut = train_new(strategy);
    ASSERT_EQ(cut.losses.size(), one.losses.size());
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(cut.losses[i], one.losses[i], 1e-10) << strategy << ", step " << i + 1;
      EXPECT_NEAR(cut.auxiliary_losses[i], one.auxiliary_losses[i], 1e-10) << strategy << ", step " << i + 1;
    }
  }
}

TEST(Experts, ACheckpointOfOneCutIsReadByAnother) {
  const TemporaryFolder run;
  const std::string strategies[] = {"dp=2,ep=2,micro_batch=2,zero_stage=1",
                                    "tp=2,sequence_parallel=true,etp=2,micro_batch=2",
                                    "dp=4,ep=2,micro_batch=1,zero_stage=3", "micro_batch=4"};
  std::vector<double> losses;
  for (size_t i = 0; i < std::size(strategies); ++i) {
    const Outcome part = train(strategies[i], run.path(), static_cast<int64_t>(3 * (i + 1)), i > 0);
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
  }
  const Outcome whole = train_new("micro_batch=8");
  ASSERT_GE(losses.size(), whole.losses.size());
  EXPECT_NEAR(losses.back(), whole.losses.back(), 1e-9);
}

}  // namespace
}  // namespace foresail
