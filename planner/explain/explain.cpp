#include "planner/explain/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace foresail {
namespace {

constexpr double kWideSpread = 0.5;  // of the half-width of the step's interval to the step

struct Part {
  const char* name;
  double value;
};

void add_parts(std::string& text, std::span<const Part> parts, double whole, bool bytes) {
  for (const Part& part : parts) {
    if (part.value == 0) continue;
    const std::string value = bytes ? bytes_text(static_cast<int64_t>(part.value)) : seconds_text(part.value);
    fmt::format_to(std::back_inserter(text), "    {:<14} {:>12}  {:5.1f} %\n", part.name, value,
                   100 * part.value / whole);
  }
}

void add_time(std::string& text, const Prediction& predicted) {
  const TimePrediction& t = predicted.time;
  const std::array<Part, 10> parts = {{{"compute", t.compute},
                                       {"recompute", t.recompute},
                                       {"tensor_comm", t.tensor_comm},
                                       {"context_comm", t.context_comm},
                                       {"expert_comm", t.expert_comm},
                                       {"data_comm", t.data_comm},
                                       {"pipeline_comm", t.pipeline_comm},
                                       {"bubble", t.bubble},
                                       {"optimizer", t.optimizer},
                                       {"data_wait", t.data_wait}}};
  fmt::format_to(std::back_inserter(text), "  step     {}  ({} to {} with 80 % probability{})\n",
                 seconds_text(predicted.step_seconds), seconds_text(predicted.step_seconds_low),
                 seconds_text(predicted.step_seconds_high), predicted.calibrated ? "" : "; uncalibrated");
  add_parts(text, parts, predicted.step_seconds, false);
}

void add_memory(std::string& text, const Prediction& predicted, int64_t ceiling) {
  const MemoryPrediction& m = predicted.memory;
  const auto d = [](int64_t bytes) { return static_cast<double>(bytes); };
  const std::array<Part, 6> parts = {{{"parameters", d(m.parameters)},
                                      {"gradients", d(m.gradients)},
                                      {"optimizer", d(m.optimizer)},
                                      {"activations", d(m.activations)},
                                      {"scratch", d(m.scratch)},
                                      {"framework", d(m.framework)}}};
  fmt::format_to(std::back_inserter(text), "  peak     {} per device", bytes_text(predicted.peak_bytes));
  if (ceiling > 0) text += " of " + bytes_text(ceiling);
  text += "\n";
  add_parts(text, parts, d(predicted.peak_bytes), true);
}

std::string strategies_text(int64_t count) {
  return fmt::format("{} {}", count, count == 1 ? "strategy" : "strategies");
}

void add_budget(std::string& text, const Budget& budget) {
  auto out = std::back_inserter(text);
  if (!budget.train_seconds) return;
  fmt::format_to(out, "  training {}, {} device-hours", seconds_text(*budget.train_seconds),
                 figure_text(*budget.device_hours));
  if (budget.usd) {
    fmt::format_to(out, ", {} USD ({} to {})", figure_text(*budget.usd), figure_text(*budget.usd_low),
                   figure_text(*budget.usd_high));
  }
  if (budget.energy_kwh) fmt::format_to(out, ", {} kWh", figure_text(*budget.energy_kwh));
  text += "\n";
  if (budget.goodput) {
    fmt::format_to(out, "  goodput  {:.2f} %, {:.2g} failures expected, checkpoint every {}\n", 100 * *budget.goodput,
                   budget.expected_failures.value_or(0), seconds_text(*budget.checkpoint_interval_seconds));
  }
}

/// A measured machine whose timings scatter so much was not idle when it was profiled.
void add_spread_warning(std::string& text, const Prediction& predicted, const Machine& machine) {
  if (machine.kind != "profiled" || !(predicted.step_seconds > 0)) return;
  const double spread = (predicted.step_seconds_high - predicted.step_seconds_low) / (2 * predicted.step_seconds);
  if (spread <= kWideSpread) return;
  fmt::format_to(std::back_inserter(text),
                 "  warning  the profile's spread is {:.0f} %: the machine was busy; profile again when it is idle\n",
                 100 * spread);
}

}  // namespace

