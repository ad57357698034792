// `foresail report RUN`: what a run was predicted to cost and what it did cost, from its folder alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "spec/plan.h"
#include "workflow/judge.h"

namespace foresail {

struct ReportResult {
  std::string run;
  Plan plan;
  int64_t steps = 0, tokens = 0, skipped_steps = 0;
  double first_loss = 0, loss = 0;
  std::optional<double> validation_loss;
  double step_seconds_median = 0, tokens_per_second = 0;  ///< of the steps as large as the last one (batch ramp)
  std::optional<double> mfu;                              ///< of the median step
  std::vector<StressCheck> checks;
  bool passed() const { return all_passed(checks); }
};

/// Throws bad_input if the folder holds no plan or no finished step.
ReportResult report(const std::filesystem::path& run);
std::string report_table(const ReportResult& result);
/// One JSON document.
std::string report_to_json(const ReportResult& result);

}  // namespace foresail
