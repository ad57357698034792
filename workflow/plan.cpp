#include "workflow/plan.h"

#include <fmt/format.h>

#include <cmath>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"
#include "core/version.h"
#include "planner/explain/explain.h"
#include "program/check.h"
#include "workflow/request.h"
#include "workflow/workspace.h"

namespace foresail {
namespace {

constexpr double kSecondsPerDay = 86400;
constexpr int64_t kMostKept = 1000;

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
  list_workspace(result.request);
  const SearchRequest& request = result.request;
  result.search = search(request);
  if (!result.feasible()) return result;
  const Candidate& best = result.search.plans.front();
  const Evaluation evaluation =
      evaluate(request.model, request.job, request.machine, request.stack, best.strategy, !options.trace.empty());
  refuse_defects(evaluation.programs);
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
  if (!result.feasible()) {
    const Infeasible& failure = *result.search.infeasible;
    text += "no feasible plan: " + failure.explanation + "\n";
    if (failure.nearest) text += "nearest: " + candidate_text(*failure.nearest, request.machine);
    return text + why_not_text(result.search);
  }
  const Candidate& best = result.search.plans.front();
  text += candidate_text(best, request.machine);
  const std::string note = costs_for(request.machine, request.stack, best.strategy.devices())->note();
  if (!note.empty()) text += "  note     " + note + "\n";
  if (result.search.plans.size() > 1) text += "\n" + candidates_table(result.search.plans);
  const std::string frontier = frontier_table(result.search);
  if (!frontier.empty()) text += "\n" + frontier;
  return text + "\n" + why_not_text(result.search);
}

}  // namespace foresail
