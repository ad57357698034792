// Gradients accumulated in an element type of their own: what persists, what is transient, where the sum happens.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "program/compile.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::small_gpt2;
using testing::small_job;
using testing::small_llama;
using testing::train_programs;

/// For a device that has every kernel.
Program compiled(const std::string& strategy, const ModelSpec& model = small_llama()) {
  Target target;
  target.back_end = "catalogue";
  return train_programs(model, small_job(), strategy, target)[0];
}

const Block& block_of(const Program& program, const Call& call) {
  return program.blocks[static_cast<size_t>(call.block)];
}

/// Names of the units that calls of a phase add to the accumulators, in order.
std::vector<std::string> accumulated(const Program& program, Phase phase) {
  std::vector<std::string> names;
  for (const auto& list : program.calls[static_cast<size_t>(phase)]) {
    for (const Call& call : list) {
      const std::string& name = block_of(program, call).name;
      if (!name.ends_with(".accumulate")) continue;
      EXPECT_FALSE(call.last_only) << name << ": every micro-batch counts";
      names.push_back(name);
    }
  }
  return names;
}

/// The element types of the first input of every instruction that `matches`.
template <typename Matches>
std::set<DType> read_types(const Program& program, const Matches& matches) {
  std::set<DType> types;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (!matches(block, instruction)) continue;
      types.insert(block.buffers[static_cast<size_t>(instruction.inputs.at(0))].type.dtype);
    }
  }
  return types;
}

auto operators(OpKind kind) {
  return [kind](const Block&, const Instruction& i) { return i.kind == InstructionKind::op && i.op == kind; };
}
auto collectives(const std::string& block) {
  return [block](const Block& b, const Instruction& i) { return b.name == block && is_collective(i.kind); };
}

TEST(Accumulate, TheSegmentHoldsTheTypeAndIsCutAsBefore) {
  const std::pair<std::string, int64_t> cases[] = {{"dp=2,micro_batch=1", 1},
                                                   {"dp=2,micro_batch=1,zero_stage=1", 1},
                                                   {"dp=2,micro_batch=1,zero_stage=2", 2},
                                                   {"dp=4,micro_batch=1,zero_stage=3,zero_group=2", 2}};
  for (const auto& [strategy, shards] : cases) {
    for (const DType type : {DType::f64, DType::bf16}) {
      const Program program = compiled(strategy + ",accumulate_dtype=" + std::string(name_of(type)));
      EXPECT_EQ(program.accumulate_dtype, type);
      EXPECT_EQ(program.arena.gradients.bytes, program.parameter_elements / shards * size_of(type)) << strategy;
      EXPECT_EQ(program.precision.gradient, DType::f32) << "what kernels add to";
    }
  }
}

TEST(Accumulate, TheTypeThatKernelsAddToChangesNothing) {
  for (const std::string strategy : {"dp=2,micro_batch=1", "dp=2,micro_batch=1,zero_stage=2"}) {
    EXPECT_EQ(program_digest(compiled(strategy + ",accumulate_dtype=f32")), program_digest(compiled(strategy)));
    EXPECT_EQ(accumulated(compiled(strategy), Phase::backward), std::vector<std::string>{});
  }
}

TEST(Accumulate, EveryUnitIsAddedInEveryMicroBatch) {
  const std::vector<std::string> names = accumulated(compiled("micro_batch=2,accumulate_dtype=f64"), Phase::backward);
  EXPECT_EQ(names, (std::vector<std::string>{"head.accumulate", "block.accumulate", "block.accumulate",
                                             "block.accumulate", "block.accumulate", "embedding.accumulate"}));
}

TEST(Accumulate, ATiedTableIsAddedByBothOfItsReaders) {
  const std::vector<std::string> names =
      accumulated(compiled("micro_batch=2,accumulate_dtype=f64", small_gpt2()), Phase::backward);
  EXPECT_EQ(std::count(names.begin(), names.end(), "embedding.accumulate"), 2);
  EXPECT_EQ(names[1], "embedding.accumulate") << "right behind the head";
}

