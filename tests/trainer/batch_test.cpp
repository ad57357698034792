#include "runtime/trainer/batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
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

/// The rank at `place` with its data slots filled, and which samples it read.
struct Filled {
  Program program;
  testing::RecordingDevice device;
  std::unique_ptr<testing::RecordingCommunicator> communicator;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Executor> executor;
  std::vector<int64_t> read;

  Filled(const SessionRequest& request, const MeshCoordinate& place, int64_t first_sample, const SampleReader& reader) {
    program = compile(request.model, request.job, request.strategy, request.target, place.pp).train;
    const int rank = program.mesh.rank_of(place);
    communicator = std::make_unique<testing::RecordingCommunicator>(rank, program.mesh.size());
    communicator->create_groups(mesh_groups(program.mesh).members);
    arena = std::make_unique<Arena>(program.arena.bytes);
    std::memset(arena->data() + program.arena.data.offset, 0x5A, static_cast<size_t>(program.arena.data.bytes));
    executor = std::make_unique<Executor>(program, device, communicator.get(), *arena, rank);
    std::vector<int32_t> sample(static_cast<size_t>(2 * program.sequence_length));
    const SampleReader recording = [&](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
      read.push_back(index);
      reader(index, tokens, targets);
    };
    fill_batch(*executor, program, place, first_sample, recording, sample);
  }
};

TEST(Batch, EverySampleOfTheGlobalBatchIsReadByExactlyOneDataRank) {
  SessionRequest request = testing::small_request();
  request.job.global_batch = 12;
  request.strategy.dp = 3;
  std::map<int32_t, int> seen;
  for (int rank = 0; rank < 3; ++rank) {
    Filled filled(request, {.dp = rank}, 24, numbered);
    ASSERT_EQ(filled.program.micro_batches, 2);
    for (int64_t m = 0; m < 2; ++m) {
      for (int64_t row = 0; row < 16; row += 8) {
        const int32_t sample = filled.executor->tokens(m)[static_cast<size_t>(row)];
        EXPECT_EQ(sample, 24 + rank * 4 + m * 2 + row / 8);
        EXPECT_EQ(filled.executor->targets(m)[static_cast<size_t>(row + 7)], 1000 + sample);
        ++seen[sample];
      }
    }
  }
  EXPECT_EQ(seen.size(), 12u);
}

TEST(Batch, ContextParallelRanksTakeTheirPositionsOfTheSameSamples) {
  SessionRequest request = testing::small_request();
  request.strategy.dp = request.strategy.cp = 2;
  const SampleReader positions = [](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(index * 100 + static_cast<int64_t>(i));
      targets[i] = tokens[i] + 1;
    }
  };
  // Eight positions in four chunks: the first rank has chunks 0 and 3, the second 1 and 2.
  const std::vector<std::vector<int32_t>> expected = {{0, 1, 6, 7}, {2, 3, 4, 5}};
  for (int dp = 0; dp < 2; ++dp) {
    for (int cp = 0; cp < 2; ++cp) {
      Filled filled(request, {.dp = dp, .cp = cp}, 4, positions);
      ASSERT_EQ(filled.program.micro_batches, 1);
      ASSERT_EQ(filled.executor->tokens(0).size(), 8u);
      EXPECT_EQ(filled.read, (std::vector<int64_t>{4 + 2 * dp, 5 + 2 * dp}));
      for (size_t row = 0; row < 8; ++row) {
        const int32_t token = static_cast<int32_t>((4 + 2 * dp + static_cast<int>(row) / 4) * 100) +
                              expected[static_cast<size_t>(cp)][row % 4];
        EXPECT_EQ(filled.executor->tokens(0)[row], token);
        EXPECT_EQ(filled.executor->targets(0)[row], token + 1);
      }
    }
  }
}

TEST(Batch, PlacesBeyondARaggedBatchAreMaskedAndNotRead) {
  SessionRequest request = testing::small_request();
  request.job.global_batch = 5;
  request.strategy.dp = 2;
  request.strategy.ragged_batch = true;
  std::vector<int64_t> read;
  for (int dp = 0; dp < 2; ++dp) {
    Filled filled(request, {.dp = dp}, 10, numbered);
    ASSERT_EQ(filled.program.micro_batches, 2);
    EXPECT_EQ(global_batch_of(filled.program), 5);
    read.insert(read.end(), filled.read.begin(), filled.read.end());
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t index = dp * 4 + i;
      for (size_t row = 0; row < 8; ++row) {
        const size_t at = static_cast<size_t>(i % 2) * 8 + row;
        EXPECT_EQ(filled.executor->tokens(i / 2)[at], index < 5 ? 10 + index : 0) << index;
        EXPECT_EQ(filled.executor->targets(i / 2)[at], index < 5 ? 1010 + index : kMaskedTarget) << index;
      }
    }
  }
  EXPECT_EQ(read, (std::vector<int64_t>{10, 11, 12, 13, 14}));
}

TEST(Batch, ThePipelinesFirstStageReadsTokensAndItsLastTargets) {
  SessionRequest request = testing::small_request();
  request.strategy.pp = 2;
  for (const int cp : {1, 2}) {
    request.strategy.cp = cp;
    for (const int stage : {0, 1}) {
      Filled filled(request, {.pp = stage, .cp = cp - 1}, 0, numbered);
      Executor& executor = *filled.executor;
      EXPECT_EQ(executor.tokens(0).empty(), stage == 1);
      EXPECT_EQ(executor.targets(0).empty(), stage == 0);
      const size_t second = static_cast<size_t>(8 / cp);
      if (stage == 0) {
        EXPECT_EQ(executor.tokens(1)[second], 3);
      } else {
        EXPECT_EQ(executor.targets(1)[second], 1003);
      }
    }
  }
}

TEST(Batch, EveryRankCountsTheTargetsOfTheWholeGlobalBatch) {
  const SampleReader reader{numbered, [](int64_t index) { return index % 5; }};
  for (const char* strategy : {"micro_batch=2", "dp=2,micro_batch=1", "cp=2,micro_batch=4", "pp=2,micro_batch=1",
                               "dp=4,micro_batch=2,ragged_batch=true"}) {
    SessionRequest request = testing::small_request();
    request.job.global_batch = 12;
    request.strategy = parse_strategy(strategy).strategy;
    for (int stage = 0; stage < request.strategy.pp; ++stage) {
      const Program program = compile(request.model, request.job, request.strategy, request.target, stage).train;
      EXPECT_EQ(counted_targets(program, 3, reader), 3 + 4 + 0 + 1 + 2 + 3 + 4 + 0 + 1 + 2 + 3 + 4) << strategy;
      EXPECT_EQ(counted_targets(program, 3, numbered), 12 * 8) << "without a mask all count";
    }
  }
}

TEST(StepInputs, OfABatchInWhichNothingCountsWeighNothing) {
  EXPECT_EQ(step_inputs_at(Job(), 1, 10, 0).inverse_valid_tokens, 0);
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
