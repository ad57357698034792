#include "planner/simulator/group_span.h"

#include <algorithm>

#include "core/error.h"

namespace foresail {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// `count` ranks, `stride` apart, the first at world rank `first`; `groups` such groups lie side by side.
GroupSpan strided_span(int64_t first, int64_t count, int64_t stride, int64_t groups, int64_t devices_per_node) {
  GroupSpan span;
  span.size = count;
  // Of the side-by-side groups one may straddle a boundary that another misses: the first and the last are extremes.
  int64_t nodes = 1;
  for (const int64_t start : {first, first + groups - 1}) {
    const int64_t first_node = start / devices_per_node;
    const int64_t last_node = (start + (count - 1) * stride) / devices_per_node;
    nodes = std::max(nodes, std::min(count, last_node - first_node + 1));
  }
  span.per_node = ceil_div(count, nodes);
  span.sibling_groups_per_node = nodes == 1 ? 1 : std::min(groups, devices_per_node);
  return span;
}

}  // namespace

GroupSpan span_of(const Mesh& mesh, GroupKind group, int stage, int64_t devices_per_node) {
  ensure(devices_per_node >= 1, "a node holds at least one device");
  const int64_t stage_ranks = int64_t{mesh.dp} * mesh.tp;
  const int64_t first = stage * stage_ranks;
  switch (group) {
    case GroupKind::tensor: {
      GroupSpan span = strided_span(first, mesh.tp, 1, 1, devices_per_node);
      // Tensor groups follow each other; one of them may straddle a boundary if tp does not divide the node.
      for (int64_t d = 0; d < std::min<int64_t>(mesh.dp, devices_per_node) && span.per_node == span.size; ++d) {
        span = strided_span(first + d * mesh.tp, mesh.tp, 1, 1, devices_per_node);
      }
      return span;
    }
    case GroupKind::data: return strided_span(first, mesh.dp, mesh.tp, mesh.tp, devices_per_node);
    case GroupKind::embedding:
      return mesh.pp == 1 ? GroupSpan{}
                          : strided_span(0, 2, (mesh.pp - 1) * stage_ranks, stage_ranks, devices_per_node);
    case GroupKind::world: return strided_span(0, mesh.size(), 1, 1, devices_per_node);
  }
  return {};
}

bool crosses_nodes(const Mesh& mesh, int stage, int peer_stage, int64_t devices_per_node) {
  const int64_t stage_ranks = int64_t{mesh.dp} * mesh.tp;
  const int64_t first = std::min(stage, peer_stage) * stage_ranks;
  const int64_t last = (std::max(stage, peer_stage) + 1) * stage_ranks - 1;
  // A boundary anywhere among the two stages separates at least one rank from its peer, `stage_ranks` away.
  return first / devices_per_node != last / devices_per_node;
}

}  // namespace foresail
