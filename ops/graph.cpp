#include "ops/graph.h"

#include <utility>

#include "core/error.h"
#include "ops/op_table.h"

namespace foresail {

bool cut_by_tensor_parallelism(DimName name) {
  switch (name) {
    case DimName::qkv:
    case DimName::heads:
    case DimName::qk_heads:
    case DimName::attention:
    case DimName::kv:
    case DimName::ffn:
    case DimName::gate_up:
    case DimName::vocabulary: return true;
    default: return false;
  }
}

bool moves_data_only(const Node& node) {
  switch (node.collective) {
    case NodeCollective::none: break;
    case NodeCollective::all_reduce_tensor:
    case NodeCollective::all_reduce_context:
    case NodeCollective::reduce_scatter_rows:
    case NodeCollective::reduce_scatter_expert: return false;
    default: return true;
  }
  switch (node.kind) {
    case OpKind::split_qkv:
    case OpKind::join_qkv:
    case OpKind::heads_split:
    case OpKind::heads_merge:
    case OpKind::rows_merge:
    case OpKind::rows_split:
    case OpKind::copy: return true;
    default: return false;
  }
}

TensorType GraphTensor::type() const {
  TensorType type{dtype, {}};
  for (const Dim& dim : dims) type.shape.push_back(dim.size);
  return type;
}

int Graph::find(TensorRole role) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].role == role) return static_cast<int>(i);
  }
  return -1;
}

GraphBuilder::GraphBuilder(std::string name, const Precision& precision) : precision_(precision) {
  graph_.name = std::move(name);
  graph_.weight_gradient = precision.gradient;
}

int GraphBuilder::input(std::string name, TensorRole role, DType dtype, std::vector<Dim> dims) {
  graph_.tensors.push_back({std::move(name), role, dtype, std::move(dims), -1});
  return static_cast<int>(graph_.tensors.size()) - 1;
}

int GraphBuilder::weight(Weight weight) {
  const int index = static_cast<int>(graph_.weights.size());
  graph_.tensors.push_back({weight.name, TensorRole::weight, precision_.parameter, weight.dims, index});
  graph_.weights.push_back(std::move(weight));
  return static_cast<int>(graph_.tensors.size()) - 1;
}

std::vector<int> GraphBuilder::add(OpKind kind, const OpAttributes& attributes, const std::vector<int>& inputs,
                                   const std::vector<std::string>& names) {
  const OpInfo& row = info(kind);
  ensure(static_cast<bool>(row.infer), "only operators with shape inference appear in a forward graph");
  std::vector<GraphTensor> operands;
  for (const int input : inputs) operands.push_back(graph_.tensors.at(input));
  const auto inferred = row.infer(operands, attributes, precision_);
  ensure(inferred.size() == names.size(), "every output of an operator has a name");
  Node node{kind, NodeCollective::none, attributes, inputs, {}};
  for (size_t i = 0; i < names.size(); ++i) {
    graph_.tensors.push_back({names[i], TensorRole::activation, inferred[i].dtype, inferred[i].dims, -1});
    node.outputs.push_back(static_cast<int>(graph_.tensors.size()) - 1);
  }
  graph_.nodes.push_back(node);
  return node.outputs;
}

void GraphBuilder::set_role(int tensor, TensorRole role) { graph_.tensors.at(tensor).role = role; }

const std::vector<Dim>& GraphBuilder::dims(int tensor) const { return graph_.tensors.at(tensor).dims; }

Graph GraphBuilder::finish() { return std::move(graph_); }

}  // namespace foresail
