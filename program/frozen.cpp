#include "program/frozen.h"

#include <algorithm>

#include <fmt/format.h>

#include "program/autodiff.h"

namespace foresail {
namespace {

struct Layers {
  int64_t first = 0, end = 0;
};

/// Calls visit(weight, names of its tensors in all layers that have it).
template <typename Graphs, typename Visit>
void for_weights(Graphs& graphs, const ModelSpec& model, const Visit& visit) {
  const int64_t dense = model.moe.experts > 0 ? model.moe.first_dense_layers : model.layers;
  const auto each = [&](auto& graph, const Layers& layers) {
    for (auto& weight : graph.weights) {
      std::vector<std::string> names;
      for (const WeightPart& part : weight.parts) {
        const size_t braces = part.tensor.find("{}");
        if (braces == std::string::npos) names.push_back(part.tensor);
        for (int64_t layer = layers.first; braces != std::string::npos && layer < layers.end; ++layer) {
          names.push_back(part.tensor.substr(0, braces) + std::to_string(layer) + part.tensor.substr(braces + 2));
        }
      }
      if (!names.empty()) visit(weight, names);
    }
  };
  each(graphs.embedding, {});
  each(graphs.block, {0, dense});
  each(graphs.expert_block, {dense, model.layers});
  each(graphs.head, {});
}

/// Whether backward makes a gradient for a weight that is not frozen. A router's correction bias, which only chooses
/// experts, has none.
bool trains(const Graph& graph) {
  if (graph.nodes.empty()) return false;
  const Graph whole = differentiate(graph).graph;
  return std::any_of(whole.tensors.begin(), whole.tensors.end(), [&](const GraphTensor& tensor) {
    return tensor.role == TensorRole::weight_gradient && !whole.weights.at(static_cast<size_t>(tensor.weight)).frozen;
  });
}

bool trains(const ModelSpec& model, const ModelGraphs& graphs) {
  const bool has_dense = !is_expert_layer(model, 0);
  return trains(graphs.embedding) || (has_dense && trains(graphs.block)) || trains(graphs.expert_block) ||
         trains(graphs.head);
}

bool any_matches(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return matches(pattern, name); });
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  size_t p = 0, n = 0, star = std::string::npos, resumed = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, resumed = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string::npos) {
      p = star + 1, n = ++resumed;  // the star takes one character more
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

void mark_frozen(ModelGraphs& graphs, const ModelSpec& model, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return;
  for_weights(graphs, model, [&](Weight& weight, const std::vector<std::string>& names) {
    weight.frozen =
        std::all_of(names.begin(), names.end(), [&](const auto& name) { return any_matches(patterns, name); });
  });
}

std::vector<std::string> frozen_problems(const ModelSpec& model, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return {};
  std::vector<std::string> problems;
  std::vector<bool> names_something(patterns.size());
  ModelGraphs graphs = build_graphs(model, {.sequence_length = 1, .precision = {}});
  for_weights(graphs, model, [&](const Weight& weight, const std::vector<std::string>& names) {
    for (size_t i = 0; i < patterns.size(); ++i) {
      const auto is_named = [&](const auto& name) { return matches(patterns[i], name); };
      if (std::any_of(names.begin(), names.end(), is_named)) names_something[i] = true;
    }
    const auto is_named = [&](const auto& name) { return any_matches(patterns, name); };
    const auto named = std::find_if(names.begin(), names.end(), is_named);
    const auto left_out = std::find_if_not(names.begin(), names.end(), is_named);
    if (named == names.end() || left_out == names.end()) return;
    problems.push_back(
        fmt::format("frozen names {} but not {}: the layers of a kind, the experts of a layer and what is joined to "
                    "one matrix ('{}') are frozen together or not at all",
                    *named, *left_out, weight.name));
  });
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (!names_something[i])
      problems.push_back(fmt::format("frozen names '{}', and no tensor is called so", patterns[i]));
  }
  mark_frozen(graphs, model, patterns);
  if (!trains(model, graphs)) problems.emplace_back("frozen names every tensor: nothing is left to train");
  return problems;
}

}  // namespace foresail
