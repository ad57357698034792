#include "program/split_backward.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace foresail {
namespace {

/// Tensors that nodes of the layer write, as opposed to weights, tokens and what enters it.
bool is_computed(TensorRole role) { return role == TensorRole::activation || role == TensorRole::layer_output; }

class Splitter {
 public:
  Splitter(Differentiated& layer, const ReplayPlan& plan)
      : layer_(layer), plan_(plan), delayed_(weight_gradient_nodes(layer)) {
    for (int n = 0; n < static_cast<int>(layer_.graph.nodes.size()); ++n) {
      for (const int output : layer_.graph.nodes[static_cast<size_t>(n)].outputs) producer_[output] = n;
    }
  }

  SplitBackward run() {
    keep_copy(TensorRole::output_gradient);
    keep_copy(TensorRole::layer_input);
    for (const int node : delayed_) want_inputs(node);
    for (const int node : moved_) result_.weight_nodes.push_back({node, TimeKind::recompute});
    for (const int node : delayed_) result_.weight_nodes.push_back({node, TimeKind::compute});
    input_half();
    return std::move(result_);
  }

 private:
  std::vector<Node>& nodes() { return layer_.graph.nodes; }
  const GraphTensor& tensor(int index) const { return layer_.graph.tensors[static_cast<size_t>(index)]; }

  /// The weight half reads copies of what enters the layer: its place is given up when the input half has run.
  void keep_copy(TensorRole role) {
    const int entering = layer_.graph.find(role);
    const auto reads = [&](int n) {
      const auto& inputs = nodes()[static_cast<size_t>(n)].inputs;
      return std::find(inputs.begin(), inputs.end(), entering) != inputs.end();
    };
    if (entering < 0 || std::none_of(delayed_.begin(), delayed_.end(), reads)) return;
    GraphTensor copy = tensor(entering);
    copy.name += ".kept";
    copy.role = TensorRole::activation;
    layer_.graph.tensors.push_back(copy);
    const int kept = static_cast<int>(layer_.graph.tensors.size()) - 1;
    for (const int n : delayed_) {
      for (int& input : nodes()[static_cast<size_t>(n)].inputs) {
        if (input == entering) input = kept;
      }
    }
    Node node;
    node.kind = OpKind::copy;
    node.inputs = {entering};
    node.outputs = {kept};
    nodes().push_back(node);  // runs first in the input half, wherever it stands
    copies_.push_back(static_cast<int>(nodes().size()) - 1);
    producer_[kept] = copies_.back();
  }

  void want_inputs(int node) {
    for (const int input : nodes()[static_cast<size_t>(node)].inputs) want(input);
  }

  void want(int input) {
    const TensorRole role = tensor(input).role;
    ensure(role != TensorRole::layer_input, "data movement from a layer's input is made before backward");
    if (plan_.kept.count(input) != 0) {
      result_.kept.insert(input);
      return;
    }
    if (!is_computed(role)) return;  // weights, tokens: always there
    const int node = producer_.at(input);
    const bool forward = node < layer_.forward_nodes;
    if (forward && moves_data_only(nodes()[static_cast<size_t>(node)])) {
      if (moved_.insert(node).second) want_inputs(node);
      return;
    }
    result_.carried.insert(input);
  }

  /// Everything that the input half computes: backward nodes that are not delayed, and what they and the carried tensors
  /// need of the replayed forward nodes.
  void input_half() {
    std::set<int> needed = result_.carried;
    std::vector<PlannedNode> backward;
    for (const int copy : copies_) backward.push_back({copy, TimeKind::compute});
    for (int n = layer_.forward_nodes; n < static_cast<int>(nodes().size()); ++n) {
      if (std::find(copies_.begin(), copies_.end(), n) != copies_.end() || delayed_.count(n) != 0) continue;
      backward.push_back({n, TimeKind::compute});
      needed.insert(nodes()[static_cast<size_t>(n)].inputs.begin(), nodes()[static_cast<size_t>(n)].inputs.end());
    }
    std::vector<PlannedNode> replayed;
    for (auto n = plan_.replayed.rbegin(); n != plan_.replayed.rend(); ++n) {
      const Node& node = nodes()[static_cast<size_t>(*n)];
      const bool used =
          std::any_of(node.outputs.begin(), node.outputs.end(), [&](int output) { return needed.count(output) != 0; });
      if (!used) continue;
      replayed.push_back({*n, TimeKind::recompute});
      needed.insert(node.inputs.begin(), node.inputs.end());
    }
    result_.input_nodes.assign(replayed.rbegin(), replayed.rend());
    result_.input_nodes.insert(result_.input_nodes.end(), backward.begin(), backward.end());
  }

  Differentiated& layer_;
  const ReplayPlan& plan_;
  std::set<int> delayed_;
  std::map<int, int> producer_;
  std::set<int> moved_;  ///< forward data movement that the weight half makes again
  std::vector<int> copies_;
  SplitBackward result_;
};

}  // namespace

SplitBackward split_backward(Differentiated& layer, const ReplayPlan& plan) { return Splitter(layer, plan).run(); }

}  // namespace foresail
