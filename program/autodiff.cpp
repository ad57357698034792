#include "program/autodiff.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "core/error.h"
#include "ops/op_table.h"
#include "program/graph_edit.h"

namespace foresail {
namespace {

struct Contribution {
  int tensor = -1;
  bool partial = false;  ///< only this tensor-parallel rank's share
};

class Backward final : public GradientBuilder {
 public:
  explicit Backward(const Graph& forward) {
    result_.graph = forward;
    result_.forward_nodes = static_cast<int>(forward.nodes.size());
  }

  Differentiated run();

  const Node& node() const override { return node_; }
  const GraphTensor& tensor(int index) const override { return result_.graph.tensors.at(index); }
  int output_gradient(int i) override { return resolve(node_.outputs.at(i)); }
  int gradient_like(int like) override { return new_tensor("d_" + tensor(like).name, like); }
  int weight_gradient(int forward_weight) override;
  void emit(OpKind kind, const OpAttributes& attributes, std::vector<int> inputs, std::vector<int> outputs) override;
  void contribute(int i, int gradient) override;
  int contributed(int i) override;

 private:
  int new_tensor(std::string name, int like) { return add_like(result_.graph, like, std::move(name)); }
  int communicate(NodeCollective collective, int operand, int like, const std::string& suffix);
  int resolve(int forward_tensor);
  int sum_of(const std::vector<int>& terms, int like);
  void seed();
  bool drop_loss_node();
  void step_back(const Node& node);
  void step_back_collective(const Node& node);
  void note_shares(const Node& node);
  bool is_wanted(int output, const std::set<int>& read) const;
  void drop_gradients_of_frozen();
  void finish();

