#include "workflow/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foresail {
namespace {

constexpr const char* kStepCheck = "step_seconds";
constexpr double kBandWidths = 2.5;
constexpr const char* kSaysLittle =
    "; the band reaches 0, so this check says little: profile again on an idle machine, then plan again";
constexpr int64_t kLargeArenaBytes = int64_t{512} << 20;
constexpr double kLargeArenaTolerance = 0.05;
constexpr double kSmallArenaTolerance = 32.0 * (1 << 20);

/// "1,572,864".
std::string grouped_digits(double value) {
  std::string text = fmt::format("{:.0f}", value);
  for (size_t end = text.size(); end > 3 + static_cast<size_t>(value < 0); end -= 3) text.insert(end - 3, 1, ',');
  return text;
}

/// Three digits and a decimal prefix: "1.21 k".
std::string with_prefix(double value) {
  constexpr const char* kPrefixes[] = {"", " k", " M", " G", " T"};
  size_t at = 0;
  for (; at + 1 < std::size(kPrefixes) && std::abs(value) >= 999.5; ++at) value /= 1000;
  return fmt::format("{:.3g}{}", value, kPrefixes[at]);
}

std::string figure(const std::optional<double>& value, const std::string& unit) {
  if (!value) return "-";
  if (unit == "bytes") return grouped_digits(*value);
  return unit == "tokens/s" ? with_prefix(*value) : fmt::format("{:.6g}", *value);
}

}  // namespace

StressCheck judge_step_seconds(const Prediction& predicted, double measured) {
  const double least = predicted.step_seconds - kBandWidths * (predicted.step_seconds - predicted.step_seconds_low);
  const double most = predicted.step_seconds + kBandWidths * (predicted.step_seconds_high - predicted.step_seconds);
  const bool passed = measured >= least && measured <= most;
  return {.name = kStepCheck,
          .predicted = predicted.step_seconds,
          .measured = measured,
          .unit = "s",
          .passed = passed,
          .why = fmt::format("{:+.1f} %, {} {:.4g} to {:.4g} s (2.5 half-widths of the 80 % interval){}",
                             100 * (measured / predicted.step_seconds - 1), passed ? "inside" : "outside",
                             std::max(least, 0.0), most, least > 0 ? "" : kSaysLittle)};
}

StressCheck judge_arena(const Prediction& predicted, int64_t measured) {
  const bool passed = predicted.arena_bytes == measured;
  return {.name = "arena_bytes",
          .predicted = static_cast<double>(predicted.arena_bytes),
          .measured = static_cast<double>(measured),
          .unit = "bytes",
          .passed = passed,
          .why = passed ? "exact" : "must be equal to the byte"};
}

StressCheck judge_resident(const Prediction& predicted, double measured) {
  const auto expected = static_cast<double>(predicted.peak_bytes);
  const bool large = predicted.arena_bytes >= kLargeArenaBytes;
  const double tolerance = large ? kLargeArenaTolerance * expected : kSmallArenaTolerance;
  return {.name = "peak_bytes",
          .predicted = expected,
          .measured = measured,
          .unit = "bytes",
          .passed = std::abs(measured - expected) <= tolerance,
          .why = fmt::format("{:+.1f} MiB, bound {:.1f} MiB ({})", (measured - expected) / (1 << 20),
                             tolerance / (1 << 20), large ? "5 %" : "arenas below 512 MiB")};
}

void explain_lone_step_failure(std::vector<StressCheck>& checks) {
  StressCheck* step = nullptr;
  for (StressCheck& check : checks) {
    if (check.passed) continue;
    if (check.name != kStepCheck) return;
    step = &check;
  }
  if (step == nullptr) return;
  step->why += "; if the machine was busy, now or while it was profiled, profile again when it is idle";
}

bool all_passed(const std::vector<StressCheck>& checks) {
  return std::all_of(checks.begin(), checks.end(), [](const StressCheck& check) { return check.passed; });
}

std::string checks_table(const std::vector<StressCheck>& checks) {
  std::string text =
      fmt::format("{:<24} {:>14} {:>14}  {:<18} {:<6} {}\n", "check", "predicted", "measured", "unit", "", "why");
  for (const StressCheck& check : checks) {
    text += fmt::format("{:<24} {:>14} {:>14}  {:<18} {:<6} {}\n", check.label.empty() ? check.name : check.label,
                        figure(check.predicted, check.unit), figure(check.measured, check.unit), check.unit,
                        check.passed ? "ok" : "FAILED", check.why);
  }
  return text;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace foresail
