#include "program/recompute.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "ops/op_table.h"

namespace foresail {
namespace {

/// Gathered rows are as many times larger as ranks share them, and keys travel around the ring in backward anyway.
bool never_kept(const Node& node) {
  return node.collective == NodeCollective::all_gather_rows || node.collective == NodeCollective::all_gather_expert ||
         node.collective == NodeCollective::ring_shift_context;
}

/// Same bytes in another order, without communication.
bool rearranges(const Node& node) { return node.collective == NodeCollective::none && moves_data_only(node); }

const Node& node_at(const Differentiated& layer, int n) { return layer.graph.nodes[static_cast<size_t>(n)]; }

/// By tensor: the forward node that writes it, -1 if none does.
std::vector<int> producers_of(const Differentiated& layer) {
  std::vector<int> producers(layer.graph.tensors.size(), -1);
  for (int n = 0; n < layer.forward_nodes; ++n) {
    for (const int output : node_at(layer, n).outputs) producers[static_cast<size_t>(output)] = n;
  }
  return producers;
}

/// Matrix products, attention and collectives are dear to run again; scores and softmax of unfused attention are large and
/// cheap (Korthikanti et al. 2022, section 5). What is merely rearranged counts as what it was made from.
bool selective_keeps(const Differentiated& layer, const std::vector<int>& producers, const Node& node) {
  if (never_kept(node)) return false;
  if (node.collective != NodeCollective::none) return true;
  if (rearranges(node)) {
    const int source = producers[static_cast<size_t>(node.inputs[0])];
    return source >= 0 && selective_keeps(layer, producers, node_at(layer, source));
  }
  const OpClass op_class = info(node.kind).op_class;
  return op_class == OpClass::matrix_product || op_class == OpClass::attention ||
         node.kind == OpKind::attention_context;
}

std::set<int> preset_tensors(const Differentiated& layer, Recompute preset) {
  std::set<int> dropped;
  if (preset == Recompute::none) return dropped;
  const std::vector<int> producers = producers_of(layer);
  for (int n = 0; n < layer.forward_nodes; ++n) {
    const Node& node = node_at(layer, n);
    if (preset == Recompute::selective && selective_keeps(layer, producers, node)) continue;
    dropped.insert(node.outputs.begin(), node.outputs.end());
  }
  return dropped;
}

struct Replay {
  ReplayPlan plan;
  std::set<int> dropped;  ///< those of the choice that made a difference
};

/// From the last forward node to the first: whoever needs a node's outputs in backward has been seen by then.
Replay replay(const Differentiated& layer, const std::set<int>& dropped) {
  Replay result;
  std::set<int> wanted = layer.saved;
  for (int n = layer.forward_nodes - 1; n >= 0; --n) {
    const Node& node = node_at(layer, n);
    std::set<int> outputs;
    for (const int output : node.outputs) {
      if (wanted.count(output) != 0) outputs.insert(output);
    }
    if (outputs.empty()) continue;
    bool replayed = always_replayed(layer, node, wanted);
    if (!replayed) {
      for (const int output : outputs) {
        if (dropped.count(output) != 0) result.dropped.insert(output);
        replayed |= dropped.count(output) != 0;
      }
    }
    if (!replayed) {
      result.plan.kept.merge(outputs);
      continue;
    }
    result.plan.replayed.push_back(n);
    for (const int input : wanted_inputs(layer, node)) wanted.insert(input);
  }
  std::reverse(result.plan.replayed.begin(), result.plan.replayed.end());
  return result;
}

std::string names_of(const Differentiated& layer, const std::set<int>& tensors) {
  std::vector<std::string> names;
  for (const int tensor : tensors) names.push_back(layer.graph.tensors[static_cast<size_t>(tensor)].name);
  return fmt::format("{}", fmt::join(names, ", "));
}

[[noreturn]] void refuse_name(const Differentiated& layer, const std::string& name) {
  const std::set<int> droppable = droppable_tensors(layer);
  const bool known = std::any_of(droppable.begin(), droppable.end(), [&](int tensor) {
    return layer.graph.tensors[static_cast<size_t>(tensor)].name == name;
  });
  throw_bad_input(fmt::format("recompute of a {}", layer.graph.name),
                  known ? fmt::format("'{}' is not kept unless what is made from it is dropped too", name)
                        : fmt::format("'{}' is no tensor that is kept for backward", name),
                  "name some of " + names_of(layer, droppable));
}

}  // namespace

bool always_replayed(const Differentiated& layer, const Node& node, const std::set<int>& wanted) {
  if (never_kept(node)) return true;
  if (!rearranges(node)) return false;
  const std::vector<int> sources = wanted_inputs(layer, node);
  return std::all_of(sources.begin(), sources.end(), [&](int source) { return wanted.count(source) != 0; });
}

std::vector<int> wanted_inputs(const Differentiated& layer, const Node& node) {
  std::vector<int> wanted;
  for (const int input : node.inputs) {
    if (layer.graph.tensors[static_cast<size_t>(input)].role == TensorRole::activation) wanted.push_back(input);
  }
  return wanted;
}

std::set<int> dropped_tensors(const Differentiated& layer, Recompute preset, const std::vector<std::string>& tensors) {
  std::set<int> choice = preset_tensors(layer, preset);
  for (const std::string& name : tensors) {
    for (int n = 0; n < layer.forward_nodes; ++n) {
      for (const int output : node_at(layer, n).outputs) {
        if (layer.graph.tensors[static_cast<size_t>(output)].name == name) choice.insert(output);
      }
    }
  }
  std::set<int> dropped = effective_drops(layer, choice);
  for (const std::string& name : tensors) {
    const bool drops = std::any_of(dropped.begin(), dropped.end(), [&](int tensor) {
      return layer.graph.tensors[static_cast<size_t>(tensor)].name == name;
    });
    if (!drops) refuse_name(layer, name);
  }
  return dropped;
}

std::set<int> dropped_tensors(const Differentiated& layer, const Strategy& strategy, int64_t layer_number) {
  for (const RecomputeRule& rule : strategy.recompute_layers) {
    if (layer_number < rule.first || layer_number > rule.last) continue;
    try {
      return dropped_tensors(layer, rule.preset, rule.tensors);
    } catch (const Error& error) {
      const bool one = rule.first == rule.last;
      const std::string layers = one ? std::to_string(rule.first) : fmt::format("{}-{}", rule.first, rule.last);
      throw_bad_input("recompute_layers, layers " + layers, error.cause(), error.mend());
    }
  }
  return dropped_tensors(layer, strategy.recompute, {});
}

std::set<int> effective_drops(const Differentiated& layer, const std::set<int>& choice) {
  return replay(layer, choice).dropped;
}

/// Under `full` whatever any choice could want is wanted.
std::set<int> droppable_tensors(const Differentiated& layer) {
  std::set<int> droppable = layer.saved;
  for (const int n : replay_plan(layer, preset_tensors(layer, Recompute::full)).replayed) {
    for (const int input : wanted_inputs(layer, node_at(layer, n))) droppable.insert(input);
  }
  for (int n = 0; n < layer.forward_nodes; ++n) {
    if (!never_kept(node_at(layer, n))) continue;
    for (const int output : node_at(layer, n).outputs) droppable.erase(output);
  }
  return droppable;
}

ReplayPlan replay_plan(const Differentiated& layer, const std::set<int>& dropped) {
  return replay(layer, dropped).plan;
}

}  // namespace foresail
