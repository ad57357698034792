#include "planner/budget/budget.h"

#include <gtest/gtest.h>

#include <cmath>

namespace foresail {
namespace {

constexpr double kHour = 3600;

struct Case {
  double checkpoint, restart, mtbf_hours, young, daly, exact, goodput;
};
// Worked by an independent Monte Carlo and by hand: blocking checkpoints under exponential failures.
constexpr Case kCases[] = {{40, 300, 7.9, 1508, 1482, 1482, 0.9379},
                           {40, 300, 1.8, 720, 694, 694, 0.8526},
                           {300, 600, 1.8, 1972, 1777, 1777, 0.6616},
                           {300, 600, 0.23, 705, 519, 521, 0.1798},
                           {5, 120, 2.75, 315, 311, 311, 0.9569}};

TEST(Budget, CheckpointIntervalsAndGoodputOfWorkedExamples) {
  for (const Case& c : kCases) {
    const double m = c.mtbf_hours * kHour;
    EXPECT_NEAR(young_interval_seconds(c.checkpoint, m), c.young, 0.6);
    EXPECT_NEAR(daly_interval_seconds(c.checkpoint, m), c.daly, 0.6);
    const double best = best_interval_seconds(c.checkpoint, m);
    EXPECT_NEAR(best, c.exact, 0.6);
    EXPECT_NEAR(goodput_at(best, c.checkpoint, c.restart, m), c.goodput, 6e-5);
  }
}

TEST(Budget, NoOtherIntervalIsBetterThanTheBest) {
  for (const Case& c : kCases) {
    const double m = c.mtbf_hours * kHour;
    const double best = best_interval_seconds(c.checkpoint, m);
    const double most = goodput_at(best, c.checkpoint, c.restart, m);
    for (const double factor : {0.2, 0.7, 0.95, 1.05, 1.5, 4.0}) {
      EXPECT_LT(goodput_at(best * factor, c.checkpoint, c.restart, m), most) << factor;
    }
  }
}

Machine priced_machine() {
  Machine machine;
  machine.failures_per_device_day = {0.01, "test"};
  machine.disk_write_bytes_per_second = {1e9, "test"};
  machine.disk_read_bytes_per_second = {2e9, "test"};
  machine.device.watts = {400, "test"};
  return machine;
}

BudgetInputs inputs() {
  BudgetInputs in;
  in.step_seconds = 2, in.step_seconds_low = 1.8, in.step_seconds_high = 2.3;
  in.steps = 100000, in.devices = 64, in.checkpoint_bytes = 20'000'000'000, in.dataset_bytes = 1'000'000;
  in.checkpoints_kept = 3, in.usd_per_device_hour = 2.5;
  return in;
}

TEST(Budget, TrainingTimeMoneyAndEnergyByHand) {
  const Budget budget = budget_of(inputs(), priced_machine());
  const double mtbf = 86400 / (0.01 * 64);
  const double checkpoint = 20, restart = 300 + 10;
  const double interval = best_interval_seconds(checkpoint, mtbf);
  const double goodput = goodput_at(interval, checkpoint, restart, mtbf);
  ASSERT_TRUE(budget.train_seconds && budget.usd && budget.energy_kwh && budget.expected_failures);
  EXPECT_DOUBLE_EQ(*budget.goodput, goodput);
  EXPECT_DOUBLE_EQ(*budget.train_seconds, 200000 / goodput);
  EXPECT_DOUBLE_EQ(*budget.device_hours, 200000 / goodput * 64 / 3600);
  EXPECT_DOUBLE_EQ(*budget.usd, *budget.device_hours * 2.5);
  EXPECT_NEAR(*budget.usd_low / *budget.usd, 0.9, 1e-12);
  EXPECT_NEAR(*budget.usd_high / *budget.usd, 1.15, 1e-12);
  EXPECT_DOUBLE_EQ(*budget.expected_failures, *budget.train_seconds / mtbf);
  EXPECT_DOUBLE_EQ(*budget.energy_kwh, *budget.device_hours * 0.4);
  EXPECT_EQ(*budget.storage_bytes, 1'000'000 + 3 * 20'000'000'000);
  EXPECT_DOUBLE_EQ(*budget.peak_watts, 64 * 400.0);
}

TEST(Budget, MoneyByCauseSumsToTheWhole) {
  const Budget budget = budget_of(inputs(), priced_machine());
  double sum = 0;
  for (const auto& [cause, usd] : budget.usd_by_cause) {
    EXPECT_GT(usd, 0) << cause;
    sum += usd;
  }
  EXPECT_NEAR(sum, *budget.usd, 1e-9 * *budget.usd);
  EXPECT_EQ(budget.usd_by_cause.size(), 3u);
}

TEST(Budget, LostWorkPerFailureIsAboutHalfAnInterval) {
  const Budget budget = budget_of(inputs(), priced_machine());
  const double span = *budget.checkpoint_interval_seconds + 20;
  EXPECT_LT(*budget.expected_lost_seconds_per_failure, span / 2);
  EXPECT_GT(*budget.expected_lost_seconds_per_failure, 0.48 * span);
}

TEST(Budget, WhatIsUnknownStaysEmpty) {
  BudgetInputs in = inputs();
  in.usd_per_device_hour = 0;
  Budget budget = budget_of(in, priced_machine());
  EXPECT_FALSE(budget.usd);
  EXPECT_TRUE(budget.usd_by_cause.empty());
  EXPECT_TRUE(budget.train_seconds);

  Machine reliable = priced_machine();
  reliable.failures_per_device_day = {};
  budget = budget_of(inputs(), reliable);
  EXPECT_FALSE(budget.goodput);
  EXPECT_FALSE(budget.expected_failures);
  EXPECT_DOUBLE_EQ(*budget.train_seconds, 200000);
  EXPECT_DOUBLE_EQ(budget.usd_by_cause.at("compute"), *budget.usd);

  in = inputs();
  in.steps = 0;
  budget = budget_of(in, priced_machine());
  EXPECT_FALSE(budget.train_seconds);
  EXPECT_FALSE(budget.usd);
  EXPECT_TRUE(budget.goodput);
}

TEST(Budget, CheckpointsHoldParametersAndMoments) {
  const ModelSpec model = load_model("gpt2");
  EXPECT_EQ(checkpoint_bytes_of(model, kFloat32Precision), 124439808LL * 12);
  EXPECT_EQ(checkpoint_bytes_of(model, kMixedFloat16Precision), 124439808LL * 14);
}

}  // namespace
}  // namespace foresail
