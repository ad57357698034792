#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/error.h"
#include "ops/op_table.h"
#include "planner/simulator/cost_model.h"
#include "planner/simulator/gemm_model.h"
#include "planner/simulator/group_span.h"
#include "tests/planner/hand_made.h"

namespace foresail {
namespace {

constexpr GemmDevice kA100 = {312e12, 0.8, 2e12 * 0.85, 108, 150};

double flops(const GemmWork& shape) { return 2.0 * shape.m * shape.n * shape.k * shape.batch; }

TEST(GemmModel, LargeProductsApproachTheEfficiencyAndNeverPassIt) {
  const GemmWork large{16384, 16384, 16384, 1, 0};
  const double rate = flops(large) / gemm_seconds(large, kA100);
  EXPECT_GT(rate, 0.93 * 312e12 * 0.8);
  for (const int64_t size : {64, 200, 1000, 4096, 16384}) {
    const GemmWork shape{size, size, size / 8 * 8, 1, 0};
    EXPECT_LE(flops(shape) / gemm_seconds(shape, kA100), 312e12 * 0.8);
  }
}

TEST(GemmModel, ACornerTileMoreCostsAWaveWhenTheWavesWereFull) {
  // 108 tiles of 256 x 128 fill the device once; one more row of tiles needs a second wave.
  const GemmWork full{256 * 12, 128 * 9, 8192, 1, 0};
  const GemmWork more{256 * 12 + 8, 128 * 9, 8192, 1, 0};
  EXPECT_GT(gemm_seconds(more, kA100), 1.2 * gemm_seconds(full, kA100));
}

TEST(GemmModel, SplittingKHelpsFewTilesWithLongSums) {
  GemmDevice unsplit = kA100;
  const GemmWork thin{128, 128, 65536, 1, 0};
  const double one_tile = 2.0 * 128 * 128 * (65536 + 150) * 108 / (312e12 * 0.8 * 0.95);
  EXPECT_LT(gemm_seconds(thin, unsplit), one_tile / 4);
}

TEST(GemmModel, UnalignedRowsAreSlowAndMemoryBinds) {
  const GemmWork aligned{4096, 4096, 4096, 1, 0}, unaligned{4096, 4097, 4096, 1, 0};
  EXPECT_GT(gemm_seconds(unaligned, kA100), 3 * gemm_seconds(aligned, kA100));
  const GemmWork traffic{4096, 4096, 4096, 1, 1e12};
  EXPECT_DOUBLE_EQ(gemm_seconds(traffic, kA100), 1e12 / (2e12 * 0.85));
}

TEST(GemmModel, MoreWorkNeverTakesLess) {
  double previous = 0;
  for (int64_t k = 512; k <= 16384; k *= 2) {
    const double seconds = gemm_seconds({2048, 2048, k, 1, 0}, kA100);
    EXPECT_GT(seconds, previous);
    previous = seconds;
  }
}

Machine machine() {
  Machine m;
  m.name = "test";
  m.device.name = "A100-SXM-80GB";
  m.device.peak_flops_per_second["bf16"] = {312e12, "test"};
  m.device.memory_bytes_per_second = {2e12, "test"};
  m.device.multiprocessors = {108, "test"};
  m.devices = 16, m.devices_per_node = 8;
  m.intra_node = {{300e9, "test"}, {2e-6, "test"}};
  m.inter_node = {{25e9, "test"}, {5e-6, "test"}};
  return m;
}

Stack stack() {
  Stack s;
  s.matrix_efficiency = 0.8, s.memory_efficiency = 0.85, s.inter_node_efficiency = 0.9, s.launch_seconds = 5e-6;
  s.intra_node_efficiency = 0.8, s.collective_seconds = 40e-6;
  s.constant_sources = {{"matrix_efficiency", "these A100 rows"}};
  return s;
}

TensorType bf16(std::vector<int64_t> shape) { return {DType::bf16, std::move(shape)}; }

TEST(CatalogueCosts, MemoryBoundOpsPayBytesAndALaunch) {
  const auto costs = make_catalogue_cost_model(machine(), stack());
  OpInstance op{OpKind::add, {}, {bf16({4096, 4096}), bf16({4096, 4096})}, {bf16({4096, 4096})}};
  EXPECT_DOUBLE_EQ(costs->op_seconds(op).seconds, 3 * 2 * 4096.0 * 4096 / (2e12 * 0.85) + 5e-6);
}

TEST(CatalogueCosts, WeightGradientsPayForTheirAccumulation) {
  const auto costs = make_catalogue_cost_model(machine(), stack());
  const OpInstance forward{OpKind::linear, {}, {bf16({2048, 4096}), bf16({4096, 4096})}, {bf16({2048, 4096})}};
  const OpInstance weight{
      OpKind::linear_backward_weight, {}, {bf16({2048, 4096}), bf16({2048, 4096})}, {{DType::f32, {4096, 4096}}}};
  const double accumulate = 3 * 4 * 4096.0 * 4096 / (2e12 * 0.85);
  EXPECT_GT(costs->op_seconds(weight).seconds, accumulate + 0.7 * costs->op_seconds(forward).seconds);
}

TEST(CatalogueCosts, BackwardOfFlashAttentionTakesAboutTwoAndAHalfForwards) {
  const auto costs = make_catalogue_cost_model(machine(), stack());
  OpAttributes a;
  a.sequence_length = 4096, a.heads = a.kv_heads = 16, a.head_dim = 128;
  const TensorType qkv = bf16({4096, 48 * 128}), o = bf16({4096, 2048}), lse{DType::f32, {1, 16, 4096}};
  const double forward = costs->op_seconds({OpKind::attention, a, {qkv}, {o, lse}}).seconds;
  const double backward = costs->op_seconds({OpKind::attention_backward, a, {o, qkv, o, lse}, {qkv}}).seconds;
  EXPECT_NEAR(backward / forward, 2.5 / 0.9, 0.1);
  EXPECT_NEAR(forward, 4 * 16 * (4096.0 * 4097 / 2) * 128 / (312e12 * 0.34), 6e-6);
}

TEST(CatalogueCosts, UnfusedScoresCostMoreThanFlashAttention) {
  const auto costs = make_catalogue_cost_model(machine(), stack());
  OpAttributes a;
  a.sequence_length = 2048, a.heads = a.kv_heads = 12, a.head_dim = 128;
  const TensorType qkv = bf16({2048, 36 * 128}), o = bf16({2048, 1536}), s = bf16({1, 12, 2048, 2048});
  const double flash = costs->op_seconds({OpKind::attention, a, {qkv}, {o, {DType::f32, {1, 12, 2048}}}}).seconds;
  const double unfused = costs->op_seconds({OpKind::attention_scores, a, {qkv}, {s}}).seconds +
                         costs->op_seconds({OpKind::attention_softmax, a, {s}, {s}}).seconds +
                         costs->op_seconds({OpKind::attention_context, a, {s, qkv}, {o}}).seconds;
  EXPECT_GT(unfused, flash);
}

TEST(CatalogueCosts, AnAllReduceInsideANodeIsARing) {
  const auto costs = make_catalogue_cost_model(machine(), stack());
  const int64_t bytes = 1 << 28;
  const GroupSpan span{8, 8, 1};
  const double link = 300e9 * 0.8 * (1 - 0.34 / 8);
  const double expected = 40e-6 + 5e-6 + 2 * 7 * 2e-6 + 2.0 * 7 / 8 * static_cast<double>(bytes) / link;
  EXPECT_DOUBLE_EQ(costs->collective_seconds(InstructionKind::all_reduce, bytes, span).seconds, expected);
  const double gather = costs->collective_seconds(InstructionKind::all_gather, bytes, span).seconds;
  EXPECT_DOUBLE_EQ(gather, 40e-6 + 5e-6 + 7 * 2e-6 + 7.0 / 8 * static_cast<double>(bytes) / link);
}

TEST(CatalogueCosts, SiblingGroupsShareTheNics) {
  const auto costs = make_catalogue_cost_model(machine(), stack());
  const int64_t bytes = 1 << 30;
  const double alone = costs->collective_seconds(InstructionKind::all_gather, bytes, {8, 1, 1}).seconds;
  const double shared = costs->collective_seconds(InstructionKind::all_gather, bytes, {8, 1, 8}).seconds;
  EXPECT_NEAR(shared, 7.0 / 8 * static_cast<double>(bytes) / (25e9 * 0.9), 0.01 * shared);
  EXPECT_GT(shared, 6 * alone);
}

TEST(CatalogueCosts, SmallAllReducesOverManyNodesTakeATree) {
  const auto costs = make_catalogue_cost_model(machine(), stack());
  const double few = costs->collective_seconds(InstructionKind::all_reduce, 4096, {16, 1, 1}).seconds;
  const double many = costs->collective_seconds(InstructionKind::all_reduce, 4096, {1024, 1, 1}).seconds;
  EXPECT_LT(many - few, 4 * 7 * 5e-6);  // log2 grows by 6; a ring would add 2 x 1008 hops
}

TEST(CatalogueCosts, GroupsOfOneAreFree) {
  const auto costs = make_catalogue_cost_model(machine(), stack());
  EXPECT_EQ(costs->collective_seconds(InstructionKind::all_reduce, 1 << 20, {1, 1, 1}).seconds, 0);
}

TEST(CatalogueCosts, AMissingFigureIsNamed) {
  Machine m = machine();
  m.device.multiprocessors = {};
  try {
    make_catalogue_cost_model(m, stack());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("device.multiprocessors"), std::string::npos) << error.what();
  }
  const auto costs = make_catalogue_cost_model(machine(), stack());
  const OpInstance fp16{OpKind::linear, {}, {{DType::f16, {8, 8}}, {DType::f16, {8, 8}}}, {{DType::f16, {8, 8}}}};
  try {
    costs->op_seconds(fp16);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_NE(std::string(error.what()).find("peak_flops_per_second.f16"), std::string::npos) << error.what();
  }
}

TEST(CatalogueCosts, CalibratedOnlyIfEveryConstantWasFittedOnTheDevice) {
  Stack s = stack();
  EXPECT_TRUE(make_catalogue_cost_model(machine(), s)->calibrated());
  s.constant_sources["inter_node_efficiency"] = "a guess, not fitted";
  EXPECT_FALSE(make_catalogue_cost_model(machine(), s)->calibrated());
  s.constant_sources = {{"matrix_efficiency", "these H100 rows"}};
  EXPECT_FALSE(make_catalogue_cost_model(machine(), s)->calibrated());
  EXPECT_GT(make_catalogue_cost_model(machine(), s)->common_spread(),
            make_catalogue_cost_model(machine(), stack())->common_spread());
}

TEST(GroupSpan, FollowsThePlacementOfRanksOnNodes) {
  const Mesh mesh = test::mesh_of(4, 8, 4);  // pp, dp, tp: 128 ranks on nodes of 8
  GroupSpan span = span_of(mesh, GroupKind::tensor, 1, 8);
  EXPECT_EQ(span.size, 4);
  EXPECT_EQ(span.per_node, 4);
  span = span_of(mesh, GroupKind::replica, 1, 8);
  EXPECT_EQ(span.size, 8);
  EXPECT_EQ(span.per_node, 2);  // 32 ranks of a stage on 4 nodes
  EXPECT_EQ(span.sibling_groups_per_node, 4);
  span = span_of(mesh, GroupKind::embedding, 0, 8);
  EXPECT_EQ(span.size, 2);
  EXPECT_EQ(span.per_node, 1);
  EXPECT_EQ(span.sibling_groups_per_node, 8);
  span = span_of(mesh, GroupKind::world, 0, 8);
  EXPECT_EQ(span.size, 128);
  EXPECT_EQ(span.per_node, 8);
  EXPECT_EQ(span.sibling_groups_per_node, 1);
}

TEST(GroupSpan, ATensorGroupThatStraddlesNodesSetsThePace) {
  const Mesh mesh = test::mesh_of(1, 4, 3);  // groups 0-2, 3-5, 6-8, 9-11 on nodes of 4: the second straddles
  const GroupSpan span = span_of(mesh, GroupKind::tensor, 0, 4);
  EXPECT_EQ(span.size, 3);
  EXPECT_LT(span.per_node, 3);
}

/// Nodes that the widest group of a kind on a stage touches, by looking at every rank.
int64_t most_nodes(const Mesh& mesh, GroupKind kind, int stage, int64_t devices_per_node) {
  const MeshGroups groups = mesh_groups(mesh);
  size_t most = 0;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (mesh.coordinate_of(rank).pp != stage || groups.index(kind, rank) < 0) continue;
    std::set<int64_t> nodes;
    for (const int member : groups.members[static_cast<size_t>(groups.index(kind, rank))]) {
      nodes.insert(member / devices_per_node);
    }
    most = std::max(most, nodes.size());
  }
  return static_cast<int64_t>(most);
}

