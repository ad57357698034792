#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "core/error.h"
#include "planner/simulator/cost_model.h"
#include "planner/simulator/op_shape.h"

namespace foresail {
namespace {

TensorType f32(std::vector<int64_t> shape) { return {DType::f32, std::move(shape)}; }

OpInstance linear(int64_t m, int64_t n, int64_t k) {
  return {OpKind::linear, {}, {f32({m, k}), f32({n, k})}, {f32({m, n})}};
}
OpInstance add(int64_t rows) { return {OpKind::add, {}, {f32({rows, 256}), f32({rows, 256})}, {f32({rows, 256})}}; }

/// A machine whose true costs are known: products approach 100 GFLOP/s as every dimension grows, element-wise ops
/// stream 8 GB/s after 2 us, all-reduces are 10 us + bytes at 2 GB/s.
double true_linear(double m, double n, double k) {
  const double rate = 100e9 / ((1 + 20 / m) * (1 + 60 / n) * (1 + 40 / k));
  return 2 * m * n * k / rate;
}
double true_add(double rows) { return 2e-6 + 3 * 4 * 256 * rows / 8e9; }
double true_all_reduce(double bytes) { return 10e-6 + bytes / 2e9; }

Machine synthetic() {
  Machine machine;
  machine.name = "synthetic";
  machine.kind = "profiled";
  machine.cores = 4;
  machine.devices = machine.devices_per_node = 2;
  ProfileTable table;
  table.ranks = 2, table.threads = 2;
  for (const int64_t m : {32, 128, 512, 2048}) {
    for (const int64_t n : {64, 256, 1024}) {
      for (const int64_t k : {64, 256, 1024}) {
        table.ops[signature(linear(m, n, k))] = {true_linear(m, n, k), 0.02, 5};
      }
    }
  }
  for (const int64_t rows : {16, 64, 256, 1024, 4096}) table.ops[signature(add(rows))] = {true_add(rows), 0.03, 5};
  for (const int64_t bytes : {1024, 16384, 262144, 4194304}) {
    table.collectives[fmt::format("all_reduce/2/{}", bytes)] = {true_all_reduce(static_cast<double>(bytes)), 0.05, 5};
    for (const char* kind : {"send", "ring_shift"}) {
      table.collectives[fmt::format("{}/2/{}", kind, bytes)] = {true_all_reduce(static_cast<double>(bytes)) / 2, 0.05,
                                                                5};
    }
  }
  machine.tables.push_back(table);
  return machine;
}

TEST(ProfiledCosts, MeasuredShapesAreReturnedAsMeasured) {
  const Machine machine = synthetic();
  const auto costs = make_profiled_cost_model(machine, 2, 2);
  const Cost cost = costs->op_seconds(linear(128, 256, 64));
  EXPECT_DOUBLE_EQ(cost.seconds, true_linear(128, 256, 64));
  EXPECT_DOUBLE_EQ(cost.spread, median_spread({1, 0.02, 5}));
  EXPECT_TRUE(costs->calibrated());
  EXPECT_EQ(costs->note(), "");
}

TEST(ProfiledCosts, MoreSamplesMakeAMedianSurer) {
  EXPECT_DOUBLE_EQ(median_spread({1, 0.2, 1}), 0.2);
  EXPECT_NEAR(median_spread({1, 0.2, 100}), 0.2 * 1.2533 / 10, 1e-5);
  EXPECT_LT(median_spread({1, 0.2, 20}), median_spread({1, 0.2, 5}));
}

TEST(ProfiledCosts, InSequenceMeasurementsComeFirst) {
  Machine machine = synthetic();
  machine.tables[0].ops_in_sequence[signature(linear(128, 256, 64))] = {1.5 * true_linear(128, 256, 64), 0.04, 3};
  const auto costs = make_profiled_cost_model(machine, 2, 2);
  EXPECT_DOUBLE_EQ(costs->op_seconds(linear(128, 256, 64)).seconds, 1.5 * true_linear(128, 256, 64));
  // What products cost more in sequence is applied to those measured only alone.
  EXPECT_NEAR(costs->op_seconds(linear(512, 256, 64)).seconds, 1.5 * true_linear(512, 256, 64), 1e-12);
  EXPECT_DOUBLE_EQ(costs->op_seconds(add(64)).seconds, true_add(64));
}

TEST(ProfiledCosts, ShapesBetweenMeasuredOnesAreWithinTenPercent) {
  const auto costs = make_profiled_cost_model(synthetic(), 2, 2);
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{256, 512, 512}, {100, 300, 200}, {1000, 96, 700}, {64, 1000, 128}}) {
    const Cost cost = costs->op_seconds(linear(m, n, k));
    EXPECT_NEAR(cost.seconds / true_linear(m, n, k), 1, 0.10) << m << "x" << n << "x" << k;
    EXPECT_GT(cost.spread, median_spread({1, 0.02, 5}));
  }
  for (const int64_t rows : {24, 100, 700, 3000}) {
    EXPECT_NEAR(costs->op_seconds(add(rows)).seconds / true_add(rows), 1, 0.10) << rows;
  }
}

