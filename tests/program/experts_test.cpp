// Layers with experts: room for their rows, what a strategy may ask for, where their weights lie, and Programs that hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "program/check.h"
#include "program/compile.h"
#include "program/expert_cut.h"
#include "program/schedule.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::small_job;
using testing::small_mixtral;
using testing::small_qwen3_moe;

TEST(ExpertCapacity, IsTheBoundTimesTheMeanButNeverMoreThanCanCome) {
  EXPECT_EQ(expert_capacity(100, 8, 2, 4, 1), 50) << "the mean";
  EXPECT_EQ(expert_capacity(100, 8, 2, 4, 1.25), 63) << "rounded up";
  EXPECT_EQ(expert_capacity(100, 8, 2, 4, 100), 200) << "a token has two experts on a rank that has two";
  EXPECT_EQ(expert_capacity(100, 4, 2, 4, 100), 100) << "but one on a rank that has one";
  EXPECT_EQ(expert_capacity(100, 8, 2, 4, 0), 200) << "0: no bound";
  EXPECT_EQ(expert_capacity(100, 8, 2, 1, 1), 200) << "one rank gets everything, whatever the bound";
}

TEST(ExpertCapacity, OneRankAndAmpleBoundsCannotOverflow) {
  EXPECT_FALSE(can_overflow(100, 8, 2, 1, 1));
  EXPECT_FALSE(can_overflow(100, 8, 2, 2, 2));
  EXPECT_TRUE(can_overflow(100, 8, 2, 2, 1.5));
  EXPECT_TRUE(can_overflow(100, 8, 2, 4, 2));
}

std::string refusal(const ModelSpec& model, const std::string& strategy) {
  std::string text;
  for (const std::string& reason : legal(model, small_job(12), parse_strategy(strategy).strategy))
    text += reason + "\n";
  return text;
}

TEST(ExpertLegality, RefusesWithTheReason) {
  const std::pair<std::string, std::string> cases[] = {
      {"dp=3,ep=3,micro_batch=1", "ep = 3 does not divide the 8 experts"},
      {"dp=2,ep=4,micro_batch=1", "ep x etp = 4 does not divide the dp x cp x tp = 2 ranks"},
      {"dp=4,ep=2,etp=4,micro_batch=1", "ep x etp = 8 does not divide"},
      {"tp=2,micro_batch=1", "needs sequence_parallel=true"}};
  for (const auto& [strategy, reason] : cases) {
    EXPECT_NE(refusal(small_mixtral(), strategy).find(reason), std::string::npos)
        << strategy << ": " << refusal(small_mixtral(), strategy);
  }
  EXPECT_NE(refusal(testing::small_llama(), "dp=2,ep=2,micro_batch=1").find("no experts"), std::string::npos);
  EXPECT_EQ(refusal(small_mixtral(), "tp=2,sequence_parallel=true,ep=2,micro_batch=1"), "");
  EXPECT_EQ(refusal(small_mixtral(), "pp=2,dp=2,cp=2,ep=2,etp=2,micro_batch=1"), "") << "over data and context ranks";
}

const char* const kStrategies[] = {
    "micro_batch=4",
    "dp=2,ep=2,micro_batch=2",
    "dp=4,ep=4,micro_batch=1,zero_stage=1",
    "dp=2,etp=2,micro_batch=2,zero_stage=2",
    "dp=2,tp=2,sequence_parallel=true,ep=2,etp=2,micro_batch=2,zero_stage=3",
    "dp=4,ep=2,micro_batch=1,zero_stage=3,zero_group=2",
    "tp=2,sequence_parallel=true,micro_batch=2,zero_stage=1",
    "cp=2,ep=2,micro_batch=2,recompute=full",
    "pp=2,dp=2,ep=2,micro_batch=2,schedule=zb-h1,recompute=selective",
    "pp=2,dp=2,ep=2,micro_batch=2,schedule=interleaved,virtual_stages=2",
    "dp=2,ep=2,micro_batch=2,moe_bound=1,overlap=true,bucket_bytes=20000",
};

