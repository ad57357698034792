// The front of one block, and its conversion into rules.
#include "program/recompute_solver.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/round_up.h"

namespace foresail {
namespace {

constexpr std::array kPresets{Recompute::none, Recompute::selective, Recompute::full};

/// Sums of the same seconds in another order differ by less.
constexpr double kRounding = 1e-12;

/// Which nodes a partial choice replays of its own will; shared tails of linked lists.
struct Decision {
  int node = 0;
  int before = -1;
};

/// What the nodes visited so far cost under a partial choice.
struct Partial {
  ReplayCost cost;
  int decision = -1;
};

bool before(const ReplayCost& a, const ReplayCost& b) {
  return std::pair(a.kept_bytes, a.replay_seconds) < std::pair(b.kept_bytes, b.replay_seconds);
}

/// Keeps those that no other one matches in both bytes and seconds; bytes ascend.
template <typename Costed>
void keep_best(std::vector<Costed>& candidates) {
  std::sort(candidates.begin(), candidates.end(),
            [](const Costed& a, const Costed& b) { return before(a.cost, b.cost); });
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(candidates, [&](const Costed& candidate) {
    if (candidate.cost.replay_seconds >= least * (1 - kRounding)) return true;
    least = candidate.cost.replay_seconds;
    return false;
  });
}

/// Forward tensors that backward wants and that no visited node produces.
using Wanted = std::set<int>;
using States = std::map<Wanted, std::vector<Partial>>;

class FrontSearch {
 public:
  FrontSearch(const Differentiated& layer, const BlockCosts& costs, size_t most)
      : layer_(layer), costs_(costs), most_(most) {}
  RecomputeFront run();

 private:
  void visit(int n);
  void thin();
  RecomputePoint point(const Partial& partial) const;

  const Differentiated& layer_;
  const BlockCosts& costs_;
  size_t most_;
  States states_;
  std::vector<Decision> decisions_;
  bool exact_ = true;
};

void FrontSearch::visit(int n) {
  const Node& node = layer_.graph.nodes[static_cast<size_t>(n)];
  const double seconds = costs_.node_seconds[static_cast<size_t>(n)];
  States next;
  const auto move = [&](const Wanted& wanted, const std::vector<Partial>& partials) {
    auto& there = next[wanted];
    there.insert(there.end(), partials.begin(), partials.end());
  };
  for (auto& [wanted, partials] : states_) {
    Wanted rest = wanted;
    int64_t bytes = 0;
    for (const int output : node.outputs) {
      if (rest.erase(output) != 0) bytes += costs_.tensor_bytes[static_cast<size_t>(output)];
    }
    if (rest.size() == wanted.size()) {
      move(wanted, partials);
      continue;
    }
    const bool always = always_replayed(layer_, node, wanted);
    if (!always) {
      std::vector<Partial> kept = partials;
      for (Partial& partial : kept) partial.cost.kept_bytes += bytes;
      move(rest, kept);
    }
    for (const int input : wanted_inputs(layer_, node)) rest.insert(input);
    for (Partial& partial : partials) {
      partial.cost.replay_seconds += seconds;
      if (always) continue;
      decisions_.push_back({n, partial.decision});
      partial.decision = static_cast<int>(decisions_.size()) - 1;
    }
    move(rest, partials);
  }
  states_ = std::move(next);
}

/// Carries on `most_` partial choices, spread evenly over their bytes; the fastest one stays too.
void FrontSearch::thin() {
  std::vector<std::pair<const Wanted*, Partial>> all;
  for (const auto& [wanted, partials] : states_) {
    for (const Partial& partial : partials) all.emplace_back(&wanted, partial);
  }
  if (all.size() <= most_) return;
  exact_ = false;
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return before(a.second.cost, b.second.cost); });
  const auto fastest = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.second.cost.replay_seconds < b.second.cost.replay_seconds;
  });
  States next;
  next[*fastest->first].push_back(fastest->second);
  for (size_t i = 0; i + 1 < most_; ++i) {
    const auto& [wanted, partial] = all[i * (all.size() - 1) / std::max<size_t>(most_ - 2, 1)];
    next[*wanted].push_back(partial);
  }
  for (auto& [wanted, partials] : next) keep_best(partials);
  states_ = std::move(next);
}

