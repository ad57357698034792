#include "program/graph_edit.h"

#include <utility>

#include "ops/op_table.h"

namespace foresail {

int add_like(Graph& graph, int like, std::string name) {
  GraphTensor added = graph.tensors.at(static_cast<size_t>(like));
  added.name = std::move(name);
  added.role = TensorRole::activation;
  added.weight = -1;
  graph.tensors.push_back(std::move(added));
  return static_cast<int>(graph.tensors.size()) - 1;
}

void infer_dims(Graph& graph, const Node& node) {
  std::vector<GraphTensor> operands;
  for (const int input : node.inputs) operands.push_back(graph.tensors.at(static_cast<size_t>(input)));
  const auto inferred = info(node.kind).infer(operands, node.attributes, Precision{});
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    graph.tensors.at(static_cast<size_t>(node.outputs[i])).dims = inferred.at(i).dims;
  }
}

std::vector<int> emit(Graph& graph, std::vector<Node>& nodes, OpKind kind, const OpAttributes& attributes,
                      const std::vector<int>& inputs, const std::vector<std::string>& names) {
  Node node{kind, NodeCollective::none, attributes, inputs, {}, 0};
  for (const std::string& name : names) node.outputs.push_back(add_like(graph, inputs.at(0), name));
  infer_dims(graph, node);
  nodes.push_back(node);
  return node.outputs;
}

int emit(Graph& graph, std::vector<Node>& nodes, NodeCollective collective, int input, const std::string& name) {
  Node node;
  node.collective = collective;
  node.inputs = {input};
  node.outputs = {add_like(graph, input, name)};
  nodes.push_back(node);
  return node.outputs[0];
}

}  // namespace foresail
