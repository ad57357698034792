// What the graph passes promise: sharding, fusion, differentiation, recompute, packing, order.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "program/autodiff.h"
#include "program/compile.h"
#include "program/fuse.h"
#include "program/pack.h"
#include "program/ring.h"
#include "program/shard.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::small_gpt2;
using testing::small_llama;
using testing::small_qwen3;

Graph block_of(const ModelSpec& model, int64_t context_parallel = 1, int64_t kv_copies = 1) {
  GraphOptions options;
  options.micro_batch = 2;
  options.sequence_length = 16;
  options.context_parallel = context_parallel;
  options.kv_copies = kv_copies;
  return build_graphs(model, options).block;
}

int count(const Graph& graph, OpKind kind) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.collective == NodeCollective::none && node.kind == kind;
  }));
}

int count(const Graph& graph, NodeCollective kind) {
  return static_cast<int>(
      std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.collective == kind; }));
}

int collectives(const Graph& graph) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                        [](const Node& node) { return node.collective != NodeCollective::none; }));
}

/// Every node reads what exists, and every tensor has one writer (accumulators aside).
void expect_runs_in_order(const Graph& graph) {
  std::set<int> produced, done;
  for (const Node& node : graph.nodes) produced.insert(node.outputs.begin(), node.outputs.end());
  for (const Node& node : graph.nodes) {
    for (const int input : node.inputs) {
      EXPECT_TRUE(produced.count(input) == 0 || done.count(input) != 0) << graph.tensors[input].name;
    }
    for (const int output : node.outputs) {
      const bool first = done.insert(output).second;
      EXPECT_TRUE(first || graph.tensors[output].role != TensorRole::activation) << graph.tensors[output].name;
    }
  }
}

TEST(Shard, LeavesTheGraphAloneForOneRank) {
  const Graph graph = block_of(small_llama());
  EXPECT_EQ(shard(graph, {}).nodes.size(), graph.nodes.size());
}

TEST(Shard, SumsOncePerRowParallelProductInForward) {
  EXPECT_EQ(collectives(shard(block_of(small_llama()), {.tp = 2})), 2);
}

TEST(Shard, AddsTheRowParallelBiasAfterTheSum) {
  const Graph graph = shard(block_of(small_gpt2()), {.tp = 2});
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].kind != OpKind::bias_add || graph.nodes[n].collective != NodeCollective::none) continue;
    EXPECT_EQ(graph.nodes[n - 1].collective, NodeCollective::all_reduce_tensor);
    EXPECT_EQ(graph.nodes[n - 1].outputs[0], graph.nodes[n].inputs[0]);
  }
}

TEST(Shard, PadsVocabularyAndFfnUp) {
  EXPECT_EQ(local_size({DimName::vocabulary, 67}, {.tp = 2}), 34);
  EXPECT_EQ(local_size({DimName::vocabulary, 67}, {.tp = 4}), 17);
  EXPECT_EQ(local_size({DimName::ffn, 48}, {.tp = 4}), 12);
  EXPECT_EQ(local_size({DimName::ffn, 45}, {.tp = 4}), 12);
  EXPECT_EQ(local_size({DimName::gate_up, 2 * 45}, {.tp = 4}), 2 * 12) << "gate and up are padded each";
  EXPECT_EQ(local_size({DimName::hidden, 32}, {.tp = 4}), 32);
  EXPECT_EQ(local_size({DimName::kv, 32}, {.tp = 2}), 16);
  EXPECT_EQ(local_size({DimName::kv, 32}, {.tp = 4, .kv_copies = 2}), 16);
}