TEST(ProfiledCosts, ExtrapolationFollowsTheTrendAndWidensTheInterval) {
  const auto costs = make_profiled_cost_model(synthetic(), 2, 2);
  for (const int64_t rows : {2, 16384, 65536}) {
    const Cost cost = costs->op_seconds(add(rows));
    EXPECT_NEAR(cost.seconds / true_add(rows), 1, 0.10) << rows;
    EXPECT_GT(cost.spread, 0.2) << rows;
  }
  const Cost far = costs->op_seconds(linear(8192, 4096, 4096)), near = costs->op_seconds(linear(1500, 900, 900));
  EXPECT_NEAR(far.seconds / true_linear(8192, 4096, 4096), 1, 0.15);
  EXPECT_GT(far.spread, near.spread + 0.2);
}

TEST(ProfiledCosts, CollectivesAreReadBetweenSizesAndExtrapolatedBeyond) {
  const auto costs = make_profiled_cost_model(synthetic(), 2, 2);
  const GroupSpan two{2, 2, 1};
  for (const int64_t bytes : {1024, 262144}) {
    EXPECT_DOUBLE_EQ(costs->collective_seconds(InstructionKind::all_reduce, bytes, two).seconds,
                     true_all_reduce(bytes));
  }
  for (const int64_t bytes : {60000, 1000000, 16 << 20}) {
    const Cost cost = costs->collective_seconds(InstructionKind::all_reduce, bytes, two);
    EXPECT_NEAR(cost.seconds / true_all_reduce(static_cast<double>(bytes)), 1, 0.25) << bytes;
  }
  const Cost beyond = costs->collective_seconds(InstructionKind::all_reduce, 64 << 20, two);
  EXPECT_NEAR(beyond.seconds / true_all_reduce(64 << 20), 1, 0.02);
  EXPECT_GT(beyond.spread, 0.3);
  EXPECT_EQ(costs->collective_seconds(InstructionKind::all_reduce, 64, {1, 1, 1}).seconds, 0);
  EXPECT_DOUBLE_EQ(costs->message_seconds(16384, false).seconds, true_all_reduce(16384) / 2);
}

