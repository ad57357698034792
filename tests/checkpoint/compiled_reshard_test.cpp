// Checkpoints between the layouts that program/ gives real strategies.
#include <gtest/gtest.h>

#include "core/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/checkpoint/thread_communicator.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

const std::vector<Quantity> kAll = {Quantity::parameter, Quantity::master, Quantity::moment1, Quantity::moment2};

/// Tied, with biases; widths that tp = 3 does not divide.
ModelSpec tied_model() {
  ModelSpec model = testing::small_gpt2();
  model.heads = model.kv_heads = 6;
  model.ffn = 50;
  return model;
}

constexpr const char* kTiedStrategies[] = {
    "dp=1",
    "dp=3,zero_stage=1",
    "dp=3,tp=2,zero_stage=2",
    "dp=2,cp=2,zero_stage=3",
    "dp=4,zero_stage=3,zero_group=2",
    "tp=3",
    "dp=2,tp=3,zero_stage=3",
    "dp=3,pp=2,zero_stage=3",
    "pp=2,virtual_stages=2,schedule=interleaved",
    "dp=2,pp=2,virtual_stages=2,schedule=zb-v,zero_stage=3",
    "pp=3",
    "dp=2,pp=2,schedule=zb-h1,zero_stage=1",
};
constexpr const char* kUntiedStrategies[] = {
    "dp=1",
    "tp=4",
    "dp=2,tp=4,zero_stage=1",
    "tp=4,cp=2,zero_stage=3",
    "pp=2,tp=2,dp=2,zero_stage=2",
    "dp=5,zero_stage=3",
};

RankMemory memory_of(const ModelSpec& model, const Strategy& strategy, int rank) {
  RankMemory memory;
  const RankSlices slices = rank_slices(model, strategy, mesh_of(model, strategy).coordinate_of(rank));
  memory.slices = slices.parameters;
  memory.state = slices.state;
  const auto end_of = [](const std::vector<ParameterSlice>& list) {
    int64_t end = 0;
    for (const ParameterSlice& slice : list) {
      end = std::max(end, slice.element_offset + (slice.row_end - slice.row_begin) * slice.row_stride);
    }
    return end + 5;
  };
  memory.elements = end_of(memory.slices);
  memory.state_elements = end_of(memory.state);
  return memory;
}

std::vector<std::string> none(const Strategy& strategy) {
  return std::vector<std::string>(static_cast<size_t>(strategy.devices()));
}

std::vector<std::string> save(const ModelSpec& model, const Strategy& strategy, const std::filesystem::path& folder) {
  return run_ranks(static_cast<int>(strategy.devices()), [&](Communicator& communicator) {
    RankMemory memory = memory_of(model, strategy, communicator.rank());
    memory.fill(kAll);
    const auto segments = memory.segments(kAll);
    save_checkpoint({folder, state_at(7), segments, 3, 4096}, {&communicator, 0});
  });
}

std::vector<std::string> restore(const ModelSpec& model, const Strategy& strategy, const std::filesystem::path& path,
                                 std::string& digest) {
  return run_ranks(static_cast<int>(strategy.devices()), [&](Communicator& communicator) {
    RankMemory memory = memory_of(model, strategy, communicator.rank());
    const auto segments = memory.segments(kAll);
    const std::string own = restore_checkpoint(path, segments, {}, {&communicator, 0});
    EXPECT_EQ(memory.wrong(kAll), "") << to_text(strategy) << ", rank " << communicator.rank();
    if (communicator.rank() == 0) digest = own;
  });
}

/// Each strategy writes; one rank and the strategies 1, 2 and 5 places on read. All find the same digest.
void reshard(const ModelSpec& model, std::span<const char* const> strategies) {
  std::string expected;
  for (size_t i = 0; i < strategies.size(); ++i) {
    const Strategy writer = parse_strategy(strategies[i]).strategy;
    const TemporaryFolder folder;
    ASSERT_EQ(save(model, writer, folder.path()), none(writer)) << strategies[i];
    const auto path = folder.path() / "step-7";
    int64_t stored = 0;
    const Checkpoint checkpoint(path);
    for (const StoredTensor& tensor : checkpoint.manifest().tensors) stored += tensor.rows() * tensor.columns();
    EXPECT_EQ(stored, 4 * parameter_count(model)) << strategies[i];
    for (const size_t other : {size_t{0}, i + 1, i + 2, i + 5}) {
      const char* const text = strategies[other % strategies.size()];
      const Strategy reader = parse_strategy(text).strategy;
      std::string digest;
      EXPECT_EQ(restore(model, reader, path, digest), none(reader)) << strategies[i] << " -> " << text;
      if (expected.empty()) expected = digest;
      EXPECT_EQ(digest, expected) << strategies[i] << " -> " << text;
    }
  }
}

TEST(CompiledReshard, ATiedModelGoesFromEveryStrategyToOthers) { reshard(tied_model(), kTiedStrategies); }

TEST(CompiledReshard, AModelWithFewerKvHeadsThanTensorRanksGoesFromEveryStrategyToOthers) {
  reshard(testing::small_llama(), kUntiedStrategies);
}

TEST(CompiledReshard, StrategiesAreLegal) {
  Job job = testing::small_job(12, 16);
  for (const char* text : kTiedStrategies) {
    EXPECT_EQ(legal(tied_model(), job, parse_strategy(text).strategy), std::vector<std::string>()) << text;
  }
  job.global_batch = 20;
  for (const char* text : kUntiedStrategies) {
    EXPECT_EQ(legal(testing::small_llama(), job, parse_strategy(text).strategy), std::vector<std::string>()) << text;
  }
}

}  // namespace
}  // namespace foresail
