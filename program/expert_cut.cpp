#include "program/expert_cut.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "program/graph_edit.h"

namespace foresail {
namespace {

bool is_op(const Node& node, OpKind kind) { return node.collective == NodeCollective::none && node.kind == kind; }

class ExpertCut {
 public:
  ExpertCut(Graph& graph, const Cut& cut, double bound) : graph_(graph), cut_(cut), bound_(bound) {}

  void run() {
    localise_weights();
    for (const Node& node : graph_.nodes) cut_node(node);
    graph_.nodes = std::move(nodes_);
  }

 private:
  GraphTensor& at(int index) { return graph_.tensors[static_cast<size_t>(index)]; }
  const GraphTensor& tensor(int index) const { return graph_.tensors[static_cast<size_t>(index)]; }
  bool is_routed(int index) const {
    const auto& dims = tensor(index).dims;
    return !dims.empty() && dims[0].name == DimName::expert_rows;
  }

  void localise_weights();
  void cut_node(Node node);
  int sent(int rows);
  int brought_home(int rows);
  int summed_statistics(int stats);
  int communicated(int source, NodeCollective collective, const std::string& suffix) {
    return emit(graph_, nodes_, collective, source, tensor(source).name + suffix);
  }

  Graph& graph_;
  const Cut& cut_;
  const double bound_;
  std::vector<Node> nodes_;
  std::map<int, int> replaced_;  ///< what a rank sends -> what it gets; partial sums -> their sum
  int64_t routed_rows_ = 0;      ///< in use on this rank if routing is even
};

void ExpertCut::localise_weights() {
  for (GraphTensor& operand : graph_.tensors) {
    if (operand.role != TensorRole::weight || operand.dims.at(0).name != DimName::experts) continue;
    for (Dim& dim : operand.dims) dim.size = local_size(dim, cut_);
  }
}

/// What experts of this rank work on: the parts that all expert ranks sent to it and, if it shares its experts, to those
/// that share them.
int ExpertCut::sent(int rows) {
  int result = rows;
  if (cut_.ep > 1) result = communicated(result, NodeCollective::all_to_all_expert, ".received");
  if (cut_.etp > 1) {
    result = communicated(result, NodeCollective::all_gather_expert, ".gathered");
    at(result).dims[0].size *= cut_.etp;
  }
  return result;
}

/// The way back. Each of the ranks that share an expert has a share of the sum over its columns.
int ExpertCut::brought_home(int rows) {
  int result = rows;
  if (cut_.etp > 1) {
    result = communicated(result, NodeCollective::reduce_scatter_expert, ".scattered");
    at(result).dims[0].size /= cut_.etp;
  }
  if (cut_.ep > 1) result = communicated(result, NodeCollective::all_to_all_expert, ".returned");
  return result;
}

/// Of whole sequences, so that every plan has the same losses.
int ExpertCut::summed_statistics(int stats) {
  int result = stats;
  if (cut_.sequence_parallel) result = communicated(result, NodeCollective::all_reduce_tensor, ".reduced");
  if (cut_.cp > 1) result = communicated(result, NodeCollective::all_reduce_context, ".of_sequences");
  return result;
}

void ExpertCut::cut_node(Node node) {
  for (int& input : node.inputs) {
    if (const auto found = replaced_.find(input); found != replaced_.end()) input = found->second;
  }
  OpAttributes& attributes = node.attributes;
  const bool dispatches = is_op(node, OpKind::moe_dispatch), combines = is_op(node, OpKind::moe_combine);
  if (dispatches || combines) {
    const int64_t rows = tensor(node.inputs[dispatches ? 0 : 1]).dims[0].size;
    attributes.expert_ranks = cut_.ep;
    attributes.expert_rows =
        cut_.ep * expert_capacity(rows, attributes.experts, attributes.experts_per_token, cut_.ep, bound_);
    routed_rows_ = rows * attributes.experts_per_token * cut_.etp;
  }
  if (combines) node.inputs[0] = brought_home(node.inputs[0]);
  if (is_op(node, OpKind::expert_linear)) attributes.routed_rows = routed_rows_;
  const bool routed = std::any_of(node.inputs.begin(), node.inputs.end(), [&](int input) { return is_routed(input); });
  if (node.collective == NodeCollective::none && (dispatches || routed)) infer_dims(graph_, node);
  nodes_.push_back(node);
  if (dispatches) {
    replaced_[node.outputs[0]] = sent(node.outputs[0]);
    replaced_[node.outputs[2]] = sent(node.outputs[2]);
  }
  if (is_op(node, OpKind::moe_statistics)) replaced_[node.outputs[0]] = summed_statistics(node.outputs[0]);
}

}  // namespace

int64_t expert_capacity(int64_t rows, int64_t experts, int64_t experts_per_token, int64_t ranks, double bound) {
  // A token has different experts, so at most as many copies for a rank as that one has experts.
  const int64_t most = rows * std::min(experts_per_token, experts / ranks);
  if (bound == 0) return most;
  const double mean = static_cast<double>(rows * experts_per_token) / static_cast<double>(ranks);
  return std::min(most, static_cast<int64_t>(std::ceil(bound * mean)));
}

bool can_overflow(int64_t rows, int64_t experts, int64_t experts_per_token, int64_t ranks, double bound) {
  return expert_capacity(rows, experts, experts_per_token, ranks, bound) <
         expert_capacity(rows, experts, experts_per_token, ranks, 0);
}

void cut_experts(Graph& sharded, const Cut& cut, double bound) {
  const bool has_experts = std::any_of(sharded.nodes.begin(), sharded.nodes.end(),
                                       [](const Node& node) { return is_op(node, OpKind::moe_dispatch); });
  if (has_experts) ExpertCut(sharded, cut, bound).run();
}

}  // namespace foresail
