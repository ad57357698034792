#include "workflow/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"
#include "core/human.h"
#include "core/version.h"
#include "planner/explain/explain.h"
#include "planner/search/evaluate.h"
#include "planner/search/space.h"
#include "planner/simulator/priced_program.h"
#include "program/check.h"
#include "spec/batch_ramp.h"
#include "workflow/request.h"
#include "workflow/workspace.h"

namespace foresail {
namespace {

constexpr double kSecondsPerDay = 86400;
constexpr int64_t kMostKept = 1000;

constexpr size_t kMostValuesShown = 16;
constexpr size_t kMostCountsShown = 12;
const std::set<std::string> kSearchedKeys = {"dp",          "tp",       "pp",         "cp",        "virtual_stages",
                                             "micro_batch", "schedule", "zero_stage", "recompute", "sequence_parallel"};

/// "8 devices", "2, 4, 8 devices", "2 to 64 devices (all 63 counts)".
std::string counts_phrase(const std::vector<int64_t>& counts) {
  if (counts.size() == 1) return counted(counts[0], "device");
  if (counts.size() <= kMostCountsShown) return fmt::format("{} devices", fmt::join(counts, ", "));
  const bool whole = counts.back() - counts.front() + 1 == static_cast<int64_t>(counts.size());
  return fmt::format("{} to {} devices ({}{} counts)", counts.front(), counts.back(), whole ? "all " : "",
                     counts.size());
}

std::string counts_text(const std::vector<int64_t>& counts) {
  return counts.size() == 1 ? "" : "  tried    " + counts_phrase(counts) + "\n";
}

SearchRequest request_of(const PlanOptions& options, std::string& batch_reason) {
  SearchRequest request;
  RequestInputs inputs{options.model,           options.machine,      options.stack,  options.job,
                       options.sequence_length, options.global_batch, options.tokens, options.dataset_bytes};
  resolve(inputs, request);
  request.device_counts = parse_device_counts(options.devices, request.machine);
  batch_reason = settle_global_batch(request);
  request.objective = objective_from_name(options.objective);
  if (!options.fix.empty()) request.fixed = parse_strategy(options.fix);
  if (options.memory_bytes < 0)
    throw_bad_input("--memory", "a negative number of bytes", "give the bytes of one device");
  if (!(options.deadline_days >= 0) || !std::isfinite(options.deadline_days)) {
    throw_bad_input("--deadline", "not a positive number of days", "give days, such as 30");
  }
  if (!(options.budget_usd >= 0) || !std::isfinite(options.budget_usd)) {
    throw_bad_input("--budget", "not a positive amount", "give US dollars, such as 50000");
  }
  if (options.top < 1 || options.top > kMostKept) {
    throw_bad_input(fmt::format("--top {}", options.top), "out of range", fmt::format("use 1 to {}", kMostKept));
  }
  request.memory_bytes = options.memory_bytes;
  request.deadline_seconds = options.deadline_days * kSecondsPerDay;
  request.budget_usd = options.budget_usd;
  request.top = options.top;
  if (request.deadline_seconds > 0 && steps_of(request.job) == 0) {
    throw_bad_input("--deadline", "the length of the run is unknown", "add --tokens T");
  }
  if (request.budget_usd > 0 && steps_of(request.job) == 0) {
    throw_bad_input("--budget", "the length of the run is unknown", "add --tokens T");
  }
  const bool priced = request.job.usd_per_device_hour > 0 || request.machine.usd_per_device_hour.value > 0;
  if (request.budget_usd > 0 && !priced) {
    throw_bad_input("--budget", "the price of a device-hour is unknown", "state usd_per_device_hour in the job");
  }
  return request;
}

void refuse_defects(const std::vector<Program>& programs) {
  std::vector<std::string> problems = check_pipeline(programs);
  for (const Program& program : programs) {
    for (std::string& problem : check_program(program)) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) {
    throw_environment("compiled program", problems.front(), "this is a defect of foresail: report it with the command");
  }
}

Plan plan_of(const SearchRequest& request, const std::string& machine_digest, const Candidate& best,
             const std::vector<Program>& programs) {
  Plan plan;
  plan.foresail_version = version_text();
  plan.job = request.job;
  plan.steps = steps_of(request.job);
  plan.model_name = request.model.name;
  plan.model_config = write_model_config(request.model);
  plan.machine_name = request.machine.name;
  plan.machine_digest = machine_digest;
  plan.strategy = best.strategy;
  plan.target = target_for(request.machine, request.stack, best.strategy.devices());
  for (const Program& program : programs) plan.program_digests.push_back(program_digest(program));
  plan.predicted = best.predicted;
  return plan;
}

/// "2" for key "tp" of "dp=1,tp=2,..."; empty for a key that is left out because it has its default.
std::string value_of(const Strategy& strategy, const std::string& key) {
  const std::string text = "," + to_text(strategy) + ",";
  const size_t found = text.find("," + key + "=");
  if (found == std::string::npos) return "";
  const size_t begin = found + key.size() + 2;
  return text.substr(begin, text.find(',', begin) - begin);
}

/// Values of `key` in the legal strategies when it is not fixed and the other keys are, in the order of the search; an
/// empty one stands for leaving the key out.
std::vector<std::string> possible_values(SearchRequest request, const std::string& key) {
  std::erase(request.fixed.named, key);
  if (kSearchedKeys.count(key) == 0) {  // not varied: only its default is tried
    std::string text;
    for (const std::string& other : request.fixed.named) {
      const std::string value = value_of(request.fixed.strategy, other);
      if (!value.empty()) text += (text.empty() ? "" : ",") + other + "=" + value;
    }
    request.fixed = text.empty() ? StrategyText{} : parse_strategy(text);
  }
  std::set<std::pair<size_t, std::string>> values;  // numbers by size
  for (const int64_t devices : request.device_counts) {
    for (const Strategy& strategy : space_of(request, devices).strategies) {
      const std::string value = value_of(strategy, key);
      values.emplace(value.size(), value);
    }
  }
  std::vector<std::string> list;
  for (const auto& [size, value] : values) list.push_back(value);
  return list;
}

/// A fixed key that leaves no legal strategy is a slip of the command line: named with the values it can have.
void require_possible_fix(const SearchRequest& request) {
  if (request.fixed.named.empty()) return;
  std::map<std::string, int64_t> illegal;
  for (const int64_t devices : request.device_counts) {
    const Space space = space_of(request, devices);
    if (!space.strategies.empty()) return;
    for (const auto& [reason, count] : space.illegal) illegal[reason] += count;
  }
  std::string cause = "no strategy of " + counts_phrase(request.device_counts) + " has it";
  const auto most = std::max_element(illegal.begin(), illegal.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != illegal.end()) cause = most->first;
  for (const std::string& key : request.fixed.named) {
    std::vector<std::string> values = possible_values(request, key);
    if (values.empty()) continue;
    const bool more = values.size() > kMostValuesShown;
    if (more) values.resize(kMostValuesShown);
    const std::string fixed = fmt::format("--fix {}={}", key, value_of(request.fixed.strategy, key));
    if (values == std::vector<std::string>{""}) throw_bad_input(fixed, cause, "leave " + key + " out");
    throw_bad_input(fixed, cause, fmt::format("{} can be {}{}", key, fmt::join(values, ", "), more ? ", ..." : ""));
  }
}

/// Files are named before the search, which may take long.
void require_writable_outputs(const PlanOptions& options) {
  for (const auto& path : {options.out, options.trace, options.dump_program}) {
    if (!path.empty()) require_writable_file(path);
  }
}

/// "p.json" of stage 2 is "p.stage-2.json"; stage 0 keeps the name.
std::filesystem::path stage_path(const std::filesystem::path& path, size_t stage) {
  if (stage == 0) return path;
  std::filesystem::path result = path;
  result.replace_filename(fmt::format("{}.stage-{}{}", path.stem().string(), stage, path.extension().string()));
  return result;
}

}  // namespace

PlanResult make_plan(const PlanOptions& options) {
  PlanResult result;
  require_writable_outputs(options);
  result.request = request_of(options, result.batch_reason);
  const std::string machine_digest = digest_of(machine_to_json(result.request.machine));  // as the file has it
  require_possible_fix(result.request);
  list_workspace(result.request);
  const SearchRequest& request = result.request;
  result.search = search(request);
  if (!result.feasible()) return result;
  const Candidate& best = result.search.plans.front();
  const Evaluation evaluation =
      evaluate(request.model, request.job, request.machine, request.stack, best.strategy, !options.trace.empty());
  refuse_defects(evaluation.programs);
  const auto costs = costs_for(request.machine, request.stack, best.strategy.devices());
  result.costs_note = costs_note(evaluation.programs, *costs, request.machine.devices_per_node);
  result.plan = plan_of(request, machine_digest, best, evaluation.programs);
  if (!options.dump_program.empty()) {
    for (size_t stage = 0; stage < evaluation.programs.size(); ++stage) {
      write_file_atomically(stage_path(options.dump_program, stage), dump_program(evaluation.programs[stage]));
    }
  }
  if (!options.trace.empty()) {
    write_file_atomically(options.trace, chrome_trace(evaluation.programs, evaluation.simulation));
  }
  if (!options.out.empty()) write_file_atomically(options.out, plan_to_json(result.plan));
  return result;
}

std::string plan_table(const PlanResult& result) {
  const SearchRequest& request = result.request;
  std::string text = fmt::format("{}: sequences of {} tokens, global batch {}, {}\n", request.model.name,
                                 request.job.sequence_length, request.job.global_batch, request.job.precision);
  if (!result.batch_reason.empty()) text += "  the global batch is proposed: " + result.batch_reason + "\n";
  if (const std::string ramp = batch_ramp_text(request.job); !ramp.empty()) text += "  batch ramp: " + ramp + "\n";
  text += counts_text(request.device_counts);
  if (!result.feasible()) {
    const Infeasible& failure = *result.search.infeasible;
    text += "no feasible plan: " + failure.explanation + "\n";
    if (failure.nearest) text += "nearest: " + candidate_text(*failure.nearest, request);
    return text + why_not_text(result.search);
  }
  const Candidate& best = result.search.plans.front();
  text += candidate_text(best, request);
  if (!result.costs_note.empty()) text += "  note     " + result.costs_note + "\n";
  if (result.search.plans.size() > 1) text += "\n" + candidates_table(result.search.plans);
  const std::string frontier = frontier_table(result.search);
  if (!frontier.empty()) text += "\n" + frontier;
  return text + "\n" + why_not_text(result.search);
}

}  // namespace foresail
