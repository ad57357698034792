// Where the ranks of a communicating group sit on the nodes, when world ranks are placed in order, node by node.
#pragma once

#include <cstdint>

#include "planner/simulator/cost_model.h"
#include "spec/mesh.h"

namespace foresail {

/// The span of this kind of group on a stage; of several groups with different spans the one that crosses most nodes
/// (a collective costs its slowest member's time).
GroupSpan span_of(const Mesh& mesh, GroupKind group, int stage, int64_t devices_per_node);

/// Whether any message between two neighbouring stages crosses a node boundary.
bool crosses_nodes(const Mesh& mesh, int stage, int peer_stage, int64_t devices_per_node);

}  // namespace foresail
