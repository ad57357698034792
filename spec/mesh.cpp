#include "spec/mesh.h"

#include "core/error.h"

namespace foresail {
namespace {

void add_group(MeshGroups& groups, GroupKind kind, std::vector<int> members) {
  auto& group_of_rank = groups.group_of_rank[static_cast<size_t>(kind)];
  for (const int rank : members) group_of_rank[rank] = static_cast<int>(groups.members.size());
  groups.members.push_back(std::move(members));
}

}  // namespace

Mesh Mesh::of(const Strategy& strategy) {
  require_in_range(strategy, "strategy '" + to_text(strategy) + "'");
  return {static_cast<int32_t>(strategy.pp), static_cast<int32_t>(strategy.dp), static_cast<int32_t>(strategy.tp)};
}

int32_t Mesh::rank_of(const MeshCoordinate& coordinate) const {
  ensure(coordinate.pp >= 0 && coordinate.pp < pp && coordinate.dp >= 0 && coordinate.dp < dp && coordinate.tp >= 0 &&
             coordinate.tp < tp,
         "a coordinate lies inside its mesh");
  return (coordinate.pp * dp + coordinate.dp) * tp + coordinate.tp;
}

MeshCoordinate Mesh::coordinate_of(int32_t rank) const {
  ensure(rank >= 0 && rank < size(), "a rank lies inside its mesh");
  return {rank / (dp * tp), rank / tp % dp, rank % tp};
}

int MeshGroups::index(GroupKind kind, int rank) const {
  return group_of_rank.at(static_cast<size_t>(kind)).at(static_cast<size_t>(rank));
}

MeshGroups mesh_groups(const Mesh& mesh) {
  MeshGroups groups;
  groups.group_of_rank.assign(kGroupKinds, std::vector<int>(static_cast<size_t>(mesh.size()), -1));
  std::vector<int> everyone(static_cast<size_t>(mesh.size()));
  for (int rank = 0; rank < mesh.size(); ++rank) everyone[rank] = rank;
  add_group(groups, GroupKind::world, std::move(everyone));
  for (int pp = 0; pp < mesh.pp; ++pp) {
    for (int tp = 0; tp < mesh.tp; ++tp) {
      std::vector<int> members;
      for (int dp = 0; dp < mesh.dp; ++dp) members.push_back(mesh.rank_of({pp, dp, tp}));
      add_group(groups, GroupKind::data, std::move(members));
    }
  }
  for (int pp = 0; pp < mesh.pp; ++pp) {
    for (int dp = 0; dp < mesh.dp; ++dp) {
      std::vector<int> members;
      for (int tp = 0; tp < mesh.tp; ++tp) members.push_back(mesh.rank_of({pp, dp, tp}));
      add_group(groups, GroupKind::tensor, std::move(members));
    }
  }
  if (mesh.pp < 2) return groups;
  for (int dp = 0; dp < mesh.dp; ++dp) {
    for (int tp = 0; tp < mesh.tp; ++tp) {
      add_group(groups, GroupKind::embedding, {mesh.rank_of({0, dp, tp}), mesh.rank_of({mesh.pp - 1, dp, tp})});
    }
  }
  return groups;
}

}  // namespace foresail