TEST(ExpertPrograms, PassTheStaticChecksAndAreTheirDumps) {
  for (const ModelSpec& model : {small_mixtral(), small_qwen3_moe()}) {
    for (const char* text : kStrategies) {
      const Strategy strategy = parse_strategy(text).strategy;
      std::vector<Program> train, fallback;
      for (int stage = 0; stage < strategy.pp; ++stage) {
        ProgramSet set = compile(model, small_job(12), strategy, {}, stage);
        std::vector<const Program*> programs{&set.train, &set.evaluate};
        for (const Program& program : set.fallback) programs.push_back(&program);
        for (const Program* program : programs) {
          for (const std::string& problem : check_program(*program)) ADD_FAILURE() << text << ": " << problem;
          EXPECT_EQ(dump_program(read_program(dump_program(*program), "dump")), dump_program(*program)) << text;
        }
        EXPECT_EQ(set.fallback.empty(), !can_overflow(model, 16, strategy)) << text;
        for (Program& program : set.fallback) fallback.push_back(std::move(program));
        train.push_back(std::move(set.train));
      }
      for (const std::string& problem : check_pipeline(train)) ADD_FAILURE() << text << ": " << problem;
      if (fallback.empty()) continue;
      for (const std::string& problem : check_pipeline(fallback)) ADD_FAILURE() << text << ": " << problem;
    }
  }
}

/// Sizes of what a step sums over ranks, by group.
std::map<GroupKind, std::set<int64_t>> reduced(const Program& program) {
  std::map<GroupKind, std::set<int64_t>> found;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (!is_collective(instruction.kind) || instruction.time != TimeKind::data_comm) continue;
      found[instruction.group].insert(communication_bytes(block, instruction) / 4);
    }
  }
  return found;
}

TEST(ExpertPrograms, GradientsOfExpertsAreReducedOverTheirCopiesAlone) {
  const auto compiled = [](const char* text) {
    return compile_train(small_mixtral(), small_job(12), parse_strategy(text).strategy, {}, 0);
  };
  const Program cut = compiled("dp=4,ep=4,micro_batch=1");
  EXPECT_FALSE(reduced(cut).count(GroupKind::expert_replica)) << "nobody has a copy";
  EXPECT_EQ(reduced(cut)[GroupKind::replica], std::set<int64_t>{cut.parameter_elements});
  const Program copied = compiled("dp=4,ep=2,micro_batch=1");
  EXPECT_EQ(reduced(copied)[GroupKind::expert_replica], std::set<int64_t>{copied.expert_elements});
  EXPECT_NEAR(static_cast<double>(copied.expert_elements) / static_cast<double>(cut.expert_elements), 2, 0.05)
      << "but for padding";
  EXPECT_EQ(copied.parameter_elements, cut.parameter_elements);
}

/// Every element of every tensor has exactly one first holder, for whatever cut.
TEST(ExpertSlices, CoverTheModelOnce) {
  for (const ModelSpec& model : {small_mixtral(), small_qwen3_moe()}) {
    for (const char* text : kStrategies) {
      const Strategy strategy = parse_strategy(text).strategy;
      const Mesh mesh = mesh_of(model, strategy);
      std::map<std::string, std::vector<int>> holders;
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const MeshCoordinate place = mesh.coordinate_of(rank);
        const bool sharded = strategy.zero_stage > 0;
        const bool first = sharded ? mesh.replica_rank(place) == 0 : mesh.data_rank(place) == 0;
        const bool first_expert =
            sharded ? mesh.expert_replica_rank(place) == 0 : mesh.expert_coordinate(place).edp == 0;
        for (const ParameterSlice& slice : rank_slices(model, strategy, place).state) {
          if (!(slice.of_experts ? first_expert : first) || slice.replicated || slice.second_holder) continue;
          const int64_t columns = slice.shape.size() > 1 ? slice.shape[1] : 1;
          auto& counts = holders[slice.tensor];
          counts.resize(static_cast<size_t>(slice.shape[0] * columns));
          for (int64_t row = slice.row_begin; row < slice.row_end; ++row) {
            for (int64_t c = slice.column_begin; c < slice.column_end; ++c) {
              ++counts[static_cast<size_t>(row * columns + c)];
            }
          }
        }
      }
      int64_t elements = 0;
      for (const auto& [tensor, counts] : holders) {
        elements += std::ssize(counts);
        EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }))
            << text << ": " << tensor;
      }
      EXPECT_EQ(elements, parameter_count(model)) << text;
    }
  }
}

}  // namespace
}  // namespace foresail
