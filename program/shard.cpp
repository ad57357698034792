#include "program/shard.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "ops/op_table.h"

namespace foresail {
namespace {

bool is_cut(const GraphTensor& tensor) {
  return std::any_of(tensor.dims.begin(), tensor.dims.end(),
                     [](const Dim& dim) { return cut_by_tensor_parallelism(dim.name); });
}

bool any_input_cut(const Graph& graph, const Node& node) {
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](int i) { return is_cut(graph.tensors[i]); });
}

bool any_output_cut(const Graph& graph, const Node& node) {
  return std::any_of(node.outputs.begin(), node.outputs.end(), [&](int i) { return is_cut(graph.tensors[i]); });
}

/// An input that every rank holds whole, used together with cut operands: its gradient is a share.
uint32_t partial_inputs(const Graph& graph, const Node& node) {
  if (!any_output_cut(graph, node)) return 0;
  uint32_t partial = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!is_cut(graph.tensors[node.inputs[i]])) partial |= 1u << i;
  }
  return partial;
}

void localise(Graph& graph, int64_t tensor_parallel) {
  for (GraphTensor& tensor : graph.tensors) {
    for (Dim& dim : tensor.dims) dim.size = local_size(dim, tensor_parallel);
  }
  for (Node& node : graph.nodes) {
    node.attributes.heads /= tensor_parallel;
    node.attributes.kv_heads /= tensor_parallel;
  }
}

/// Replaces `tensor` by a communicated version of itself for everything that comes after.
int append_collective(Graph& graph, std::vector<Node>& nodes, int tensor, int64_t tensor_parallel) {
  const bool statistics = graph.tensors[tensor].dims.back() == Dim{DimName::fixed, 3};
  GraphTensor result = graph.tensors[tensor];
  Node node;
  node.inputs = {tensor};
  if (statistics) {
    node.collective = NodeCollective::all_gather_tensor;
    result.name += ".gathered";
    result.dims.insert(result.dims.begin(), Dim{DimName::fixed, tensor_parallel});
  } else {
    node.collective = NodeCollective::all_reduce_tensor;
    result.name += ".sum";
  }
  graph.tensors[tensor].role = TensorRole::activation;
  graph.tensors.push_back(result);
  node.outputs = {static_cast<int>(graph.tensors.size()) - 1};
  nodes.push_back(node);
  return node.outputs[0];
}

}  // namespace

int64_t local_size(const Dim& dim, int64_t tensor_parallel) {
  if (!cut_by_tensor_parallelism(dim.name)) return dim.size;
  if (dim.name == DimName::vocabulary) return (dim.size + tensor_parallel - 1) / tensor_parallel;
  ensure(dim.size % tensor_parallel == 0, "legal() lets only degrees through that divide heads and FFN");
  return dim.size / tensor_parallel;
}

Graph shard(const Graph& graph, int64_t tensor_parallel) {
  Graph result = graph;
  if (tensor_parallel == 1) return result;
  localise(result, tensor_parallel);
  std::vector<Node> nodes;
  std::map<int, int> replaced;
  for (Node node : result.nodes) {
    for (int& input : node.inputs) {
      if (const auto found = replaced.find(input); found != replaced.end()) input = found->second;
    }
    node.partial_gradient_inputs = partial_inputs(result, node);
    nodes.push_back(node);
    const bool is_loss = result.tensors[node.outputs[0]].role == TensorRole::loss;
    if (any_input_cut(result, node) && !any_output_cut(result, node) && !is_loss) {
      replaced[node.outputs[0]] = append_collective(result, nodes, node.outputs[0], tensor_parallel);
    }
  }
  result.nodes = std::move(nodes);
  return result;
}

}  // namespace foresail
