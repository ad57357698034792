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
enum class GroupKind : uint8_t {
  world,
  data,       ///< same stage and tp rank
  tensor,     ///< same stage and data rank
  embedding,  ///< first and last stage of a pipeline whose weights are tied (same data and tp rank)
};

/// All groups of all kinds of a mesh in one global order (world first, then data, tensor, embedding groups), as
/// Communicator::create_groups wants them. `index` gives the position of the group of `kind` that holds a rank.
struct MeshGroups {
  std::vector<std::vector<int>> members;
  int index(GroupKind kind, int rank) const;  ///< -1: the rank is in no group of this kind

  std::vector<std::vector<int>> index_by_kind_;  ///< [kind][rank]
};

MeshGroups mesh_groups(const Mesh& mesh);

}  // namespace foresail
