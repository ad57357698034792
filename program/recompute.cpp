#include "program/recompute.h"

#include <algorithm>

namespace foresail {

std::set<int> dropped_tensors(const Differentiated& layer, Recompute preset) {
  return preset == Recompute::full ? layer.saved : std::set<int>{};
}

std::vector<int> replayed_nodes(const Differentiated& layer, const std::set<int>& dropped) {
  std::set<int> wanted = dropped;
  std::vector<int> replayed;
  for (int n = layer.forward_nodes - 1; n >= 0; --n) {
    const Node& node = layer.graph.nodes[n];
    const bool produces =
        std::any_of(node.outputs.begin(), node.outputs.end(), [&](int output) { return wanted.count(output) != 0; });
    if (!produces) continue;
    replayed.push_back(n);
    for (const int input : node.inputs) {
      const bool kept = layer.saved.count(input) != 0 && dropped.count(input) == 0;
      if (layer.graph.tensors[input].role == TensorRole::activation && !kept) wanted.insert(input);
    }
  }
  std::reverse(replayed.begin(), replayed.end());
  return replayed;
}

}  // namespace foresail
