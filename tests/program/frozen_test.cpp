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

using testing::small_job;
using testing::small_llama;
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

std::string problem(const std::vector<std::string>& patterns) {
  const auto problems = frozen_problems(small_llama(), patterns);
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

}  // namespace
}  // namespace foresail
