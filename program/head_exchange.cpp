#include "program/head_exchange.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/op_table.h"

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
  GraphTensor& tensor(int index) { return graph_.tensors[static_cast<size_t>(index)]; }
  bool packs_rows(int index) { return tensor(index).dims.at(0).name == DimName::tokens; }
  bool is_inside(const Node& node) const;
  int add_tensor(const GraphTensor& like, const std::string& suffix, std::vector<Dim> dims);
  int emit(OpKind kind, const OpAttributes& attributes, int input, const std::string& suffix, std::vector<Dim> dims);
  int emit_exchange(int input, const std::string& suffix);
  int enter(int rows, const OpAttributes& attributes);
  void leave(int rows, const OpAttributes& attributes);
  void move_inside(Node node);

  Graph& graph_;
  int64_t ranks_;
  std::vector<Node> nodes_;
  std::map<int, int> entered_;  ///< packed rows of this rank's positions -> those of its heads
  std::set<int> scores_;        ///< what only exists between the exchanges
};

/// Dropout on probabilities stands between attention operators.
bool HeadExchange::is_inside(const Node& node) const {
  if (is_attention(node)) return true;
  for (const int input : node.inputs) {
    if (scores_.count(input) != 0) return true;
  }
  return false;
}

int HeadExchange::add_tensor(const GraphTensor& like, const std::string& suffix, std::vector<Dim> dims) {
  GraphTensor added{like.name + suffix, TensorRole::activation, like.dtype, std::move(dims), -1};
  graph_.tensors.push_back(std::move(added));
  return static_cast<int>(graph_.tensors.size()) - 1;
}

int HeadExchange::emit(OpKind kind, const OpAttributes& attributes, int input, const std::string& suffix,
                       std::vector<Dim> dims) {
  const int output = add_tensor(tensor(input), suffix, std::move(dims));
  nodes_.push_back({kind, NodeCollective::none, attributes, {input}, {output}, 0});
  return output;
}

int HeadExchange::emit_exchange(int input, const std::string& suffix) {
  const int output = add_tensor(tensor(input), suffix, tensor(input).dims);
  nodes_.push_back({{}, NodeCollective::all_to_all_context, {}, {input}, {output}, 0});
  return output;
}

/// [T, W] of all this rank's heads -> [C T, W / C] of whole sequences.
int HeadExchange::enter(int rows, const OpAttributes& attributes) {
  if (const auto found = entered_.find(rows); found != entered_.end()) return found->second;
  const Dim tokens = tensor(rows).dims.at(0), width = tensor(rows).dims.at(1);
  const Dim share{width.name, width.size / ranks_};
  const int parts = emit(OpKind::heads_split, attributes, rows, ".parts", {{DimName::fixed, ranks_}, tokens, share});
  const int exchanged = emit_exchange(parts, "_exchanged");
  const int whole =
      emit(OpKind::rows_merge, attributes, exchanged, "_merged", {{tokens.name, tokens.size * ranks_}, share});
  return entered_[rows] = whole;
}

/// The output `rows` keeps its name and its [T, W]; attention now writes [C T, W / C] of it to a tensor of its own.
void HeadExchange::leave(int rows, const OpAttributes& attributes) {
  const Dim tokens = tensor(rows).dims.at(0), width = tensor(rows).dims.at(1);
  const Dim share{width.name, width.size / ranks_};
  const int whole = nodes_.back().outputs.at(0);
  OpAttributes heads_only = attributes;
  heads_only.kv_heads = 0;
  const int parts = emit(OpKind::rows_split, heads_only, whole, "_parts", {{DimName::fixed, ranks_}, tokens, share});
  const int exchanged = emit_exchange(parts, "_exchanged");
  nodes_.push_back({OpKind::heads_merge, NodeCollective::none, heads_only, {exchanged}, {rows}, 0});
}

void HeadExchange::move_inside(Node node) {
  const OpAttributes outside = node.attributes;
  ensure(outside.heads % ranks_ == 0 && outside.kv_heads % ranks_ == 0, "legal() lets only degrees through that divide");
  node.attributes.heads /= ranks_;
  node.attributes.kv_heads /= ranks_;
  node.attributes.sequence_length *= ranks_;
  node.attributes.context_parallel = 1;
  node.attributes.heads_cut = true;
  std::vector<GraphTensor> operands;
  for (int& input : node.inputs) {
    if (packs_rows(input)) input = enter(input, outside);
    operands.push_back(tensor(input));
  }
  const auto inferred = info(node.kind).infer(operands, node.attributes, Precision{});  // element types stay
  int left = -1;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    int& output = node.outputs[i];
    if (packs_rows(output)) {
      ensure(i == 0, "attention has one output of packed rows, the first");
      left = output;
      output = add_tensor(tensor(left), ".whole", inferred[i].dims);
    } else {
      tensor(output).dims = inferred[i].dims;
      scores_.insert(output);
    }
  }
  nodes_.push_back(std::move(node));
  if (left >= 0) leave(left, outside);
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
