// Recompute is a choice per tensor: a dropped saved tensor is not kept from forward to backward; the nodes that produced
// it are replayed in backward (Chen et al. 2016, "Training deep nets with sublinear memory cost").
#pragma once

#include <set>
#include <string>
#include <vector>

#include "program/autodiff.h"
#include "spec/strategy.h"

namespace foresail {

/// Saved tensors of a block that a choice drops: by preset, or by a rule that names tensors. Throws bad_input naming the
/// tensor and what can be dropped if a rule names one that backward does not need.
std::set<int> dropped_tensors(const Differentiated& layer, Recompute preset, const std::vector<std::string>& tensors);
/// The same for global layer number `layer_number` under the strategy's preset and rules.
std::set<int> dropped_tensors(const Differentiated& layer, const Strategy& strategy, int64_t layer_number);

/// What a block keeps from forward to backward and which forward nodes backward runs again, in order.
struct ReplayPlan {
  std::set<int> kept;
  std::vector<int> replayed;
};
/// Results of pure data movement between ranks or layouts (gathered rows, packed heads, shifted keys) are never kept: what
/// they were made from is, and they are made again.
ReplayPlan replay_plan(const Differentiated& layer, const std::set<int>& dropped);

}  // namespace foresail
