#include "program/shard.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/round_up.h"
#include "program/graph_edit.h"
#include "program/head_exchange.h"

namespace foresail {
namespace {

bool is_cut(const GraphTensor& tensor) {
  return std::any_of(tensor.dims.begin(), tensor.dims.end(),
                     [](const Dim& dim) { return cut_by_tensor_parallelism(dim.name); });
}

bool has_rows(const GraphTensor& tensor) { return !tensor.dims.empty() && tensor.dims[0].name == DimName::tokens; }

bool is_loss_statistic(const GraphTensor& tensor) { return tensor.dims.back() == Dim{DimName::fixed, 3}; }

/// Cuts one graph over the ranks of a tensor group.
class TensorCut {
 public:
  TensorCut(const Graph& graph, const Cut& cut) : graph_(graph), cut_(cut) {}
  Graph run();

 private:
  GraphTensor& at(int index) { return graph_.tensors[static_cast<size_t>(index)]; }
  const GraphTensor& tensor(int index) const { return graph_.tensors[static_cast<size_t>(index)]; }
  bool any_cut(const std::vector<int>& tensors) const {
    return std::any_of(tensors.begin(), tensors.end(), [&](int t) { return is_cut(tensor(t)); });
  }
  void localise_operands();
  void localise_attributes(OpAttributes& attributes) const;
  void cut_node(Node node);
  uint32_t partial_inputs(const Node& node) const;
  int communicated(int tensor, NodeCollective collective, const std::string& suffix);
  int gathered_rows(int tensor);
  int summed(int tensor);

