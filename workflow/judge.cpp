#include "workflow/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foresail {
namespace {

constexpr double kBandWidths = 2.5;
constexpr int64_t kLargeArenaBytes = int64_t{512} << 20;
constexpr double kLargeArenaTolerance = 0.05;
constexpr double kSmallArenaTolerance = 32.0 * (1 << 20);

}  // namespace

StressCheck judge_step_seconds(const Prediction& predicted, double measured) {
  const double least = predicted.step_seconds - kBandWidths * (predicted.step_seconds - predicted.step_seconds_low);
  const double most = predicted.step_seconds + kBandWidths * (predicted.step_seconds_high - predicted.step_seconds);
  const bool passed = measured >= least && measured <= most;
  return {.name = "step_seconds",
          .predicted = predicted.step_seconds,
          .measured = measured,
          .unit = "s",
          .passed = passed,
          .why = fmt::format("{:+.1f} %, {} {:.4g} to {:.4g} s (2.5 half-widths of the 80 % interval)",
                             100 * (measured / predicted.step_seconds - 1), passed ? "inside" : "outside",
                             std::max(least, 0.0), most)};
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

bool all_passed(const std::vector<StressCheck>& checks) {
  return std::all_of(checks.begin(), checks.end(), [](const StressCheck& check) { return check.passed; });
}

std::string checks_table(const std::vector<StressCheck>& checks) {
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.6g}", *value) : std::string("-");
  };
  std::string text =
      fmt::format("{:<24} {:>14} {:>14}  {:<18} {:<6} {}\n", "check", "predicted", "measured", "unit", "", "why");
  for (const StressCheck& check : checks) {
    text += fmt::format("{:<24} {:>14} {:>14}  {:<18} {:<6} {}\n", check.name, number(check.predicted),
                        number(check.measured), check.unit, check.passed ? "ok" : "FAILED", check.why);
  }
  return text;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace foresail
