#include "program/autodiff.h"

#include <map>
#include <utility>

#include "core/error.h"
#include "ops/op_table.h"

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
  int new_tensor(std::string name, int like);
  int resolve(int forward_tensor);
  int sum_of(const std::vector<int>& terms, int like);
  void seed();
  bool drop_loss_node();
  void step_back(const Node& node);
  void finish();

  Differentiated result_;
  Node node_;
  std::map<int, std::vector<Contribution>> contributions_;  // by forward tensor
  std::map<int, int> weight_gradients_;                     // forward weight tensor -> accumulator
};

int Backward::new_tensor(std::string name, int like) {
  GraphTensor gradient = result_.graph.tensors.at(like);
  gradient.name = std::move(name);
  gradient.role = TensorRole::activation;
  gradient.weight = -1;
  result_.graph.tensors.push_back(std::move(gradient));
  return static_cast<int>(result_.graph.tensors.size()) - 1;
}

int Backward::weight_gradient(int forward_weight) {
  const auto found = weight_gradients_.find(forward_weight);
  if (found != weight_gradients_.end()) return found->second;
  GraphTensor gradient = result_.graph.tensors.at(forward_weight);
  ensure(gradient.role == TensorRole::weight, "weight gradients belong to weights");
  gradient.name = "d_" + gradient.name;
  gradient.role = TensorRole::weight_gradient;
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

/// The whole gradient of a forward tensor: shares are summed, then reduced over the ranks, then added to the rest.
int Backward::resolve(int forward_tensor) {
  auto& terms = contributions_[forward_tensor];
  if (terms.empty()) return -1;
  std::vector<int> shares, whole;
  for (const Contribution& term : terms) (term.partial ? shares : whole).push_back(term.tensor);
  if (!shares.empty()) {
    const int share = sum_of(shares, forward_tensor);
    const int reduced = new_tensor("d_" + tensor(forward_tensor).name + ".sum", forward_tensor);
    Node node;
    node.collective = NodeCollective::all_reduce_tensor;
    node.inputs = {share};
    node.outputs = {reduced};
    result_.graph.nodes.push_back(node);
    whole.push_back(reduced);
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

void Backward::step_back(const Node& node) {
  node_ = node;
  if (node.collective == NodeCollective::all_reduce_tensor) {
    contribute(0, resolve(node.outputs[0]));  // the sum's gradient is every share's gradient
    return;
  }
  if (node.collective != NodeCollective::none) return;  // gathered statistics carry no gradient
  bool reached = false;
  for (const int output : node.outputs) reached |= !contributions_[output].empty();
  if (!reached) return;
  const auto& derivative = info(node.kind).derivative;
  ensure(static_cast<bool>(derivative), "an operator on the way to the loss has a derivative");
  derivative(*this);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const GraphTensor& operand = tensor(node.inputs[i]);
    if (operand.role == TensorRole::weight && (node.partial_gradient_inputs >> i & 1) != 0) {
      result_.partial_weight_gradients.insert(operand.weight);
    }
  }
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
  finish();
  return std::move(result_);
}

}  // namespace

Differentiated differentiate(const Graph& forward) { return Backward(forward).run(); }

}  // namespace foresail