TEST(ProfiledCosts, AKindOfCollectiveThatWasNotMeasuredIsReadFromItsLikeAndSaidSo) {
  Machine machine = synthetic();
  std::erase_if(machine.tables[0].collectives, [](const auto& entry) { return entry.first.starts_with("ring_shift"); });
  for (const int64_t bytes : {1024, 1 << 20}) {
    machine.tables[0].collectives[fmt::format("all_gather/2/{}", bytes)] = {1e-9 * static_cast<double>(bytes), 0.05, 5};
  }
  const GroupSpan two{2, 2, 1};
  const auto derived = make_profiled_cost_model(machine, 2, 2);
  for (const InstructionKind kind : {InstructionKind::reduce_scatter, InstructionKind::all_to_all}) {
    const Cost like = derived->collective_seconds(InstructionKind::all_gather, 5000, two);
    const Cost cost = derived->collective_seconds(kind, 5000, two);
    EXPECT_EQ(cost.seconds, like.seconds);
    EXPECT_GT(cost.spread, like.spread + 0.2);
  }
  EXPECT_EQ(derived->collective_seconds(InstructionKind::ring_shift, 5000, {4, 4, 1}).seconds,
            derived->message_seconds(5000, false).seconds);
  EXPECT_NE(derived->note().find("all_to_all"), std::string::npos) << derived->note();
  EXPECT_EQ(make_profiled_cost_model(machine, 1, 4)->note().find("all_to_all"), std::string::npos);

  for (const char* kind : {"reduce_scatter", "all_to_all", "ring_shift"}) {
    machine.tables[0].collectives[fmt::format("{}/2/5000", kind)] = {0.5, 0, 5};
  }
  const auto measured = make_profiled_cost_model(machine, 2, 2);
  EXPECT_EQ(measured->note(), "");
  EXPECT_EQ(measured->collective_seconds(InstructionKind::all_to_all, 5000, two).seconds, 0.5);
  // A shift goes to one neighbour however many ranks there are.
  EXPECT_EQ(measured->collective_seconds(InstructionKind::ring_shift, 5000, {8, 8, 1}).seconds, 0.5);
}

TEST(ProfiledCosts, WhatMovesElementsIsPricedByTheCopyBandwidthAndSaidSo) {
  Machine machine = synthetic();
  machine.tables[0].copy_bytes_per_second = 4e9;
  const auto costs = make_profiled_cost_model(machine, 2, 2);
  const TensorType wide{DType::f64, {1024, 1024}}, narrow{DType::f32, {1024, 1024}};
  const Cost copy = costs->op_seconds({OpKind::copy, {}, {narrow}, {narrow}});
  const Cost cast = costs->op_seconds({OpKind::cast, {}, {wide}, {narrow}});
  const double fixed = true_add(16);  // the quickest that was measured
  EXPECT_NEAR(copy.seconds, fixed + 2 * 4 * 1024 * 1024 / 4e9, 1e-12);
  EXPECT_NEAR(cast.seconds, fixed + 12 * 1024 * 1024 / 4e9, 1e-12);
  EXPECT_GE(copy.spread, 0.3);
  EXPECT_NE(costs->note().find("cast/f32, copy/f32 not measured, taken from the copy bandwidth"), std::string::npos)
      << costs->note();
  // Measured ones are not overruled, and arithmetic is not guessed.
  EXPECT_DOUBLE_EQ(costs->op_seconds(add(64)).seconds, true_add(64));
  EXPECT_THROW(costs->op_seconds({OpKind::gelu, {}, {narrow}, {narrow}}), Error);
  EXPECT_THROW(make_profiled_cost_model(synthetic(), 2, 2)->op_seconds({OpKind::copy, {}, {narrow}, {narrow}}), Error)
      << "no bandwidth was measured";
}

TEST(ProfiledCosts, GradientsOfAnotherTypeCostTheBytesThatTheyAddAndAreSaidSo) {
  Machine machine = synthetic();
  const TensorType single = f32({1 << 20}), wide{DType::f64, {1 << 20}}, sum{DType::f64, {1}}, metrics{DType::f64, {6}};
  const auto norm = [&](const TensorType& g) { return OpInstance{OpKind::squared_norm, {}, {g}, {sum}}; };
  const auto update = [&](const TensorType& g) {
    return OpInstance{OpKind::adamw, {}, {g, metrics}, {single, single, single}};
  };
  machine.tables[0].ops[signature(norm(single))] = {1e-3, 0.02, 5};
  machine.tables[0].ops[signature(update(single))] = {7e-3, 0.02, 5};
  const auto costs = make_profiled_cost_model(machine, 2, 2);
  EXPECT_NEAR(costs->op_seconds(norm(wide)).seconds, 2e-3, 1e-7);
  EXPECT_NEAR(costs->op_seconds(update(wide)).seconds, 8e-3, 1e-7) << "read g; read and write p, m, v";
  EXPECT_NE(costs->note().find("adamw/f32 of gradients in f64"), std::string::npos) << costs->note();
  EXPECT_DOUBLE_EQ(costs->op_seconds(norm(single)).seconds, 1e-3);

  machine.tables[0].ops[signature(norm(wide))] = {3e-3, 0.02, 5};
  const auto measured = make_profiled_cost_model(machine, 2, 2);
  EXPECT_DOUBLE_EQ(measured->op_seconds(norm(wide)).seconds, 3e-3);
  EXPECT_DOUBLE_EQ(measured->op_seconds(norm(single)).seconds, 1e-3);
}

