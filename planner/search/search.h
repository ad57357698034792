// Which strategy to train with: every legal combination of degrees, micro-batch and recompute for the given device
// counts is refused with its reason, dropped on a bound, or compiled and played; where memory does not hold what is kept
// without recompute, so is the mix of recompute choices that fits with the least replay. The best by the objective is
// returned with its runners-up. Deterministic: it depends on the request alone, not on the speed of the machine it runs on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "planner/budget/budget.h"
#include "planner/simulator/cost_model.h"
#include "planner/simulator/simulator.h"
#include "spec/job.h"
#include "spec/machine.h"
#include "spec/plan.h"
#include "spec/strategy.h"
#include "spec/target.h"

namespace foresail {

enum class Objective : uint8_t { time, cost, throughput };
/// Throws bad_input naming --objective.
Objective objective_from_name(const std::string& name);

struct SearchRequest {
  ModelSpec model;
  Job job;  ///< sequence_length and global_batch set
  Machine machine;
  Stack stack;
  std::vector<int64_t> device_counts;  ///< ascending
  StrategyText fixed;                  ///< keys that must have this value
  int64_t memory_bytes = 0;            ///< ceiling per device; 0: what the device has
  Objective objective = Objective::time;
  double deadline_seconds = 0;  ///< 0: none; else train_seconds must not exceed it
  double budget_usd = 0;        ///< 0: none
  int64_t top = 5;              ///< plans kept, the best included
  bool prune = true;            ///< false: bounds switched off (same answer, more work)
};

/// Mean duration of the steps of a run, and its interval.
struct StepSeconds {
  double seconds = 0, low = 0, high = 0;
};

/// One strategy that was compiled and played.
struct Candidate {
  Strategy strategy;
  Prediction predicted;   ///< of a step of the job's global batch
  StepSeconds mean_step;  ///< of the run: differs where a batch ramp begins with smaller ones
  Budget budget;
  std::vector<double> stage_seconds;
  double efficiency = 0, marginal_efficiency = 0;  ///< of the best plan of its device count; 0: not defined
};

/// The best plan of one device count.
struct FrontierPoint {
  int64_t devices = 0;
  Strategy strategy;
  double step_seconds = 0, tokens_per_second_per_device = 0;
  std::optional<double> train_seconds, usd;
  double efficiency = 0;           ///< tokens/s/device against the fewest devices that fit
  double marginal_efficiency = 0;  ///< the same for the devices added since the previous point; 0 for the first
};

/// What failed and what would be nearest, when no plan is left.
struct Infeasible {
  std::string limit;                 ///< "memory", "deadline", "budget" or "legality"
  std::string explanation;           ///< one line for people
  std::optional<Candidate> nearest;  ///< the plan that misses the limit by least
};

struct SearchResult {
  std::vector<Candidate> plans;         ///< best first, at most `top`
  std::vector<FrontierPoint> frontier;  ///< by device count
  int64_t baseline_devices = 0;
  std::optional<Infeasible> infeasible;
  int64_t strategies = 0;  ///< legal ones: refused + bounded + evaluated
  int64_t evaluated = 0, bounded = 0, simulated = 0;
  int64_t mixed = 0;                       ///< recompute choices by the solver that were played, beside the strategies
  std::map<std::string, int64_t> refused;  ///< legal but over a limit, by reason
  std::map<std::string, int64_t> illegal;  ///< why-not of combinations that are no strategy at all
  double seconds = 0;                      ///< spent searching
};

/// Bytes that one of `devices` devices may use: what it has or `memory_bytes` if that is less; 0: not known.
int64_t memory_ceiling(const SearchRequest& request, int64_t devices);

/// `infeasible` says so if a fixed key contradicts every device count.
SearchResult search(const SearchRequest& request);

/// "8", "2..6" (every count between) or "2,4,8"; empty: the machine's own count. Ascending, without duplicates.
std::vector<int64_t> parse_device_counts(const std::string& text, const Machine& machine);

/// What the compiler must know about this machine under this stack when `devices` ranks run on it.
Target target_for(const Machine& machine, const Stack& stack, int64_t devices);

/// Costs of this machine with `devices` ranks active: measured tables when it is profiled, else datasheet and stack.
std::unique_ptr<CostModel> costs_for(const Machine& machine, const Stack& stack, int64_t devices);

/// Compiles and plays one legal strategy. `events`: record every played instruction in `simulation`.
struct Evaluation {
  Candidate candidate;
  std::vector<Program> programs;  ///< one per stage
  Simulation simulation;
};
Evaluation evaluate(const ModelSpec& model, const Job& job, const Machine& machine, const Stack& stack,
                    const Strategy& strategy, bool record_events);

/// A global batch for a job that states none, and why.
struct ProposedBatch {
  int64_t sequences = 0;
  std::string reason;
};
ProposedBatch propose_global_batch(const ModelSpec& model, int64_t sequence_length,
                                   const std::vector<int64_t>& device_counts);

}  // namespace foresail
