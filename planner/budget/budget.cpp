#include "planner/budget/budget.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace foresail {
namespace {

constexpr double kSecondsPerDay = 86400;
constexpr double kSecondsPerHour = 3600;
constexpr double kJoulesPerKwh = 3.6e6;

// Between a failure and the first new step, beside reading the checkpoint: detect 60 s, reschedule 60 s, restart 180 s
// (reference values of harvard-edge/cs249r_book, mlsysim/systems/reliability.py).
constexpr double kRecoverySeconds = 60 + 60 + 180;

/// Principal branch of Lambert's W on [-1/e, 0]: w e^w = x, w >= -1. Halley's iteration from the series around the
/// branch point (Corless et al. 1996, equations 4.22 and 5.9).
double lambert_w0(double x) {
  const double p = std::sqrt(std::max(0.0, 2 * (std::exp(1.0) * x + 1)));
  double w = -1 + p - p * p / 3 + 11.0 / 72 * p * p * p;
  for (int i = 0; i < 50; ++i) {
    const double e = std::exp(w);
    const double f = w * e - x;
    if (w <= -1 + 1e-12) break;
    const double step = f / (e * (w + 1) - (w + 2) * f / (2 * w + 2));
    w -= step;
    if (std::abs(step) <= 1e-14 * (1 + std::abs(w))) break;
  }
  return w;
}

/// What failures and checkpoints make of the useful seconds.
struct Reliability {
  double mean_seconds_between_failures = 0, checkpoint_seconds = 0, restart_seconds = 0, interval_seconds = 0,
         goodput = 1;
};

std::optional<Reliability> reliability_of(const BudgetInputs& inputs, const Machine& machine) {
  const double rate = machine.failures_per_device_day.value;
  const double write = machine.disk_write_bytes_per_second.value;
  if (rate <= 0 || write <= 0 || inputs.checkpoint_bytes <= 0) return std::nullopt;
  const double read = machine.disk_read_bytes_per_second.value > 0 ? machine.disk_read_bytes_per_second.value : write;
  Reliability result;
  result.mean_seconds_between_failures = kSecondsPerDay / (rate * static_cast<double>(inputs.devices));
  result.checkpoint_seconds = static_cast<double>(inputs.checkpoint_bytes) / write;
  result.restart_seconds = kRecoverySeconds + static_cast<double>(inputs.checkpoint_bytes) / read;
  result.interval_seconds = best_interval_seconds(result.checkpoint_seconds, result.mean_seconds_between_failures);
  result.goodput = goodput_at(result.interval_seconds, result.checkpoint_seconds, result.restart_seconds,
                              result.mean_seconds_between_failures);
  return result;
}

/// Mean seconds of work lost by a failure: E[elapsed | failure within one interval + checkpoint] of an exponential.
double lost_seconds(const Reliability& r) {
  const double span = r.interval_seconds + r.checkpoint_seconds;
  const double m = r.mean_seconds_between_failures;
  return m - span / std::expm1(span / m);
}

void add_money(const BudgetInputs& inputs, double useful_seconds, const std::optional<Reliability>& reliability,
               Budget& budget) {
  if (inputs.usd_per_device_hour <= 0) return;
  const double usd_per_second = inputs.usd_per_device_hour * static_cast<double>(inputs.devices) / kSecondsPerHour;
  const double usd = *budget.train_seconds * usd_per_second;
  budget.usd = usd;
  budget.usd_low = usd * inputs.step_seconds_low / inputs.step_seconds;
  budget.usd_high = usd * inputs.step_seconds_high / inputs.step_seconds;
  budget.usd_by_cause["compute"] = useful_seconds * usd_per_second;
  if (!reliability) return;
  const double checkpoints = useful_seconds / reliability->interval_seconds * reliability->checkpoint_seconds;
  budget.usd_by_cause["checkpoints"] = checkpoints * usd_per_second;
  budget.usd_by_cause["failures"] = usd - (useful_seconds + checkpoints) * usd_per_second;
}

}  // namespace

double young_interval_seconds(double checkpoint_seconds, double mean_seconds_between_failures) {
  return std::sqrt(2 * checkpoint_seconds * mean_seconds_between_failures);
}

double daly_interval_seconds(double checkpoint_seconds, double mean_seconds_between_failures) {
  const double c = checkpoint_seconds, m = mean_seconds_between_failures;
  if (c >= 2 * m) return m;
  const double ratio = c / (2 * m);
  return std::sqrt(2 * c * m) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - c;
}

double best_interval_seconds(double checkpoint_seconds, double mean_seconds_between_failures) {
  const double c = checkpoint_seconds, m = mean_seconds_between_failures;
  ensure(c > 0 && m > 0, "a checkpoint takes time and failures have a mean time");
  return m * (1 + lambert_w0(-std::exp(-1 - c / m)));
}

double goodput_at(double interval_seconds, double checkpoint_seconds, double restart_seconds,
                  double mean_seconds_between_failures) {
  const double m = mean_seconds_between_failures;
  return interval_seconds /
         (m * std::exp(restart_seconds / m) * std::expm1((interval_seconds + checkpoint_seconds) / m));
}

Budget budget_of(const BudgetInputs& inputs, const Machine& machine) {
  Budget budget;
  if (inputs.checkpoint_bytes > 0) budget.checkpoint_bytes = inputs.checkpoint_bytes;
  if (machine.device.watts.value > 0) {
    budget.peak_watts = machine.device.watts.value * static_cast<double>(inputs.devices);
  }
  if (inputs.checkpoint_bytes > 0 && inputs.dataset_bytes > 0) {
    budget.storage_bytes =
        inputs.dataset_bytes + std::max<int64_t>(1, inputs.checkpoints_kept) * inputs.checkpoint_bytes;
  }
  const auto reliability = reliability_of(inputs, machine);
  if (reliability) {
    budget.goodput = reliability->goodput;
    budget.checkpoint_interval_seconds = reliability->interval_seconds;
    budget.expected_lost_seconds_per_failure = lost_seconds(*reliability);
  }
  if (inputs.steps <= 0) return budget;
  const double useful_seconds = inputs.step_seconds * static_cast<double>(inputs.steps);
  budget.train_seconds = reliability ? useful_seconds / reliability->goodput : useful_seconds;
  budget.device_hours = *budget.train_seconds * static_cast<double>(inputs.devices) / kSecondsPerHour;
  if (machine.failures_per_device_day.value > 0) {
    budget.expected_failures = *budget.train_seconds / kSecondsPerDay * machine.failures_per_device_day.value *
                               static_cast<double>(inputs.devices);
  }
  if (budget.peak_watts) budget.energy_kwh = *budget.train_seconds * *budget.peak_watts / kJoulesPerKwh;
  add_money(inputs, useful_seconds, reliability, budget);
  return budget;
}

int64_t checkpoint_bytes_of(const ModelSpec& model, const Precision& precision) {
  const int64_t per_parameter =
      size_of(precision.parameter) + (precision.master_copy ? size_of(DType::f32) : 0) + 2 * size_of(precision.moment);
  return parameter_count(model) * per_parameter;
}

}  // namespace foresail
