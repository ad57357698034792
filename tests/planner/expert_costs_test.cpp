// What the operators of a mixture of experts are priced at: rows in use on the busiest rank, not the buffer's.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_table.h"
#include "planner/simulator/cost_model.h"
#include "planner/simulator/expert_load.h"
#include "planner/simulator/op_shape.h"
#include "tests/planner/synthetic_machine.h"

namespace foresail {
namespace {

/// `experts` experts of 1024 x 512 on a buffer of `rows`, `routed` of them in use if routing is even.
OpInstance product(OpKind kind, DType type, int64_t rows, int64_t routed, int64_t experts = 8) {
  const TensorType x{type, {rows, 512}}, y{type, {rows, 1024}}, w{type, {experts, 1024, 512}},
      counts{DType::i32, {4 * experts}};
  OpInstance op{kind, {}, {x, w, counts}, {y}};
  if (kind == OpKind::expert_linear_backward_input) op = {kind, {}, {y, w, counts}, {x}};
  if (kind == OpKind::expert_linear_backward_weight) op = {kind, {}, {y, x, counts}, {w}};
  op.attributes.routed_rows = routed;
  return op;
}

constexpr OpKind kProducts[] = {OpKind::expert_linear, OpKind::expert_linear_backward_input,
                                OpKind::expert_linear_backward_weight};

TEST(ExpertLoad, TheBusiestRankHasTheImbalanceFactorMoreRowsButNeverMoreThanTheBuffer) {
  for (const OpKind kind : kProducts) {
    EXPECT_EQ(on_busiest_rank(product(kind, DType::f32, 8192, 4000)).attributes.routed_rows,
              std::ceil(4000 * kExpertImbalance));
    EXPECT_EQ(on_busiest_rank(product(kind, DType::f32, 4096, 4096)), product(kind, DType::f32, 4096, 4096));
  }
}

TEST(ExpertLoad, OtherOperatorsAreLeftAlone) {
  const OpInstance add{OpKind::add, {}, {{DType::f32, {64}}, {DType::f32, {64}}}, {{DType::f32, {64}}}};
  EXPECT_EQ(on_busiest_rank(add), add);
}

TEST(ExpertShape, CountsTheFlopsOfTheRowsInUse) {
  for (const OpKind kind : kProducts) {
    const OpInstance op = product(kind, DType::f32, 8192, 4000);
    ASSERT_TRUE(is_expert_product(kind));
    const auto shape = parse_signature(signature(op));
    ASSERT_TRUE(shape) << signature(op);
    EXPECT_EQ(shape->work, flops_of(op));
    EXPECT_EQ(shape->position, (std::vector<double>{std::log2(500.0), 10, 9, 3}));
    const auto whole = parse_signature(signature(product(kind, DType::f32, 8192, 0)));
    ASSERT_TRUE(whole);
    EXPECT_EQ(whole->work, flops_of(product(kind, DType::f32, 8192, 8192)));
  }
  EXPECT_FALSE(parse_signature("expert_linear/f32/64x512,1024x512,8->64x1024"));
}

TEST(ExpertCosts, OfACatalogueGrowWithTheRowsInUseAndHardlyWithTheBuffer) {
  Machine machine = test::small_cluster(1e12);
  const auto costs = make_catalogue_cost_model(machine, test::plain_stack());
  const auto seconds = [&](OpKind kind, int64_t rows, int64_t routed) {
    return costs->op_seconds(product(kind, DType::bf16, rows, routed)).seconds;
  };
  for (const OpKind kind : kProducts) {
    EXPECT_GT(seconds(kind, 65536, 32768), 1.5 * seconds(kind, 65536, 16384)) << name_of(kind);
    EXPECT_LT(seconds(kind, 65536, 16384), 1.5 * seconds(kind, 32768, 16384)) << name_of(kind);
  }
}

/// Experts measured at 100 GFLOP/s, buffers at any cost.
Machine profiled_machine() {
  Machine machine;
  machine.name = "profiled";
  machine.cores = 4;
  ProfileTable table;
  table.ranks = 1, table.threads = 1;
  for (const OpKind kind : kProducts) {
    for (const int64_t routed : {256, 1024, 4096, 16384}) {
      const OpInstance op = product(kind, DType::f32, routed, routed);
      table.ops[signature(op)] = {flops_of(op) / 100e9, 0.02, 5};
    }
  }
  machine.tables.push_back(table);
  return machine;
}

TEST(ExpertCosts, OfAProfileAreThoseOfTheRowsInUseOnTheBusiestRank) {
  const auto costs = make_profiled_cost_model(profiled_machine(), 1, 1);
  for (const OpKind kind : kProducts) {
    const OpInstance all = product(kind, DType::f32, 4096, 4096), padded = product(kind, DType::f32, 8192, 4096);
    EXPECT_DOUBLE_EQ(costs->op_seconds(all).seconds, flops_of(all) / 100e9) << name_of(kind);
    EXPECT_NEAR(costs->op_seconds(padded).seconds, kExpertImbalance * flops_of(all) / 100e9,
                0.1 * flops_of(all) / 100e9)
        << name_of(kind);
  }
}

}  // namespace
}  // namespace foresail