  Graph graph_;
  const Cut& cut_;
  std::vector<Node> nodes_;
  std::set<int> rows_cut_;       ///< tensors of which this rank holds a share of the rows
  std::map<int, int> replaced_;  ///< partial sum -> its sum
  std::map<int, int> gathered_;  ///< share of the rows -> all rows
};

/// What no node produces: weights, layer inputs, token ids, constants. The rest follows from the op table.
void TensorCut::localise_operands() {
  std::set<int> produced;
  for (const Node& node : graph_.nodes) produced.insert(node.outputs.begin(), node.outputs.end());
  for (size_t t = 0; t < graph_.tensors.size(); ++t) {
    GraphTensor& operand = graph_.tensors[t];
    if (produced.count(static_cast<int>(t)) != 0) continue;
    for (Dim& dim : operand.dims) {
      if (cut_by_tensor_parallelism(dim.name)) dim.size = local_size(dim, cut_);  // experts are cut later
    }
    // The head's loss reads all rows; what a block knows of targets is about its share of the rows.
    const bool has_share = operand.role == TensorRole::layer_input ||
                           (operand.role == TensorRole::targets && graph_.find(TensorRole::layer_output) >= 0);
    if (cut_.sequence_parallel && has_share) {
      ensure(operand.dims[0].size % cut_.tp == 0, "legal() lets only degrees through that divide the rows");
      operand.dims[0].size /= cut_.tp;
      rows_cut_.insert(static_cast<int>(t));
    }
  }
}

void TensorCut::localise_attributes(OpAttributes& attributes) const {
  if (attributes.heads == 0) return;
  ensure(attributes.heads % cut_.tp == 0 && attributes.kv_heads * cut_.kv_copies % cut_.tp == 0,
         "legal() lets only degrees through that divide heads");
  attributes.heads /= cut_.tp;
  attributes.kv_heads = attributes.kv_heads * cut_.kv_copies / cut_.tp;
}

/// An input that every rank holds whole, used together with cut operands or with a share of the rows: its gradient is a
/// share. An activation is whole or a share like the output, so with cut rows only weights are meant.
uint32_t TensorCut::partial_inputs(const Node& node) const {
  const bool cut = any_cut(node.outputs);
  const bool rows = rows_cut_.count(node.outputs[0]) != 0;
  uint32_t partial = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const GraphTensor& operand = tensor(node.inputs[i]);
    if ((cut && !is_cut(operand)) || (rows && operand.role == TensorRole::weight)) partial |= 1u << i;
  }
  return partial;
}

/// A communicated version of `source`; whoever comes after reads that.
int TensorCut::communicated(int source, NodeCollective collective, const std::string& suffix) {
  const int result = emit(graph_, nodes_, collective, source, tensor(source).name + suffix);
  if (tensor(source).role == TensorRole::layer_output) std::swap(at(result).role, at(source).role);
  return result;
}

/// One gather serves every reader.
int TensorCut::gathered_rows(int source) {
  if (const auto found = gathered_.find(source); found != gathered_.end()) return found->second;
  const int rows = emit(graph_, nodes_, NodeCollective::all_gather_rows, source, tensor(source).name + ".gathered");
  at(rows).dims[0].size *= cut_.tp;
  return gathered_[source] = rows;
}

int TensorCut::summed(int partial) {
  if (is_loss_statistic(tensor(partial))) {
    const int all = communicated(partial, NodeCollective::all_gather_tensor, ".gathered");
    at(all).dims.insert(at(all).dims.begin(), Dim{DimName::fixed, cut_.tp});
    return all;
  }
  if (!cut_.sequence_parallel) return communicated(partial, NodeCollective::all_reduce_tensor, ".reduced");
  ensure(has_rows(tensor(partial)) && tensor(partial).dims[0].size % cut_.tp == 0,
         "legal() lets only degrees through that divide the rows");
  const int share = communicated(partial, NodeCollective::reduce_scatter_rows, ".scattered");
  at(share).dims[0].size /= cut_.tp;
  rows_cut_.insert(share);
  return share;
}

void TensorCut::cut_node(Node node) {
  localise_attributes(node.attributes);
  const bool output_cut = any_cut(node.outputs);
  bool rows_cut = false;
  for (int& input : node.inputs) {
    if (const auto found = replaced_.find(input); found != replaced_.end()) input = found->second;
    if (rows_cut_.count(input) == 0) continue;
    if (output_cut) input = gathered_rows(input);
    rows_cut |= !output_cut;
  }
  if (rows_cut) {
    // An operator that knows positions must know that its rows are not the first of the micro-batch.
    node.attributes.rows_cut = node.attributes.sequence_length > 0;
  }
  infer_dims(graph_, node);
  for (const int output : node.outputs) {
    if (rows_cut && has_rows(tensor(output))) rows_cut_.insert(output);
  }
  node.partial_gradient_inputs = partial_inputs(node);
  nodes_.push_back(node);
  const bool is_loss = tensor(node.outputs[0]).role == TensorRole::loss;
  if (any_cut(node.inputs) && !output_cut && !is_loss) replaced_[node.outputs[0]] = summed(node.outputs[0]);
}

Graph TensorCut::run() {
  localise_operands();
  for (const Node& node : graph_.nodes) cut_node(node);
  graph_.nodes = std::move(nodes_);
  return std::move(graph_);
}

}  // namespace

int64_t local_size(const Dim& dim, const Cut& cut) {
  switch (dim.name) {
    case DimName::experts:
      ensure(dim.size % cut.ep == 0, "legal() lets only degrees through that divide the experts");
      return dim.size / cut.ep;
    case DimName::expert_ffn: return divide_up(dim.size, cut.etp);
    case DimName::expert_gate_up: return 2 * divide_up(dim.size / 2, cut.etp);
    default: break;
  }
  if (!cut_by_tensor_parallelism(dim.name)) return dim.size;
  switch (dim.name) {
    case DimName::vocabulary:
    case DimName::ffn: return divide_up(dim.size, cut.tp);
    case DimName::gate_up: return 2 * divide_up(dim.size / 2, cut.tp);  // gate and up are padded each
    default: break;
  }
  const int64_t held = dim.name == DimName::kv ? dim.size * cut.kv_copies : dim.size;
  ensure(held % cut.tp == 0, "legal() lets only degrees through that divide heads");
  return held / cut.tp;
}

Graph shard(const Graph& graph, const Cut& cut) {
  Graph result = cut.tp == 1 ? graph : TensorCut(graph, cut).run();
  if (cut.cp > 1 && cut.context == ContextKind::all_to_all) exchange_heads(result, cut.cp);
  return result;
}

}  // namespace foresail