TEST(Shard, SequenceParallelismKeepsAShareOfTheRowsBetweenCutRegions) {
  const Graph graph = shard(block_of(small_llama()), {.tp = 2, .sequence_parallel = true});
  EXPECT_EQ(count(graph, NodeCollective::all_gather_rows), 2);  // before q, k, v and before gate, up
  EXPECT_EQ(count(graph, NodeCollective::reduce_scatter_rows), 2);
  EXPECT_EQ(collectives(graph), 4);
  for (const Node& node : graph.nodes) {
    if (node.collective != NodeCollective::none) continue;
    const bool between = node.kind == OpKind::rms_norm || node.kind == OpKind::add;
    EXPECT_EQ(graph.tensors[node.outputs[0]].dims[0].size, between ? 16 : 32) << name_of(node.kind);
  }
  EXPECT_EQ(graph.tensors[graph.find(TensorRole::layer_input)].dims[0].size, 16);
  EXPECT_EQ(graph.tensors[graph.find(TensorRole::layer_output)].dims[0].size, 16);
}

TEST(Shard, OperatorsThatKnowPositionsKnowThatTheirRowsAreAShare) {
  const ModelGraphs graphs = build_graphs(small_gpt2(), {2, 16, {}, false});
  for (const Graph& whole : {graphs.embedding, graphs.block}) {
    const Graph graph = shard(whole, {.tp = 2, .sequence_parallel = true});
    for (const Node& node : graph.nodes) {
      if (node.collective != NodeCollective::none) continue;
      const bool share = node.kind == OpKind::dropout || node.kind == OpKind::position_embedding;
      EXPECT_EQ(node.attributes.rows_cut, share) << name_of(node.kind);
    }
  }
}

TEST(Shard, HeadGathersItsRowsBeforeTheLogits) {
  const Graph head = build_graphs(small_llama(), {2, 16, {}, false}).head;
  const Graph graph = shard(head, {.tp = 2, .sequence_parallel = true});
  EXPECT_EQ(count(graph, NodeCollective::all_gather_rows), 1);
  EXPECT_EQ(count(graph, NodeCollective::reduce_scatter_rows), 0);
  EXPECT_EQ(count(graph, NodeCollective::all_gather_tensor), 1);
}

TEST(Shard, CopiesOfKvHeadsAreAProductApart) {
  const Graph graph = shard(block_of(small_llama(), 1, 2), {.tp = 4, .kv_copies = 2});
  EXPECT_EQ(count(graph, OpKind::join_qkv), 1);
  for (const Node& node : graph.nodes) {
    if (node.kind != OpKind::attention || node.collective != NodeCollective::none) continue;
    EXPECT_EQ(node.attributes.heads, 1);
    EXPECT_EQ(node.attributes.kv_heads, 1);
    EXPECT_EQ(graph.tensors[node.inputs[0]].dims[1].size, 3 * 8);
  }
}

TEST(Shard, HeadsAreExchangedForPositionsAroundAttention) {
  const Cut cut{.cp = 2, .context = ContextKind::all_to_all};
  const Graph graph = shard(block_of(small_llama(), 2), cut);
  EXPECT_EQ(count(graph, NodeCollective::all_to_all_context), 2);
  std::vector<OpKind> around;
  for (const Node& node : graph.nodes) {
    if (node.collective != NodeCollective::none) continue;
    const bool moves = moves_data_only(node);
    if (moves || node.kind == OpKind::attention) around.push_back(node.kind);
    if (node.kind != OpKind::attention) continue;
    EXPECT_EQ(node.attributes.heads, 2);
    EXPECT_EQ(node.attributes.kv_heads, 1);
    EXPECT_EQ(node.attributes.sequence_length, 16);
    EXPECT_EQ(node.attributes.context_parallel, 1);
    EXPECT_TRUE(node.attributes.heads_cut);
    EXPECT_EQ(graph.tensors[node.inputs[0]].type().shape, (std::vector<int64_t>{32, 32}));
  }
  using enum OpKind;
  EXPECT_EQ(around, (std::vector<OpKind>{heads_split, rows_merge, attention, rows_split, heads_merge}));
}

TEST(Shard, RingLeavesOneAttentionOperator) {
  const Graph whole = block_of(small_llama(), 2);
  EXPECT_EQ(collectives(shard(whole, {.cp = 2})), 0);
}

