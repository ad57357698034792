// What the graph passes promise: sharding, fusion, differentiation, recompute, packing, order.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "program/autodiff.h"
#include "program/fuse.h"
#include "program/pack.h"
#include "program/recompute.h"
#include "program/shard.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::small_gpt2;
using testing::small_llama;
using testing::small_qwen3;

Graph block_of(const ModelSpec& model) {
  return build_graphs(model, {.micro_batch = 2, .sequence_length = 16, .precision = {}, .unfused_attention = false})
      .block;
}

int count(const Graph& graph, OpKind kind) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.collective == NodeCollective::none && node.kind == kind;
  }));
}

int collectives(const Graph& graph) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                        [](const Node& node) { return node.collective != NodeCollective::none; }));
}

TEST(Shard, LeavesTheGraphAloneForOneRank) {
  const Graph graph = block_of(small_llama());
  EXPECT_EQ(shard(graph, 1).nodes.size(), graph.nodes.size());
}

TEST(Shard, SumsOncePerRowParallelProductInForward) { EXPECT_EQ(collectives(shard(block_of(small_llama()), 2)), 2); }

TEST(Shard, AddsTheRowParallelBiasAfterTheSum) {
  const Graph graph = shard(block_of(small_gpt2()), 2);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].kind != OpKind::bias_add || graph.nodes[n].collective != NodeCollective::none) continue;
    EXPECT_EQ(graph.nodes[n - 1].collective, NodeCollective::all_reduce_tensor);
    EXPECT_EQ(graph.nodes[n - 1].outputs[0], graph.nodes[n].inputs[0]);
  }
}

TEST(Shard, PadsTheVocabularyUp) {
  EXPECT_EQ(local_size({DimName::vocabulary, 67}, 2), 34);
  EXPECT_EQ(local_size({DimName::vocabulary, 67}, 4), 17);
  EXPECT_EQ(local_size({DimName::ffn, 48}, 4), 12);
  EXPECT_EQ(local_size({DimName::hidden, 32}, 4), 32);
}

TEST(Autodiff, BackwardSumsTheGradientOfEachColumnParallelInput) {
  const Differentiated layer = differentiate(shard(block_of(small_llama()), 2));
  EXPECT_EQ(collectives(layer.graph), 4);  // two forward, two backward (Megatron's g and f)
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
  EXPECT_EQ(differentiate(shard(block_of(small_qwen3()), 2)).partial_weight_gradients.size(), 2u);
  EXPECT_TRUE(differentiate(block_of(small_qwen3())).partial_weight_gradients.empty());
  EXPECT_TRUE(differentiate(shard(block_of(small_llama()), 2)).partial_weight_gradients.empty());
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
  Differentiated sharded = differentiate(shard(graphs.head, 2));
  fuse_backward(sharded);
  EXPECT_EQ(count(sharded.graph, OpKind::cross_entropy), 0);
  EXPECT_EQ(count(sharded.graph, OpKind::cross_entropy_backward), 1);
}

TEST(Recompute, ReplaysNothingWhenNothingIsDropped) {
  const Differentiated layer = differentiate(block_of(small_llama()));
  EXPECT_TRUE(replayed_nodes(layer, dropped_tensors(layer, Recompute::none)).empty());
}

TEST(Recompute, FullReplaysAllButTheLastProductAndSum) {
  Differentiated layer = differentiate(block_of(small_llama()));
  const auto replayed = replayed_nodes(layer, dropped_tensors(layer, Recompute::full));
  EXPECT_EQ(static_cast<int>(replayed.size()), layer.forward_nodes - 2);
}

TEST(Recompute, OneDroppedTensorReplaysOnlyWhatItNeeds) {
  const Differentiated layer = differentiate(block_of(small_llama()));
  for (const int saved : layer.saved) {
    if (layer.graph.tensors[saved].name != "activated") continue;
    const auto replayed = replayed_nodes(layer, {saved});
    ASSERT_EQ(replayed.size(), 1u);
    EXPECT_EQ(layer.graph.nodes[replayed[0]].kind, OpKind::swiglu);
  }
}

void expect_valid(const PackResult& packed, int64_t hole_bytes) {
  for (size_t i = 0; i < packed.items.size(); ++i) {
    const PackItem& a = packed.items[i];
    EXPECT_NE(a.space, PackSpace::unplaced);
    EXPECT_LE(a.offset + a.bytes, a.space == PackSpace::hole ? hole_bytes : packed.scratch_end);
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
      items.push_back({64 * (1 + random(30)), first, first + static_cast<int>(random(8)), PackSpace::unplaced, 0});
    }
    items[0] = {640, 0, 9, PackSpace::hole, 128};
    items[1] = {640, 4, 19, PackSpace::scratch, 0};
    expect_valid(pack(items, 2048, 0), 2048);
  }
}

TEST(Pack, UsesTheHoleBeforeScratch) {
  const PackResult packed = pack({{64, 0, 1, PackSpace::unplaced, 0}, {64, 0, 1, PackSpace::unplaced, 0}}, 64, 0);
  EXPECT_EQ(packed.scratch_end, 64);
}

TEST(Pack, ReusesBytesOfWhatIsDead) {
  const PackResult packed = pack({{128, 0, 1, PackSpace::unplaced, 0}, {128, 2, 3, PackSpace::unplaced, 0}}, 0, 0);
  EXPECT_EQ(packed.scratch_end, 128);
}

TEST(Schedule, StagesDifferInSizeByAtMostOneLayer) {
  const auto stages = stage_layers(10, 4);
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(stages[0].count, 3);
  EXPECT_EQ(stages[3].count, 2);
  EXPECT_EQ(stages[3].first + stages[3].count, 10);
}

}  // namespace
}  // namespace foresail
