// Everything of one device count that candidates share: target, costs, what memory there is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "planner/search/search.h"

namespace foresail {

class Evaluator {
 public:
  /// All references must outlive the evaluator.
  Evaluator(const ModelSpec& model, const Job& job, const Machine& machine, const Stack& stack, int64_t devices);

  const Target& target() const { return target_; }
  const CostModel& costs() const { return *costs_; }
  Program compile_stage(const Strategy& strategy, int stage) const;
  /// `stages` are the strategy's Programs in order; `simulation`, if not null, receives the played step.
  Candidate play(const Strategy& strategy, std::span<const Program> stages, bool record_events,
                 Simulation* simulation) const;
  Budget budget_for(const StepSeconds& mean) const;

 private:
  /// Over the run: the smaller steps of a batch ramp are compiled and played too. What one of them needs beyond the full
  /// step's memory goes into `predicted`.
  StepSeconds mean_step(const Strategy& strategy, Prediction& predicted) const;
  void add_fallback(const Strategy& strategy, Prediction& predicted) const;

  const ModelSpec& model_;
  const Job& job_;
  const Machine& machine_;
  int64_t devices_;
  Target target_;
  std::unique_ptr<CostModel> plain_costs_, costs_;
};

/// Datasheet peak of the activations' element type, or the best measured product of a profiled machine; 0: unknown.
double peak_flops_per_second(const Machine& machine, const Precision& precision, int64_t devices);

/// What one of `devices` ranks may use; 0: unknown.
int64_t memory_per_device(const Machine& machine, int64_t devices);

}  // namespace foresail