  Differentiated result_;
  Node node_;
  std::map<int, std::vector<Contribution>> contributions_;  // by forward tensor
  std::map<int, int> weight_gradients_;                     // forward weight tensor -> accumulator
};

int Backward::weight_gradient(int forward_weight) {
  const auto found = weight_gradients_.find(forward_weight);
  if (found != weight_gradients_.end()) return found->second;
  GraphTensor gradient = result_.graph.tensors.at(forward_weight);
  ensure(gradient.role == TensorRole::weight, "weight gradients belong to weights");
  gradient.name = "d_" + gradient.name;
  gradient.role = TensorRole::weight_gradient;
  gradient.dtype = result_.graph.weight_gradient;
  result_.graph.tensors.push_back(gradient);
  const int index = static_cast<int>(result_.graph.tensors.size()) - 1;
  weight_gradients_[forward_weight] = index;
  return index;
}

void Backward::emit(OpKind kind, const OpAttributes& attributes, std::vector<int> inputs, std::vector<int> outputs) {
  result_.graph.nodes.push_back({kind, NodeCollective::none, attributes, std::move(inputs), std::move(outputs), 0});
}

void Backward::contribute(int i, int gradient) {
  if (gradient < 0) return;
  const bool partial = (node_.partial_gradient_inputs >> i & 1) != 0;
  contributions_[node_.inputs.at(i)].push_back({gradient, partial});
}

int Backward::contributed(int i) {
  const auto& terms = contributions_[node_.inputs.at(i)];
  ensure(terms.size() == 1, "an accumulating derivative follows exactly one contribution");
  return terms[0].tensor;
}

int Backward::sum_of(const std::vector<int>& terms, int like) {
  int sum = terms.at(0);
  for (size_t i = 1; i < terms.size(); ++i) {
    const int next = new_tensor("d_" + tensor(like).name, like);
    emit(OpKind::add, {}, {sum, terms[i]}, {next});
    sum = next;
  }
  return sum;
}

/// The gradient of forward tensor `like` that a collective makes from `operand`.
int Backward::communicate(NodeCollective collective, int operand, int like, const std::string& suffix) {
  Node node;
  node.collective = collective;
  node.inputs = {operand};
  node.outputs = {new_tensor("d_" + tensor(like).name + suffix, like)};
  result_.graph.nodes.push_back(node);
  return node.outputs[0];
}

/// The whole gradient of a forward tensor: shares are summed, then reduced over the ranks, then added to the rest.
int Backward::resolve(int forward_tensor) {
  auto& terms = contributions_[forward_tensor];
  if (terms.empty()) return -1;
  std::vector<int> shares, whole;
  for (const Contribution& term : terms) (term.partial ? shares : whole).push_back(term.tensor);
  if (!shares.empty()) {
    const int share = sum_of(shares, forward_tensor);
    whole.push_back(communicate(NodeCollective::all_reduce_tensor, share, forward_tensor, ".reduced"));
  }
  const int total = sum_of(whole, forward_tensor);
  terms = {{total, false}};
  return total;
}

void Backward::seed() {
  const int output = result_.graph.find(TensorRole::layer_output);
  if (output < 0) return;
  const int gradient = new_tensor("d_" + tensor(output).name, output);
  result_.graph.tensors[gradient].role = TensorRole::output_gradient;
  contributions_[output].push_back({gradient, false});
}

/// True if the graph ends in a loss: its node's derivative takes its place.
bool Backward::drop_loss_node() {
  const int loss = result_.graph.find(TensorRole::loss);
  if (loss < 0) return false;
  Node last = result_.graph.nodes.back();
  ensure(last.outputs.at(0) == loss, "the loss is the last node of its graph");
  result_.graph.nodes.pop_back();
  result_.forward_nodes -= 1;
  node_ = last;
  info(last.kind).derivative(*this);
  return true;
}

void Backward::step_back_collective(const Node& node) {
  const int input = node.inputs.at(0), output = node.outputs.at(0);
  switch (node.collective) {
    case NodeCollective::all_reduce_tensor:  // the sum's gradient is every share's gradient
    case NodeCollective::all_reduce_context: contribute(0, resolve(output)); return;
    case NodeCollective::all_gather_rows: {
      // The readers of all rows contribute shares: their sum over the ranks is wanted for this rank's rows alone.
      std::vector<int> shares;
      for (const Contribution& term : contributions_[output]) {
        ensure(term.partial, "gathered rows are read by cut operators");
        shares.push_back(term.tensor);
      }
      if (shares.empty()) return;
      const int share = sum_of(shares, output);
      contribute(0, communicate(NodeCollective::reduce_scatter_rows, share, input, ".scattered"));
      return;
    }
    case NodeCollective::reduce_scatter_rows:
      if (const int rows = resolve(output); rows >= 0) {
        contribute(0, communicate(NodeCollective::all_gather_rows, rows, input, ".gathered"));
      }
      return;
    case NodeCollective::all_to_all_context:
      if (const int parts = resolve(output); parts >= 0) {
        contribute(0, communicate(NodeCollective::all_to_all_context, parts, input, ""));
      }
      return;
    case NodeCollective::all_to_all_expert:
      if (const int parts = resolve(output); parts >= 0) {
        contribute(0, communicate(NodeCollective::all_to_all_expert, parts, input, ""));
      }
      return;
    case NodeCollective::all_gather_expert:  // each rank's product gives a share of the gradient
      if (const int shares = resolve(output); shares >= 0) {
        contribute(0, communicate(NodeCollective::reduce_scatter_expert, shares, input, ".scattered"));
      }
      return;
    case NodeCollective::reduce_scatter_expert:
      if (const int rows = resolve(output); rows >= 0) {
        contribute(0, communicate(NodeCollective::all_gather_expert, rows, input, ".gathered"));
      }
      return;
    case NodeCollective::all_gather_tensor: return;  // gathered statistics carry no gradient
    case NodeCollective::ring_shift_context:
    case NodeCollective::none: break;
  }
  ensure(false, "rings are expanded after differentiation");
}

/// Which weights' accumulators hold only a share of the gradient after this node's derivative.
void Backward::note_shares(const Node& node) {
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const GraphTensor& operand = tensor(node.inputs[i]);
    if (operand.role != TensorRole::weight) continue;
    if ((node.partial_gradient_inputs >> i & 1) != 0) result_.partial_weight_gradients.insert(operand.weight);
    if (operand.dims.at(0).name == DimName::kv) result_.copied_weight_gradients.insert(operand.weight);
  }
}

void Backward::step_back(const Node& node) {
  node_ = node;
  if (node.collective != NodeCollective::none) {
    step_back_collective(node);
    return;
  }
  bool reached = false;
  for (const int output : node.outputs) {
    reached |= !contributions_[output].empty() || tensor(output).role == TensorRole::auxiliary_loss;
  }
  if (!reached) return;
  const auto& derivative = info(node.kind).derivative;
  ensure(static_cast<bool>(derivative), "an operator on the way to the loss has a derivative");
  derivative(*this);
  note_shares(node);
}

/// Whether a backward node that writes `output` is needed: for what others read, for what leaves the graph.
bool Backward::is_wanted(int output, const std::set<int>& read) const {
  const GraphTensor& what = tensor(output);
  if (read.count(output) != 0) return true;
  if (what.role != TensorRole::weight_gradient) return what.role != TensorRole::activation;
  return !result_.graph.weights.at(static_cast<size_t>(what.weight)).frozen;
}

/// Nodes that serve nothing but gradients of frozen weights are left out. A node that makes such a gradient beside others
/// (of a norm's weight beside its input's) stays, and nobody reads it.
void Backward::drop_gradients_of_frozen() {
  auto& nodes = result_.graph.nodes;
  const auto& weights = result_.graph.weights;
  if (std::none_of(weights.begin(), weights.end(), [](const Weight& weight) { return weight.frozen; })) return;
  std::set<int> read;
  std::vector<Node> wanted;
  while (static_cast<int>(nodes.size()) > result_.forward_nodes) {
    Node node = std::move(nodes.back());
    nodes.pop_back();
    const auto is_needed = [&](int output) { return is_wanted(output, read); };
    if (std::none_of(node.outputs.begin(), node.outputs.end(), is_needed)) continue;
    read.insert(node.inputs.begin(), node.inputs.end());
    wanted.push_back(std::move(node));
  }
  nodes.insert(nodes.end(), std::make_move_iterator(wanted.rbegin()), std::make_move_iterator(wanted.rend()));
}

void Backward::finish() {
  const Graph& graph = result_.graph;
  std::set<int> forward_outputs;
  for (int i = 0; i < result_.forward_nodes; ++i) {
    forward_outputs.insert(graph.nodes[i].outputs.begin(), graph.nodes[i].outputs.end());
  }
  for (size_t i = result_.forward_nodes; i < graph.nodes.size(); ++i) {
    for (const int input : graph.nodes[i].inputs) {
      if (forward_outputs.count(input) != 0) result_.saved.insert(input);
    }
  }
}

Differentiated Backward::run() {
  seed();
  drop_loss_node();
  const std::vector<Node> forward(result_.graph.nodes.begin(), result_.graph.nodes.begin() + result_.forward_nodes);
  for (auto node = forward.rbegin(); node != forward.rend(); ++node) step_back(*node);
  if (const int input = result_.graph.find(TensorRole::layer_input); input >= 0) {
    const int gradient = resolve(input);
    ensure(gradient >= 0, "the layer's input influences its output");
    result_.graph.tensors[gradient].role = TensorRole::input_gradient;
  }
  drop_gradients_of_frozen();
  finish();
  return std::move(result_);
}

}  // namespace

Differentiated differentiate(const Graph& forward) { return Backward(forward).run(); }

std::set<int> weight_gradient_nodes(const Differentiated& layer) {
  const auto& nodes = layer.graph.nodes;
  std::set<int> delayed, needed_before;  // nodes; tensors that others read or that leave the layer
  for (int n = static_cast<int>(nodes.size()) - 1; n >= layer.forward_nodes; --n) {
    const Node& node = nodes[static_cast<size_t>(n)];
    const bool is_product =
        node.collective == NodeCollective::none &&
        (node.kind == OpKind::linear_backward_weight || node.kind == OpKind::expert_linear_backward_weight);
    const bool serves_others = std::any_of(node.outputs.begin(), node.outputs.end(), [&](int output) {
      return needed_before.count(output) != 0 ||
             layer.graph.tensors[static_cast<size_t>(output)].role != TensorRole::activation;
    });
    if (is_product || !serves_others) {
      delayed.insert(n);
    } else {
      needed_before.insert(node.inputs.begin(), node.inputs.end());
    }
  }
  return delayed;
}

}  // namespace foresail
