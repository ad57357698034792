// Recompute is a choice per tensor: a dropped saved tensor is not kept from forward to backward; the nodes that produced
// it are replayed in backward (Chen et al. 2016, "Training deep nets with sublinear memory cost").
#pragma once

#include <set>
#include <vector>

#include "program/autodiff.h"
#include "spec/strategy.h"

namespace foresail {

/// The saved tensors that a preset drops.
std::set<int> dropped_tensors(const Differentiated& layer, Recompute preset);

/// Indices of the forward nodes that must run again, in order, to have every dropped tensor from what is kept.
std::vector<int> replayed_nodes(const Differentiated& layer, const std::set<int>& dropped);

}  // namespace foresail
