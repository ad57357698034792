#include "spec/mesh.h"

#include <iterator>
#include <map>
#include <tuple>

#include "core/error.h"

namespace foresail {
namespace {

/// What the members of a group have in common; ranks without a key are in no group of the kind.
using Key = std::tuple<int32_t, int32_t, int32_t, int32_t>;

bool takes_part(const Mesh& mesh, GroupKind kind, const MeshCoordinate& at) {
  if (is_expert_group(kind)) return mesh.has_experts;
  if (kind != GroupKind::embedding) return true;
  return mesh.pp > 1 && mesh.embedding_pair && (at.pp == 0 || at.pp == mesh.pp - 1);
}

Key key_of(const Mesh& mesh, GroupKind kind, const MeshCoordinate& at) {
  const ExpertCoordinate expert = mesh.expert_coordinate(at);
  switch (kind) {
    case GroupKind::world: return {};
    case GroupKind::tensor: return {at.pp, at.dp, at.cp, 0};
    case GroupKind::context: return {at.pp, at.dp, at.tp, 0};
    case GroupKind::shard: return {at.pp, at.tp, mesh.replica_rank(at), 0};
    case GroupKind::replica: return {at.pp, at.tp, mesh.shard_rank(at), 0};
    case GroupKind::kv_copies: return {at.pp, at.dp, at.cp, at.tp / mesh.kv_copies};
    case GroupKind::embedding: return {at.dp, at.cp, at.tp, 0};
    case GroupKind::expert: return {at.pp, expert.edp, expert.etp, 0};
    case GroupKind::expert_tensor: return {at.pp, expert.edp, expert.ep, 0};
    case GroupKind::expert_shard: return {at.pp, expert.ep, expert.etp, mesh.expert_replica_rank(at)};
    case GroupKind::expert_replica: return {at.pp, expert.ep, expert.etp, mesh.expert_shard_rank(at)};
  }
  return {};
}

}  // namespace

Mesh Mesh::of(const Strategy& strategy, int64_t kv_heads, bool has_experts) {
  require_in_range(strategy, "strategy '" + to_text(strategy) + "'");
  Mesh mesh;
  mesh.pp = static_cast<int32_t>(strategy.pp);
  mesh.dp = static_cast<int32_t>(strategy.dp);
  mesh.cp = static_cast<int32_t>(strategy.cp);
  mesh.tp = static_cast<int32_t>(strategy.tp);
  mesh.shard = static_cast<int32_t>(strategy.shard_ranks());
  if (kv_heads > 0 && strategy.tp > kv_heads) mesh.kv_copies = static_cast<int32_t>(strategy.tp / kv_heads);
  mesh.embedding_pair = strategy.schedule != ScheduleKind::zb_v;
  if (!has_experts) return mesh;
  mesh.has_experts = true;
  mesh.ep = static_cast<int32_t>(strategy.ep);
  mesh.etp = static_cast<int32_t>(strategy.etp);
  ensure(mesh.stage_ranks() % (mesh.ep * mesh.etp) == 0, "legal() lets only degrees through that divide a stage");
  mesh.expert_shard = static_cast<int32_t>(strategy.expert_shard_ranks());
  return mesh;
}

int32_t Mesh::rank_of(const MeshCoordinate& at) const {
  ensure(at.pp >= 0 && at.pp < pp && at.dp >= 0 && at.dp < dp && at.cp >= 0 && at.cp < cp && at.tp >= 0 && at.tp < tp,
         "a coordinate lies inside its mesh");
  return ((at.pp * dp + at.dp) * cp + at.cp) * tp + at.tp;
}

MeshCoordinate Mesh::coordinate_of(int32_t rank) const {
  ensure(rank >= 0 && rank < size(), "a rank lies inside its mesh");
  return {rank / (dp * cp * tp), rank / (cp * tp) % dp, rank / tp % cp, rank % tp};
}

ExpertCoordinate Mesh::expert_coordinate(const MeshCoordinate& at) const {
  const int32_t q = data_rank(at) * tp + at.tp;
  return {q / (ep * etp), q / etp % ep, q % etp};
}

std::string_view name_of(GroupKind kind) {
  constexpr std::string_view kNames[] = {"world",         "tensor",       "context",       "shard",
                                         "replica",       "kv_copies",    "embedding",     "expert",
                                         "expert_tensor", "expert_shard", "expert_replica"};
  static_assert(std::size(kNames) == kGroupKinds);
  return kNames[static_cast<size_t>(kind)];
}

bool is_expert_group(GroupKind kind) { return kind >= GroupKind::expert; }

int MeshGroups::index(GroupKind kind, int rank) const {
  return group_of_rank.at(static_cast<size_t>(kind)).at(static_cast<size_t>(rank));
}

MeshGroups mesh_groups(const Mesh& mesh) {
  ensure(mesh.data_ranks() % mesh.shard == 0 && mesh.tp % mesh.kv_copies == 0 &&
             mesh.stage_ranks() % (mesh.ep * mesh.etp) == 0 && mesh.edp() % mesh.expert_shard == 0,
         "groups divide their ranks evenly");
  MeshGroups groups;
  groups.group_of_rank.assign(kGroupKinds, std::vector<int>(static_cast<size_t>(mesh.size()), -1));
  for (int kind = 0; kind < kGroupKinds; ++kind) {
    std::map<Key, int> index;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const MeshCoordinate at = mesh.coordinate_of(rank);
      if (!takes_part(mesh, static_cast<GroupKind>(kind), at)) continue;
      const Key key = key_of(mesh, static_cast<GroupKind>(kind), at);
      const auto [entry, added] = index.try_emplace(key, static_cast<int>(groups.members.size()));
      if (added) groups.members.emplace_back();
      groups.members[static_cast<size_t>(entry->second)].push_back(rank);
      groups.group_of_rank[static_cast<size_t>(kind)][static_cast<size_t>(rank)] = entry->second;
    }
  }
  return groups;
}

}  // namespace foresail
