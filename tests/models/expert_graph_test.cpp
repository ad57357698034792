// The graph of a block with a mixture of experts.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "models/model_spec.h"

namespace foresail {
namespace {

using enum OpKind;

Graph block_of(const ModelSpec& model, int64_t micro_batch = 2, int64_t context_parallel = 1) {
  GraphOptions options;
  options.micro_batch = micro_batch;
  options.sequence_length = 64;
  options.context_parallel = context_parallel;
  return build_graphs(model, options).expert_block;
}

/// The kinds from the router on.
std::vector<OpKind> kinds_of_experts(const Graph& graph) {
  std::vector<OpKind> kinds;
  for (const Node& node : graph.nodes) kinds.push_back(node.kind);
  const auto last_norm = std::find(kinds.rbegin(), kinds.rend(), rms_norm);
  return {last_norm.base(), kinds.end()};
}

const Node& node_of(const Graph& graph, OpKind kind) {
  const auto found =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) { return n.kind == kind; });
  ensure(found != graph.nodes.end(), "the graph has such a node");
  return *found;
}

const Weight& weight_of(const Graph& graph, const std::string& name) {
  const auto found =
      std::find_if(graph.weights.begin(), graph.weights.end(), [&](const Weight& w) { return w.name == name; });
  ensure(found != graph.weights.end(), "the graph has such a weight");
  return *found;
}

TEST(ExpertGraph, OfMixtralWithoutLossesIsRouterDispatchTwoProductsAndCombine) {
  ModelSpec model = load_model("mixtral-8x7b");
  model.moe.balance_coefficient = model.moe.z_coefficient = 0;
  const Graph graph = block_of(model);
  EXPECT_EQ(kinds_of_experts(graph), (std::vector<OpKind>{linear, moe_route, moe_dispatch, expert_linear, swiglu,
                                                          expert_linear, moe_combine, add}));
  EXPECT_EQ(graph.find(TensorRole::targets), -1);
  EXPECT_EQ(graph.find(TensorRole::auxiliary_loss), -1);
  EXPECT_GE(graph.find(TensorRole::overflow), 0);
}

TEST(ExpertGraph, EitherCoefficientBringsStatisticsAndTheirLoss) {
  for (const bool z : {false, true}) {
    ModelSpec model = load_model("mixtral-8x7b");
    model.moe.balance_coefficient = z ? 0 : 0.01;
    model.moe.z_coefficient = z ? 0.001 : 0;
    const Graph graph = block_of(model);
    EXPECT_EQ(kinds_of_experts(graph),
              (std::vector<OpKind>{linear, moe_route, moe_statistics, moe_balance_loss, moe_dispatch, expert_linear,
                                   swiglu, expert_linear, moe_combine, add}));
    EXPECT_EQ(node_of(graph, moe_balance_loss).outputs[0], graph.find(TensorRole::auxiliary_loss));
    EXPECT_EQ(graph.tensors.at(graph.find(TensorRole::auxiliary_loss)).dtype, DType::f64);
    const Node& statistics = node_of(graph, moe_statistics);
    EXPECT_EQ(graph.tensors.at(statistics.outputs[0]).type().shape, (std::vector<int64_t>{2, 3, 8}));
    EXPECT_EQ(statistics.inputs[2], graph.find(TensorRole::targets));
  }
}

TEST(ExpertGraph, OfDeepseekHasACorrectionBiasGroupsAndSharedExperts) {
  ModelSpec model = load_model("deepseek-v3");
  model.latent = {};  // attention is not what this is about
  const Graph graph = block_of(model);
  const Node& router = node_of(graph, moe_route);
  ASSERT_EQ(router.inputs.size(), 2u);
  EXPECT_EQ(weight_of(graph, "correction_bias").parts[0].tensor, "model.layers.{}.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(router.attributes.scoring, RouterScoring::sigmoid);
  EXPECT_EQ(router.attributes.group_score, GroupScore::sum_of_best_two);
  EXPECT_EQ(router.attributes.expert_groups, 8);
  EXPECT_EQ(router.attributes.groups_per_token, 4);
  EXPECT_EQ(router.attributes.gate_scale, 2.5);
  EXPECT_EQ(weight_of(graph, "shared_gate_up").dims,
            (std::vector<Dim>{{DimName::gate_up, 2 * 2048}, {DimName::hidden, 7168}}));
}

TEST(ExpertGraph, WeightsListTheirPartsExpertByExpert) {
  const Graph graph = block_of(load_model("qwen3-30b-a3b"));
  const Weight& up = weight_of(graph, "expert_gate_up");
  EXPECT_EQ(up.dims,
            (std::vector<Dim>{{DimName::experts, 128}, {DimName::expert_gate_up, 1536}, {DimName::hidden, 2048}}));
  ASSERT_EQ(up.parts.size(), 256u);
  EXPECT_EQ(up.parts[0].tensor, "model.layers.{}.mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(up.parts[1].tensor, "model.layers.{}.mlp.experts.0.up_proj.weight");
  EXPECT_EQ(up.parts[254].tensor, "model.layers.{}.mlp.experts.127.gate_proj.weight");
  EXPECT_EQ(up.parts[254].rows, 768);
  const Weight& down = weight_of(graph, "expert_down");
  EXPECT_EQ(down.dims,
            (std::vector<Dim>{{DimName::experts, 128}, {DimName::hidden, 2048}, {DimName::expert_ffn, 768}}));
  ASSERT_EQ(down.parts.size(), 128u);
  EXPECT_EQ(down.parts[5].tensor, "model.layers.{}.mlp.experts.5.down_proj.weight");
  EXPECT_EQ(weight_of(graph, "router").dims, (std::vector<Dim>{{DimName::fixed, 128}, {DimName::hidden, 2048}}));
}

TEST(ExpertGraph, OneRankHasRoomForEveryRow) {
  const Graph graph = block_of(load_model("qwen3-30b-a3b"), 3, 4);
  const int64_t rows = 3 * 16;
  for (const Node& node : graph.nodes) {
    if (node.kind != moe_dispatch && node.kind != moe_combine && node.kind != expert_linear) continue;
    EXPECT_EQ(node.attributes.expert_rows, 8 * rows) << name_of(node.kind);
    EXPECT_EQ(node.attributes.expert_ranks, 1) << name_of(node.kind);
    EXPECT_EQ(node.attributes.routed_rows, 8 * rows) << name_of(node.kind);
  }
  EXPECT_EQ(graph.tensors.at(node_of(graph, moe_dispatch).outputs[0]).dims[0], (Dim{DimName::expert_rows, 8 * rows}));
  EXPECT_EQ(node_of(graph, moe_route).attributes.sequence_length, 16);
}

}  // namespace
}  // namespace foresail
