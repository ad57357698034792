#include "planner/explain/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace foresail {
namespace {

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

void add_memory(std::string& text, const Prediction& predicted, const Machine& machine) {
  const MemoryPrediction& m = predicted.memory;
  const auto d = [](int64_t bytes) { return static_cast<double>(bytes); };
  const std::array<Part, 6> parts = {{{"parameters", d(m.parameters)},
                                      {"gradients", d(m.gradients)},
                                      {"optimizer", d(m.optimizer)},
                                      {"activations", d(m.activations)},
                                      {"scratch", d(m.scratch)},
                                      {"framework", d(m.framework)}}};
  fmt::format_to(std::back_inserter(text), "  peak     {} per device", bytes_text(predicted.peak_bytes));
  if (machine.kind != "profiled" && machine.device.memory_bytes.value > 0) {
    fmt::format_to(std::back_inserter(text), " of {}",
                   bytes_text(static_cast<int64_t>(machine.device.memory_bytes.value)));
  }
  text += "\n";
  add_parts(text, parts, d(predicted.peak_bytes), true);
}

void add_budget(std::string& text, const Budget& budget) {
  auto out = std::back_inserter(text);
  if (!budget.train_seconds) return;
  fmt::format_to(out, "  training {}, {:.4g} device-hours", seconds_text(*budget.train_seconds), *budget.device_hours);
  if (budget.usd)
    fmt::format_to(out, ", {:.4g} USD ({:.4g} to {:.4g})", *budget.usd, *budget.usd_low, *budget.usd_high);
  if (budget.energy_kwh) fmt::format_to(out, ", {:.4g} kWh", *budget.energy_kwh);
  text += "\n";
  if (budget.goodput) {
    fmt::format_to(out, "  goodput  {:.2f} %, {:.2g} failures expected, checkpoint every {}\n", 100 * *budget.goodput,
                   budget.expected_failures.value_or(0), seconds_text(*budget.checkpoint_interval_seconds));
  }
}

}  // namespace

std::string seconds_text(double seconds) {
  const double s = std::abs(seconds);
  if (s < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (s < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  if (s < 600) return fmt::format("{:.3g} s", seconds);
  if (s < 2 * 86400) return fmt::format("{:.3g} h", seconds / 3600);
  return fmt::format("{:.3g} days", seconds / 86400);
}

std::string bytes_text(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (b >= 1024.0 * 1024 * 1024) return fmt::format("{:.2f} GiB", b / (1024.0 * 1024 * 1024));
  if (b >= 1024.0 * 1024) return fmt::format("{:.1f} MiB", b / (1024.0 * 1024));
  return fmt::format("{:.1f} KiB", b / 1024);
}

std::string strategy_text(const Strategy& s) {
  return fmt::format("dp={} tp={} pp={} micro_batch={} recompute={}", s.dp, s.tp, s.pp, s.micro_batch,
                     name_of(s.recompute));
}

std::string candidate_text(const Candidate& candidate, const Machine& machine) {
  const Prediction& predicted = candidate.predicted;
  std::string text = fmt::format("{}  on {} devices of {}\n", strategy_text(candidate.strategy),
                                 candidate.strategy.devices(), machine.name);
  add_time(text, predicted);
  add_memory(text, predicted, machine);
  fmt::format_to(std::back_inserter(text), "  rate     {:.4g} tokens/s, {:.4g} tokens/s per device",
                 predicted.tokens_per_second, predicted.tokens_per_second_per_device);
  if (predicted.mfu > 0) {
    fmt::format_to(std::back_inserter(text), ", MFU {:.1f} %, HFU {:.1f} %", 100 * predicted.mfu, 100 * predicted.hfu);
  }
  text += "\n";
  add_budget(text, candidate.budget);
  return text;
}

std::string candidates_table(std::span<const Candidate> candidates) {
  std::string text =
      fmt::format("{:<4} {:<52} {:>10} {:>12} {:>12} {:>7}\n", "", "strategy", "step", "peak", "tokens/s", "bubble");
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Prediction& p = candidates[i].predicted;
    fmt::format_to(std::back_inserter(text), "{:<4} {:<52} {:>10} {:>12} {:>12.4g} {:>5.1f} %\n", i + 1,
                   strategy_text(candidates[i].strategy), seconds_text(p.step_seconds), bytes_text(p.peak_bytes),
                   p.tokens_per_second, 100 * p.time.bubble / p.step_seconds);
  }
  return text;
}

std::string frontier_table(const SearchResult& result) {
  if (result.frontier.size() < 2) return "";
  std::string text = fmt::format("{:>8} {:<52} {:>10} {:>12} {:>11} {:>11} {:>9}\n", "devices", "best strategy", "step",
                                 "training", "USD", "efficiency", "marginal");
  for (const FrontierPoint& point : result.frontier) {
    const std::string training = point.train_seconds ? seconds_text(*point.train_seconds) : "-";
    const std::string usd = point.usd ? fmt::format("{:.4g}", *point.usd) : "-";
    const bool first = point.devices == result.baseline_devices;
    const std::string marginal = first ? "-" : fmt::format("{:.1f} %", 100 * point.marginal_efficiency);
    fmt::format_to(std::back_inserter(text), "{:>8} {:<52} {:>10} {:>12} {:>11} {:>9.1f} % {:>9}\n", point.devices,
                   strategy_text(point.strategy), seconds_text(point.step_seconds), training, usd,
                   100 * point.efficiency, marginal);
  }
  return text;
}

std::string why_not_text(const SearchResult& result) {
  std::string text = fmt::format("{} strategies: {} played, {} dropped on a bound", result.strategies, result.simulated,
                                 result.bounded);
  for (const auto& [reason, count] : result.refused) fmt::format_to(std::back_inserter(text), ", {} {}", count, reason);
  fmt::format_to(std::back_inserter(text), " ({})\n", seconds_text(result.seconds));
  std::vector<std::pair<int64_t, std::string>> reasons;
  for (const auto& [reason, count] : result.illegal) reasons.emplace_back(count, reason);
  std::stable_sort(reasons.begin(), reasons.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  constexpr size_t kShown = 6;
  for (size_t i = 0; i < std::min(reasons.size(), kShown); ++i) {
    fmt::format_to(std::back_inserter(text), "  not legal: {} x {}\n", reasons[i].first, reasons[i].second);
  }
  if (reasons.size() > kShown) {
    fmt::format_to(std::back_inserter(text), "  and {} more reasons (--json lists all)\n", reasons.size() - kShown);
  }
  return text;
}

}  // namespace foresail
