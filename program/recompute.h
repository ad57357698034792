// Recompute is a choice per tensor: a dropped tensor is not kept from forward to backward; the node that produced it is
// replayed in backward (Chen et al. 2016, "Training deep nets with sublinear memory cost").
//
// A choice is the set of forward tensors that are not kept. Whatever else backward, or a node that it replays, reads is
// kept. So dropping a norm's input as well as its output keeps what that input was made from instead: a choice can name
// tensors that backward itself does not read.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "program/autodiff.h"
#include "spec/strategy.h"

namespace foresail {

/// Tensors of a block that a choice drops: by preset, and by a rule that names tensors. Only those that would be kept or
/// read by a replayed node otherwise; equal choices are equal sets. Throws bad_input naming the tensor and what can be
/// dropped if a rule names one that is not kept anyway.
std::set<int> dropped_tensors(const Differentiated& layer, Recompute preset, const std::vector<std::string>& tensors);
/// The same for global layer number `layer_number` under the strategy's preset and rules.
std::set<int> dropped_tensors(const Differentiated& layer, const Strategy& strategy, int64_t layer_number);

/// Those of `choice` that make a difference: they would be kept otherwise.
std::set<int> effective_drops(const Differentiated& layer, const std::set<int>& choice);

/// Every tensor that some choice can drop.
std::set<int> droppable_tensors(const Differentiated& layer);

/// What a block keeps from forward to backward and which forward nodes backward runs again, in order.
struct ReplayPlan {
  std::set<int> kept;
  std::vector<int> replayed;
};
/// Every piece of data is kept once, as backward reads it, with two exceptions: gathered rows and shifted keys are never
/// kept, what they were made from is; and what is only rearranged on this rank is not kept beside its source. Other results
/// of a replayed node (statistics) are made again with it and not kept either.
ReplayPlan replay_plan(const Differentiated& layer, const std::set<int>& dropped);

/// Whether `node` is replayed even if nothing drops its outputs, given what is `wanted` in backward by others.
bool always_replayed(const Differentiated& layer, const Node& node, const std::set<int>& wanted);
/// The inputs of a replayed node that must be kept or made again; the others (weights, the layer's input) are there.
std::vector<int> wanted_inputs(const Differentiated& layer, const Node& node);

}  // namespace foresail
