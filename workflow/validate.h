// `foresail validate RUNS.csv`: predictions for measured runs, published or the user's own, and how far off they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "spec/strategy.h"

namespace foresail {

struct ValidateOptions {
  std::filesystem::path runs;  ///< CSV with the columns of docs/planning.md
  std::string machine;         ///< --machine; empty: by the row's `gpu` and memory
  std::string stack;           ///< --stack; empty: by the row's `stack`
};

/// One row of the file with what was predicted for it.
struct ValidatedRow {
  std::string id;
  std::string refused;  ///< why it was not used; empty: used
  std::string stack, machine;
  std::string group;  ///< equal model, devices and global batch
  Strategy strategy;
  std::map<std::string, std::string> assumed;  ///< field -> "stack", "planner" or "default"
  double measured_seconds = 0, predicted_seconds = 0, low = 0, high = 0;
  std::optional<double> measured_peak_bytes;
  double predicted_peak_bytes = 0;
  bool called_infeasible = false;  ///< it ran, but our prediction exceeds the device's memory
};

/// Errors over the used rows of one stack; all fractions.
struct ValidatedSource {
  std::string stack;
  int64_t rows = 0, used = 0;
  int64_t default_stack = 0;  ///< rows that name no stack
  std::map<std::string, int64_t> refused;
  std::optional<double> mape, median_ape, p90_ape, max_ape, bias;
  int64_t groups = 0;  ///< of two or more used rows
  std::optional<double> spearman_mean, regret_mean, regret_max, memory_mape;
  int64_t feasible_called_infeasible = 0;
  int64_t stated_plans = 0;  ///< used rows that state their whole plan
  std::optional<double> stated_plan_mape;
  std::optional<double> interval_coverage, interval_width;
};

struct ValidateResult {
  std::vector<ValidatedSource> sources;
  std::vector<ValidatedRow> rows;
  bool usable() const;  ///< some row was used; else exit code 1
};

/// Throws bad_input naming file, row and column for a file that cannot be read.
ValidateResult validate(const ValidateOptions& options);
std::string validate_result_to_json(const ValidateResult& result);
std::string validate_table(const ValidateResult& result);

}  // namespace foresail
