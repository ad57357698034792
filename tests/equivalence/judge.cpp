#include "tests/equivalence/judge.h"

#include <fmt/format.h>

#include <cmath>

namespace foresail::testing {
namespace {

/// Ten steps in which a few of some thousand choices differ move weights apart by up to 4 % (measured).
constexpr double kUpdateOfRoutedTokens = 0.1;

/// Rows whose gradient vanishes in exact arithmetic: without rotation the key bias shifts all scores of a query alike.
struct ZeroGradientRows {
  const char* suffix;
  double begin, end;  ///< as fractions of the tensor's rows
};
constexpr ZeroGradientRows kZeroGradientRows[] = {{"attn.c_attn.bias", 1.0 / 3, 2.0 / 3}};

bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

/// The elements that carry a gradient.
std::vector<double> judged(const std::string& name, const std::vector<double>& values, bool vanishing) {
  for (const ZeroGradientRows& rows : kZeroGradientRows) {
    if (!ends_with(name, rows.suffix)) continue;
    const auto begin = static_cast<long>(std::lround(rows.begin * static_cast<double>(values.size())));
    const auto end = static_cast<long>(std::lround(rows.end * static_cast<double>(values.size())));
    if (vanishing) return {values.begin() + begin, values.begin() + end};
    std::vector<double> rest(values.begin(), values.begin() + begin);
    rest.insert(rest.end(), values.begin() + end, values.end());
    return rest;
  }
  return vanishing ? std::vector<double>{} : values;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::nan("");
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double global_norm(const Tensors& tensors) {
  double sum = 0;
  for (const auto& [name, values] : tensors) sum += std::pow(norm(values), 2);
  return std::sqrt(sum);
}

bool within(double difference, double limit) { return difference <= limit; }  // false for NaN

void compare_tensors(const char* what, const Tensors& a, const Tensors& b, double relative, double floor,
                     bool judge_vanishing, std::vector<std::string>& found) {
  const double least = floor * global_norm(b);
  if (a.size() != b.size()) found.push_back(fmt::format("{}: {} tensors instead of {}", what, a.size(), b.size()));
  for (const auto& [name, expected] : b) {
    const auto actual = a.find(name);
    if (actual == a.end()) {
      found.push_back(fmt::format("{} of {} is missing", what, name));
      continue;
    }
    const auto reference = judged(name, expected, false);
    const double difference = distance(judged(name, actual->second, false), reference);
    if (!within(difference, std::max(least, relative * norm(reference)))) {
      found.push_back(fmt::format("{} of {}: {:.3g} of its norm", what, name, difference / norm(reference)));
    }
    if (!judge_vanishing) continue;
    if (!within(distance(judged(name, actual->second, true), judged(name, expected, true)), least)) {
      found.push_back(fmt::format("{} of {}: rows that vanish in exact arithmetic exceed the floor", what, name));
    }
  }
}

void compare_scalar(const char* what, double actual, double expected, double relative,
                    std::vector<std::string>& found) {
  if (!within(std::abs(actual - expected), relative * std::abs(expected))) {
    found.push_back(fmt::format("{}: {:.12g} instead of {:.12g}", what, actual, expected));
  }
}

}  // namespace

/// Gradients that the reference device rounds to single precision are as near as those of the cpu device; the first loss
/// knows nothing of them.
Tolerance tolerance_for(const Experiment& experiment) {
  Tolerance tolerance;
  // Which experts a token goes to jumps: what single precision rounds differently sooner or later sends one elsewhere.
  if (experiment.model.moe.experts > 0) tolerance.update = kUpdateOfRoutedTokens;
  if (experiment.device != "reference") return tolerance;
  tolerance.loss = 1e-12;
  if (experiment.strategy.accumulate_dtype == DType::f32) return tolerance;
  return {1e-10, 1e-8, tolerance.loss, 1e-10, 1e-12};
}

std::vector<std::string> differences(const Outcome& outcome, const Outcome& baseline, const Experiment& experiment) {
  const Tolerance tolerance = tolerance_for(experiment);
  std::vector<std::string> found = outcome.violations;
  compare_tensors("gradient", outcome.gradients, baseline.gradients, tolerance.gradient, tolerance.floor, true, found);
  compare_tensors("update", outcome.updates, baseline.updates, tolerance.update, tolerance.floor, false, found);
  compare_scalar("loss at step 1", outcome.losses.front(), baseline.losses.front(), tolerance.loss, found);
  compare_scalar("gradient norm at step 1", outcome.grad_norms.front(), baseline.grad_norms.front(),
                 tolerance.grad_norm, found);
  compare_scalar("auxiliary loss at step 1", outcome.auxiliary_losses.front(), baseline.auxiliary_losses.front(),
                 tolerance.loss, found);
  compare_scalar("evaluation before", outcome.evaluations.front(), baseline.evaluations.front(), tolerance.loss, found);
  compare_scalar("evaluation after", outcome.evaluations.back(), baseline.evaluations.back(), tolerance.update, found);
  if (!(outcome.losses.back() < 0.9 * outcome.losses.front())) {
    found.push_back(fmt::format("the loss does not fall: {} to {}", outcome.losses.front(), outcome.losses.back()));
  }
  return found;
}

}  // namespace foresail::testing
