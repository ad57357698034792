#include "program/ring.h"

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "program/graph_edit.h"

namespace foresail {
namespace {

bool is_over_ranks(const Node& node, OpKind kind) {
  return node.collective == NodeCollective::none && node.kind == kind && node.attributes.context_parallel > 1;
}

class RingExpansion {
 public:
  RingExpansion(Graph& graph, int64_t ranks) : graph_(graph), ranks_(ranks) {}

  /// Expands the nodes and keeps count of those that are forward.
  void run(int& forward_nodes);

 private:
  int shift(int tensor, const std::string& name) {
    return emit(graph_, nodes_, NodeCollective::ring_shift_context, tensor, name);
  }
  void expand_forward(const Node& node);
  void expand_backward(const Node& node);

  Graph& graph_;
  int64_t ranks_;
  std::vector<Node> nodes_;
};

std::string at_step(const std::string& name, int64_t step) { return name + "." + std::to_string(step); }

void RingExpansion::expand_forward(const Node& node) {
  ensure(node.attributes.context_parallel == ranks_, "a layer has one context-parallel degree");
  const int o = node.outputs.at(0), lse = node.outputs.at(1);
  const auto packed = emit(graph_, nodes_, OpKind::split_qkv, node.attributes, node.inputs, {"ring.q", "ring.kv"});
  const std::string o_name = graph_.tensors[static_cast<size_t>(o)].name;
  const std::string lse_name = graph_.tensors[static_cast<size_t>(lse)].name;
  int kv = packed[1];
  std::vector<int> before;  // o and lse of the steps so far
  for (int64_t step = 0; step < ranks_; ++step) {
    const bool last = step == ranks_ - 1;
    // The next keys travel while this step computes.
    const int next = last ? -1 : shift(kv, at_step("ring.kv", step + 1));
    Node attend{OpKind::ring_attention, NodeCollective::none, node.attributes, {packed[0], kv}, {}, 0};
    attend.attributes.ring_step = step;
    attend.inputs.insert(attend.inputs.end(), before.begin(), before.end());
    attend.outputs =
        last ? std::vector{o, lse}
             : std::vector{add_like(graph_, o, at_step(o_name, step)), add_like(graph_, lse, at_step(lse_name, step))};
    nodes_.push_back(attend);
    before = attend.outputs;
    kv = next;
  }
}

/// At step s a rank works on what began at rank (own - s); after the last shift every dkv is where its kv began.
void RingExpansion::expand_backward(const Node& node) {
  const int d_o = node.inputs.at(0), qkv = node.inputs.at(1), o = node.inputs.at(2), lse = node.inputs.at(3);
  const auto packed = emit(graph_, nodes_, OpKind::split_qkv, node.attributes, {qkv}, {"ring.q'", "ring.kv'"});
  int kv = packed[1];
  std::vector<int> so_far;  // dq, and dkv of the keys that are here
  for (int64_t step = 0; step < ranks_; ++step) {
    const int next = step == ranks_ - 1 ? -1 : shift(kv, at_step("ring.kv'", step + 1));
    Node attend{OpKind::ring_attention_backward, NodeCollective::none, node.attributes, {}, {}, 0};
    attend.attributes.ring_step = step;
    attend.inputs = {d_o, packed[0], kv, o, lse};
    attend.inputs.insert(attend.inputs.end(), so_far.begin(), so_far.end());
    attend.outputs = {add_like(graph_, packed[0], at_step("d_ring.q", step)),
                      add_like(graph_, packed[1], at_step("d_ring.kv", step))};
    nodes_.push_back(attend);
    so_far = {attend.outputs[0], shift(attend.outputs[1], at_step("d_ring.kv.shifted", step))};
    kv = next;
  }
  nodes_.push_back({OpKind::join_qkv, NodeCollective::none, node.attributes, so_far, node.outputs, 0});
}

void RingExpansion::run(int& forward_nodes) {
  const int forward_before = forward_nodes;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node node = graph_.nodes[n];
    if (is_over_ranks(node, OpKind::attention)) {
      expand_forward(node);
    } else if (is_over_ranks(node, OpKind::attention_backward)) {
      expand_backward(node);
    } else {
      nodes_.push_back(node);
    }
    if (static_cast<int>(n) == forward_before - 1) forward_nodes = static_cast<int>(nodes_.size());
  }
  graph_.nodes = std::move(nodes_);
}

}  // namespace

void expand_ring(Differentiated& layer, int64_t context_parallel) {
  RingExpansion(layer.graph, context_parallel).run(layer.forward_nodes);
}

void expand_ring(Graph& forward, int64_t context_parallel) {
  int forward_nodes = static_cast<int>(forward.nodes.size());
  RingExpansion(forward, context_parallel).run(forward_nodes);
}

}  // namespace foresail