TEST(ProfiledCosts, WhatTheNearestTableLacksComesFromAnotherAndIsSaidSo) {
  Machine machine = synthetic();  // 2 ranks of 2 threads
  ProfileTable& four = machine.tables.emplace_back(machine.tables[0]);
  four.ranks = 4, four.threads = 1;
  std::erase_if(four.collectives, [](const auto& entry) { return entry.first.starts_with("send"); });
  std::erase_if(four.ops, [](const auto& entry) { return entry.first.starts_with("add"); });
  const auto costs = make_profiled_cost_model(machine, 4, 1), other = make_profiled_cost_model(machine, 2, 2);
  EXPECT_TRUE(costs->calibrated());
  EXPECT_EQ(costs->note(), "");
  const Cost message = costs->message_seconds(16384, false), sum = costs->op_seconds(add(64));
  EXPECT_DOUBLE_EQ(message.seconds, other->message_seconds(16384, false).seconds);
  EXPECT_GT(message.spread, other->message_seconds(16384, false).spread + 0.1);
  EXPECT_DOUBLE_EQ(sum.seconds, true_add(64));
  EXPECT_GT(sum.spread, other->op_seconds(add(64)).spread + 0.1);
  EXPECT_NE(costs->note().find("add/f32, send not measured, taken from 2 ranks of 2 threads"), std::string::npos)
      << costs->note();
  EXPECT_EQ(other->note(), "");
}

TEST(ProfiledCosts, ASizeFarBeyondAGroupsMeasurementsIsReadFromAGroupThatReachesIt) {
  Machine machine = synthetic();
  auto& collectives = machine.tables[0].collectives;
  collectives["all_gather/2/768"] = {1e-3, 0.05, 5};  // a stray wait, which must not become a bandwidth
  for (const int64_t bytes : {64, 1 << 20}) {
    collectives[fmt::format("all_gather/4/{}", bytes)] = {1e-5 + 1e-9 * static_cast<double>(bytes), 0.05, 5};
  }
  const auto costs = make_profiled_cost_model(machine, 2, 2);
  const Cost far = costs->collective_seconds(InstructionKind::all_gather, 1 << 20, {2, 2, 1});
  EXPECT_LT(far.seconds, 2e-3);
  EXPECT_GT(far.spread, median_spread({1, 0.05, 5}) + 0.1);
  EXPECT_DOUBLE_EQ(costs->collective_seconds(InstructionKind::all_gather, 768, {2, 2, 1}).seconds, 1e-3);
}

TEST(ProfiledCosts, LargerGroupsThanMeasuredCostMoreAndAreLessSure) {
  const auto costs = make_profiled_cost_model(synthetic(), 2, 2);
  const Cost two = costs->collective_seconds(InstructionKind::all_reduce, 4194304, {2, 2, 1});
  const Cost eight = costs->collective_seconds(InstructionKind::all_reduce, 4194304, {8, 8, 1});
  // A ring of 8 moves 7/8 of the bytes where one of 2 moves 1/2.
  EXPECT_NEAR(eight.seconds / two.seconds, 1.75, 0.05);
  EXPECT_GT(eight.spread, two.spread + 0.25);
}

