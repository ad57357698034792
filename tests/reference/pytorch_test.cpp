// Whole models against PyTorch in float64: losses, every gradient, ten steps of training.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/reference/fixture.h"
#include "tests/reference/model_run.h"

namespace foresail {
namespace {

using testing::Fixture;
using testing::load_fixture;
using testing::ModelRun;
using testing::RunSettings;
using testing::Tensors;

/// Largest deviations accepted, relative to the norm of what is compared. The reference device computes in double, but
/// takes its rotations from a float32 table, and the fixtures store gradients rounded to float32.
struct Tolerances {
  double loss, gradient, update;
};
Tolerances tolerances_of(const RunSettings& settings) {
  return settings.back_end == "cpu" ? Tolerances{2e-6, 1e-5, 1e-3} : Tolerances{1e-7, 1e-6, 1e-5};
}

double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = a[i] - b.at(i);
  return result;
}

/// GPT-2's key biases shift all scores of a query alike, so their gradient is zero in exact arithmetic and what AdamW
/// makes of its rounding is noise: the middle third of c_attn.bias takes no part.
void drop_key_bias(Tensors& tensors) {
  for (auto& [name, values] : tensors) {
    if (!name.ends_with("c_attn.bias")) continue;
    const auto third = static_cast<std::ptrdiff_t>(values.size() / 3);
    values.erase(values.begin() + third, values.begin() + 2 * third);
  }
}

/// Every tensor of `expected` within `tolerance` of its own norm (but no tensor below `floor` is judged by its own).
void expect_close(const Tensors& actual, const Tensors& expected, double tolerance, double floor) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    ASSERT_EQ(actual.at(name).size(), values.size()) << name;
    const double error = norm_of(difference(actual.at(name), values));
    EXPECT_LE(error, tolerance * std::max(norm_of(values), floor)) << name << ": norm " << norm_of(values);
  }
}

Tensors initial_like(const Tensors& shapes) {
  Tensors initial = shapes;
  for (auto& [name, values] : initial) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = testing::initial_value_of(name, static_cast<int64_t>(i));
  }
  return initial;
}

Tensors updates(const Tensors& after) {
  Tensors result = initial_like(after);
  for (auto& [name, values] : result) values = difference(after.at(name), values);
  drop_key_bias(result);
  return result;
}

struct Case {
  std::string fixture;
  RunSettings settings;
};

std::string name_of_case(const Case& c) {
  std::string name = c.fixture + "_" + c.settings.back_end + "_mb" + std::to_string(c.settings.micro_batch);
  if (!c.settings.fused_kernels) name += "_single_ops";
  if (c.settings.unfused_attention) name += "_unfused_attention";
  if (c.settings.recompute == Recompute::full) name += "_recompute";
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class AgainstPyTorch : public ::testing::TestWithParam<Case> {};

TEST_P(AgainstPyTorch, LossAndEveryGradient) {
  const Fixture fixture = load_fixture(GetParam().fixture);
  const Tolerances tolerances = tolerances_of(GetParam().settings);
  EXPECT_EQ(parameter_count(fixture.model), fixture.parameters);
  ModelRun run(fixture, GetParam().settings);
  const StepMetrics metrics = run.step(1, fixture.batches.at(0));
  EXPECT_NEAR(metrics.loss, fixture.loss, tolerances.loss * fixture.loss);
  EXPECT_NEAR(metrics.grad_norm, fixture.gradient_norm, tolerances.gradient * fixture.gradient_norm);
  expect_close(run.gradients(), fixture.gradients, tolerances.gradient, 1e-3 * fixture.gradient_norm);
}

TEST_P(AgainstPyTorch, TenStepsOfTraining) {
  const Fixture fixture = load_fixture(GetParam().fixture);
  if (!fixture.trajectory) GTEST_SKIP() << "no trajectory for this model";
  const Tolerances tolerances = tolerances_of(GetParam().settings);
  ModelRun run(fixture, GetParam().settings);
  const auto steps = static_cast<int64_t>(fixture.trajectory->losses.size());
  ASSERT_EQ(steps, 10);
  for (int64_t step = 0; step < steps; ++step) {
    const StepMetrics metrics =
        run.step(step + 1, fixture.batches.at(static_cast<size_t>(step) % fixture.batches.size()));
    const double loss = fixture.trajectory->losses.at(static_cast<size_t>(step));
    const double norm = fixture.trajectory->gradient_norms.at(static_cast<size_t>(step));
    EXPECT_NEAR(metrics.loss, loss, 10 * tolerances.loss * loss) << "step " << step;
    EXPECT_NEAR(metrics.grad_norm, norm, 10 * tolerances.gradient * norm) << "step " << step;
    EXPECT_NEAR(metrics.clip_factor, std::min(1.0, fixture.trajectory->clip_norm / norm), 1e-4) << "step " << step;
  }
  expect_close(updates(run.parameters()), updates(fixture.trained), tolerances.update, 0);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string fixture :
       {"gpt2", "llama", "llama3-scaled", "llama-linear", "mistral-window", "qwen2", "qwen3"}) {
    for (const std::string back_end : {"reference", "cpu"}) {
      all.push_back({fixture, {.back_end = back_end}});
      all.push_back({fixture, {.back_end = back_end, .micro_batch = 1, .recompute = Recompute::full}});
      all.push_back({fixture, {.back_end = back_end, .fused_kernels = false}});
    }
    all.push_back({fixture, {.micro_batch = 1, .unfused_attention = true}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstPyTorch, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return name_of_case(info.param); });

}  // namespace
}  // namespace foresail
