// The Programs of a set differ in their micro-batches alone: what survives a step lies at the same place in all of them.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "program/check.h"
#include "program/compile.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::small_gpt2;
using testing::small_job;
using testing::small_llama;

Job ramped_job() {
  Job job = small_job(16);
  job.batch_ramp = {{4, 1000}, {8, 1000}};
  return job;
}

void expect_same(const Segment& one, const Segment& other, const char* name) {
  EXPECT_EQ(one.offset, other.offset) << name;
  EXPECT_EQ(one.bytes, other.bytes) << name;
}

void expect_shared(const ArenaMap& one, const ArenaMap& other) {
  expect_same(one.step_inputs, other.step_inputs, "step inputs");
  expect_same(one.metrics, other.metrics, "metrics");
  expect_same(one.constants, other.constants, "constants");
  expect_same(one.data, other.data, "data");
  expect_same(one.parameters, other.parameters, "parameters");
  expect_same(one.gradients, other.gradients, "gradients");
  expect_same(one.master, other.master, "master");
  expect_same(one.moment1, other.moment1, "moment1");
  expect_same(one.moment2, other.moment2, "moment2");
  EXPECT_EQ(one.persistent_bytes, other.persistent_bytes);
}

class RampedSet : public ::testing::TestWithParam<const char*> {
 protected:
  const Strategy strategy_ = parse_strategy(GetParam()).strategy;
  std::vector<ProgramSet> compile_all(const ModelSpec& model, const Job& job) const {
    std::vector<ProgramSet> sets;
    for (int stage = 0; stage < strategy_.pp; ++stage) sets.push_back(compile(model, job, strategy_, {}, stage));
    return sets;
  }
};

TEST_P(RampedSet, SharesItsPersistentRegionAndPassesTheStaticChecks) {
  for (const ModelSpec& model : {small_llama(), small_gpt2()}) {
    const std::vector<ProgramSet> sets = compile_all(model, ramped_job());
    std::vector<std::vector<Program>> pipelines(2);
    for (const ProgramSet& set : sets) {
      ASSERT_EQ(set.ramp.size(), 2u);
      expect_shared(set.train.arena, set.evaluate.arena);
      EXPECT_EQ(check_program(set.evaluate), std::vector<std::string>{});
      int64_t largest = std::max(set.train.arena.bytes, set.evaluate.arena.bytes);
      for (size_t i = 0; i < set.ramp.size(); ++i) {
        const Program& program = set.ramp[i];
        expect_shared(set.train.arena, program.arena);
        EXPECT_EQ(check_program(program), std::vector<std::string>{});
        EXPECT_EQ(program.global_batch, ramped_job().batch_ramp[i].global_batch);
        EXPECT_EQ(program.blocks.size(), set.train.blocks.size());
        EXPECT_NEAR(program.model_flops / set.train.model_flops, static_cast<double>(program.global_batch) / 16, 1e-12);
        largest = std::max(largest, program.arena.bytes);
        pipelines[i].push_back(program);
      }
      EXPECT_EQ(arena_bytes_of(set), largest);
      EXPECT_LT(set.ramp[0].micro_batches, set.ramp[1].micro_batches);
      EXPECT_LT(set.ramp[1].micro_batches, set.train.micro_batches);
    }
    for (const auto& programs : pipelines) EXPECT_EQ(check_pipeline(programs), std::vector<std::string>{});
  }
}

TEST_P(RampedSet, TheFullStepIsTheOneOfTheJobWithoutARamp) {
  Job job = ramped_job();
  const std::vector<ProgramSet> ramped = compile_all(small_gpt2(), job);
  job.batch_ramp.clear();
  const std::vector<ProgramSet> plain = compile_all(small_gpt2(), job);
  for (size_t stage = 0; stage < plain.size(); ++stage) {
    EXPECT_EQ(program_digest(ramped[stage].train), program_digest(plain[stage].train));
    EXPECT_EQ(program_digest(ramped[stage].evaluate), program_digest(plain[stage].evaluate));
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, RampedSet,
                         ::testing::Values("micro_batch=2", "micro_batch=1,recompute=full",
                                           "dp=2,tp=2,micro_batch=2,zero_stage=1",
                                           "dp=4,micro_batch=1,zero_stage=3,zero_group=2", "tp=2,pp=2,micro_batch=1",
                                           "pp=4,micro_batch=1,schedule=zb-h1",
                                           "pp=2,virtual_stages=2,micro_batch=1,schedule=interleaved",
                                           "pp=2,virtual_stages=2,micro_batch=1,schedule=zb-v,dp=2,zero_stage=2",
                                           "cp=2,dp=2,micro_batch=2,context=all_to_all",
                                           "dp=2,micro_batch=1,overlap=true,bucket_bytes=20000"));

TEST(BatchRamp, EveryStageMustDivideWhatTheJobsBatchDivides) {
  const Job job = ramped_job();
  const auto reasons = [&](const char* strategy) {
    return legal(small_llama(), job, parse_strategy(strategy).strategy);
  };
  EXPECT_EQ(reasons("dp=4,micro_batch=1"), std::vector<std::string>{});
  const auto refused = reasons("dp=4,micro_batch=2");
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_NE(refused[0].find("global batch 4 is not a multiple of dp x micro_batch = 8"), std::string::npos);
  EXPECT_EQ(reasons("dp=4,micro_batch=2,ragged_batch=true"), std::vector<std::string>{});
}

TEST(BatchRamp, StagesThatDoNotAscendToTheJobsBatchAreIllegal) {
  Job job = ramped_job();
  job.global_batch = 8;
  const auto reasons = legal(small_llama(), job, parse_strategy("micro_batch=1").strategy);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_NE(reasons[0].find("the batch ramp ends with 8 sequences, the global batch has 8"), std::string::npos);
  EXPECT_THROW(compile(small_llama(), job, parse_strategy("micro_batch=1").strategy, {}, 0), Error);
}

}  // namespace
}  // namespace foresail
