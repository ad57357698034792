#include "planner/simulator/group_span.h"

#include <algorithm>

#include "core/error.h"
#include "core/round_up.h"

namespace foresail {
namespace {

/// Groups of one kind on a stage: `count` ranks, `stride` apart; `stride` such groups lie side by side in a block of
/// neighbouring ranks, and the blocks follow each other.
struct Pattern {
  int64_t count = 1, stride = 1;
};

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
  span.per_node = divide_up(count, nodes);
  span.sibling_groups_per_node = nodes == 1 ? 1 : std::min(groups, devices_per_node);
  return span;
}

/// The block that crosses most nodes stands for all. Blocks meet the node boundaries in a pattern that repeats after at
/// most `devices_per_node` of them.
GroupSpan widest_span(int64_t first, int64_t ranks, const Pattern& pattern, int64_t devices_per_node) {
  const int64_t block = pattern.count * pattern.stride;
  GroupSpan widest = strided_span(first, pattern.count, pattern.stride, pattern.stride, devices_per_node);
  for (int64_t b = 1; b < std::min(ranks / block, devices_per_node); ++b) {
    const GroupSpan span =
        strided_span(first + b * block, pattern.count, pattern.stride, pattern.stride, devices_per_node);
    if (span.per_node < widest.per_node) widest = span;
  }
  return widest;
}

Pattern pattern_of(const Mesh& mesh, GroupKind group) {
  switch (group) {
    case GroupKind::tensor: return {mesh.tp, 1};
    case GroupKind::context: return {mesh.cp, mesh.tp};
    case GroupKind::shard: return {mesh.shard, mesh.tp};
    case GroupKind::replica: return {mesh.data_ranks() / mesh.shard, int64_t{mesh.shard} * mesh.tp};
    case GroupKind::kv_copies: return {mesh.kv_copies, 1};
    case GroupKind::expert: return {mesh.ep, mesh.etp};
    case GroupKind::expert_tensor: return {mesh.etp, 1};
    case GroupKind::expert_shard: return {mesh.expert_shard, int64_t{mesh.ep} * mesh.etp};
    case GroupKind::expert_replica:
      return {mesh.edp() / mesh.expert_shard, int64_t{mesh.expert_shard} * mesh.ep * mesh.etp};
    case GroupKind::world:
    case GroupKind::embedding: break;
  }
  return {};
}

}  // namespace

GroupSpan span_of(const Mesh& mesh, GroupKind group, int stage, int64_t devices_per_node) {
  ensure(devices_per_node >= 1, "a node holds at least one device");
  const int64_t stage_ranks = int64_t{mesh.data_ranks()} * mesh.tp;
  if (group == GroupKind::world) return strided_span(0, mesh.size(), 1, 1, devices_per_node);
  if (group == GroupKind::embedding) {
    const bool exists = mesh.pp > 1 && mesh.embedding_pair;
    return exists ? strided_span(0, 2, (mesh.pp - 1) * stage_ranks, stage_ranks, devices_per_node) : GroupSpan{};
  }
  return widest_span(stage * stage_ranks, stage_ranks, pattern_of(mesh, group), devices_per_node);
}

bool crosses_nodes(const Mesh& mesh, int stage, int peer_stage, int64_t devices_per_node) {
  const int64_t stage_ranks = int64_t{mesh.data_ranks()} * mesh.tp;
  const int64_t first = std::min(stage, peer_stage) * stage_ranks;
  const int64_t last = (std::max(stage, peer_stage) + 1) * stage_ranks - 1;
  // A boundary anywhere among the two stages separates at least one rank from its peer, `stage_ranks` away.
  return first / devices_per_node != last / devices_per_node;
}

}  // namespace foresail
