// Frozen weights: which names say so, and what their Programs leave out.
#include "program/frozen.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "program/autodiff.h"
#include "program/check.h"
#include "program/compile.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::small_deepseek;
using testing::small_job;
using testing::small_llama;
using testing::small_mixtral;
using testing::small_qwen3;

const std::vector<std::string> kAttention = {"model.layers.*.self_attn.*"};

Job frozen_job(std::vector<std::string> patterns) {
  Job job = small_job();
  job.frozen = std::move(patterns);
  return job;
}

TEST(Frozen, StarsStandForAnyCharacters) {
  EXPECT_TRUE(matches("lm_head.weight", "lm_head.weight"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("model.layers.*.mlp.*", "model.layers.12.mlp.up_proj.weight"));
  EXPECT_TRUE(matches("*_proj.weight", "model.layers.0.self_attn.o_proj.weight"));
  EXPECT_TRUE(matches("a*b*c", "aXbXbXc"));
  EXPECT_FALSE(matches("model.layers.1.*", "model.layers.12.mlp.up_proj.weight"));
  EXPECT_FALSE(matches("lm_head", "lm_head.weight"));
  EXPECT_FALSE(matches("*.bias", "lm_head.weight"));
  EXPECT_FALSE(matches("", "lm_head.weight"));
}

std::string problem(const std::vector<std::string>& patterns, const ModelSpec& model = small_llama()) {
  const auto problems = frozen_problems(model, patterns);
  return problems.empty() ? "" : problems.front();
}

TEST(Frozen, OnlyWholeKindsCanBeFrozen) {
  EXPECT_EQ(problem({}), "");
  EXPECT_EQ(problem(kAttention), "");
  EXPECT_EQ(problem({"model.embed_tokens.weight", "*norm.weight"}), "");
  EXPECT_NE(problem({"model.layers.0.*"}).find("frozen names model.layers.0."), std::string::npos);
  EXPECT_NE(problem({"*.q_proj.weight"}).find("but not model.layers.0.self_attn.k_proj.weight"), std::string::npos)
      << problem({"*.q_proj.weight"});
  EXPECT_NE(problem({"model.embed_token.weight"}).find("no tensor is called so"), std::string::npos);
  EXPECT_NE(problem({"*"}).find("nothing is left to train"), std::string::npos);
  const auto reasons = legal(small_llama(), frozen_job({"lm_haed.weight"}), parse_strategy("micro_batch=2").strategy);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0], "frozen names 'lm_haed.weight', and no tensor is called so");
}

TEST(Frozen, ExpertsAreFrozenTogetherTheirRouterApart) {
  EXPECT_EQ(problem({"*.block_sparse_moe.experts.*"}, small_mixtral()), "");
  EXPECT_EQ(problem({"*.experts.*.w2.weight", "*.block_sparse_moe.gate.weight"}, small_mixtral()), "");
  EXPECT_NE(problem({"*.experts.3.*"}, small_mixtral()).find("but not model.layers.0.block_sparse_moe.experts.0."),
            std::string::npos)
      << problem({"*.experts.3.*"}, small_mixtral());
  EXPECT_NE(problem({"*.experts.*.w1.weight"}, small_mixtral()).find("experts.0.w3.weight"), std::string::npos)
      << "gate and up are one matrix";
  EXPECT_EQ(problem({"*.mlp.experts.*", "*.mlp.gate.*"}, small_deepseek()), "");
  EXPECT_EQ(problem({"*.mlp.shared_experts.*"}, small_deepseek()), "");
  EXPECT_EQ(problem({"model.layers.0.*"}, small_deepseek()), "") << "its only dense layer";
  EXPECT_NE(problem({"model.layers.1.*"}, small_deepseek()).find("but not model.layers.2."), std::string::npos);
  EXPECT_NE(problem({"*.weight"}, small_deepseek()).find("nothing is left to train"), std::string::npos)
      << "but for correction biases, which no loss reaches";
}

TEST(Frozen, BackwardMakesNoProductForAFrozenWeightAndKeepsLess) {
  ModelGraphs graphs = build_graphs(small_llama(), {.micro_batch = 2, .sequence_length = 16, .precision = {}});
  const Differentiated all = differentiate(graphs.block);
  mark_frozen(graphs, small_llama(), {"model.layers.*.self_attn.*", "model.layers.*.mlp.*"});
  const Differentiated norms = differentiate(graphs.block);
  const auto products = [](const Differentiated& layer) {
    return std::count_if(layer.graph.nodes.begin(), layer.graph.nodes.end(),
                         [](const Node& node) { return node.kind == OpKind::linear_backward_weight; });
  };
  EXPECT_EQ(products(all), 4);
  EXPECT_EQ(products(norms), 0);
  EXPECT_EQ(norms.forward_nodes, all.forward_nodes);
  EXPECT_LT(norms.saved.size(), all.saved.size()) << "what only the products read is not kept";
  EXPECT_TRUE(std::includes(all.saved.begin(), all.saved.end(), norms.saved.begin(), norms.saved.end()));
}