RecomputePoint FrontSearch::point(const Partial& partial) const {
  std::set<int> outputs;
  for (int d = partial.decision; d >= 0; d = decisions_[static_cast<size_t>(d)].before) {
    const Node& node = layer_.graph.nodes[static_cast<size_t>(decisions_[static_cast<size_t>(d)].node)];
    outputs.insert(node.outputs.begin(), node.outputs.end());
  }
  RecomputePoint point;
  point.dropped = effective_drops(layer_, outputs);
  point.cost = cost_of(replay_plan(layer_, point.dropped), costs_);  // summed in the same order for every choice
  ensure(point.cost.kept_bytes == partial.cost.kept_bytes, "the search counts what replay_plan says");
  return point;
}

RecomputeFront FrontSearch::run() {
  states_[layer_.saved] = {Partial{}};
  for (int n = layer_.forward_nodes - 1; n >= 0; --n) {
    visit(n);
    for (auto& [wanted, partials] : states_) keep_best(partials);
    thin();
  }
  // Everything that is wanted has a producer, so one state is left, in which nothing is.
  ensure(states_.size() == 1 && states_.begin()->first.empty(), "forward tensors are produced by forward nodes");
  RecomputeFront front;
  front.exact = exact_;
  for (const Partial& partial : states_.begin()->second) front.points.push_back(point(partial));
  keep_best(front.points);
  return front;
}

}  // namespace

std::vector<int64_t> aligned_tensor_bytes(const Graph& graph, int64_t alignment) {
  std::vector<int64_t> bytes;
  for (const GraphTensor& tensor : graph.tensors) {
    bytes.push_back(round_up(tensor.type().bytes(), alignment));
  }
  return bytes;
}

ReplayCost cost_of(const ReplayPlan& plan, const BlockCosts& costs) {
  ReplayCost cost;
  for (const int tensor : plan.kept) cost.kept_bytes += costs.tensor_bytes[static_cast<size_t>(tensor)];
  for (const int node : plan.replayed) cost.replay_seconds += costs.node_seconds[static_cast<size_t>(node)];
  return cost;
}

RecomputeFront recompute_front(const Differentiated& layer, const BlockCosts& costs, size_t most_partial_choices) {
  ensure(costs.node_seconds.size() >= static_cast<size_t>(layer.forward_nodes), "every forward node has a cost");
  ensure(costs.tensor_bytes.size() == layer.graph.tensors.size(), "every tensor has a size");
  ensure(most_partial_choices >= 3, "both ends and the fastest choice are carried on");
  return FrontSearch(layer, costs, most_partial_choices).run();
}

std::vector<RecomputeRule> rules_of(const Differentiated& layer, const RecomputeFront& front,
                                    std::span<const int64_t> counts, int64_t first_layer) {
  ensure(counts.size() == front.points.size(), "a choice counts the points of its front");
  std::vector<RecomputeRule> rules;
  for (size_t p = 0; p < counts.size(); ++p) {
    if (counts[p] == 0) continue;
    RecomputeRule rule{first_layer, first_layer + counts[p] - 1, Recompute::none, {}};
    first_layer += counts[p];
    const std::set<int>& dropped = front.points[p].dropped;
    const auto preset = std::find_if(kPresets.begin(), kPresets.end(), [&](Recompute recompute) {
      return dropped_tensors(layer, recompute, {}) == dropped;
    });
    if (preset != kPresets.end()) {
      rule.preset = *preset;
    } else {
      for (const int tensor : dropped) rule.tensors.push_back(layer.graph.tensors[static_cast<size_t>(tensor)].name);
    }
    ensure(dropped_tensors(layer, rule.preset, rule.tensors) == dropped, "tensors of a block have names of their own");
    rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace foresail