TEST(GroupSpan, IsThatOfTheWidestGroupForEveryKindAndMesh) {
  int tried = 0;
  for (const char* text : {"dp=2,cp=2,tp=2", "dp=3,cp=2,tp=2,pp=2,zero_stage=1,zero_group=2", "dp=4,tp=4,zero_stage=3",
                           "dp=4,cp=4,tp=2,zero_stage=2,zero_group=8", "cp=4,tp=3,pp=3", "tp=8,dp=2,pp=2",
                           "dp=2,tp=2,pp=2,schedule=zb-v,virtual_stages=2"}) {
    const Mesh mesh = Mesh::of(parse_strategy(text).strategy, 2);
    for (int stage = 0; stage < mesh.pp; ++stage) {
      for (const int64_t per_node : {1, 2, 3, 4, 8, 64}) {
        for (const GroupKind kind : {GroupKind::world, GroupKind::tensor, GroupKind::context, GroupKind::shard,
                                     GroupKind::replica, GroupKind::kv_copies, GroupKind::embedding}) {
          const int64_t nodes = most_nodes(mesh, kind, stage, per_node);
          if (nodes == 0) continue;
          const GroupSpan span = span_of(mesh, kind, stage, per_node);
          const MeshGroups groups = mesh_groups(mesh);
          const int rank = mesh.rank_of({stage, 0, 0, 0});
          EXPECT_EQ(span.size,
                    static_cast<int64_t>(groups.members[static_cast<size_t>(groups.index(kind, rank))].size()));
          EXPECT_EQ(span.per_node, (span.size + nodes - 1) / nodes)
              << text << ", kind " << static_cast<int>(kind) << ", stage " << stage << ", nodes of " << per_node;
          ++tried;
        }
      }
    }
  }
  EXPECT_GT(tried, 200);
}

