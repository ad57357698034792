#include "workflow/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "core/file.h"
#include "planner/explain/explain.h"
#include "planner/search/evaluate.h"
#include "program/compile.h"
#include "workflow/accuracy.h"
#include "workflow/measured_run.h"

namespace foresail {
namespace {

/// The strategy of a row: as stated, or the planner's choice for what it leaves open. Empty with `refused` set: none.
std::optional<Candidate> price_run(const MeasuredRun& run, std::string& refused) {
  if (run.open.empty()) {
    const Strategy& strategy = run.stated.strategy;
    const std::vector<std::string> reasons = legal(run.model, run.job, strategy);
    if (!reasons.empty()) {
      refused = "not legal: " + reasons.front();
      return std::nullopt;
    }
    return evaluate(run.model, run.job, run.machine, run.stack, strategy, false).candidate;
  }
  SearchRequest request;
  request.model = run.model, request.job = run.job, request.machine = run.machine, request.stack = run.stack;
  request.device_counts = {run.devices};
  request.fixed = run.stated;
  request.top = 1;
  SearchResult found = search(request);
  if (found.plans.empty()) {
    refused = "the planner finds no plan: " + found.infeasible->limit;
    return std::nullopt;
  }
  return std::move(found.plans.front());
}

ValidatedRow validate_row(const CsvRow& csv, const ValidateOptions& options) {
  const MeasuredRun run = read_run(csv, options.machine, options.stack);
  ValidatedRow row;
  row.id = run.id, row.refused = run.refused, row.stack = run.stack_name, row.machine = run.machine_name;
  row.assumed = run.assumed;
  row.strategy = run.stated.strategy;
  row.measured_seconds = run.seconds;
  row.measured_peak_bytes = run.peak_bytes;
  if (!row.refused.empty()) return row;
  const auto candidate = price_run(run, row.refused);
  if (!candidate) return row;
  row.group = fmt::format("{}|{}|{}", run.model.name, run.devices, run.job.global_batch);
  row.strategy = candidate->strategy;
  row.predicted_seconds = candidate->predicted.step_seconds;
  row.low = candidate->predicted.step_seconds_low, row.high = candidate->predicted.step_seconds_high;
  row.predicted_peak_bytes = static_cast<double>(candidate->predicted.peak_bytes);
  const int64_t memory = memory_per_device(run.machine, run.devices);
  row.called_infeasible = memory > 0 && candidate->predicted.peak_bytes > memory;
  return row;
}

bool stated_plan(const ValidatedRow& row) {
  return std::none_of(row.assumed.begin(), row.assumed.end(),
                      [](const auto& entry) { return entry.second == "planner"; });
}

void add_ranking(const std::map<std::string, std::vector<Comparison>>& groups, ValidatedSource& source) {
  std::vector<double> correlations, regrets;
  for (const auto& [name, group] : groups) {
    if (group.size() < 2) continue;
    ++source.groups;
    regrets.push_back(regret(group));
    if (const auto correlation = spearman(group)) correlations.push_back(*correlation);
  }
  const auto mean = [](const std::vector<double>& values) -> std::optional<double> {
    if (values.empty()) return std::nullopt;
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  source.spearman_mean = mean(correlations);
  source.regret_mean = mean(regrets);
  if (!regrets.empty()) source.regret_max = *std::max_element(regrets.begin(), regrets.end());
}

ValidatedSource source_of(const std::string& stack, const std::vector<ValidatedRow>& rows) {
  ValidatedSource source;
  source.stack = stack;
  std::vector<Comparison> used, stated;
  std::vector<double> memory_errors;
  std::map<std::string, std::vector<Comparison>> groups;
  for (const ValidatedRow& row : rows) {
    if (row.stack != stack) continue;
    ++source.rows;
    if (row.assumed.count("stack") != 0) ++source.default_stack;
    if (!row.refused.empty()) {
      ++source.refused[row.refused];
      continue;
    }
    ++source.used;
    const Comparison comparison{row.measured_seconds, row.predicted_seconds, row.low, row.high};
    used.push_back(comparison);
    if (stated_plan(row)) stated.push_back(comparison);
    groups[row.group].push_back(comparison);
    if (row.measured_peak_bytes)
      memory_errors.push_back(std::abs(row.predicted_peak_bytes / *row.measured_peak_bytes - 1));
    if (row.called_infeasible) ++source.feasible_called_infeasible;
  }
  const ErrorFigures figures = error_figures(used);
  source.mape = figures.mape, source.median_ape = figures.median_ape, source.p90_ape = figures.p90_ape;
  source.max_ape = figures.max_ape, source.bias = figures.bias;
  source.interval_coverage = figures.interval_coverage, source.interval_width = figures.interval_width;
  source.stated_plans = static_cast<int64_t>(stated.size());
  source.stated_plan_mape = error_figures(stated).mape;
  if (!memory_errors.empty()) {
    double sum = 0;
    for (const double error : memory_errors) sum += error;
    source.memory_mape = sum / static_cast<double>(memory_errors.size());
  }
  add_ranking(groups, source);
  return source;
}

std::string percent(const std::optional<double>& value) { return value ? fmt::format("{:.1f} %", 100 * *value) : "-"; }

}  // namespace

bool ValidateResult::usable() const {
  return std::any_of(rows.begin(), rows.end(), [](const ValidatedRow& row) { return row.refused.empty(); });
}

ValidateResult validate(const ValidateOptions& options) {
  ValidateResult result;
  std::set<std::string> stacks;
  const std::string source = options.runs.string();
  for (const CsvRow& csv : parse_csv(read_file(options.runs), source, {"id", "model", "n_gpus"})) {
    result.rows.push_back(validate_row(csv, options));
    stacks.insert(result.rows.back().stack);
  }
  for (const std::string& stack : stacks) result.sources.push_back(source_of(stack, result.rows));
  return result;
}

std::string validate_table(const ValidateResult& result) {
  std::string text =
      fmt::format("{:<24} {:<62} {:>10} {:>10} {:>8}\n", "row", "plan", "measured", "predicted", "error");
  auto out = std::back_inserter(text);
  for (const ValidatedRow& row : result.rows) {
    if (!row.refused.empty()) continue;
    fmt::format_to(out, "{:<24} {:<62} {:>10} {:>10} {:>+6.1f} %{}\n", row.id,
                   short_text(row.strategy) + (stated_plan(row) ? "" : " (chosen)"), seconds_text(row.measured_seconds),
                   seconds_text(row.predicted_seconds), 100 * (row.predicted_seconds / row.measured_seconds - 1),
                   row.called_infeasible ? "  called infeasible" : "");
  }
  for (const ValidatedRow& row : result.rows) {
    if (!row.refused.empty()) fmt::format_to(out, "{:<24} refused: {}\n", row.id, row.refused);
  }
  for (const ValidatedSource& source : result.sources) {
    fmt::format_to(out, "\n{}{}: {} of {} used, {} with a stated plan\n", source.stack,
                   source.default_stack > 0
                       ? fmt::format(" (the default stack of {} without one)", counted(source.default_stack, "row"))
                       : "",
                   source.used, counted(source.rows, "row"), source.stated_plans);
    if (source.used == 0) continue;
    fmt::format_to(out, "  MAPE {}, stated plans {}, median {}, 90 % within {}, largest {}, bias {}\n",
                   percent(source.mape), percent(source.stated_plan_mape), percent(source.median_ape),
                   percent(source.p90_ape), percent(source.max_ape), percent(source.bias));
    fmt::format_to(out, "  80 % intervals hold {} of the rows, half-width {}\n", percent(source.interval_coverage),
                   percent(source.interval_width));
    if (source.groups > 0) {
      fmt::format_to(out, "  {} groups: regret {} on average, {} at most\n", source.groups, percent(source.regret_mean),
                     percent(source.regret_max));
    }
  }
  return text;
}

}  // namespace foresail