std::string candidate_text(const Candidate& candidate, const SearchRequest& request) {
  const Prediction& predicted = candidate.predicted;
  const int64_t devices = candidate.strategy.devices();
  std::string text = fmt::format("{}  on {} of {}\n", short_text(candidate.strategy), counted(devices, "device"),
                                 request.machine.name);
  add_time(text, predicted);
  add_memory(text, predicted, memory_ceiling(request, devices));
  fmt::format_to(std::back_inserter(text), "  rate     {} tokens/s, {} tokens/s per device",
                 figure_text(predicted.tokens_per_second), figure_text(predicted.tokens_per_second_per_device));
  if (predicted.mfu > 0) {
    fmt::format_to(std::back_inserter(text), ", MFU {:.1f} %, HFU {:.1f} %", 100 * predicted.mfu, 100 * predicted.hfu);
  }
  text += "\n";
  add_budget(text, candidate.budget);
  add_spread_warning(text, predicted, request.machine);
  return text;
}

std::string candidates_table(std::span<const Candidate> candidates) {
  std::string text =
      fmt::format("{:<4} {:<52} {:>10} {:>12} {:>12} {:>7}\n", "", "strategy", "step", "peak", "tokens/s", "bubble");
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Prediction& p = candidates[i].predicted;
    fmt::format_to(std::back_inserter(text), "{:<4} {:<52} {:>10} {:>12} {:>12} {:>5.1f} %\n", i + 1,
                   short_text(candidates[i].strategy), seconds_text(p.step_seconds), bytes_text(p.peak_bytes),
                   figure_text(p.tokens_per_second), 100 * p.time.bubble / p.step_seconds);
  }
  return text;
}

std::string frontier_table(const SearchResult& result) {
  if (result.frontier.size() < 2) return "";
  std::string text = fmt::format("{:>8} {:<52} {:>10} {:>12} {:>11} {:>11} {:>9}\n", "devices", "best strategy", "step",
                                 "training", "USD", "efficiency", "marginal");
  for (const FrontierPoint& point : result.frontier) {
    const std::string training = point.train_seconds ? seconds_text(*point.train_seconds) : "-";
    const std::string usd = point.usd ? figure_text(*point.usd) : "-";
    const bool first = point.devices == result.baseline_devices;
    const std::string marginal = first ? "-" : fmt::format("{:.1f} %", 100 * point.marginal_efficiency);
    fmt::format_to(std::back_inserter(text), "{:>8} {:<52} {:>10} {:>12} {:>11} {:>9.1f} % {:>9}\n", point.devices,
                   short_text(point.strategy), seconds_text(point.step_seconds), training, usd, 100 * point.efficiency,
                   marginal);
  }
  return text;
}

std::string why_not_text(const SearchResult& result) {
  std::string text = fmt::format("{}: {} played, {} dropped on a bound", strategies_text(result.strategies),
                                 result.simulated, result.bounded);
  for (const auto& [reason, count] : result.refused) fmt::format_to(std::back_inserter(text), ", {} {}", count, reason);
  if (result.mixed > 0) {
    fmt::format_to(std::back_inserter(text), "; {} of them also with recompute solved for the memory", result.mixed);
  }
  fmt::format_to(std::back_inserter(text), " ({})\n", seconds_text(result.seconds));
  std::vector<std::pair<int64_t, std::string>> reasons;
  for (const auto& [reason, count] : result.illegal) reasons.emplace_back(count, reason);
  std::stable_sort(reasons.begin(), reasons.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  constexpr size_t kShown = 6;
  for (size_t i = 0; i < std::min(reasons.size(), kShown); ++i) {
    fmt::format_to(std::back_inserter(text), "  not legal: {}: {}\n", strategies_text(reasons[i].first),
                   reasons[i].second);
  }
  if (reasons.size() > kShown) {
    fmt::format_to(std::back_inserter(text), "  and {} more reasons (--json lists all)\n", reasons.size() - kShown);
  }
  return text;
}

}  // namespace foresail
