#include "tests/program/recompute_blocks.h"

#include <algorithm>

#include "ops/op_table.h"
#include "program/fuse.h"
#include "program/ring.h"
#include "tests/program/small_models.h"

namespace foresail::testing {
namespace {

struct NodeForm {
  OpKind kind;
  NodeCollective collective = NodeCollective::none;
};

/// Norms, products, attention, element-wise, what moves data and what sums.
constexpr NodeForm kForms[] = {{OpKind::rms_norm},
                               {OpKind::linear},
                               {OpKind::attention},
                               {OpKind::add},
                               {OpKind::gelu},
                               {OpKind::attention_softmax},
                               {OpKind::attention_context},
                               {OpKind::split_qkv},
                               {OpKind::rows_merge},
                               {OpKind::copy, NodeCollective::all_reduce_tensor},
                               {OpKind::copy, NodeCollective::all_gather_rows},
                               {OpKind::copy, NodeCollective::ring_shift_context},
                               {OpKind::copy, NodeCollective::all_to_all_context}};

int below(std::mt19937& random, int limit) { return static_cast<int>(random() % static_cast<uint32_t>(limit)); }

int add_tensor(Graph& graph, const std::string& name, TensorRole role) {
  GraphTensor tensor;
  tensor.name = name;
  tensor.role = role;
  graph.tensors.push_back(tensor);
  return static_cast<int>(graph.tensors.size()) - 1;
}

}  // namespace

Differentiated trained_block(const ModelSpec& model, int64_t sequence_length, bool fused, bool unfused_attention,
                             const Cut& cut) {
  GraphOptions options;
  options.sequence_length = sequence_length;
  options.precision = kMixedBfloat16Precision;
  options.unfused_attention = unfused_attention;
  options.context_parallel = cut.cp;
  Graph graph = shard(build_graphs(model, options).block, cut);
  if (fused) fuse_forward(graph);
  Differentiated layer = differentiate(graph);
  if (fused) fuse_backward(layer);
  if (cut.context == ContextKind::ring) expand_ring(layer, cut.cp);
  return layer;
}

std::vector<NamedBlock> real_blocks() {
  std::vector<NamedBlock> blocks;
  for (const ModelSpec& model : {small_llama(), small_gpt2(), small_qwen3()}) {
    for (const bool fused : {false, true}) {
      for (const bool unfused_attention : {false, true}) {
        const std::string name =
            model.name + (fused ? ", fused" : ", unfused") + (unfused_attention ? ", attention too" : "");
        blocks.push_back({name, trained_block(model, 16, fused, unfused_attention)});
      }
    }
  }
  return blocks;
}

std::vector<NamedBlock> parallel_blocks() {
  const std::pair<std::string, Cut> cuts[] = {
      {"tp = 2", {2, 1}},
      {"tp = 2 with sequence parallelism", {2, 1, true}},
      {"cp = 2 in a ring", {1, 2, false, ContextKind::ring}},
      {"cp = 2 by all-to-all", {1, 2, false, ContextKind::all_to_all}},
      {"tp = 2 with sequence parallelism, cp = 2 in a ring", {2, 2, true, ContextKind::ring}}};
  std::vector<NamedBlock> blocks;
  for (const ModelSpec& model : {small_llama(), small_gpt2()}) {
    for (const auto& [name, cut] : cuts) {
      blocks.push_back({model.name + ", " + name, trained_block(model, 16, true, false, cut)});
    }
  }
  return blocks;
}

Differentiated random_block(std::mt19937& random) {
  Differentiated layer;
  Graph& graph = layer.graph;
  graph.name = "random";
  std::vector<int> readable{add_tensor(graph, "x", TensorRole::layer_input),
                            add_tensor(graph, "w", TensorRole::weight)};
  layer.forward_nodes = 6 + below(random, 6);
  for (int n = 0; n < layer.forward_nodes; ++n) {
    const NodeForm form = kForms[below(random, std::size(kForms))];
    Node node;
    node.kind = form.kind;
    node.collective = form.collective;
    const bool moves = form.collective != NodeCollective::none || form.kind == OpKind::split_qkv;
    for (int i = moves ? 1 : 1 + below(random, 3); i > 0; --i) {
      // Mostly recent tensors, so that chains arise; sometimes any.
      const int recent = std::min(3, static_cast<int>(readable.size()));
      const int from = below(random, 4) == 0 ? below(random, static_cast<int>(readable.size()))
                                             : static_cast<int>(readable.size()) - 1 - below(random, recent);
      node.inputs.push_back(readable[static_cast<size_t>(from)]);
    }
    const int outputs = form.kind == OpKind::split_qkv ? 2 : 1 + (moves ? 0 : below(random, 4) / 3);
    for (int i = 0; i < outputs; ++i) {
      node.outputs.push_back(
          add_tensor(graph, "t" + std::to_string(n) + "_" + std::to_string(i), TensorRole::activation));
    }
    graph.nodes.push_back(node);
    for (const int output : node.outputs) {
      readable.push_back(output);
      if (below(random, 2) == 0) layer.saved.insert(output);
    }
  }
  return layer;
}

BlockCosts plausible_costs(const Differentiated& layer) {
  BlockCosts costs;
  costs.tensor_bytes = aligned_tensor_bytes(layer.graph, 64);
  for (int n = 0; n < layer.forward_nodes; ++n) {
    const Node& node = layer.graph.nodes[static_cast<size_t>(n)];
    if (node.collective != NodeCollective::none) {
      costs.node_seconds.push_back(static_cast<double>(costs.tensor_bytes[static_cast<size_t>(node.outputs[0])]) /
                                   1e11);
      continue;
    }
    OpInstance op{node.kind, node.attributes, {}, {}};
    for (const int input : node.inputs) op.inputs.push_back(layer.graph.tensors[static_cast<size_t>(input)].type());
    for (const int output : node.outputs) op.outputs.push_back(layer.graph.tensors[static_cast<size_t>(output)].type());
    costs.node_seconds.push_back(std::max(flops_of(op) / 1e14, bytes_of(op) / 1e12));
  }
  return costs;
}

BlockCosts random_costs(const Differentiated& layer, std::mt19937& random) {
  BlockCosts costs;
  const int most = below(random, 2) == 0 ? 4 : 1000;  // few values: many ties
  for (size_t t = 0; t < layer.graph.tensors.size(); ++t) costs.tensor_bytes.push_back(64 * below(random, most));
  for (int n = 0; n < layer.forward_nodes; ++n) costs.node_seconds.push_back(below(random, most) * 0.25);
  return costs;
}

int tensor_named(const Differentiated& layer, const std::string& name) {
  for (size_t t = 0; t < layer.graph.tensors.size(); ++t) {
    if (layer.graph.tensors[t].name == name) return static_cast<int>(t);
  }
  throw std::out_of_range("no tensor " + name);
}

std::vector<std::string> names_of(const Differentiated& layer, const std::set<int>& tensors) {
  std::vector<std::string> names;
  for (const int tensor : tensors) names.push_back(layer.graph.tensors[static_cast<size_t>(tensor)].name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string replay_fault(const Differentiated& layer, const ReplayPlan& plan) {
  std::set<int> present = plan.kept;
  const auto missing = [&](int tensor) {
    return layer.graph.tensors[static_cast<size_t>(tensor)].role == TensorRole::activation &&
           present.count(tensor) == 0;
  };
  int last = -1;
  for (const int n : plan.replayed) {
    if (n <= last) return "out of order";
    last = n;
    const Node& node = layer.graph.nodes[static_cast<size_t>(n)];
    for (const int input : node.inputs) {
      if (missing(input)) return "a replayed node misses " + layer.graph.tensors[static_cast<size_t>(input)].name;
    }
    present.insert(node.outputs.begin(), node.outputs.end());
  }
  for (const int saved : layer.saved) {
    if (missing(saved)) return "backward misses " + layer.graph.tensors[static_cast<size_t>(saved)].name;
  }
  return "";
}

}  // namespace foresail::testing