TEST(Ring, TakesAStepPerRankAndSendsGradientsHome) {
  for (const int ranks : {2, 4}) {
    Differentiated layer = differentiate(shard(block_of(small_llama(), ranks), {.cp = ranks}));
    const std::set<int> saved = layer.saved;
    const int forward_nodes = layer.forward_nodes;
    expand_ring(layer, ranks);
    EXPECT_EQ(count(layer.graph, OpKind::attention), 0);
    EXPECT_EQ(count(layer.graph, OpKind::attention_backward), 0);
    EXPECT_EQ(count(layer.graph, OpKind::ring_attention), ranks);
    EXPECT_EQ(count(layer.graph, OpKind::ring_attention_backward), ranks);
    // Forward and backward send keys and values ranks - 1 times, their gradients go all the way round.
    EXPECT_EQ(count(layer.graph, NodeCollective::ring_shift_context), 2 * (ranks - 1) + ranks);
    EXPECT_EQ(layer.forward_nodes, forward_nodes + ranks + ranks - 1);  // split_qkv, steps, shifts; no attention
    EXPECT_EQ(layer.saved, saved);
    int64_t step = 0;
    for (const Node& node : layer.graph.nodes) {
      if (node.collective != NodeCollective::none || node.kind != OpKind::ring_attention) continue;
      EXPECT_EQ(node.attributes.ring_step, step++);
    }
    expect_runs_in_order(layer.graph);
  }
}

TEST(Ring, ForwardAloneIsExpandedToo) {
  Graph graph = shard(block_of(small_llama(), 2), {.cp = 2});
  expand_ring(graph, 2);
  EXPECT_EQ(count(graph, OpKind::ring_attention), 2);
  EXPECT_EQ(count(graph, NodeCollective::ring_shift_context), 1);
  expect_runs_in_order(graph);
}

TEST(Ring, LeavesWholeSequencesAlone) {
  Graph graph = block_of(small_llama());
  expand_ring(graph, 1);
  EXPECT_EQ(count(graph, OpKind::attention), 1);
}

TEST(Autodiff, BackwardSumsTheGradientOfEachColumnParallelInput) {
  const Differentiated layer = differentiate(shard(block_of(small_llama()), {.tp = 2}));
  EXPECT_EQ(collectives(layer.graph), 4);  // two forward, two backward (Megatron's g and f)
}

TEST(Autodiff, GathersAndScattersOfRowsAreEachOthersDerivative) {
  const Differentiated layer = differentiate(shard(block_of(small_llama()), {.tp = 2, .sequence_parallel = true}));
  EXPECT_EQ(count(layer.graph, NodeCollective::all_gather_rows), 4);
  EXPECT_EQ(count(layer.graph, NodeCollective::reduce_scatter_rows), 4);
  EXPECT_EQ(collectives(layer.graph), 8) << "nothing is summed twice";
}

TEST(Autodiff, WhatMeetsAShareOfTheRowsHasAShareOfTheGradient) {
  const Differentiated layer = differentiate(shard(block_of(small_gpt2()), {.tp = 2, .sequence_parallel = true}));
  std::set<std::string> partial;
  for (const int weight : layer.partial_weight_gradients) partial.insert(layer.graph.weights[weight].name);
  EXPECT_EQ(partial, (std::set<std::string>{"norm_1", "norm_1_bias", "norm_2", "norm_2_bias", "attention_out_bias",
                                            "down_bias"}));
}

TEST(Autodiff, FusionKeepsTheSharesOfGradients) {
  Graph graph = shard(block_of(small_gpt2()), {.tp = 2, .sequence_parallel = true});
  const auto one_by_one = differentiate(graph).partial_weight_gradients;
  fuse_forward(graph);
  EXPECT_EQ(differentiate(graph).partial_weight_gradients, one_by_one);
}

TEST(Autodiff, CopiesOfKvHeadsAreSummedOverTheirHolders) {
  ModelSpec model = small_llama();
  model.qkv_bias = true;
  const Differentiated layer = differentiate(shard(block_of(model, 1, 2), {.tp = 4, .kv_copies = 2}));
  std::set<std::string> copied;
  for (const int weight : layer.copied_weight_gradients) copied.insert(layer.graph.weights[weight].name);
  EXPECT_EQ(copied, (std::set<std::string>{"kv", "kv_bias"}));
  EXPECT_TRUE(layer.partial_weight_gradients.empty());
  EXPECT_TRUE(differentiate(shard(block_of(model), {.tp = 2})).copied_weight_gradients.empty());
}

