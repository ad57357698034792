// The map from world ranks to coordinates. World rank = ((pp * dp_size + dp) * cp_size + cp) * tp_size + tp: tensor-parallel
// ranks are neighbours (fastest links), context-parallel ranks next, pipeline stages are farthest apart.
//
// A model with experts has a second mesh over the same ranks of a stage: rank q = (dp * cp_size + cp) * tp_size + tp of a
// stage is also q = (edp * ep_size + ep) * etp_size + etp, with edp_size * ep_size * etp_size = dp_size * cp_size * tp_size.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "spec/strategy.h"

namespace foresail {

struct MeshCoordinate {
  int32_t pp = 0, dp = 0, cp = 0, tp = 0;
  bool operator==(const MeshCoordinate&) const = default;
};

/// Where a rank stands among the experts of its stage: its copy, its share of the experts, its share of each of these.
struct ExpertCoordinate {
  int32_t edp = 0, ep = 0, etp = 0;
  bool operator==(const ExpertCoordinate&) const = default;
};

struct Mesh {
  int32_t pp = 1, dp = 1, cp = 1, tp = 1;
  int32_t shard = 1;           ///< ranks that share one copy of what ZeRO shards: neighbours among the data ranks
  int32_t kv_copies = 1;       ///< neighbours in tp that hold the same KV head (tp larger than the number of KV heads)
  bool embedding_pair = true;  ///< first and last virtual stage lie on different ranks when pp > 1 (not in ZB-V)
  bool has_experts = false;    ///< else there is no second mesh, and the next three are 1
  int32_t ep = 1, etp = 1;     ///< ranks that share the experts of a layer, ranks that share each of these
  int32_t expert_shard = 1;    ///< ranks that share one copy of what ZeRO shards of experts: neighbours in edp

  /// `kv_heads` of the model; 0: as many as tp needs.
  static Mesh of(const Strategy& strategy, int64_t kv_heads = 0, bool has_experts = false);
  int32_t size() const { return pp * dp * cp * tp; }
  int32_t rank_of(const MeshCoordinate& coordinate) const;
  MeshCoordinate coordinate_of(int32_t rank) const;
  /// Ranks that hold the same weights, and a coordinate's number among them: dp * cp_size + cp.
  int32_t data_ranks() const { return dp * cp; }
  int32_t data_rank(const MeshCoordinate& at) const { return at.dp * cp + at.cp; }
  int32_t shard_rank(const MeshCoordinate& at) const { return data_rank(at) % shard; }
  int32_t replica_rank(const MeshCoordinate& at) const { return data_rank(at) / shard; }
  /// Ranks of a stage, ranks that hold the same experts, and a coordinate's place among them.
  int32_t stage_ranks() const { return dp * cp * tp; }
  int32_t edp() const { return stage_ranks() / (ep * etp); }
  ExpertCoordinate expert_coordinate(const MeshCoordinate& at) const;
  int32_t expert_shard_rank(const MeshCoordinate& at) const { return expert_coordinate(at).edp % expert_shard; }
  int32_t expert_replica_rank(const MeshCoordinate& at) const { return expert_coordinate(at).edp / expert_shard; }
  bool operator==(const Mesh&) const = default;
};

/// The communicating sets of a rank. Values are the roles; `mesh_groups` lists the actual groups.
enum class GroupKind : uint8_t {
  world,
  tensor,          ///< same stage and data rank
  context,         ///< same stage, dp and tp
  shard,           ///< same stage and tp: `shard` neighbouring data ranks, which share one copy of what ZeRO shards
  replica,         ///< same stage and tp: data ranks with the same shard; without ZeRO all data ranks
  kv_copies,       ///< tp neighbours that hold the same KV head
  embedding,       ///< first and last stage of a pipeline whose weights are tied (same data and tp rank)
  expert,          ///< same stage, edp and etp: ranks that share the experts and exchange rows
  expert_tensor,   ///< same stage, edp and ep: neighbours that share each expert
  expert_shard,    ///< same stage, ep and etp: `expert_shard` neighbours in edp, which share one copy of ZeRO's state
  expert_replica,  ///< same stage, ep and etp: copies of experts with the same shard; without ZeRO all copies
};
constexpr int kGroupKinds = 11;

std::string_view name_of(GroupKind kind);
/// Groups that only a mesh with experts has.
bool is_expert_group(GroupKind kind);

/// All groups of all kinds of a mesh in one global order (by kind, in the order of the enum), as
/// Communicator::create_groups wants them; members ascend. Groups of one rank are listed too; embedding groups exist when
/// there are two stages or more and the mesh has an embedding pair, expert groups if it has experts. A rank is in at most one group of each kind.
struct MeshGroups {
  std::vector<std::vector<int>> members;
  std::vector<std::vector<int>> group_of_rank;  ///< [kind][rank]: position in `members`, -1: none

  /// Position in `members` of the group of `kind` that holds `rank`; -1: the rank is in no group of this kind.
  int index(GroupKind kind, int rank) const;
};

MeshGroups mesh_groups(const Mesh& mesh);

}  // namespace foresail
