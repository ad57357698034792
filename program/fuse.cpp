#include "program/fuse.h"

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace foresail {
namespace {

std::vector<int> readers_of(const Graph& graph, int tensor) {
  std::vector<int> readers;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& inputs = graph.nodes[i].inputs;
    if (std::find(inputs.begin(), inputs.end(), tensor) != inputs.end()) readers.push_back(static_cast<int>(i));
  }
  return readers;
}

int producer_of(const Graph& graph, int tensor) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& outputs = graph.nodes[i].outputs;
    if (std::find(outputs.begin(), outputs.end(), tensor) != outputs.end()) return static_cast<int>(i);
  }
  return -1;
}

bool is_op(const Node& node, OpKind kind) { return node.collective == NodeCollective::none && node.kind == kind; }

std::optional<OpKind> fused_with_add(const Node& node) {
  if (is_op(node, OpKind::rms_norm)) return OpKind::add_rms_norm;
  if (is_op(node, OpKind::layer_norm)) return OpKind::add_layer_norm;
  return std::nullopt;
}

/// add -> norm becomes one node at the place of the norm; nothing between them may read the sum.
bool fuse_one_add_norm(Graph& graph) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto fused = fused_with_add(graph.nodes[n]);
    if (!fused) continue;
    const int add = producer_of(graph, graph.nodes[n].inputs[0]);
    if (add < 0 || !is_op(graph.nodes[add], OpKind::add)) continue;
    if (readers_of(graph, graph.nodes[n].inputs[0]).front() < static_cast<int>(n)) continue;
    Node& norm = graph.nodes[n];
    std::vector<int> inputs = graph.nodes[add].inputs;
    inputs.insert(inputs.end(), norm.inputs.begin() + 1, norm.inputs.end());
    norm.outputs.insert(norm.outputs.begin(), norm.inputs[0]);
    norm.partial_gradient_inputs = graph.nodes[add].partial_gradient_inputs | (norm.partial_gradient_inputs >> 1 << 2);
    norm.inputs = std::move(inputs);
    norm.kind = *fused;
    graph.nodes.erase(graph.nodes.begin() + add);
    return true;
  }
  return false;
}

/// linear with bias -> gelu becomes linear -> bias_gelu: the pre-activation is written once, without its bias.
bool fuse_one_bias_gelu(Graph& graph) {
  for (Node& gelu : graph.nodes) {
    if (!is_op(gelu, OpKind::gelu) || readers_of(graph, gelu.inputs[0]).size() != 1) continue;
    const int product = producer_of(graph, gelu.inputs[0]);
    if (product < 0 || !is_op(graph.nodes[product], OpKind::linear) || graph.nodes[product].inputs.size() != 3)
      continue;
    gelu.kind = OpKind::bias_gelu;
    gelu.inputs.push_back(graph.nodes[product].inputs[2]);
    gelu.partial_gradient_inputs |= (graph.nodes[product].partial_gradient_inputs >> 2 & 1) << 1;
    graph.nodes[product].inputs.pop_back();
    return true;
  }
  return false;
}

bool takes_addend(const Node& node) {
  return (is_op(node, OpKind::rms_norm_backward) && node.inputs.size() == 4) ||
         (is_op(node, OpKind::layer_norm_backward) && node.inputs.size() == 5);
}

/// add(other, dx) where dx comes from a norm's backward that ran last: the norm adds `other` itself.
bool fuse_one_addend(Differentiated& layer) {
  Graph& graph = layer.graph;
  for (size_t a = layer.forward_nodes; a < graph.nodes.size(); ++a) {
    if (!is_op(graph.nodes[a], OpKind::add)) continue;
    for (int side = 0; side < 2; ++side) {
      const int dx = graph.nodes[a].inputs[side];
      const int other = graph.nodes[a].inputs[1 - side];
      const int norm = producer_of(graph, dx);
      if (norm < layer.forward_nodes || !takes_addend(graph.nodes[norm]) || readers_of(graph, dx).size() != 1) continue;
      if (producer_of(graph, other) > norm) continue;  // not ready yet when the norm runs
      graph.nodes[norm].inputs.push_back(other);
      graph.nodes[norm].outputs[0] = graph.nodes[a].outputs[0];
      graph.nodes.erase(graph.nodes.begin() + static_cast<long>(a));
      return true;
    }
  }
  return false;
}

void fuse_cross_entropy(Differentiated& layer) {
  Graph& graph = layer.graph;
  for (Node& backward : graph.nodes) {
    if (!is_op(backward, OpKind::cross_entropy_backward)) continue;
    const int stats = producer_of(graph, backward.inputs[2]);
    if (!is_op(graph.nodes[stats], OpKind::cross_entropy_stats)) return;  // gathered over tp: two passes
    backward.kind = OpKind::cross_entropy;
    backward.inputs.pop_back();
    graph.nodes.erase(graph.nodes.begin() + stats);
    layer.forward_nodes -= 1;
    return;
  }
}

}  // namespace

void fuse_forward(Graph& graph) {
  while (fuse_one_bias_gelu(graph)) {
  }
  while (fuse_one_add_norm(graph)) {
  }
}

void fuse_backward(Differentiated& layer) {
  while (fuse_one_addend(layer)) {
  }
  fuse_cross_entropy(layer);
}

}  // namespace foresail
