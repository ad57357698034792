// One measured quantity against its prediction: what `stress` checks and `report` repeats for a finished run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spec/plan.h"

namespace foresail {

struct StressCheck {
  std::string name;
  std::optional<double> predicted, measured;
  std::string unit;
  bool passed = false;
  std::string why;
  std::string label = {};  ///< how tables call it; empty: by its name
};

/// Inside 2.5 half-widths of the 80 % interval around the prediction (about 99.9 % if the interval is right).
StressCheck judge_step_seconds(const Prediction& predicted, double measured);
/// The allocated arena equals the predicted one to the byte.
StressCheck judge_arena(const Prediction& predicted, int64_t measured);
/// The resident set of the rank that holds most: within 5 % for arenas of 512 MiB and more, within 32 MiB below.
StressCheck judge_resident(const Prediction& predicted, double measured);

/// If only the step time failed, its `why` also names the likely cause: other work on the machine.
void explain_lone_step_failure(std::vector<StressCheck>& checks);

bool all_passed(const std::vector<StressCheck>& checks);
/// Predicted and measured side by side, one line per check, for people.
std::string checks_table(const std::vector<StressCheck>& checks);
/// A JSON array, as text.
std::string checks_to_json(const std::vector<StressCheck>& checks);

double median_of(std::vector<double> values);  ///< 0 if there are none

}  // namespace foresail
