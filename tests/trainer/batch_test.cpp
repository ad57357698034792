#include "runtime/trainer/batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/executor/fakes.h"
#include "tests/trainer/small_run.h"

namespace foresail {
namespace {

/// Sample k is k, k, k, ...; its targets are 1000 + k.
void numbered(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
  for (int32_t& token : tokens) token = static_cast<int32_t>(index);
  for (int32_t& target : targets) target = static_cast<int32_t>(1000 + index);
}

TEST(Batch, EverySampleOfTheGlobalBatchIsReadByExactlyOneDataRank) {
  SessionRequest request = testing::small_request();
  request.job.global_batch = 12;
  request.strategy.dp = 3;
  const Program program = compile(request.model, request.job, request.strategy, request.target, 0).train;
  ASSERT_EQ(program.micro_batches, 2);
  std::map<int32_t, int> seen;
  for (int rank = 0; rank < 3; ++rank) {
    testing::RecordingDevice device;
    testing::RecordingCommunicator communicator(rank, 3);
    communicator.create_groups(mesh_groups(program.mesh).members);
    Arena arena(program.arena.bytes);
    Executor executor(program, device, &communicator, arena, rank);
    std::vector<int32_t> unused(8);
    fill_batch(executor, program, rank, 24, numbered, unused);
    for (int64_t m = 0; m < 2; ++m) {
      for (int64_t row = 0; row < 16; row += 8) {
        const int32_t sample = executor.tokens(m)[static_cast<size_t>(row)];
        EXPECT_EQ(sample, 24 + rank * 4 + m * 2 + row / 8);
        EXPECT_EQ(executor.targets(m)[static_cast<size_t>(row + 7)], 1000 + sample);
        ++seen[sample];
      }
    }
  }
  EXPECT_EQ(seen.size(), 12u);
}

TEST(Batch, ThePipelinesFirstStageReadsTokensAndItsLastTargets) {
  SessionRequest request = testing::small_request();
  request.strategy.pp = 2;
  for (const int stage : {0, 1}) {
    const Program program = compile(request.model, request.job, request.strategy, request.target, stage).train;
    testing::RecordingDevice device;
    testing::RecordingCommunicator communicator(stage, 2);
    communicator.create_groups(mesh_groups(program.mesh).members);
    Arena arena(program.arena.bytes);
    Executor executor(program, device, &communicator, arena, stage);
    EXPECT_EQ(executor.tokens(0).empty(), stage == 1);
    EXPECT_EQ(executor.targets(0).empty(), stage == 0);
    std::vector<int32_t> unused(8);
    fill_batch(executor, program, 0, 0, numbered, unused);
    if (stage == 0) {
      EXPECT_EQ(executor.tokens(1)[8], 3);
    } else {
      EXPECT_EQ(executor.targets(1)[8], 1003);
    }
  }
}

TEST(StepInputs, HoldThePowersOfTheBetasAndTheWeightOfAToken) {
  Job job;
  job.optimizer.beta1 = 0.9;
  job.optimizer.beta2 = 0.99;
  const StepInputs inputs = step_inputs_at(job, 3, 10, 64);
  EXPECT_DOUBLE_EQ(inputs.beta1_power, 0.9 * 0.9 * 0.9);
  EXPECT_DOUBLE_EQ(inputs.beta2_power, 0.99 * 0.99 * 0.99);
  EXPECT_DOUBLE_EQ(inputs.inverse_valid_tokens, 1.0 / 64);
  EXPECT_EQ(inputs.learning_rate, learning_rate_at(job.optimizer, 3, 10));
}

}  // namespace
}  // namespace foresail