TEST(CatalogueCosts, ReduceScatterIsHalfAnAllReduceAndAShiftOneMessage) {
  const auto costs = make_catalogue_cost_model(machine(), stack());
  constexpr int64_t kBytes = int64_t{1} << 30;  // latencies do not matter
  const GroupSpan node{8, 8, 1};
  const auto seconds = [&](InstructionKind kind, const GroupSpan& span) {
    return costs->collective_seconds(kind, kBytes, span).seconds;
  };
  const double reduce = seconds(InstructionKind::all_reduce, node);
  EXPECT_EQ(seconds(InstructionKind::reduce_scatter, node), seconds(InstructionKind::all_gather, node));
  EXPECT_NEAR(seconds(InstructionKind::reduce_scatter, node), reduce / 2, 0.01 * reduce);
  EXPECT_NEAR(seconds(InstructionKind::all_to_all, node), reduce / 2, 0.01 * reduce);
  EXPECT_NEAR(seconds(InstructionKind::ring_shift, node), reduce / 2 * 8 / 7, 0.01 * reduce);
  // Across nodes all ranks of a node send to all others at once, but only one of a ring sends to the next node.
  const GroupSpan two_nodes{16, 8, 1};
  EXPECT_GT(seconds(InstructionKind::all_to_all, two_nodes), 4 * seconds(InstructionKind::all_to_all, node));
  EXPECT_LT(seconds(InstructionKind::ring_shift, two_nodes), 2 * seconds(InstructionKind::ring_shift, node));
  EXPECT_EQ(seconds(InstructionKind::all_to_all, {1, 1, 1}), 0);
}

TEST(GroupSpan, MessagesCrossNodesWhenStagesAreFarApart) {
  EXPECT_FALSE(crosses_nodes(test::mesh_of(4, 1, 2), 0, 1, 8));
  EXPECT_TRUE(crosses_nodes(test::mesh_of(4, 1, 8), 0, 1, 8));
  EXPECT_TRUE(crosses_nodes(test::mesh_of(4, 1, 3), 2, 1, 8));   // ranks 3-8: a boundary at 8
  EXPECT_FALSE(crosses_nodes(test::mesh_of(4, 1, 3), 0, 1, 8));  // ranks 0-5
}

}  // namespace
}  // namespace foresail
