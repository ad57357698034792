// Whole models against PyTorch in float64: losses, every gradient, ten steps of training.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>
#include <set>

#include "tests/reference/fixture.h"
#include "tests/reference/model_run.h"

namespace foresail {
namespace {

using testing::Fixture;
using testing::load_fixture;
using testing::ModelRun;
using testing::RunSettings;
using testing::Tensors;

/// Largest deviations accepted, relative to what is compared. The reference device computes in double, but takes its
/// rotations from a float32 table, and the fixtures store gradients rounded to float32.
struct Tolerances {
  double loss, gradient, update;
};
Tolerances tolerances_of(const RunSettings& settings) {
  return settings.back_end == "cpu" ? Tolerances{1e-6, 1e-5, 1e-4} : Tolerances{1e-7, 1e-6, 1e-5};
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

/// The tensor that deviates most, relative to its norm (or to `floor`, if that is larger).
struct Deviation {
  std::string tensor;
  double error = 0;
};

Deviation worst_deviation(const Tensors& actual, const Tensors& expected, double floor) {
  Deviation worst;
  for (const auto& [name, values] : expected) {
    const double error = norm_of(difference(actual.at(name), values)) / std::max(norm_of(values), floor);
    if (!(error <= worst.error)) worst = {name, error};  // NaN is the worst of all
  }
  return worst;
}

std::vector<std::pair<std::string, size_t>> names_and_sizes(const Tensors& tensors) {
  std::vector<std::pair<std::string, size_t>> result;
  for (const auto& [name, values] : tensors) result.emplace_back(name, values.size());
  return result;
}

Tensors updates_of(const Tensors& after) {
  Tensors result;
  for (const auto& [name, values] : after) {
    std::vector<double> before(values.size());
    for (size_t i = 0; i < before.size(); ++i) {
      before[i] = testing::initial_value_of(name, static_cast<int64_t>(i));
    }
    result[name] = difference(values, before);
  }
  drop_key_bias(result);
  return result;
}

struct Case {
  std::string fixture;
  RunSettings settings;
};

std::string name_of_case(const Case& c) {
  std::string name = c.fixture + "_" + c.settings.back_end + "_micro_batch_" + std::to_string(c.settings.micro_batch);
  if (!c.settings.fused_kernels) name += "_single_ops";
  if (c.settings.unfused_attention) name += "_unfused_attention";
  if (c.settings.recompute == Recompute::full) name += "_recompute";
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << name_of_case(c); }

std::vector<Case> cases_of(const std::vector<std::string>& fixtures) {
  std::vector<Case> all;
  for (const std::string& fixture : fixtures) {
    for (const std::string back_end : {"reference", "cpu"}) {
      all.push_back({fixture, {.back_end = back_end}});
      all.push_back({fixture, {.back_end = back_end, .micro_batch = 1, .recompute = Recompute::full}});
      all.push_back({fixture, {.back_end = back_end, .fused_kernels = false}});
      all.push_back({fixture, {.back_end = back_end, .micro_batch = 1, .unfused_attention = true}});
    }
  }
  return all;
}

const std::vector<std::string> kFixtures{
    "gpt2",    "llama",      "llama3-scaled", "llama-linear",      "mistral-window",
    "qwen2",   "qwen2-yarn", "qwen3",         "deepseek-v3-dense", "deepseek-v2-yarn",
    "mixtral", "qwen3-moe",  "deepseek-v3"};

class FirstStep : public ::testing::TestWithParam<Case> {};

TEST_P(FirstStep, HasPyTorchsLossAndGradients) {
  const Fixture fixture = load_fixture(GetParam().fixture);
  const Tolerances tolerances = tolerances_of(GetParam().settings);
  EXPECT_EQ(parameter_count(fixture.model), fixture.parameters);
  ModelRun run(fixture, GetParam().settings);
  const StepMetrics metrics = run.step(1, fixture.batches.at(0));
  EXPECT_NEAR(metrics.loss, fixture.loss, tolerances.loss * fixture.loss);
  EXPECT_NEAR(metrics.auxiliary_loss, fixture.auxiliary_loss, tolerances.loss * fixture.auxiliary_loss);
  EXPECT_EQ(metrics.overflow, 0);
  EXPECT_NEAR(metrics.grad_norm, fixture.gradient_norm, tolerances.gradient * fixture.gradient_norm);
  const Tensors gradients = run.gradients();
  ASSERT_EQ(names_and_sizes(gradients), names_and_sizes(fixture.gradients));
  const Deviation worst = worst_deviation(gradients, fixture.gradients, 1e-3 * fixture.gradient_norm);
  EXPECT_LE(worst.error, tolerances.gradient) << worst.tensor;
  RecordProperty("worst_gradient", worst.tensor + " " + std::to_string(worst.error * 1e9) + "e-9");
}

INSTANTIATE_TEST_SUITE_P(Models, FirstStep, ::testing::ValuesIn(cases_of(kFixtures)),
                         [](const auto& info) { return name_of_case(info.param); });

class TenSteps : public ::testing::TestWithParam<Case> {};

TEST_P(TenSteps, FollowPyTorchsLossesNormsAndParameters) {
  const Fixture fixture = load_fixture(GetParam().fixture);
  ASSERT_TRUE(fixture.trajectory.has_value());
  const Tolerances tolerances = tolerances_of(GetParam().settings);
  ModelRun run(fixture, GetParam().settings);
  ASSERT_EQ(fixture.trajectory->losses.size(), 10u);
  for (size_t step = 0; step < 10; ++step) {
    const StepMetrics metrics =
        run.step(static_cast<int64_t>(step) + 1, fixture.batches.at(step % fixture.batches.size()));
    const double loss = fixture.trajectory->losses.at(step), norm = fixture.trajectory->gradient_norms.at(step);
    EXPECT_NEAR(metrics.loss, loss, 10 * tolerances.loss * loss) << "step " << step;
    EXPECT_NEAR(metrics.grad_norm, norm, 10 * tolerances.gradient * norm) << "step " << step;
    EXPECT_NEAR(metrics.clip_factor, std::min(1.0, fixture.trajectory->clip_norm / norm), 1e-4) << "step " << step;
  }
  const Deviation worst = worst_deviation(updates_of(run.parameters()), updates_of(fixture.trained), 0);
  EXPECT_LE(worst.error, tolerances.update) << worst.tensor;
  RecordProperty("worst_update", worst.tensor + " " + std::to_string(worst.error * 1e9) + "e-9");
}

INSTANTIATE_TEST_SUITE_P(Models, TenSteps,
                         ::testing::ValuesIn(cases_of({"gpt2", "llama", "deepseek-v3-dense", "mixtral"})),
                         [](const auto& info) { return name_of_case(info.param); });

TEST(Settings, CompileToProgramsThatDiffer) {
  for (const std::string& name : kFixtures) {
    const Fixture fixture = load_fixture(name);
    std::set<std::string> digests;
    std::vector<Case> all = cases_of({name});
    std::erase_if(all, [](const Case& c) { return c.settings.back_end == "cpu"; });
    for (const Case& c : all) digests.insert(program_digest(ModelRun(fixture, c.settings).program()));
    EXPECT_EQ(digests.size(), all.size()) << name;
  }
}

/// A model that differs from PyTorch's in one detail: the comparison must notice.
struct Fault {
  std::string name, fixture;
  std::function<void(ModelSpec&)> plant;
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

class PlantedFault : public ::testing::TestWithParam<Fault> {};

TEST_P(PlantedFault, IsNoticed) {
  Fixture fixture = load_fixture(GetParam().fixture);
  GetParam().plant(fixture.model);
  const RunSettings settings;
  ModelRun run(fixture, settings);
  run.step(1, fixture.batches.at(0));
  const Deviation worst = worst_deviation(run.gradients(), fixture.gradients, 1e-3 * fixture.gradient_norm);
  EXPECT_GT(worst.error, 3 * tolerances_of(settings).gradient);
}

std::vector<Fault> faults() {
  return {
      {"norm_epsilon_of_another_family", "llama", [](ModelSpec& m) { m.norm_epsilon = 1e-6; }},
      {"rotation_base_of_another_model", "llama", [](ModelSpec& m) { m.rope_theta = 500000; }},
      {"llama3_scaling_ignored", "llama3-scaled", [](ModelSpec& m) { m.rope_scaling = RopeScaling::none; }},
      {"llama3_scaling_taken_for_linear", "llama3-scaled", [](ModelSpec& m) { m.rope_scaling = RopeScaling::linear; }},
      {"llama3_blend_at_other_frequencies", "llama3-scaled", [](ModelSpec& m) { m.rope_high_frequency = 3; }},
      {"linear_scaling_ignored", "llama-linear", [](ModelSpec& m) { m.rope_scaling = RopeScaling::none; }},
      {"window_ignored", "mistral-window", [](ModelSpec& m) { m.sliding_window = 0; }},
      {"window_one_key_longer", "mistral-window", [](ModelSpec& m) { m.sliding_window = 6; }},
      {"yarn_scaling_ignored", "qwen2-yarn", [](ModelSpec& m) { m.rope_scaling = RopeScaling::none; }},
      {"yarn_taken_for_linear", "qwen2-yarn", [](ModelSpec& m) { m.rope_scaling = RopeScaling::linear; }},
      {"yarn_ramp_elsewhere", "qwen2-yarn", [](ModelSpec& m) { m.rope_beta_slow = 0.1; }},
      {"yarn_without_magnitude", "qwen2-yarn", [](ModelSpec& m) { m.rope_attention_factor = 1; }},
      {"latent_yarn_of_plain_sharpness", "deepseek-v2-yarn",
       [](ModelSpec& m) { m.rope_mscale = m.rope_mscale_all_dim = 0; }},
      {"latent_yarn_with_one_weight_for_both", "deepseek-v2-yarn",
       [](ModelSpec& m) { m.rope_mscale = m.rope_mscale_all_dim; }},
      {"rotation_base_of_shared_key", "deepseek-v3-dense", [](ModelSpec& m) { m.rope_theta = 500; }},
      {"gates_not_normalised", "mixtral", [](ModelSpec& m) { m.moe.normalise_gates = false; }},
      {"gates_normalised", "qwen3-moe", [](ModelSpec& m) { m.moe.normalise_gates = true; }},
      {"one_expert_less", "qwen3-moe", [](ModelSpec& m) { m.moe.experts_per_token = 2; }},
      {"balance_loss_ignored", "mixtral", [](ModelSpec& m) { m.moe.balance_coefficient = 0; }},
      {"z_loss_ignored", "qwen3-moe", [](ModelSpec& m) { m.moe.z_coefficient = 0; }},
      {"gates_not_scaled", "deepseek-v3", [](ModelSpec& m) { m.moe.gate_scale = 1; }},
      {"scores_by_softmax", "deepseek-v3", [](ModelSpec& m) { m.moe.scoring = RouterScoring::softmax; }},
      {"groups_ignored", "deepseek-v3", [](ModelSpec& m) { m.moe.groups = m.moe.groups_per_token = 1; }},
      {"groups_by_their_best_expert", "deepseek-v3", [](ModelSpec& m) { m.moe.group_score = GroupScore::best_expert; }},
      {"layer_norm_epsilon", "gpt2", [](ModelSpec& m) { m.norm_epsilon = 1e-6; }},
  };
}

INSTANTIATE_TEST_SUITE_P(Models, PlantedFault, ::testing::ValuesIn(faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foresail
