// One row of a table of measured runs, read into our words: model, job, strategy, time. What a row does not say is
// assumed from its stack or left to the planner; what we cannot price is refused with a reason.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "spec/job.h"
#include "spec/machine.h"
#include "spec/strategy.h"
#include "workflow/csv.h"

namespace foresail {

struct MeasuredRun {
  std::string id, refused;  ///< refused: empty if it can be priced
  std::string stack_name, machine_name;
  Machine machine;
  Stack stack;
  ModelSpec model;
  Job job;
  int64_t devices = 0;
  StrategyText stated;                         ///< keys that the row states or its stack fixes
  std::vector<std::string> open;               ///< keys that the planner must choose
  std::map<std::string, std::string> assumed;  ///< field -> "stack", "planner" or "default"
  double seconds = 0;                          ///< measured
  std::optional<double> peak_bytes;            ///< measured
};

/// `machine` and `stack` override what the row says, if not empty. Throws bad_input on a field that is no number.
MeasuredRun read_run(const CsvRow& row, const std::string& machine, const std::string& stack);

/// FLOPs of one training step of a GPT with full recompute as the hardware runs them: 96 B s l h^2 (1 + s/6h + V/16lh)
/// (Narayanan et al. 2021, equation 3); without recompute 72 B s l h^2 (1 + s/6h + V/12lh) (Korthikanti et al. 2022,
/// appendix A). Published TFLOP/s figures were divided by one of the two.
double gpt_hardware_flops(const ModelSpec& model, double sequences, double sequence_length);
double gpt_model_flops(const ModelSpec& model, double sequences, double sequence_length);

}  // namespace foresail
