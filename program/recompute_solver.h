// The best recompute under a memory limit. A block has a Pareto front of (bytes kept, seconds of replay) over every choice
// of dropped tensors; a stage mixes points of the fronts of its layers. Costs come from the caller: nothing here knows a
// machine.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "program/recompute.h"

namespace foresail {

/// What keeping and replaying cost in one block, for one micro-batch.
struct BlockCosts {
  std::vector<double> node_seconds;   ///< by forward node, collectives too; never negative
  std::vector<int64_t> tensor_bytes;  ///< by tensor of the graph
};

/// Bytes that the tensors of a graph take in a slot, each aligned.
std::vector<int64_t> aligned_tensor_bytes(const Graph& graph, int64_t alignment);

/// Costs of a choice, summed over what replay_plan says. The layer's input is kept by every choice and not counted.
struct ReplayCost {
  int64_t kept_bytes = 0;
  double replay_seconds = 0;
};
ReplayCost cost_of(const ReplayPlan& plan, const BlockCosts& costs);

struct RecomputePoint {
  std::set<int> dropped;  ///< as dropped_tensors returns them
  ReplayCost cost;
};

struct RecomputeFront {
  std::vector<RecomputePoint> points;  ///< bytes ascend, seconds descend strictly
  bool exact = true;                   ///< false: candidates were thinned, better points may exist
};

/// Partial choices that are held at once before they are thinned. Blocks of today's models hold a few hundred.
inline constexpr size_t kMostPartialChoices = size_t{1} << 17;

/// The Pareto front over all choices. What a node's replay costs depends on what else is replayed, so choices are not
/// additive: nodes are visited last to first with the set of tensors that are still wanted as state, and dominated partial
/// choices are dropped state by state, which is exact. Where more than `most_partial_choices` remain, only that many are
/// carried on, evenly spread over bytes with both ends, and `exact` is false.
RecomputeFront recompute_front(const Differentiated& layer, const BlockCosts& costs,
                               size_t most_partial_choices = kMostPartialChoices);

/// Layers of one kind on a stage that keep their tensors equally long.
struct StageDemand {
  const RecomputeFront* front = nullptr;
  int64_t layers = 0;
  int64_t in_flight = 1;  ///< slots: micro-batches whose kept tensors live at once
};

struct StageChoice {
  std::vector<std::vector<int64_t>> layers;  ///< [demand][point of its front] = how many layers take it
  int64_t kept_bytes = 0;                    ///< of all layers and slots
  double replay_seconds = 0;                 ///< of all layers, per micro-batch
  bool exact = true;                         ///< false: within `gap_seconds` of the best
  double gap_seconds = 0;
};

/// The choice with the least replay whose kept tensors (the layers' inputs not counted) fit in `limit_bytes`; none if not
/// even the smallest points do. Layers of a demand are interchangeable. Layers are added one by one; partial sums are
/// dropped if another is no worse in bytes and seconds, or if the linear relaxation of the remaining layers (Sinha &
/// Zoltners 1979, multiple-choice knapsack) proves that they cannot beat the best choice known.
std::optional<StageChoice> solve_stage(std::span<const StageDemand> demands, int64_t limit_bytes,
                                       size_t most_partial_choices = kMostPartialChoices);

/// Rules for `counts[point]` layers each, from global layer `first_layer` on; points that keep least come first. A choice
/// that is a preset is written as one. Through dropped_tensors the rules give the points' sets again.
std::vector<RecomputeRule> rules_of(const Differentiated& layer, const RecomputeFront& front,
                                    std::span<const int64_t> counts, int64_t first_layer);

}  // namespace foresail