TEST(Accumulate, ASplitBackwardAddsItsHalvesWhenTheyAreMade) {
  const Program program = compiled("pp=2,micro_batch=1,schedule=zb-h1,accumulate_dtype=f64");
  EXPECT_EQ(accumulated(program, Phase::backward),
            (std::vector<std::string>{"block.accumulate", "block.accumulate", "embedding.accumulate"}));
  EXPECT_EQ(accumulated(program, Phase::weight_gradient),
            (std::vector<std::string>{"block.accumulate", "block.accumulate"}));
}

TEST(Accumulate, NormAndOptimizerReadWhatWasAccumulated) {
  for (const std::string strategy :
       {"micro_batch=1", "dp=2,micro_batch=1,zero_stage=1", "dp=2,micro_batch=1,zero_stage=3"}) {
    const Program program = compiled(strategy + ",accumulate_dtype=f64");
    EXPECT_EQ(read_types(program, operators(OpKind::squared_norm)), std::set{DType::f64}) << strategy;
    EXPECT_EQ(read_types(program, operators(OpKind::adamw)), std::set{DType::f64}) << strategy;
  }
}

TEST(Accumulate, RanksSumInTheTypeUnlessToldOtherwise) {
  const std::string cases[][2] = {{"dp=2,micro_batch=1", "bucket.reduce"},
                                  {"dp=2,micro_batch=1,overlap=true,bucket_bytes=20000", "bucket.reduce"},
                                  {"dp=2,micro_batch=1,zero_stage=1", "block.reduce"},
                                  {"dp=2,micro_batch=1,zero_stage=2", "block.reduce"},
                                  {"dp=4,micro_batch=1,zero_stage=3,zero_group=2", "block.reduce"}};
  for (const auto& [strategy, block] : cases) {
    const std::string wide = strategy + ",accumulate_dtype=f64";
    EXPECT_EQ(read_types(compiled(wide), collectives(block)), std::set{DType::f64}) << strategy;
    EXPECT_EQ(read_types(compiled(wide + ",reduce_dtype=f32"), collectives(block)), std::set{DType::f32}) << strategy;
  }
}

TEST(Accumulate, BucketsCountTheBytesThatAreReduced) {
  const auto buckets = [](const std::string& strategy) {
    const Program program = compiled(strategy);
    int64_t count = 0;
    for (const Call& call : program.calls[static_cast<size_t>(Phase::backward)][0]) {
      count += block_of(program, call).name == "bucket.reduce" ? 1 : 0;
    }
    return count;
  };
  const std::string half = "dp=2,micro_batch=1,overlap=true,bucket_bytes=40000";
  const std::string twice = "dp=2,micro_batch=1,overlap=true,bucket_bytes=80000,accumulate_dtype=f64";
  EXPECT_GT(buckets(half), 1);
  EXPECT_EQ(buckets(twice), buckets(half));
}

TEST(Accumulate, ADumpOfAnOlderVersionAccumulatesAsItsKernelsAdd) {
  std::string dump = dump_program(compiled("micro_batch=2"));
  const size_t key = dump.find("\"accumulate_dtype\"");
  ASSERT_NE(key, std::string::npos);
  dump.erase(key, dump.find('\n', key) - key);
  EXPECT_EQ(read_program(dump, "dump").accumulate_dtype, DType::f32);
}

TEST(Accumulate, TypesWithoutKernelsAreRefusedWhereTheyWouldRun) {
  Target target;
  target.back_end = "cpu";
  const auto refusal = [&](const std::string& strategy) -> std::string {
    try {
      train_programs(small_llama(), small_job(), strategy, target);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("dp=2,micro_batch=1,accumulate_dtype=f64,reduce_dtype=f32"), "");
  EXPECT_NE(refusal("micro_batch=1,accumulate_dtype=bf16").find("accumulate_dtype=bf16"), std::string::npos);
  EXPECT_EQ(refusal("dp=2,micro_batch=1,accumulate_dtype=f64,reduce_dtype=f16"), "");
  target.back_end = "reference";
  EXPECT_NE(refusal("dp=2,micro_batch=1,accumulate_dtype=f64,reduce_dtype=f16").find("reduce_dtype=f16"),
            std::string::npos);
  target.back_end = "catalogue";
  EXPECT_EQ(refusal("micro_batch=1,accumulate_dtype=bf16"), "") << "can be planned";
}

}  // namespace
}  // namespace foresail
