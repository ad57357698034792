#include "workflow/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "runtime/metrics/metrics_log.h"
#include "workflow/run_log.h"

namespace foresail {
namespace {

constexpr size_t kWarmUpSteps = 2;  // page faults and cold caches

/// Tokens of each step: what the count of the run has grown by; `full` where the line before it is lost.
std::vector<int64_t> tokens_of(const std::vector<StepLine>& lines, int64_t full) {
  std::vector<int64_t> tokens = {lines.front().step == 1 ? lines.front().tokens : full};
  for (size_t i = 1; i < lines.size(); ++i) tokens.push_back(lines[i].tokens - lines[i - 1].tokens);
  return tokens;
}

/// Durations of the steps that are as large as the last one, without the first steps of the run unless there are no others.
std::vector<double> steady_step_seconds(const std::vector<StepLine>& lines, const std::vector<int64_t>& tokens) {
  std::vector<double> seconds;
  for (size_t i = lines.size() > kWarmUpSteps ? kWarmUpSteps : 0; i < lines.size(); ++i) {
    if (tokens[i] == tokens.back()) seconds.push_back(lines[i].step_seconds);
  }
  return seconds;
}

/// The prediction is of a full step: a run that is still in its batch ramp says nothing about it.
std::vector<StressCheck> judge(const Plan& plan, const std::vector<StepLine>& lines, double step_seconds,
                               bool full_steps) {
  std::vector<StressCheck> checks;
  if (full_steps) checks.push_back(judge_step_seconds(plan.predicted, step_seconds));
  double resident = 0;
  for (const StepLine& line : lines)
    resident = std::max(resident, static_cast<double>(line.resident_bytes.value_or(0)));
  if (resident > 0) checks.push_back(judge_resident(plan.predicted, resident));
  return checks;
}

}  // namespace

ReportResult report(const std::filesystem::path& run) {
  ReportResult result;
  result.run = run.string();
  if (std::filesystem::is_regular_file(run)) {
    throw_bad_input(run.string(), "it is a file: only a run has something to report",
                    "name a folder that foresail train wrote");
  }
  result.plan = load_plan(run / "plan.json");
  const std::vector<StepLine> lines = read_metrics(metrics_path(run));
  if (lines.empty()) {
    throw_bad_input(metrics_path(run).string(), "it holds no finished step", "train first, or name another run folder");
  }
  result.steps = lines.back().step;
  result.tokens = lines.back().tokens;
  result.first_loss = lines.front().loss;
  result.loss = lines.back().loss;
  for (const StepLine& line : lines) {
    if (line.validation_loss) result.validation_loss = line.validation_loss;
    if (line.skipped) ++result.skipped_steps;
  }
  const Job& job = result.plan.job;
  const int64_t full = job.global_batch * job.sequence_length;
  const std::vector<int64_t> tokens = tokens_of(lines, full);
  result.step_seconds_median = median_of(steady_step_seconds(lines, tokens));
  result.tokens_per_second = static_cast<double>(tokens.back()) / result.step_seconds_median;
  const Prediction& predicted = result.plan.predicted;
  if (predicted.mfu > 0) {
    const double share = static_cast<double>(tokens.back()) / static_cast<double>(full);
    result.mfu = predicted.mfu * share * predicted.step_seconds / result.step_seconds_median;
  }
  result.checks = judge(result.plan, lines, result.step_seconds_median, tokens.back() == full);
  return result;
}

std::string report_table(const ReportResult& result) {
  const Plan& plan = result.plan;
  std::string text =
      fmt::format("{}: {}, {} on {}\n", result.run, plan.model_name, short_text(plan.strategy), plan.machine_name);
  text += fmt::format("{} steps, {} tokens; loss {:.4f} to {:.4f}", result.steps, result.tokens, result.first_loss,
                      result.loss);
  if (result.validation_loss) text += fmt::format(", validation {:.4f}", *result.validation_loss);
  if (result.skipped_steps > 0) text += fmt::format("; {} steps skipped", result.skipped_steps);
  text +=
      fmt::format("\n{:.0f} tokens/s (predicted {:.0f})", result.tokens_per_second, plan.predicted.tokens_per_second);
  if (result.mfu)
    text += fmt::format(", MFU {:.1f} % (predicted {:.1f} %)", 100 * *result.mfu, 100 * plan.predicted.mfu);
  return text + "\n\n" + checks_table(result.checks) + "verdict: " + (result.passed() ? "pass" : "fail") + "\n";
}

}  // namespace foresail
