#include "program/head_exchange.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/op_table.h"
#include "program/graph_edit.h"

namespace foresail {
namespace {

bool is_attention(const Node& node) {
  if (node.collective != NodeCollective::none) return false;
  const OpClass op_class = info(node.kind).op_class;
  return op_class == OpClass::attention || op_class == OpClass::unfused_attention;
}

class HeadExchange {
 public:
  HeadExchange(Graph& graph, int64_t ranks) : graph_(graph), ranks_(ranks) {}
  void run();

 private:
  const GraphTensor& tensor(int index) const { return graph_.tensors[static_cast<size_t>(index)]; }
  bool packs_rows(int index) const { return tensor(index).dims.at(0).name == DimName::tokens; }
  bool is_inside(const Node& node) const;
  int enter(int rows, const OpAttributes& attributes);
  void leave(int whole, int rows, OpAttributes attributes);
  void move_inside(Node node);

  Graph& graph_;
  int64_t ranks_;
  std::vector<Node> nodes_;
  std::map<int, int> entered_;  ///< packed rows of this rank's positions -> those of its heads
  std::set<int> scores_;        ///< what only exists between the exchanges
};

/// Dropout of probabilities stands between attention operators.
bool HeadExchange::is_inside(const Node& node) const {
  return is_attention(node) ||
         std::any_of(node.inputs.begin(), node.inputs.end(), [&](int input) { return scores_.count(input) != 0; });
}

/// [T, W] of all this rank's heads -> [C T, W / C] of whole sequences; made once for all who read it.
int HeadExchange::enter(int rows, const OpAttributes& attributes) {
  if (const auto found = entered_.find(rows); found != entered_.end()) return found->second;
  const std::string name = tensor(rows).name;
  const int parts = emit(graph_, nodes_, OpKind::heads_split, attributes, {rows}, {name + ".by_heads"})[0];
  const int received = emit(graph_, nodes_, NodeCollective::all_to_all_context, parts, name + ".by_rows");
  return entered_[rows] = emit(graph_, nodes_, OpKind::rows_merge, attributes, {received}, {name + ".whole"})[0];
}

/// Back to `rows`, which keeps its name and its [T, W].
void HeadExchange::leave(int whole, int rows, OpAttributes attributes) {
  const std::string name = tensor(rows).name;
  attributes.kv_heads = 0;
  attributes.head_dim = attributes.value_width();  // rows of o
  attributes.value_dim = 0;
  const int parts = emit(graph_, nodes_, OpKind::rows_split, attributes, {whole}, {name + ".by_rows"})[0];
  const int received = emit(graph_, nodes_, NodeCollective::all_to_all_context, parts, name + ".by_heads");
  nodes_.push_back({OpKind::heads_merge, NodeCollective::none, attributes, {received}, {rows}, 0});
}

void HeadExchange::move_inside(Node node) {
  const OpAttributes outside = node.attributes;
  ensure(outside.heads % ranks_ == 0 && outside.kv_heads % ranks_ == 0,
         "legal() lets only degrees through that divide heads");
  node.attributes.heads /= ranks_;
  node.attributes.kv_heads /= ranks_;
  node.attributes.sequence_length *= ranks_;
  node.attributes.context_parallel = 1;
  node.attributes.heads_cut = true;
  for (int& input : node.inputs) {
    if (packs_rows(input)) input = enter(input, outside);
  }
  std::map<int, int> left;
  for (int& output : node.outputs) {
    if (!packs_rows(output)) {
      scores_.insert(output);
      continue;
    }
    const int whole = add_like(graph_, output, tensor(output).name + ".whole");
    left[whole] = output;
    output = whole;
  }
  infer_dims(graph_, node);
  nodes_.push_back(std::move(node));
  for (const auto& [whole, rows] : left) leave(whole, rows, outside);
}

void HeadExchange::run() {
  for (const Node& node : graph_.nodes) {
    if (is_inside(node)) {
      move_inside(node);
    } else {
      nodes_.push_back(node);
    }
  }
  graph_.nodes = std::move(nodes_);
}

}  // namespace

void exchange_heads(Graph& graph, int64_t context_parallel) { HeadExchange(graph, context_parallel).run(); }

}  // namespace foresail