TEST(ProfiledCosts, AnotherRankCountTakesTheNearestTableAndSaysSo) {
  const auto costs = make_profiled_cost_model(synthetic(), 3, 1);
  EXPECT_FALSE(costs->calibrated());
  EXPECT_NE(costs->note().find("3 ranks of 1 threads"), std::string::npos) << costs->note();
  EXPECT_GT(costs->common_spread(), make_profiled_cost_model(synthetic(), 2, 2)->common_spread());
}

TEST(ProfiledCosts, MoreRanksThanCoresShareThem) {
  const auto fitting = make_profiled_cost_model(synthetic(), 2, 2),
             crowded = make_profiled_cost_model(synthetic(), 4, 2);
  EXPECT_NEAR(crowded->op_seconds(add(64)).seconds / fitting->op_seconds(add(64)).seconds, 2, 1e-9);
}

TEST(ProfiledCosts, AKindThatWasNeverMeasuredIsRefusedWithTheMend) {
  const auto costs = make_profiled_cost_model(synthetic(), 2, 2);
  const OpInstance gelu{OpKind::gelu, {}, {f32({8, 8})}, {f32({8, 8})}};
  try {
    costs->op_seconds(gelu);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_NE(std::string(error.what()).find("gelu/f32/8x8->8x8"), std::string::npos) << error.what();
    EXPECT_NE(error.mend().find("foresail profile --for"), std::string::npos) << error.mend();
  }
  EXPECT_THROW(costs->collective_seconds(InstructionKind::all_gather, 64, {2, 2, 1}), Error);
  Machine empty = synthetic();
  empty.tables.clear();
  EXPECT_THROW(make_profiled_cost_model(empty, 2, 2), Error);
  Machine damaged = synthetic();
  damaged.tables[0].collectives["all_reduce/two/64"] = {1e-6, 0, 1};
  EXPECT_THROW(make_profiled_cost_model(damaged, 2, 2), Error);
}

TEST(ProfiledCosts, CachedAnswersAreTheSame) {
  const auto plain = make_profiled_cost_model(synthetic(), 2, 2);
  const auto cached = make_caching_cost_model(*plain);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cached->op_seconds(linear(100, 300, 200)).seconds, plain->op_seconds(linear(100, 300, 200)).seconds);
    EXPECT_EQ(cached->collective_seconds(InstructionKind::all_reduce, 5000, {2, 2, 1}).seconds,
              plain->collective_seconds(InstructionKind::all_reduce, 5000, {2, 2, 1}).seconds);
  }
}

TEST(OpShape, SignaturesOfProductsAndAttentionReadBack) {
  const auto product = parse_signature("linear_backward_weight/f32/512x64,512x128->64x128");
  ASSERT_TRUE(product);
  EXPECT_DOUBLE_EQ(product->work, 2.0 * 64 * 128 * 512);
  EXPECT_EQ(product->position, (std::vector<double>{6, 7, 9}));
  OpAttributes a;
  a.sequence_length = 64, a.heads = 4, a.kv_heads = 2, a.head_dim = 16;
  const OpInstance attention{OpKind::attention, a, {f32({128, 128})}, {f32({128, 64}), f32({2, 4, 64})}};
  const auto shape = parse_signature(signature(attention));
  ASSERT_TRUE(shape) << signature(attention);
  EXPECT_DOUBLE_EQ(shape->work, 8.0 * 64 * 64 * 16);
  EXPECT_EQ(shape->position, (std::vector<double>{6, 4, 3}));
}

TEST(OpShape, DamagedSignaturesAreNoShapes) {
  for (const char* text :
       {"", "linear", "linear/f32/8x8", "nonsense/f32/8x8->8x8", "linear/f32/8x-8,8x8->8x8", "linear/f32/8x8->8x8",
        "add/f32/8x8,8x8->8x8/q", "attention/f32/8x8->8x8/a1g1", "linear/f32/0x8,8x8->0x8"}) {
    EXPECT_FALSE(parse_signature(text)) << text;
  }
}

}  // namespace
}  // namespace foresail
