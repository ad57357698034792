// What a training run costs in time, devices, money and energy once its step time is known, failures included.
// Everything that depends on an input nobody gave stays empty: an unknown price is not a price of zero.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "models/model_spec.h"
#include "spec/job.h"
#include "spec/machine.h"
#include "spec/plan.h"

namespace foresail {

/// Young (1974): sqrt(2 C M), the first-order best work time between checkpoints that block for C seconds under
/// exponential failures with mean time M.
double young_interval_seconds(double checkpoint_seconds, double mean_seconds_between_failures);

/// Daly (2006), equation 37: Young's interval with two higher-order terms; M when C >= 2 M.
double daly_interval_seconds(double checkpoint_seconds, double mean_seconds_between_failures);

/// The work time t that maximises `goodput_at`: M (1 + W0(-exp(-1 - C / M))), the root of d/dt of Daly (2006) equation
/// 20.
double best_interval_seconds(double checkpoint_seconds, double mean_seconds_between_failures);

/// Share of wall time that becomes kept work: t / (M e^(R/M) (e^((t+C)/M) - 1)), Daly (2006) equation 20 solved for the
/// ratio of work to wall time. Not above 1 for positive arguments.
double goodput_at(double interval_seconds, double checkpoint_seconds, double restart_seconds,
                  double mean_seconds_between_failures);

/// The `budget` object of `plan --json`.
struct Budget {
  std::optional<double> train_seconds, device_hours, usd, usd_low, usd_high;
  std::map<std::string, double> usd_by_cause;  ///< "compute", "checkpoints", "failures"; sums to usd; empty: unknown
  std::optional<double> energy_kwh, goodput, expected_failures, checkpoint_interval_seconds;
  std::optional<double> expected_lost_seconds_per_failure;
  std::optional<int64_t> checkpoint_bytes;
  std::optional<double> peak_watts;
  std::optional<int64_t> storage_bytes;
};

struct BudgetInputs {
  double step_seconds = 0, step_seconds_low = 0, step_seconds_high = 0;  ///< mean over the run: a batch ramp's differ
  int64_t steps = 0;                                                     ///< of the whole run; 0: unknown
  int64_t devices = 1;
  int64_t checkpoint_bytes = 0;  ///< 0: unknown
  int64_t dataset_bytes = 0;     ///< 0: unknown
  int64_t checkpoints_kept = 0;
  double usd_per_device_hour = 0;  ///< 0: unknown
};

Budget budget_of(const BudgetInputs& inputs, const Machine& machine);

/// Parameters, fp32 master copy (if any) and both moments of the whole model.
int64_t checkpoint_bytes_of(const ModelSpec& model, const Precision& precision);

}  // namespace foresail