const std::vector<std::vector<std::string>> kChoices = {
    kAttention, {"model.embed_tokens.weight"}, {"*norm.weight"}, {"model.layers.*"}};

class FrozenProgram : public ::testing::TestWithParam<const char*> {};

TEST_P(FrozenProgram, PassesTheStaticChecksAndKeepsNoMore) {
  const Strategy strategy = parse_strategy(GetParam()).strategy;
  for (const auto& patterns : kChoices) {
    for (const ModelSpec& model : {small_llama(), small_qwen3()}) {
      std::vector<Program> programs;
      for (int stage = 0; stage < strategy.pp; ++stage) {
        programs.push_back(compile(model, frozen_job(patterns), strategy, {}, stage).train);
        EXPECT_EQ(check_program(programs.back()), std::vector<std::string>{}) << patterns[0];
        const std::string dump = dump_program(programs.back());
        EXPECT_EQ(dump_program(read_program(dump, "dump")), dump);
        const Program whole = compile(model, small_job(), strategy, {}, stage).train;
        EXPECT_LE(programs.back().arena.slots.bytes, whole.arena.slots.bytes) << patterns[0];
      }
      EXPECT_EQ(check_pipeline(programs), std::vector<std::string>{}) << patterns[0];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, FrozenProgram,
                         ::testing::Values("micro_batch=2", "dp=2,tp=2,micro_batch=2,zero_stage=1",
                                           "dp=2,micro_batch=2,zero_stage=3", "dp=2,zero_stage=2,micro_batch=2",
                                           "pp=2,micro_batch=1,schedule=zb-h1", "micro_batch=2,recompute=full",
                                           "tp=2,sequence_parallel=true,micro_batch=2",
                                           "dp=2,micro_batch=2,overlap=true,bucket_bytes=20000"));

const std::vector<std::vector<std::string>> kExpertChoices = {
    {"*.experts.*"}, {"*.gate.weight"}, {"*.experts.*.w2.weight", "*.experts.*.down_proj.weight"}, {"*.self_attn.*"}};

class FrozenExpertProgram : public ::testing::TestWithParam<const char*> {};

/// Of both models, those patterns that name one of its tensors.
std::vector<std::string> applying(const ModelSpec& model, std::vector<std::string> patterns) {
  std::erase_if(patterns, [&](const std::string& pattern) { return !frozen_problems(model, {pattern}).empty(); });
  return patterns;
}

TEST_P(FrozenExpertProgram, PassesTheStaticChecksAndCountsWhatIsFrozen) {
  const Strategy strategy = parse_strategy(GetParam()).strategy;
  for (const ModelSpec& model : {small_mixtral(), small_deepseek()}) {
    for (const auto& choice : kExpertChoices) {
      const Job job = frozen_job(applying(model, choice));
      ASSERT_FALSE(job.frozen.empty()) << model.name << ": " << choice[0];
      std::vector<Program> programs;
      for (int stage = 0; stage < strategy.pp; ++stage) {
        ProgramSet set = compile(model, job, strategy, {}, stage);
        for (const Program& program : set.fallback) {
          EXPECT_EQ(check_program(program), std::vector<std::string>{}) << choice[0];
        }
        EXPECT_EQ(check_program(set.train), std::vector<std::string>{}) << model.name << ": " << choice[0];
        const std::string dump = dump_program(set.train);
        EXPECT_EQ(dump_program(read_program(dump, "dump")), dump);
        const bool all = choice[0] == "*.experts.*", some = choice.size() == 2;
        const int64_t frozen = set.train.frozen_expert_elements, experts = set.train.expert_elements;
        EXPECT_TRUE(all ? frozen == experts : some ? frozen > 0 && 2 * frozen < experts : frozen == 0) << choice[0];
        EXPECT_EQ(set.train.frozen_elements > 0, !all && !some) << choice[0];
        programs.push_back(std::move(set.train));
      }
      EXPECT_EQ(check_pipeline(programs), std::vector<std::string>{}) << model.name << ": " << choice[0];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, FrozenExpertProgram,
                         ::testing::Values("micro_batch=2", "dp=2,ep=2,micro_batch=2,zero_stage=1,moe_bound=1",
                                           "dp=4,ep=2,micro_batch=1,zero_stage=2", "dp=2,micro_batch=2,zero_stage=3",
                                           "tp=2,sequence_parallel=true,etp=2,micro_batch=2,recompute=full",
                                           "pp=2,dp=2,ep=2,micro_batch=1,schedule=zb-h1",
                                           "dp=4,ep=2,micro_batch=1,overlap=true,bucket_bytes=20000"));

TEST(FrozenExpertProgram, OneThatUpdatesFrozenExpertsIsFound) {
  const Strategy strategy = parse_strategy("dp=4,ep=2,micro_batch=1,zero_stage=1").strategy;
  Program program = compile_train(small_mixtral(), small_job(), strategy, {}, 0);
  program.frozen_expert_elements = program.expert_elements / 2;
  const auto problems = check_program(program);
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(problems[0].find("the optimizer updates"), std::string::npos) << problems[0];
}

}  // namespace
}  // namespace foresail