TEST(Autodiff, OnlyProductsOfWeightGradientsCanWait) {
  for (const ModelSpec& model : {small_llama(), small_gpt2()}) {
    Graph graph = shard(block_of(model), {.tp = 2, .sequence_parallel = true});
    fuse_forward(graph);
    Differentiated layer = differentiate(graph);
    fuse_backward(layer);
    const std::set<int> delayed = weight_gradient_nodes(layer);
    EXPECT_EQ(delayed.size(), 4u) << "q k v, attention out, up, down";
    for (const int n : delayed) EXPECT_EQ(layer.graph.nodes[n].kind, OpKind::linear_backward_weight);
  }
}

TEST(Autodiff, WhatOnlyAWaitingProductReadsWaitsToo) {
  Differentiated layer = differentiate(shard(block_of(small_llama()), {.tp = 2, .sequence_parallel = true}));
  auto& nodes = layer.graph.nodes;
  const size_t delayed = weight_gradient_nodes(layer).size();
  // The rows of the output's gradient are gathered for both halves of the last product. Without one of them ...
  const auto first = std::find_if(nodes.begin(), nodes.end(), [](const Node& node) {
    return node.collective == NodeCollective::none && node.kind == OpKind::linear_backward_input;
  });
  nodes.erase(first);
  const std::set<int> more = weight_gradient_nodes(layer);
  EXPECT_EQ(more.size(), delayed + 1);
  EXPECT_EQ(nodes[*more.begin()].collective, NodeCollective::all_gather_rows);
}

TEST(Autodiff, EveryWeightGetsExactlyOneAccumulator) {
  for (const ModelSpec& model : {small_llama(), small_gpt2(), small_qwen3()}) {
    const Differentiated layer = differentiate(block_of(model));
    std::map<int, int> accumulators;
    for (const GraphTensor& tensor : layer.graph.tensors) {
      if (tensor.role == TensorRole::weight_gradient) ++accumulators[tensor.weight];
    }
    EXPECT_EQ(accumulators.size(), layer.graph.weights.size()) << model.name;
    for (const auto& [weight, number] : accumulators) EXPECT_EQ(number, 1);
  }
}

TEST(Autodiff, QueryAndKeyNormsSeeOnlyTheirHeads) {
  EXPECT_EQ(differentiate(shard(block_of(small_qwen3()), {.tp = 2})).partial_weight_gradients.size(), 2u);
  EXPECT_TRUE(differentiate(block_of(small_qwen3())).partial_weight_gradients.empty());
  EXPECT_TRUE(differentiate(shard(block_of(small_llama()), {.tp = 2})).partial_weight_gradients.empty());
}

TEST(Autodiff, SavesNothingThatBackwardDoesNotRead) {
  const Differentiated layer = differentiate(block_of(small_llama()));
  for (const int saved : layer.saved) {
    bool read = false;
    for (size_t n = layer.forward_nodes; n < layer.graph.nodes.size(); ++n) {
      const auto& inputs = layer.graph.nodes[n].inputs;
      read |= std::find(inputs.begin(), inputs.end(), saved) != inputs.end();
    }
    EXPECT_TRUE(read) << layer.graph.tensors[saved].name;
  }
}

TEST(Fuse, JoinsResidualAndNormAndBiasAndGelu) {
  Graph llama = block_of(small_llama());
  fuse_forward(llama);
  EXPECT_EQ(count(llama, OpKind::add_rms_norm), 1);
  EXPECT_EQ(count(llama, OpKind::add), 1);  // the block's last sum has no norm behind it
  Graph gpt2 = block_of(small_gpt2());
  fuse_forward(gpt2);
  EXPECT_EQ(count(gpt2, OpKind::bias_gelu), 1);
  EXPECT_EQ(count(gpt2, OpKind::gelu), 0);
}

