// Clipping and AdamW against their formulas written out for one number, and who counts in the norm.
#include <cmath>
#include <limits>

#include "core/error.h"

#include "tests/kernels/reference_evaluate.h"

namespace foresail::kernel_tests {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

double counted_norm(CountRule rule, int32_t tensor_rank, int32_t replica_rank, int32_t kv_copies = 1) {
  OpAttributes a;
  a.count_rule = rule;
  Place place;
  place.context.tensor_rank = tensor_rank;
  place.context.tensor_size = 8;
  place.context.replica_rank = replica_rank;
  place.context.kv_copies = kv_copies;
  return evaluate(OpKind::squared_norm, a, {{{3}, {1, -2, 4}}}, {constant_tensor({1}, 100)}, place)[0][0] - 100;
}

TEST(ReferenceOptimizer, NormCountsShardsOnEveryTensorRankAndCopiesOnTheFirst) {
  EXPECT_EQ(counted_norm(CountRule::every_tensor_rank, 0, 0), 21);
  EXPECT_EQ(counted_norm(CountRule::every_tensor_rank, 1, 0), 21);
  EXPECT_EQ(counted_norm(CountRule::tensor_rank_zero, 0, 0), 21);
  EXPECT_EQ(counted_norm(CountRule::tensor_rank_zero, 1, 0), 0);
  EXPECT_EQ(counted_norm(CountRule::nobody, 0, 0), 0);
}

TEST(ReferenceOptimizer, NormCountsTheFirstOfTheRanksThatHoldAKeyValueHead) {
  for (const int32_t rank : {0, 1, 2, 3, 4, 7}) {
    EXPECT_EQ(counted_norm(CountRule::first_copy, rank, 0, 2), rank % 2 == 0 ? 21 : 0) << rank;
    EXPECT_EQ(counted_norm(CountRule::first_copy, rank, 0, 1), 21) << rank;
  }
  EXPECT_EQ(counted_norm(CountRule::first_copy, 0, 1, 2), 0);
}

TEST(ReferenceOptimizer, NormCountsReplicaZeroAlone) {
  EXPECT_EQ(counted_norm(CountRule::every_tensor_rank, 0, 1), 0);
  EXPECT_EQ(counted_norm(CountRule::tensor_rank_zero, 0, 1), 0);
}

TEST(ReferenceOptimizer, NormOfExpertsCountsTheirOwnReplicaZero) {
  OpAttributes a;
  a.count_rule = CountRule::every_expert_rank;
  const auto counted = [&](int32_t replica, int32_t expert_replica) {
    Place place;
    place.context.tensor_rank = 1;
    place.context.replica_rank = replica;
    place.context.expert_replica_rank = expert_replica;
    return evaluate(OpKind::squared_norm, a, {{{3}, {1, -2, 4}}}, {constant_tensor({1}, 0)}, place)[0][0];
  };
  EXPECT_EQ(counted(1, 0), 21);
  EXPECT_EQ(counted(0, 1), 0);
}

std::vector<double> clipped(double squared_norm, double bound, double overflow = 0) {
  Place place;
  place.step.clip_norm = bound;
  return evaluate(OpKind::clip_scale, {}, {{{6}, {7, squared_norm, 3, overflow, -1, -1}}}, {constant_tensor({6}, 0)},
                  place)[0];
}

TEST(ReferenceOptimizer, ClipScaleBringsTheNormToTheBound) {
  EXPECT_EQ(clipped(25, 2), (std::vector<double>{7, 25, 3, 0, 5, 0.4}));
  EXPECT_EQ(clipped(1, 2), (std::vector<double>{7, 1, 3, 0, 1, 1}));
  EXPECT_EQ(clipped(25, 0), (std::vector<double>{7, 25, 3, 0, 5, 1})) << "no bound: no clipping";
  EXPECT_EQ(clipped(0, 2), (std::vector<double>{7, 0, 3, 0, 0, 1}));
}

TEST(ReferenceOptimizer, ClipScaleIsZeroForANormThatIsNotFinite) {
  for (const double bound : {0.0, 1.0}) {
    for (const double squared_norm : {kNaN, kInfinity}) {
      EXPECT_EQ(clipped(squared_norm, bound)[5], 0);
      EXPECT_FALSE(std::isfinite(clipped(squared_norm, bound)[4]));
    }
  }
}

TEST(ReferenceOptimizer, ClipScaleIsZeroWhereRowsOverflowed) {
  EXPECT_EQ(clipped(25, 2, 1), (std::vector<double>{7, 25, 3, 1, 5, 0}));
  EXPECT_EQ(clipped(25, 0, 12), (std::vector<double>{7, 25, 3, 12, 5, 0}));
}

Place adam_place() {
  Place place;
  place.step.step = 4;
  place.step.learning_rate = 0.02;
  place.step.beta1 = 0.8;
  place.step.beta2 = 0.9;
  place.step.beta1_power = 0.4096;
  place.step.beta2_power = 0.6561;
  place.step.epsilon = 1e-3;
  place.step.weight_decay = 0.3;
  return place;
}

struct State {
  double p, m, v;
};

/// One step of AdamW in scalar form, for the constants of adam_place().
State scalar_adamw(State state, double gradient, bool decay) {
  const double m = 0.8 * state.m + 0.2 * gradient;
  const double v = 0.9 * state.v + 0.1 * gradient * gradient;
  const double direction = m / (1 - std::pow(0.8, 4)) / (std::sqrt(v / (1 - std::pow(0.9, 4))) + 1e-3);
  return {state.p - 0.02 * direction - (decay ? 0.02 * 0.3 * state.p : 0), m, v};
}

TEST(ReferenceOptimizer, AdamwFollowsItsScalarForm) {
  const Tensor g = random_tensor({50}, 1), p = random_tensor({50}, 2), m = random_tensor({50}, 3);
  Tensor v = random_tensor({50}, 4);
  for (double& value : v.values) value *= value;
  for (const bool decay : {false, true}) {
    OpAttributes a;
    a.decay = decay;
    const auto after = evaluate(OpKind::adamw, a, {g, {{6}, {0, 9, 0, 0, 3, 0.5}}}, {p, m, v}, adam_place());
    for (size_t i = 0; i < 50; ++i) {
      const State want = scalar_adamw({p.values[i], m.values[i], v.values[i]}, 0.5 * g.values[i], decay);
      EXPECT_NEAR(after[0][i], want.p, 1e-15);
      EXPECT_NEAR(after[1][i], want.m, 1e-15);
      EXPECT_NEAR(after[2][i], want.v, 1e-15);
    }
  }
}

/// 0.1 rounded to single precision is what both read, and nothing is rounded after that.
TEST(ReferenceOptimizer, GradientsInSingleAreReadAsTheyAre) {
  const double tenth = 0.1f;
  const Tensor single{{2}, {tenth, -3}, DType::f32}, wide{{2}, {tenth, -3}}, sum = constant_tensor({1}, 0);
  const Tensor metrics{{6}, {0, 9, 0, 0, 3, 0.5}}, state{{2}, {0.7, 0.3}};
  EXPECT_EQ(evaluate(OpKind::squared_norm, {}, {single}, {sum}), evaluate(OpKind::squared_norm, {}, {wide}, {sum}));
  EXPECT_EQ(evaluate(OpKind::adamw, {}, {single, metrics}, {state, state, state}, adam_place()),
            evaluate(OpKind::adamw, {}, {wide, metrics}, {state, state, state}, adam_place()));
}

TEST(ReferenceOptimizer, SumsAreRoundedOnceToTheTypeOfTheFirst) {
  const Tensor single{{1}, {1}, DType::f32}, wide{{1}, {1}}, small{{1}, {0x1p-30}};
  const auto sum = [&](const Tensor& a, const Tensor& b, DType type) {
    return evaluate(OpKind::add, {}, {a, b}, {{{1}, {0}, type}})[0][0];
  };
  EXPECT_EQ(sum(single, small, DType::f32), 1);
  EXPECT_EQ(sum(wide, small, DType::f64), 1 + 0x1p-30);
  EXPECT_EQ(sum(wide, single, DType::f64), 2);
  EXPECT_THROW(sum(single, wide, DType::f64), Error);
}

TEST(ReferenceOptimizer, FirstStepFromRestMovesByTheLearningRate) {
  Place place = adam_place();
  place.step.step = 1;
  place.step.beta1_power = 0.8;
  place.step.beta2_power = 0.9;
  place.step.epsilon = 0;
  const Tensor zero = constant_tensor({2}, 0);
  const auto after =
      evaluate(OpKind::adamw, {}, {{{2}, {5, -0.01}}, {{6}, {0, 1, 0, 0, 1, 1}}}, {zero, zero, zero}, place);
  EXPECT_TRUE(all_near(after[0], {-0.02, 0.02}, 1e-15));
}

TEST(ReferenceOptimizer, AdamwUpdatesTheMasterAndCopiesItToTheParameter) {
  OpAttributes a;
  a.decay = true;
  const Tensor master{{1}, {0.7}}, stale{{1}, {123}}, m{{1}, {0.2}}, v{{1}, {0.3}};
  const auto after =
      evaluate(OpKind::adamw, a, {{{1}, {0.9}}, {{6}, {0, 1, 0, 0, 1, 1}}}, {stale, m, v, master}, adam_place());
  const State want = scalar_adamw({0.7, 0.2, 0.3}, 0.9, true);
  EXPECT_NEAR(after[3][0], want.p, 1e-15);
  EXPECT_EQ(after[0][0], after[3][0]);
}

TEST(ReferenceOptimizer, AdamwSkipsTheStepIfTheNormIsNotFinite) {
  const Tensor p{{2}, {1, 2}}, m{{2}, {3, 4}}, v{{2}, {5, 6}};
  for (const double norm : {kNaN, kInfinity}) {
    const auto after =
        evaluate(OpKind::adamw, {}, {{{2}, {kNaN, 1}}, {{6}, {0, norm, 0, 0, norm, 0}}}, {p, m, v}, adam_place());
    EXPECT_EQ(after[0], p.values);
    EXPECT_EQ(after[1], m.values);
    EXPECT_EQ(after[2], v.values);
  }
}

TEST(ReferenceOptimizer, AdamwSkipsTheStepIfRowsOverflowed) {
  const Tensor p{{2}, {1, 2}}, m{{2}, {3, 4}}, v{{2}, {5, 6}};
  const auto after = evaluate(OpKind::adamw, {}, {{{2}, {1, 1}}, {{6}, {0, 1, 0, 4, 1, 0}}}, {p, m, v}, adam_place());
  EXPECT_EQ(after[0], p.values);
  EXPECT_EQ(after[1], m.values);
  EXPECT_EQ(after[2], v.values);
}

TEST(ReferenceOptimizer, AdamwDoesNotSkipAStepWhoseFactorUnderflowed) {
  const auto after = evaluate(OpKind::adamw, {}, {{{1}, {5}}, {{6}, {0, 1, 0, 0, 1, 0}}},
                              {{{1}, {1}}, {{1}, {3}}, {{1}, {5}}}, adam_place());
  EXPECT_NEAR(after[1][0], 0.8 * 3, 1e-15);
  EXPECT_NEAR(after[2][0], 0.9 * 5, 1e-15);
}

TEST(ReferenceOptimizer, FillZeroClears) {
  EXPECT_EQ(evaluate(OpKind::fill_zero, {}, {}, {constant_tensor({3, 2}, 5)})[0], std::vector<double>(6, 0));
}

}  // namespace
}  // namespace foresail::kernel_tests
