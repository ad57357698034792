#include "spec/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "core/error.h"

namespace foresail {
namespace {

using Members = std::vector<std::vector<int>>;

/// Meshes of every kind of feature, alone and together.
std::vector<Mesh> meshes() {
  std::vector<Mesh> all;
  for (const auto& [pp, dp, cp, tp] : {std::tuple{1, 1, 1, 1},
                                       {1, 4, 1, 1},
                                       {1, 1, 4, 1},
                                       {1, 1, 1, 4},
                                       {2, 1, 1, 3},
                                       {3, 2, 1, 2},
                                       {4, 1, 1, 1},
                                       {2, 2, 2, 2},
                                       {1, 3, 2, 1},
                                       {2, 2, 3, 4}}) {
    for (int shard = 1; shard <= dp * cp; ++shard) {
      if (dp * cp % shard != 0) continue;
      for (int copies = 1; copies <= tp; ++copies) {
        if (tp % copies != 0) continue;
        for (const bool pair : {true, false}) {
          all.push_back({.pp = pp, .dp = dp, .cp = cp, .tp = tp, .shard = shard, .kv_copies = copies});
          all.back().embedding_pair = pair;
        }
      }
    }
  }
  // The same ranks seen as copies of experts, ranks that share the experts, ranks that share each.
  const std::vector<Mesh> dense = all;
  for (const Mesh& mesh : dense) {
    for (int degrees = 1; degrees <= mesh.stage_ranks(); ++degrees) {
      if (mesh.stage_ranks() % degrees != 0) continue;
      for (const int etp : {1, 2, 3}) {
        if (degrees % etp != 0) continue;
        all.push_back(mesh);
        all.back().has_experts = true;
        all.back().etp = etp;
        all.back().ep = degrees / etp;
        all.back().expert_shard = std::gcd(all.back().edp(), mesh.shard);
      }
    }
  }
  return all;
}

bool has_embedding_group(const Mesh& mesh, int rank) {
  const int stage = mesh.coordinate_of(rank).pp;
  return mesh.embedding_pair && mesh.pp > 1 && (stage == 0 || stage == mesh.pp - 1);
}

Members groups_of(const MeshGroups& groups, GroupKind kind) {
  std::vector<int> positions = groups.group_of_rank[static_cast<size_t>(kind)];
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  Members members;
  for (const int position : positions) {
    if (position >= 0) members.push_back(groups.members[static_cast<size_t>(position)]);
  }
  return members;
}

TEST(Mesh, TensorThenContextRanksAreNeighboursAndStagesFarthestApart) {
  const Mesh mesh{.pp = 2, .dp = 3, .cp = 2, .tp = 4};
  EXPECT_EQ(mesh.size(), 48);
  EXPECT_EQ(mesh.rank_of({0, 0, 0, 3}), 3);
  EXPECT_EQ(mesh.rank_of({0, 0, 1, 0}), 4);
  EXPECT_EQ(mesh.rank_of({0, 1, 0, 0}), 8);
  EXPECT_EQ(mesh.rank_of({1, 0, 0, 0}), 24);
  for (int rank = 0; rank < mesh.size(); ++rank) EXPECT_EQ(mesh.rank_of(mesh.coordinate_of(rank)), rank);
}

TEST(Mesh, ComesFromAStrategy) {
  Strategy strategy;
  strategy.pp = 2, strategy.dp = 3, strategy.cp = 2, strategy.tp = 4;
  const Mesh mesh = Mesh::of(strategy);
  EXPECT_EQ(mesh.size(), strategy.devices());
  EXPECT_EQ(mesh.dp, 3);
  EXPECT_EQ(mesh.cp, 2);
  EXPECT_EQ(mesh.shard, 1) << "without ZeRO nothing is sharded";
  EXPECT_EQ(mesh.kv_copies, 1);
  EXPECT_TRUE(mesh.embedding_pair);
}

TEST(Mesh, ZeroShardsOverAllDataRanksOrOverGroupsOfThem) {
  Strategy strategy;
  strategy.dp = 4, strategy.cp = 2, strategy.zero_stage = 3;
  EXPECT_EQ(Mesh::of(strategy).shard, 8);
  strategy.zero_group = 4;
  EXPECT_EQ(Mesh::of(strategy).shard, 4);
}

TEST(Mesh, TensorRanksBeyondTheKvHeadsHoldCopies) {
  Strategy strategy;
  strategy.tp = 8;
  EXPECT_EQ(Mesh::of(strategy, 2).kv_copies, 4);
  EXPECT_EQ(Mesh::of(strategy, 8).kv_copies, 1);
  EXPECT_EQ(Mesh::of(strategy, 32).kv_copies, 1);
}

TEST(Mesh, AVShapedPipelineHasBothEndsOnOneStage) {
  Strategy strategy;
  strategy.pp = 4, strategy.virtual_stages = 2, strategy.schedule = ScheduleKind::zb_v;
  EXPECT_FALSE(Mesh::of(strategy).embedding_pair);
}

TEST(Mesh, RanksOutsideAreAnInvariantNotARank) {
  const Mesh mesh{.pp = 1, .dp = 2, .cp = 1, .tp = 2};
  EXPECT_THROW(mesh.coordinate_of(4), Error);
  EXPECT_THROW(mesh.coordinate_of(-1), Error);
  EXPECT_THROW(mesh.rank_of({0, 2, 0, 0}), Error);
  EXPECT_THROW(mesh.rank_of({0, 0, 1, 0}), Error);
}

TEST(MeshGroups, AreListedByKindInOneOrder) {
  const MeshGroups groups = mesh_groups({.pp = 2, .dp = 2, .cp = 1, .tp = 2});
  const Members expected = {{0, 1, 2, 3, 4, 5, 6, 7},  // world
                            {0, 1},
                            {2, 3},
                            {4, 5},
                            {6, 7},  // tensor
                            {0},
                            {1},
                            {2},
                            {3},
                            {4},
                            {5},
                            {6},
                            {7},  // context
                            {0},
                            {1},
                            {2},
                            {3},
                            {4},
                            {5},
                            {6},
                            {7},  // shard: none without ZeRO
                            {0, 2},
                            {1, 3},
                            {4, 6},
                            {5, 7},  // replica
                            {0},
                            {1},
                            {2},
                            {3},
                            {4},
                            {5},
                            {6},
                            {7},  // kv_copies
                            {0, 4},
                            {1, 5},
                            {2, 6},
                            {3, 7}};  // embedding
  EXPECT_EQ(groups.members, expected);
}

TEST(MeshGroups, OfAHybridShardedContextParallelMeshByHand) {
  // Data ranks 0 to 3 = (dp, cp) of (0,0) (0,1) (1,0) (1,1); tp 2 inside; shards span the two cp ranks of one dp rank.
  Mesh mesh{.pp = 1, .dp = 2, .cp = 2, .tp = 2, .shard = 2, .kv_copies = 2};
  const MeshGroups groups = mesh_groups(mesh);
  EXPECT_EQ(groups_of(groups, GroupKind::tensor), (Members{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(groups_of(groups, GroupKind::context), (Members{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(groups_of(groups, GroupKind::shard), (Members{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(groups_of(groups, GroupKind::replica), (Members{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(groups_of(groups, GroupKind::kv_copies), (Members{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_TRUE(groups_of(groups, GroupKind::embedding).empty());
  mesh.shard = 4;
  EXPECT_EQ(groups_of(mesh_groups(mesh), GroupKind::shard), (Members{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(groups_of(mesh_groups(mesh), GroupKind::replica).size(), 8u) << "every shard exists once";
}

/// Which ranks hold what, written down: 2 x 1 x 4 ranks, experts over 2 with pairs that share each.
TEST(MeshGroups, ExpertsAreCutOverNeighboursWhateverTheDenseDegrees) {
  Strategy strategy;
  strategy.dp = 2, strategy.tp = 4, strategy.ep = 2, strategy.etp = 2, strategy.zero_stage = 1;
  const MeshGroups groups = mesh_groups(Mesh::of(strategy, 0, true));
  EXPECT_EQ(groups_of(groups, GroupKind::expert), (Members{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(groups_of(groups, GroupKind::expert_tensor), (Members{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(groups_of(groups, GroupKind::expert_shard), (Members{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(groups_of(groups, GroupKind::expert_replica).size(), 8u) << "every shard exists once";
  strategy.ep = 1, strategy.zero_group = 2;
  EXPECT_EQ(groups_of(mesh_groups(Mesh::of(strategy, 0, true)), GroupKind::expert_shard),
            (Members{{0, 2}, {1, 3}, {4, 6}, {5, 7}}))
      << "zero_group where it divides the copies";
  EXPECT_TRUE(groups_of(mesh_groups(Mesh::of(strategy)), GroupKind::expert).empty()) << "a model without experts";
}

TEST(MeshGroups, EveryRankIsInExactlyOneGroupOfEachKind) {
  for (const Mesh& mesh : meshes()) {
    const MeshGroups groups = mesh_groups(mesh);
    size_t listed = 0;
    for (int kind = 0; kind < kGroupKinds; ++kind) {
      const Members of_kind = groups_of(groups, static_cast<GroupKind>(kind));
      listed += of_kind.size();
      std::vector<int> seen(static_cast<size_t>(mesh.size()), 0);
      for (const auto& members : of_kind) {
        EXPECT_TRUE(std::is_sorted(members.begin(), members.end()));
        for (const int rank : members) ++seen[static_cast<size_t>(rank)];
      }
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const auto group = static_cast<GroupKind>(kind);
        const bool expected = is_expert_group(group) ? mesh.has_experts
                                                     : group != GroupKind::embedding || has_embedding_group(mesh, rank);
        EXPECT_EQ(seen[static_cast<size_t>(rank)], expected ? 1 : 0) << "kind " << kind << ", rank " << rank;
        const int index = groups.index(static_cast<GroupKind>(kind), rank);
        ASSERT_EQ(index >= 0, expected);
        if (!expected) continue;
        const auto& own = groups.members[static_cast<size_t>(index)];
        EXPECT_TRUE(std::find(own.begin(), own.end(), rank) != own.end());
      }
    }
    EXPECT_EQ(listed, groups.members.size()) << "no group without a kind";
  }
}

/// Checks one kind: its size, this rank's number in it, and what all members have in common.
void expect_group(const Mesh& mesh, const MeshGroups& groups, GroupKind kind, int rank, int size, int number,
                  const std::function<std::vector<int>(const MeshCoordinate&)>& common) {
  const auto& members = groups.members[static_cast<size_t>(groups.index(kind, rank))];
  ASSERT_EQ(static_cast<int>(members.size()), size) << "kind " << static_cast<int>(kind);
  EXPECT_EQ(members[static_cast<size_t>(number)], rank) << "kind " << static_cast<int>(kind);
  for (const int member : members) {
    EXPECT_EQ(common(mesh.coordinate_of(member)), common(mesh.coordinate_of(rank)));
  }
}

TEST(MeshGroups, HoldWhatTheirKindSaysInTheOrderOfTheirRole) {
  for (const Mesh& mesh : meshes()) {
    const MeshGroups groups = mesh_groups(mesh);
    const auto expect = [&](GroupKind kind, int rank, int size, int number, const auto& common) {
      expect_group(mesh, groups, kind, rank, size, number, common);
    };
    using At = MeshCoordinate;
    using Key = std::vector<int>;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const At here = mesh.coordinate_of(rank);
      expect(GroupKind::world, rank, mesh.size(), rank, [](const At&) { return Key{}; });
      expect(GroupKind::tensor, rank, mesh.tp, here.tp, [](const At& at) { return Key{at.pp, at.dp, at.cp}; });
      expect(GroupKind::context, rank, mesh.cp, here.cp, [](const At& at) { return Key{at.pp, at.dp, at.tp}; });
      expect(GroupKind::shard, rank, mesh.shard, mesh.shard_rank(here), [&](const At& at) {
        return Key{at.pp, at.tp, (at.dp * mesh.cp + at.cp) / mesh.shard};
      });
      expect(GroupKind::replica, rank, mesh.dp * mesh.cp / mesh.shard, mesh.replica_rank(here), [&](const At& at) {
        return Key{at.pp, at.tp, (at.dp * mesh.cp + at.cp) % mesh.shard};
      });
      expect(GroupKind::kv_copies, rank, mesh.kv_copies, here.tp % mesh.kv_copies, [&](const At& at) {
        return Key{at.pp, at.dp, at.cp, at.tp / mesh.kv_copies};
      });
      if (mesh.has_experts) {
        const int q = (here.dp * mesh.cp + here.cp) * mesh.tp + here.tp;
        const int ep = q / mesh.etp % mesh.ep, edp = q / (mesh.etp * mesh.ep);
        const auto q_of = [&](const At& at) { return (at.dp * mesh.cp + at.cp) * mesh.tp + at.tp; };
        const auto copy_of = [&](const At& at) { return q_of(at) / (mesh.etp * mesh.ep); };
        const auto share_of = [&](const At& at) { return q_of(at) % (mesh.etp * mesh.ep); };
        expect(GroupKind::expert, rank, mesh.ep, ep, [&](const At& at) {
          return Key{at.pp, copy_of(at), q_of(at) % mesh.etp};
        });
        expect(GroupKind::expert_tensor, rank, mesh.etp, q % mesh.etp, [&](const At& at) {
          return Key{at.pp, q_of(at) / mesh.etp};
        });
        expect(GroupKind::expert_shard, rank, mesh.expert_shard, edp % mesh.expert_shard, [&](const At& at) {
          return Key{at.pp, share_of(at), copy_of(at) / mesh.expert_shard};
        });
        expect(GroupKind::expert_replica, rank, mesh.edp() / mesh.expert_shard, edp / mesh.expert_shard,
               [&](const At& at) {
                 return Key{at.pp, share_of(at), copy_of(at) % mesh.expert_shard};
               });
      }
      if (!has_embedding_group(mesh, rank)) continue;
      expect(GroupKind::embedding, rank, 2, here.pp == 0 ? 0 : 1, [](const At& at) {
        return Key{at.dp, at.cp, at.tp};
      });
    }
  }
}

TEST(MeshGroups, ShardAndReplicaRanksTogetherNumberTheDataRanks) {
  for (const Mesh& mesh : meshes()) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const MeshCoordinate at = mesh.coordinate_of(rank);
      EXPECT_EQ(mesh.replica_rank(at) * mesh.shard + mesh.shard_rank(at), mesh.data_rank(at));
      EXPECT_LT(mesh.shard_rank(at), mesh.shard);
    }
  }
}

TEST(MeshGroups, RefuseGroupsThatDoNotDivideTheirRanks) {
  EXPECT_THROW(mesh_groups({.pp = 1, .dp = 3, .cp = 1, .tp = 1, .shard = 2}), Error);
  EXPECT_THROW(mesh_groups({.pp = 1, .dp = 1, .cp = 1, .tp = 4, .shard = 1, .kv_copies = 3}), Error);
  Mesh experts{.dp = 4};
  experts.has_experts = true;
  experts.ep = 3;
  EXPECT_THROW(mesh_groups(experts), Error);
  experts.ep = 2, experts.expert_shard = 4;
  EXPECT_THROW(mesh_groups(experts), Error);
}

}  // namespace
}  // namespace foresail