TEST(Fuse, GivesTheNormsTheResidualGradientAsAddend) {
  Graph graph = block_of(small_llama());
  fuse_forward(graph);
  Differentiated layer = differentiate(graph);
  fuse_backward(layer);
  EXPECT_EQ(count(layer.graph, OpKind::add), 1) << "only the forward sum is left";
  for (const Node& node : layer.graph.nodes) {
    if (node.kind == OpKind::rms_norm_backward && node.collective == NodeCollective::none) {
      EXPECT_EQ(node.inputs.size(), 5u);
    }
  }
}

TEST(Fuse, CrossEntropyIsOnePassUnlessStatisticsAreGathered) {
  const ModelGraphs graphs = build_graphs(small_llama(), {2, 16, {}, false});
  Differentiated alone = differentiate(graphs.head);
  fuse_backward(alone);
  EXPECT_EQ(count(alone.graph, OpKind::cross_entropy), 1);
  Differentiated sharded = differentiate(shard(graphs.head, {.tp = 2}));
  fuse_backward(sharded);
  EXPECT_EQ(count(sharded.graph, OpKind::cross_entropy), 0);
  EXPECT_EQ(count(sharded.graph, OpKind::cross_entropy_backward), 1);
}

PackItem item(int64_t bytes, int first, int last, bool carried = false) {
  PackItem result;
  result.bytes = bytes;
  result.first = first;
  result.last = last;
  result.carried = carried;
  return result;
}

PackItem fixed_item(int64_t bytes, int first, int last, PackSpace space, int64_t offset) {
  PackItem result = item(bytes, first, last);
  result.space = space;
  result.offset = offset;
  return result;
}

void expect_valid(const PackResult& packed, int64_t hole_bytes) {
  for (size_t i = 0; i < packed.items.size(); ++i) {
    const PackItem& a = packed.items[i];
    ASSERT_NE(a.space, PackSpace::unplaced);
    const bool hole = a.space == PackSpace::hole, scratch = a.space == PackSpace::scratch;
    EXPECT_LE(a.offset + a.bytes, hole ? hole_bytes : scratch ? packed.scratch_end : packed.carried_end);
    EXPECT_FALSE(a.carried && scratch);
    for (size_t j = 0; j < i; ++j) {
      const PackItem& b = packed.items[j];
      const bool together = a.first <= b.last && b.first <= a.last && a.space == b.space;
      EXPECT_FALSE(together && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) << i << " and " << j;
    }
  }
}

TEST(Pack, NeverOverlapsWhatLivesTogether) {
  uint32_t state = 7;
  const auto random = [&](uint32_t limit) { return (state = state * 1664525u + 1013904223u) / 65536 % limit; };
  for (int round = 0; round < 40; ++round) {
    std::vector<PackItem> items;
    for (int i = 0; i < 24; ++i) {
      const int first = static_cast<int>(random(20));
      items.push_back(item(64 * (1 + random(30)), first, first + static_cast<int>(random(8)), random(4) == 0));
    }
    items[0] = fixed_item(640, 0, 9, PackSpace::hole, 128);
    items[1] = fixed_item(640, 4, 19, PackSpace::scratch, 0);
    expect_valid(pack(items, 2048), 2048);
  }
}

TEST(Pack, UsesTheHoleBeforeScratch) {
  const PackResult packed = pack({item(64, 0, 1), item(64, 0, 1)}, 64);
  EXPECT_EQ(packed.scratch_end, 64);
}

TEST(Pack, ReusesBytesOfWhatIsDead) {
  const PackResult packed = pack({item(128, 0, 1), item(128, 2, 3)}, 0);
  EXPECT_EQ(packed.scratch_end, 128);
}

TEST(Schedule, StagesDifferInSizeByAtMostOneLayer) {
  Strategy strategy;
  strategy.pp = 4;
  const auto stages = stage_layers(10, strategy);
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(stages[0].count, 3);
  EXPECT_EQ(stages[3].count, 2);
  EXPECT_EQ(stages[3].first + stages[3].count, 10);
}

}  // namespace
}  // namespace foresail
