// The map from world ranks to coordinates. World rank = ((pp * dp_size + dp) * tp_size) + tp: tensor-parallel ranks are
// neighbours (fastest links), pipeline stages are farthest apart.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/strategy.h"

namespace foresail {

struct MeshCoordinate {
  int32_t pp = 0, dp = 0, tp = 0;
  bool operator==(const MeshCoordinate&) const = default;
};

struct Mesh {
  int32_t pp = 1, dp = 1, tp = 1;

  static Mesh of(const Strategy& strategy);
  int32_t size() const { return pp * dp * tp; }
  int32_t rank_of(const MeshCoordinate& coordinate) const;
  MeshCoordinate coordinate_of(int32_t rank) const;
};

/// The communicating sets of a rank. Values are the roles; `mesh_groups` lists the actual groups.
constexpr int kGroupKinds = 4;
enum class GroupKind : uint8_t {
  world,
  data,       ///< same stage and tp rank
  tensor,     ///< same stage and data rank
  embedding,  ///< first and last stage of a pipeline whose weights are tied (same data and tp rank)
};

/// All groups of all kinds of a mesh in one global order (world first, then data, tensor, embedding groups), as
/// Communicator::create_groups wants them; members ascend. Data and tensor groups of one rank are listed too; embedding
/// groups exist when there are two stages or more. A rank is in at most one group of each kind.
struct MeshGroups {
  std::vector<std::vector<int>> members;
  std::vector<std::vector<int>> group_of_rank;  ///< [kind][rank]: position in `members`, -1: none

  /// Position in `members` of the group of `kind` that holds `rank`; -1: the rank is in no group of this kind.
  int index(GroupKind kind, int rank) const;
};

MeshGroups mesh_groups(const Mesh& mesh);

}  // namespace foresail
