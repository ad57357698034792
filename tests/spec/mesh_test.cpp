#include "spec/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"

namespace foresail {
namespace {

TEST(Mesh, TensorParallelRanksAreNeighboursAndStagesFarthestApart) {
  const Mesh mesh{2, 3, 4};
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.rank_of({0, 0, 3}), 3);
  EXPECT_EQ(mesh.rank_of({0, 1, 0}), 4);
  EXPECT_EQ(mesh.rank_of({1, 0, 0}), 12);
  for (int rank = 0; rank < mesh.size(); ++rank) EXPECT_EQ(mesh.rank_of(mesh.coordinate_of(rank)), rank);
}

TEST(Mesh, ComesFromAStrategy) {
  Strategy strategy;
  strategy.pp = 2;
  strategy.dp = 3;
  strategy.tp = 4;
  EXPECT_EQ(Mesh::of(strategy).size(), strategy.devices());
  EXPECT_EQ(Mesh::of(strategy).dp, 3);
}

TEST(Mesh, RanksOutsideAreAnInvariantNotARank) {
  const Mesh mesh{1, 2, 2};
  EXPECT_THROW(mesh.coordinate_of(4), Error);
  EXPECT_THROW(mesh.coordinate_of(-1), Error);
  EXPECT_THROW(mesh.rank_of({0, 2, 0}), Error);
}

TEST(MeshGroups, AreListedByKindInOneOrder) {
  const MeshGroups groups = mesh_groups({2, 2, 2});
  const std::vector<std::vector<int>> expected = {{0, 1, 2, 3, 4, 5, 6, 7},  // world
                                                  {0, 2},
                                                  {1, 3},
                                                  {4, 6},
                                                  {5, 7},  // data
                                                  {0, 1},
                                                  {2, 3},
                                                  {4, 5},
                                                  {6, 7},  // tensor
                                                  {0, 4},
                                                  {1, 5},
                                                  {2, 6},
                                                  {3, 7}};  // embedding
  EXPECT_EQ(groups.members, expected);
}

TEST(MeshGroups, IndexFindsTheGroupOfEveryRank) {
  for (const Mesh& mesh : {Mesh{1, 1, 1}, Mesh{1, 4, 1}, Mesh{3, 2, 2}, Mesh{2, 1, 3}, Mesh{4, 1, 1}}) {
    const MeshGroups groups = mesh_groups(mesh);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const MeshCoordinate here = mesh.coordinate_of(rank);
      EXPECT_EQ(groups.index(GroupKind::world, rank), 0);
      const auto& data = groups.members[groups.index(GroupKind::data, rank)];
      EXPECT_EQ(static_cast<int>(data.size()), mesh.dp);
      EXPECT_EQ(data[here.dp], rank);
      const auto& tensor = groups.members[groups.index(GroupKind::tensor, rank)];
      EXPECT_EQ(static_cast<int>(tensor.size()), mesh.tp);
      EXPECT_EQ(tensor[here.tp], rank);
      const int embedding = groups.index(GroupKind::embedding, rank);
      const bool holds_embedding = mesh.pp > 1 && (here.pp == 0 || here.pp == mesh.pp - 1);
      ASSERT_EQ(embedding >= 0, holds_embedding);
      if (!holds_embedding) continue;
      EXPECT_EQ(groups.members[embedding][0], mesh.rank_of({0, here.dp, here.tp}));
      EXPECT_EQ(groups.members[embedding][1], mesh.rank_of({mesh.pp - 1, here.dp, here.tp}));
    }
    for (const auto& members : groups.members) EXPECT_TRUE(std::is_sorted(members.begin(), members.end()));
  }
}

}  // namespace
}  // namespace foresail
