// One strategy, compiled and played.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/round_up.h"
#include "planner/search/evaluate.h"
#include "program/compile.h"
#include "spec/batch_ramp.h"

namespace foresail {

double peak_flops_per_second(const Machine& machine, const Precision& precision, int64_t devices) {
  if (machine.kind == "profiled") {
    const ProfileTable* nearest = nullptr;
    const auto away = [&](const ProfileTable& table) {
      return std::abs(std::log2(static_cast<double>(devices) / table.ranks));
    };
    for (const ProfileTable& table : machine.tables) {
      if (nearest == nullptr || away(table) < away(*nearest)) nearest = &table;
    }
    return nearest == nullptr ? 0 : nearest->peak_flops_per_second;
  }
  const auto found = machine.device.peak_flops_per_second.find(std::string(name_of(precision.activation)));
  return found == machine.device.peak_flops_per_second.end() ? 0 : found->second.value;
}

int64_t memory_per_device(const Machine& machine, int64_t devices) {
  const auto bytes = static_cast<int64_t>(machine.device.memory_bytes.value);
  if (machine.kind != "profiled") return bytes;
  // A profiled host divides its memory among the ranks that run on it, whatever number it was described for.
  const int64_t per_node = std::max<int64_t>(1, machine.devices_per_node);
  const int64_t nodes = std::max<int64_t>(1, machine.devices / per_node);
  const int64_t ranks_per_node = divide_up(devices, nodes);
  return bytes * per_node / std::max<int64_t>(1, ranks_per_node);
}

int64_t memory_ceiling(const SearchRequest& request, int64_t devices) {
  const int64_t own = memory_per_device(request.machine, devices);
  if (request.memory_bytes <= 0) return std::max<int64_t>(0, own);
  return own > 0 ? std::min(own, request.memory_bytes) : request.memory_bytes;
}

Evaluator::Evaluator(const ModelSpec& model, const Job& job, const Machine& machine, const Stack& stack,
                     int64_t devices)
    : model_(model),
      job_(job),
      machine_(machine),
      devices_(devices),
      target_(target_for(machine, stack, devices)),
      plain_costs_(costs_for(machine, stack, devices)),
      costs_(make_caching_cost_model(*plain_costs_)) {}

Program Evaluator::compile_stage(const Strategy& strategy, int stage) const {
  return compile_train(model_, job_, strategy, target_, stage);
}

namespace {

void take_larger_memory(const Prediction& other, Prediction& predicted) {
  for (size_t stage = 0; stage < predicted.peak_bytes_by_stage.size(); ++stage) {
    int64_t& peak = predicted.peak_bytes_by_stage[stage];
    peak = std::max(peak, other.peak_bytes_by_stage.at(stage));
  }
  if (other.arena_bytes <= predicted.arena_bytes) return;
  predicted.arena_bytes = other.arena_bytes;
  predicted.peak_bytes = other.peak_bytes;
  predicted.memory = other.memory;
}

}  // namespace

StepSeconds Evaluator::mean_step(const Strategy& strategy, Prediction& predicted) const {
  const StepSeconds full{predicted.step_seconds, predicted.step_seconds_low, predicted.step_seconds_high};
  const std::vector<BatchStage> stages = batch_stages(job_);
  const auto total = static_cast<double>(steps_of(job_));
  StepSeconds mean;
  const auto add = [&](const StepSeconds& step, int64_t steps) {
    const double share = static_cast<double>(steps) / total;
    mean.seconds += share * step.seconds;
    mean.low += share * step.low;
    mean.high += share * step.high;
  };
  SimulationOptions options;
  options.devices_per_node = machine_.devices_per_node;
  for (size_t ramp = 0; ramp < job_.batch_ramp.size(); ++ramp) {
    std::vector<Program> programs;
    for (int stage = 0; stage < strategy.pp; ++stage) {
      programs.push_back(compile_ramp_stage(model_, job_, strategy, target_, stage, ramp));
    }
    take_larger_memory(memory_prediction(programs, target_), predicted);
    if (total == 0 || stages.at(ramp).steps == 0) continue;
    const Simulation played = simulate(programs, *costs_, options);
    add({played.step_seconds, played.low, played.high}, stages.at(ramp).steps);
  }
  if (job_.batch_ramp.empty() || total == 0) return full;
  add(full, stages.back().steps);
  return mean;
}

/// A run also lays out the Program that repeats a step whose rows for experts found no room. How often that happens is
/// not known beforehand: it costs memory here, time only in a run.
void Evaluator::add_fallback(const Strategy& strategy, Prediction& predicted) const {
  if (!can_overflow(model_, job_.sequence_length, strategy)) return;
  std::vector<Program> programs;
  for (int stage = 0; stage < strategy.pp; ++stage) {
    programs.push_back(compile_fallback(model_, job_, strategy, target_, stage, job_.global_batch));
  }
  take_larger_memory(memory_prediction(programs, target_), predicted);
}

Candidate Evaluator::play(const Strategy& strategy, std::span<const Program> stages, bool record_events,
                          Simulation* simulation) const {
  Candidate candidate;
  candidate.strategy = strategy;
  Prediction& predicted = candidate.predicted;
  predicted = memory_prediction(stages, target_);
  SimulationOptions options;
  options.record_events = record_events;
  options.devices_per_node = machine_.devices_per_node;
  Simulation played = simulate(stages, *costs_, options);
  predicted.step_seconds = played.step_seconds;
  predicted.step_seconds_low = played.low;
  predicted.step_seconds_high = played.high;
  predicted.time = played.time;
  predicted.calibrated = costs_->calibrated();
  candidate.stage_seconds = played.stage_seconds;
  const double peak = peak_flops_per_second(machine_, precision_of(job_), devices_);
  fill_rates(stages, strategy.devices(), peak, predicted);
  candidate.mean_step = mean_step(strategy, predicted);
  add_fallback(strategy, predicted);
  candidate.budget = budget_for(candidate.mean_step);
  if (simulation != nullptr) *simulation = std::move(played);
  return candidate;
}

Budget Evaluator::budget_for(const StepSeconds& mean) const {
  BudgetInputs inputs;
  inputs.step_seconds = mean.seconds;
  inputs.step_seconds_low = mean.low;
  inputs.step_seconds_high = mean.high;
  inputs.steps = steps_of(job_);
  inputs.devices = devices_;
  inputs.checkpoint_bytes = checkpoint_bytes_of(model_, precision_of(job_));
  inputs.dataset_bytes = job_.dataset_bytes;
  inputs.checkpoints_kept = job_.checkpoints_kept;
  inputs.usd_per_device_hour =
      job_.usd_per_device_hour > 0 ? job_.usd_per_device_hour : machine_.usd_per_device_hour.value;
  return budget_of(inputs, machine_);
}

Evaluation evaluate(const ModelSpec& model, const Job& job, const Machine& machine, const Stack& stack,
                    const Strategy& strategy, bool record_events) {
  const Evaluator evaluator(model, job, machine, stack, strategy.devices());
  Evaluation result;
  for (int stage = 0; stage < strategy.pp; ++stage) result.programs.push_back(evaluator.compile_stage(strategy, stage));
  result.candidate = evaluator.play(strategy, result.programs, record_events, &result.simulation);
  return result;
}

}  // namespace foresail
