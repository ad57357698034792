#include "program/layer_blocks.h"

#include <algorithm>

#include "core/error.h"
#include "core/round_up.h"
#include "program/fuse.h"
#include "program/recompute.h"
#include "program/ring.h"
#include "program/split_backward.h"

namespace foresail {
namespace {

constexpr Place kLayerInput{Register::x_in, 0, MemoryKind::activations};
constexpr Place kLayerOutput{Register::x_out, 0, MemoryKind::activations};
constexpr Place kHiddenGradient{Register::hidden_gradient, 0, MemoryKind::scratch};

std::vector<PlannedNode> planned(int begin, int end, TimeKind time) {
  std::vector<PlannedNode> nodes;
  for (int n = begin; n < end; ++n) nodes.push_back({n, time});
  return nodes;
}

BlockRequest request(const std::string& name, const Graph& graph, const LayerKind& kind, const StageShape& shape,
                     const ArenaMap& arena) {
  BlockRequest result;
  result.name = name;
  result.graph = &graph;
  result.pinned = persistent_places(graph, kind, shape, arena);
  result.alignment = shape.alignment;
  return result;
}

Differentiated differentiated(const StageShape& shape, const Graph& forward) {
  Differentiated result = differentiate(forward);
  fuse_backward(result);
  expand_ring(result, shape.cut.cp);
  return result;
}

Graph forward_only(const StageShape& shape, Graph graph) {
  expand_ring(graph, shape.cut.cp);
  return graph;
}

/// The kept activations of a layer: where they are in its regions of a slot, and how large these are.
struct Region {
  std::map<int, Place> kept;
  int64_t bytes = 0, delayed_bytes = 0;
};

/// `delayed`: tensors that the weight gradient reads.
Region region_of(const StageShape& shape, const Differentiated& layer, const std::set<int>& kept,
                 const std::set<int>& delayed = {}) {
  Region region;
  region.bytes = shape.hidden_bytes();  // the layer's input comes first
  for (const int tensor : kept) {
    const GraphTensor& what = layer.graph.tensors[static_cast<size_t>(tensor)];
    if (what.role == TensorRole::layer_input) continue;
    const bool later = delayed.count(tensor) != 0;
    int64_t& end = later ? region.delayed_bytes : region.bytes;
    region.kept[tensor] = {later ? Register::delayed : Register::saved, end, MemoryKind::activations};
    end += round_up(what.type().bytes(), shape.alignment);
  }
  return region;
}

/// What the three blocks of a layer are made from.
struct LayerPlan {
  const LayerKind& kind;
  Differentiated layer;
  ReplayPlan replay;
  Region region;
};

BlockRequest forward_request(const StageShape& shape, const ArenaMap& arena, const LayerPlan& plan) {
  const Graph& graph = plan.layer.graph;
  BlockRequest forward = request(plan.kind.graph.name + ".forward", graph, plan.kind, shape, arena);
  forward.nodes = planned(0, plan.layer.forward_nodes, TimeKind::compute);
  const int input = graph.find(TensorRole::layer_input);
  const int output = graph.find(TensorRole::layer_output);
  forward.pinned[input] = kLayerInput;
  forward.pinned[output] = kLayerOutput;
  forward.live_out = {input, output};
  for (const auto& [tensor, place] : plan.region.kept) {
    forward.pinned[tensor] = place;
    forward.live_out.insert(tensor);
  }
  return forward;
}

BlockRequest backward_request(const StageShape& shape, const ArenaMap& arena, const LayerPlan& plan) {
  const Graph& graph = plan.layer.graph;
  BlockRequest backward = request(plan.kind.graph.name + ".backward", graph, plan.kind, shape, arena);
  backward.hole_bytes = plan.region.bytes;
  backward.pinned.insert(plan.region.kept.begin(), plan.region.kept.end());
  backward.pinned[graph.find(TensorRole::layer_input)] = kLayerInput;
  backward.pinned[graph.find(TensorRole::output_gradient)] = kHiddenGradient;
  const int dx = graph.find(TensorRole::input_gradient);
  backward.pinned[dx] = kHiddenGradient;
  backward.live_out = {dx};
  return backward;
}

void compile_split(const StageShape& shape, const ArenaMap& arena, LayerPlan& plan, const SplitBackward& split,
                   LayerBlocks& blocks, BlockStore& store) {
  BlockRequest inputs = backward_request(shape, arena, plan);
  inputs.nodes = split.input_nodes;
  inputs.carried = split.carried;
  inputs.live_out.insert(split.kept.begin(), split.kept.end());
  blocks.backward = store.lower(std::move(inputs));
  blocks.carried_bytes = store.at(blocks.backward).carried_bytes;
  BlockRequest weights = request(plan.kind.graph.name + ".weight_gradient", plan.layer.graph, plan.kind, shape, arena);
  weights.nodes = split.weight_nodes;
  weights.pinned.insert(plan.region.kept.begin(), plan.region.kept.end());
  for (const auto& [tensor, place] : store.at(blocks.backward).carried_places) weights.pinned[tensor] = place;
  blocks.weight_gradient = store.lower(std::move(weights));
}

}  // namespace

Differentiated differentiated_layer(const StageShape& shape, const LayerKind& kind) {
  return differentiated(shape, kind.graph);
}

LayerBlocks compile_layer(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena,
                          const std::set<int>& dropped, bool split, BlockStore& store) {
  LayerPlan plan{kind, differentiated_layer(shape, kind), {}, {}};
  plan.replay = replay_plan(plan.layer, dropped);
  LayerBlocks blocks;
  if (split) {
    const SplitBackward halves = split_backward(plan.layer, plan.replay);
    plan.region = region_of(shape, plan.layer, plan.replay.kept, halves.kept);
    blocks.region_bytes = plan.region.bytes;
    blocks.delayed_bytes = plan.region.delayed_bytes;
    blocks.forward = store.lower(forward_request(shape, arena, plan));
    compile_split(shape, arena, plan, halves, blocks, store);
    return blocks;
  }
  plan.region = region_of(shape, plan.layer, plan.replay.kept);
  blocks.region_bytes = plan.region.bytes;
  blocks.forward = store.lower(forward_request(shape, arena, plan));
  BlockRequest backward = backward_request(shape, arena, plan);
  for (const int node : plan.replay.replayed) backward.nodes.push_back({node, TimeKind::recompute});
  for (const PlannedNode& node :
       planned(plan.layer.forward_nodes, static_cast<int>(plan.layer.graph.nodes.size()), TimeKind::compute)) {
    backward.nodes.push_back(node);
  }
  blocks.backward = store.lower(std::move(backward));
  return blocks;
}

int32_t compile_embedding_forward(const StageShape& shape, const ArenaMap& arena, BlockStore& store) {
  const Graph& graph = shape.embedding.graph;
  BlockRequest forward = request("embedding.forward", graph, shape.embedding, shape, arena);
  forward.nodes = planned(0, static_cast<int>(graph.nodes.size()), TimeKind::compute);
  const int output = graph.find(TensorRole::layer_output);
  forward.pinned[output] = kLayerOutput;
  forward.live_out = {output};
  return store.lower(std::move(forward));
}

int32_t compile_embedding_backward(const StageShape& shape, const ArenaMap& arena, BlockStore& store) {
  const Differentiated embedding = differentiated(shape, shape.embedding.graph);
  const Graph& graph = embedding.graph;
  BlockRequest backward = request("embedding.backward", graph, shape.embedding, shape, arena);
  for (const int node : replay_plan(embedding, dropped_tensors(embedding, Recompute::full, {})).replayed) {
    backward.nodes.push_back({node, TimeKind::recompute});
  }
  for (const PlannedNode& node :
       planned(embedding.forward_nodes, static_cast<int>(graph.nodes.size()), TimeKind::compute)) {
    backward.nodes.push_back(node);
  }
  backward.pinned[graph.find(TensorRole::output_gradient)] = kHiddenGradient;
  return store.lower(std::move(backward));
}

int32_t compile_head(const StageShape& shape, const ArenaMap& arena, BlockStore& store) {
  const Differentiated head = differentiated(shape, shape.head.graph);
  const Graph& graph = head.graph;
  BlockRequest both = request("head", graph, shape.head, shape, arena);
  both.nodes = planned(0, static_cast<int>(graph.nodes.size()), TimeKind::compute);
  both.pinned[graph.find(TensorRole::layer_input)] = kLayerOutput;  // of the last layer
  const int dx = graph.find(TensorRole::input_gradient);
  both.pinned[dx] = kHiddenGradient;
  both.live_out = {dx};
  return store.lower(std::move(both));
}

int32_t compile_layer_forward(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena,
                              BlockStore& store) {
  const Graph graph = forward_only(shape, kind.graph);
  BlockRequest forward = request(kind.graph.name + ".forward", graph, kind, shape, arena);
  forward.nodes = planned(0, static_cast<int>(graph.nodes.size()), TimeKind::compute);
  const int output = graph.find(TensorRole::layer_output);
  forward.pinned[graph.find(TensorRole::layer_input)] = kLayerInput;
  forward.pinned[output] = kLayerOutput;
  forward.live_out = {output};
  return store.lower(std::move(forward));
}

int32_t compile_head_forward(const StageShape& shape, const ArenaMap& arena, bool with_loss, BlockStore& store) {
  const Graph& head = shape.head.graph;
  BlockRequest last = request(with_loss ? "head.evaluate" : "head.logits", head, shape.head, shape, arena);
  int nodes = static_cast<int>(head.nodes.size());
  if (!with_loss) {
    nodes = 0;
    while (head.tensors[static_cast<size_t>(head.nodes[static_cast<size_t>(nodes++)].outputs[0])].name != "logits") {
    }
    last.live_out = {head.nodes[static_cast<size_t>(nodes) - 1].outputs[0]};
  }
  last.nodes = planned(0, nodes, TimeKind::compute);
  last.pinned[head.find(TensorRole::layer_input)] = kLayerOutput;
  return store.lower(std::move(last));
}

}  // namespace foresail
